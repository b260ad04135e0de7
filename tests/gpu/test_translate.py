"""Every linked shader is also valid for Metal and DX12: naga translates it, as wgpu does there."""

import shutil
import subprocess

import numpy as np
import pytest

from tests.recording import record, tunings
from tests.toy import toy, toy_weights

NAGA = shutil.which("naga")


@pytest.fixture(scope="module")
def linked_sources(device) -> list[str]:
    """All shaders that this device was given so far, and at least those of the toy in every tuning."""
    for tuning in tunings(device).values():
        record(device, toy, toy_weights(), {"ids": np.zeros(4, np.uint32)}, 4, tuning)
    return [source for source in device.pipelines.sources() if "@compute" in source]


@pytest.mark.skipif(NAGA is None, reason="no `naga` command on the path (cargo install naga-cli)")
@pytest.mark.parametrize(
    ("ending", "arguments"), [("metal", ["--metal-version", "3.0"]), ("hlsl", ["--shader-model", "62"])]
)
def test_every_shader_translates(linked_sources, ending, arguments, tmp_path):
    for number, source in enumerate(linked_sources):
        shader = tmp_path / f"{number}.wgsl"
        shader.write_text(source)
        command = [NAGA, *arguments, shader, tmp_path / f"{number}.{ending}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{source}"
