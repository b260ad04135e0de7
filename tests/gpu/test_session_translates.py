"""All shaders compiled in the test session are valid for Metal and DX12. This file runs last (see conftest.py)."""

import numpy as np
import pytest

from tests.gpu.test_translate import needs_naga, of_each_size, one_of_each, translate
from tests.recording import record, tunings
from tests.toy import toy, toy_weights


@needs_naga
@pytest.mark.last
def test_every_shader_of_the_session_translates(request, device, compiled, tmp_path):
    """Checks all shaders that earlier tests compiled, and at least the toy model in every tuning."""
    for tuning in tunings(device).values():
        record(device, toy, toy_weights(), {"ids": np.zeros(4, np.uint32)}, 4, tuning)
    sources = set(compiled) if of_each_size(request) else one_of_each(compiled.values())
    compiled.clear()
    assert len(sources) > 10
    assert translate(tmp_path, sources) == []
