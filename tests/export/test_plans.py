"""Exported plans obey WebGPU's rules, of which wgpu checks only some: every family and variant, without a browser."""

import itertools
import re
import shutil
import subprocess

import pytest

from rwkv_gpu.export.plans import SUBGROUPS, record
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_generator
from tests.export.following import FAMILIES
from tests.golden_files import golden

MAX_LANES = 256  # lanes of a workgroup, by default
MAX_STORAGE = 8  # storage buffers of a shader


@pytest.fixture(scope="module")
def recorded():
    found = {}
    for family in FAMILIES:
        with GGUFFile.open(golden(f"tiny-{family}.gguf")) as file:
            found[family] = record(file, load_generator(file))
    return found


def dispatches(one):
    for variant in one.variants:
        for plan in variant["plans"]:
            for shader, grid, bound in plan["dispatches"]:
                yield variant, one.shaders[shader], grid, bound


def test_no_dispatch_writes_to_a_binding_that_overlaps_another(recorded):
    for family, one in recorded.items():
        for _, shader, _, bound in dispatches(one):
            access = dict(shader["bindings"])
            for (n, buffer, start, size), (m, other, begin, length) in itertools.combinations(bound, 2):
                apart = buffer != other or start + size <= begin or begin + length <= start
                assert apart or "read_write" not in (access[n], access[m]), (family, shader["name"], n, m)


def test_shaders_keep_to_the_limits_and_enable_the_features_they_use(recorded):
    for family, one in recorded.items():
        assert [variant["subgroup"] for variant in one.variants] == sorted(SUBGROUPS, reverse=True)
        for variant, shader, grid, bound in dispatches(one):
            source = shader["source"]
            assert max(grid) <= 65535
            assert sum(access != "uniform" for _, access in shader["bindings"]) <= MAX_STORAGE, shader["name"]
            assert {n for n, *_ in bound} == {n for n, _ in shader["bindings"]}
            [lanes] = re.findall(r"@workgroup_size\(([^)]*)\)", source)
            names = [name.strip() for name in lanes.split(",") if name.strip()]
            assert all(number(source, name) <= MAX_LANES for name in names), (family, shader["name"])
            assert source.startswith("enable subgroups;") == bool(re.search(r"\bsubgroup[A-Z]\w*\(", source))
            assert not source.startswith("enable subgroups;") or "subgroups" in variant["features"]
        assert one.variants[-1]["features"] == [], "the last variant runs on every device"


def number(source: str, name: str) -> int:
    if name.isdigit():
        return int(name)
    [value] = re.findall(rf"^const {name} = (\d+)u?;", source, re.MULTILINE)
    return int(value)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tint") is None, reason="Tint is not installed")
def test_the_shader_compiler_of_browsers_accepts_every_shader(recorded, tmp_path):
    for source in {shader["source"]: 0 for one in recorded.values() for shader in one.shaders}:
        (tmp_path / "shader.wgsl").write_text(source)
        command = ["tint", "--format", "wgsl", "-o", str(tmp_path / "out.wgsl"), str(tmp_path / "shader.wgsl")]
        assert subprocess.run(command, capture_output=True, text=True).returncode == 0, source[:2000]
