"""Every linked shader is also valid for Metal and DX12: naga translates it, as wgpu does there."""

import itertools
import shutil
import subprocess

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gpu.shader import link
from rwkv_gpu.ops.vocabulary import NUMBERS
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


@pytest.mark.skipif(NAGA is None, reason="no `naga` command on the path (cargo install naga-cli)")
def test_the_matrix_unit_kernel_is_valid(tmp_path):
    """Few devices let it through, so that naga's word is what there is everywhere else."""
    for fmt, out in itertools.product(("Q4_K", "Q6_K", "F16"), ("rows", "pairs")):
        [parts] = [f.parts for f in FORMATS.values() if f.name == fmt]
        extra = ["bias/none", "residual/none"] if out == "rows" else []
        parts = [*parts, f"out/{out}", "matrix", "activation", "lanes/plain", "x/vec4", *extra, "step"]
        shader = tmp_path / "coop.wgsl"
        shader.write_text(link("linear_coop", parts, {"WG": 128, "R": 64, "TB": 64, "PADDED": 0} | NUMBERS).source)
        done = subprocess.run([NAGA, shader, tmp_path / "coop.spv"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
