"""Every linked shader is also valid for Metal and DX12, because naga translates it, as in wgpu."""

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rwkv_gpu.engine.fit import fit
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.liveness import Lifetime
from rwkv_gpu.gpu.shader import Linked
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops import build
from rwkv_gpu.ops.dispatch import UnplacedDispatch, lifetimes
from rwkv_gpu.ops.values import Value
from tests.golden_files import OWN
from tests.ops.matrix_plans import WITH_MATRIX_UNITS

NAGA = shutil.which("naga")
ON_MATRIX_UNITS = "coopLoad"  # functions of such kernels; naga writes them for Vulkan only
needs_naga = pytest.mark.skipif(NAGA is None, reason="no `naga` command on the path (cargo install naga-cli)")


def of_each_size(request: pytest.FixtureRequest) -> bool:
    """True if all shaders are translated; otherwise one of those that differ only in constants."""
    return request.config.getoption("--slow")


def one_of_each(every: Iterable[Linked]) -> set[str]:
    """Returns one shader for each choice of parts and constants, whatever the values of the constants."""
    found: dict[object, str] = {}
    for linked in every:
        prelude, *parts = linked.origins
        declared = "".join(linked.source.splitlines(keepends=True)[: len(prelude.numbers)])
        found.setdefault((tuple(parts), re.sub(r"\d+", "", declared)), linked.source)
    return set(found.values())


def untranslated(folder: Path, number: int, source: str) -> str:
    """Returns naga's error about a shader in MSL or HLSL; empty if it is valid."""
    shader, metal, hlsl = (folder / f"{number}.{ending}" for ending in ("wgsl", "metal", "hlsl"))
    shader.write_text(source)
    command = [NAGA, "--metal-version", "3.0", "--shader-model", "62", shader, metal, hlsl]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 and metal.exists() and hlsl.exists() else f"{done.stderr}\n{source}"


def translate(folder: Path, sources: Collection[str]) -> list[str]:
    """Returns naga's errors about all shaders."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        told = pool.map(untranslated, itertools.repeat(folder), itertools.count(), sorted(sources))
        return list(filter(None, told))


@needs_naga
@pytest.mark.parametrize("subgroup", [0, 32])
def test_every_shader_for_a_gpu_translates(request, fast_device, subgroup, tmp_path, monkeypatch):
    """The plans of every architecture are linked for some step sizes, for GPUs with such subgroups."""
    can = replace(
        fast_device.capabilities, software=False, subgroup=subgroup > 0, subgroup_size=subgroup,
        subgroup_width=max(1, subgroup),
        max_workgroup_memory=48 << 10, max_invocations=1024,
    )  # fmt: skip
    every: dict[str, Linked] = {}

    def noted(steps: Sequence[UnplacedDispatch], outputs: Iterable[Value]) -> dict[Value, Lifetime]:
        every.update((step.linked.source, step.linked) for step in steps)
        return lifetimes(steps, outputs)

    monkeypatch.setattr(build, "lifetimes", noted)
    monkeypatch.setattr(fast_device, "capabilities", can)
    for number, path in enumerate(sorted(OWN.glob("*.gguf"))):
        with GGUFFile.open(path) as file:
            model = load_model(file)
            in_turns = ((1, 512), (4, 8))[number % 2]  # a family has several models
            for rows in (1, 2, 4, 8, 64, 512) if of_each_size(request) else in_turns:
                fit(fast_device, file, model, chunk_size=rows, slots=4)
    sources = set(every) if of_each_size(request) else one_of_each(every.values())
    assert len(sources) > 50
    assert translate(tmp_path, sources) == []


@needs_naga
def test_kernels_on_matrix_units_are_valid(fast_device, tmp_path, monkeypatch):
    """Few devices support them, so elsewhere only naga's check is available."""
    sources: set[str] = set()

    def noted(steps: Sequence[UnplacedDispatch], outputs: Iterable[Value]) -> dict[Value, Lifetime]:
        sources.update(step.linked.source for step in steps if ON_MATRIX_UNITS in step.linked.source)
        return lifetimes(steps, outputs)

    monkeypatch.setattr(build, "lifetimes", noted)
    monkeypatch.setattr(fast_device, "capabilities", WITH_MATRIX_UNITS)
    for path in OWN.glob("*.gguf"):
        with GGUFFile.open(path) as file:
            fit(fast_device, file, load_model(file), chunk_size=512, slots=4)
    assert sources
    assert invalid(tmp_path, sources) == []


def invalid(folder: Path, sources: Iterable[str]) -> list[str]:
    """Returns naga's errors about these shaders in SPIR-V."""
    found = []
    for source in sorted(sources):
        shader = folder / "matrix.wgsl"
        shader.write_text(source)
        done = subprocess.run([NAGA, shader, folder / "matrix.spv"], capture_output=True, text=True, check=False)
        found += [done.stderr] if done.returncode else []
    return found
