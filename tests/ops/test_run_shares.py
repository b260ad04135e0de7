"""Runs of the context: similar rows have the same number, a long row has more, and each run has a workgroup."""

from collections.abc import Iterable

import numpy as np
import pytest

from rwkv_gpu.gpu.shader import Linked
from rwkv_gpu.kernels.defaults import gpu_tuning
from rwkv_gpu.ops.attention_partition import AttentionPartition, decode_partition
from rwkv_gpu.ops.run_shares import MAX_FURTHER, SPLIT_PAGES, RunShares
from rwkv_gpu.ops.vocabulary import Attention, Cache, Rope
from tests.ops.test_attention import Case, OnGpu, each_of_several

GRAIN = 32


def max_runs(shares: RunShares, lengths: list[int]) -> list[int]:
    """Computes the rule of `attention/runs/shared_out`."""
    size = max(GRAIN, -(-sum(lengths) // shares.further))
    unlike = max(lengths) > shares.even * size
    return [min(max(-(-one // size), shares.even), shares.most) if unlike else shares.even for one in lengths]


@pytest.mark.parametrize("even", [1, 3, 24])
@pytest.mark.parametrize("rows", [2, 5, 16, 64])
def test_further_runs_are_enough_for_any_lengths(even, rows):
    shares = RunShares.by_length(even, rows, 500)
    rng = np.random.default_rng(rows)
    for spread in (1, 4, 12):
        lengths = (2 ** (15 - spread * rng.random(rows))).astype(int).tolist()
        found = max_runs(shares, lengths)
        assert sum(found) - even * rows <= shares.further
        assert shares.count(rows) == even * rows + shares.further
        assert all(even <= one <= shares.most for one in found)


def test_a_long_row_among_short_ones_has_as_many_runs_as_it_may():
    shares = RunShares.by_length(3, 16, 500)
    assert max_runs(shares, [200] * 15 + [30000]) == [3] * 15 + [3 + MAX_FURTHER]
    assert max_runs(shares, [2000] * 16) == [3] * 16
    assert sum(max_runs(shares, [200] * 12 + [8000] * 4)) > 16 * 3 + 12


def test_single_rows_and_many_rows_of_short_contexts_have_even_runs():
    assert RunShares.by_length(24, 1, 500) == RunShares.all_even(24)
    assert RunShares.by_length(3, 16, SPLIT_PAGES - 1) == RunShares.all_even(3)
    assert RunShares.by_length(1, 65, 500) == RunShares.all_even(1)


def test_a_window_has_even_runs(fast_device):
    can, cache = fast_device.capabilities, Cache("kv", 2, 64)
    if can.subgroup_width < 8 or not can.coherent:
        pytest.skip("no lanes that surely share a subgroup")

    def partition(window: int) -> AttentionPartition:
        how = Attention(8, Rope("neox", 64, 1e4), 0.1, window)
        return decode_partition(cache, how, 16, 500, gpu_tuning(can), can)

    assert partition(0).shares.further > 0
    assert partition(4096).shares.further == 0


def test_the_last_workgroup_joins_the_further_runs_of_a_long_row(fast_device, monkeypatch):
    """Each row is correct. The kernels divide runs by length."""
    if fast_device.capabilities.subgroup_width < 8 or not fast_device.capabilities.coherent:
        pytest.skip("no lanes that surely share a subgroup")
    case, (before, last) = Case(), each_of_several()
    expected, _ = case.on_cpu([before, last])
    lanes = {"lanes_per_key": 8, "decode_lanes": 64, "run_workgroups": 8, "run_length": 32}
    gpu = OnGpu(case, fast_device, **lanes, last_workgroup_reduces=True)
    texts: list[str] = []
    compiling = gpu.device.pipelines.compile

    def noting(every: Iterable[Linked]) -> None:
        linked = list(every)
        texts.extend(one.source for one in linked)
        compiling(linked)

    monkeypatch.setattr(gpu.device.pipelines, "compile", noting)
    found = [gpu.step(*step) for step in (before, last)]
    shares = RunShares.by_length(1, last[0].rows + 3, case.context // 64)
    assert max(max_runs(shares, [segment.end for segment in last[0].segments])) > shares.even
    assert any("fn is_unlike()" in text and "var<workgroup> further_runs" in text for text in texts)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=case.tolerance, atol=case.tolerance)
