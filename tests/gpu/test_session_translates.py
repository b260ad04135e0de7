"""What the tests of a session compiled is valid for Metal and DX12, too. This file comes last: see conftest.py."""

import numpy as np
import pytest

from tests.gpu.test_translate import needs_naga, of_each_size, one_of_each, translate
from tests.recording import record, tunings
from tests.toy import toy, toy_weights


@needs_naga
@pytest.mark.last
def test_every_shader_of_the_session_translates(request, device, compiled, tmp_path):
    """All that the tests before this one compiled, and at least the toy in every tuning."""
    for tuning in tunings(device).values():
        record(device, toy, toy_weights(), {"ids": np.zeros(4, np.uint32)}, 4, tuning)
    sources = set(compiled) if of_each_size(request) else one_of_each(compiled.values())
    compiled.clear()
    assert len(sources) > 10
    assert translate(tmp_path, sources) == []
