"""The defaults for a device without tuning results."""

import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from importlib import resources

import pytest

from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.profiles import TABLES, rows_of, typed
from rwkv_gpu.kernels.tuned import runs
from rwkv_gpu.kernels.tuning import GROUPS

PROFILES = [path for path in resources.files("rwkv_gpu.profiles").iterdir() if path.name.endswith(".toml")]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.name)
def test_every_value_of_a_profile_has_a_name_and_a_type_of_its_group(profile):
    data = tomllib.loads(profile.read_text(encoding="utf-8"))
    assert data.keys() <= {"base", *GROUPS, *TABLES}
    for group, cls in GROUPS.items():
        typed(cls, asdict(getattr(default_tuning(LIMITS["default"]), group)) | data.get(group, {}))
    for table in TABLES:
        assert all([*rows_of(block, table)] for block in data.get(table, ()))


def test_a_profile_is_read_when_a_device_is_tuned_and_not_before():
    code = "import sys, rwkv_gpu.cli.main; sys.exit('rwkv_gpu.kernels.profiles' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tuning_rows_that_a_device_cannot_run_are_skipped():
    can = LIMITS["h200"]
    small = default_tuning(replace(can, max_invocations=256, max_workgroup_memory=16 << 10))
    assert runs(small, replace(can, max_invocations=256, max_workgroup_memory=16 << 10))
    configs = [tuning.gemm_config(1, out=1 << 16, width=8192, packed=True) for tuning in (default_tuning(can), small)]
    assert [config.wg for config in configs] == [512, 256]


@pytest.mark.parametrize(
    ("rows", "out", "width", "kernel"),
    [
        (4, 14336, 4096, "skinny_gemm"),
        (5, 14336, 4096, "line_gemm"),
        (8, 2560, 10240, "skinny_gemm"),  # RWKV-7 2.9B lost a fifth by matrix units
        (16, 512, 2048, "skinny_gemm"),
        (16, 3072, 1024, "skinny_gemm"),  # Qwen3 0.6B lost a fifth by matrix units
        (32, 3072, 1024, "subgroup_gemm"),
        (16, 2560, 10240, "subgroup_gemm"),
        (16, 28672, 2560, "subgroup_gemm"),
        (32, 512, 2048, "subgroup_gemm"),
        (16, 28672, 4096, "line_gemm"),
        (32, 4096, 14336, "line_gemm"),
        (64, 28672, 4096, "line_gemm"),
        (64, 2560, 10240, "line_gemm"),
        (128, 10240, 2560, "gemm_matrix"),
        (128, 28672, 4096, "gemm_matrix"),
        (512, 2560, 2560, "gemm_matrix"),
    ],
)
def test_matrix_units_serve_batches_where_they_gain(rows, out, width, kernel):
    can = replace(LIMITS["h200"], fragment=16)
    config = default_tuning(can).gemm_config(rows, out=out, width=width, packed=True, quantised=True)
    assert config.kernel == f"linear/{kernel}"


def test_large_matrices_by_few_rows_have_two_workgroups_for_each_multiprocessor():
    can = replace(LIMITS["h200"], fragment=16)
    tuning = default_tuning(can)
    most = [tuning.gemm_config(16, out=out, width=2560, packed=True).max_workgroups for out in (4096, 28672)]
    assert most == [132, 264]


@pytest.mark.parametrize(("rows", "out", "width", "block"), [(64, 1024, 1024, 32), (64, 2560, 2560, 64)])
def test_many_rows_are_multiplied_by_blocks_of_32_or_64(rows, out, width, block):
    can = replace(LIMITS["h200"], fragment=16)
    assert default_tuning(can).gemm_config(rows, out=out, width=width, packed=True).tb == block
