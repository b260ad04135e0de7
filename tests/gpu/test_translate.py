"""Every linked shader is also valid for Metal and DX12: naga translates it, as wgpu does there."""

import itertools
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gpu.shader import link
from rwkv_gpu.ops.vocabulary import NUMBERS
from tests.recording import record, tunings
from tests.toy import toy, toy_weights

NAGA = shutil.which("naga")


needs_naga = pytest.mark.skipif(NAGA is None, reason="no `naga` command on the path (cargo install naga-cli)")


def untranslated(folder: Path, number: int, source: str) -> str:
    """What naga has against a shader in MSL or HLSL; nothing, where it takes it."""
    shader, metal, hlsl = (folder / f"{number}.{ending}" for ending in ("wgsl", "metal", "hlsl"))
    shader.write_text(source)
    command = [NAGA, "--metal-version", "3.0", "--shader-model", "62", shader, metal, hlsl]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 and metal.exists() and hlsl.exists() else f"{done.stderr}\n{source}"


@needs_naga
@pytest.mark.last
def test_every_shader_of_the_session_translates(device, compiled, tmp_path):
    """All that the tests before this one compiled, and at least the toy in every tuning."""
    for tuning in tunings(device).values():
        record(device, toy, toy_weights(), {"ids": np.zeros(4, np.uint32)}, 4, tuning)
    sources = sorted(compiled)
    compiled.clear()
    assert len(sources) > 10
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        told = pool.map(untranslated, itertools.repeat(tmp_path), itertools.count(), sources)
    assert not list(filter(None, told))


@needs_naga
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
