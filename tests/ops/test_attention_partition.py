"""Partition of attention in decode: each head is computed once on every device, within its memory."""

import itertools
from dataclasses import replace

import pytest

from rwkv_gpu.kernels.defaults import gpu_tuning
from rwkv_gpu.ops.attention_partition import (
    LANE_FLOATS,
    MAX_LOADS,
    decode_bytes,
    decode_partition,
    matrix_decode_bytes,
    matrix_decode_partition,
)
from rwkv_gpu.ops.vocabulary import PAGE, Attention, Cache, Rope

REACHES, MEMORIES = (8, 16, 32), (16 << 10, 32 << 10, 48 << 10)


@pytest.mark.parametrize(("subgroup_width", "memory"), list(itertools.product(REACHES, MEMORIES)))
def test_heads_keys_and_runs_are_cut_whole(fast_device, subgroup_width, memory):
    can = replace(fast_device.capabilities, subgroup_width=subgroup_width, max_workgroup_memory=memory)
    tuning = gpu_tuning(can)
    for size, sharing, rows, pages in itertools.product(
        (24, 64, 80, 128, 256, 512), (1, 2, 5, 7, 8, 17), (1, 16), (8, 500)
    ):
        how = Attention(4 * sharing, Rope("neox", size, 10000.0), size**-0.5)
        spread = decode_partition(Cache("kv", 4, size), how, rows, pages, tuning, can)
        assert sharing % spread.shared == 0
        if spread.lanes_per_key:
            assert size // 8 % spread.lanes_per_key == 0 and subgroup_width % spread.lanes_per_key == 0
            assert decode_bytes(spread.shared, size, spread.lanes // subgroup_width) <= memory
        even = spread.shares.even
        longest = -(-pages * PAGE // (even * spread.grain)) * spread.grain
        assert longest * even >= pages * PAGE
        assert spread.run_pages(pages) >= min(pages, max(longest, spread.one_run) // PAGE + 1)
        assert spread.one_run % spread.grain == 0 and (spread.one_run == 0 or spread.joins)


@pytest.mark.parametrize(("side", "lanes"), [(8, 8), (8, 32), (16, 32), (16, 64)])
def test_on_matrix_units_heads_are_rows_of_a_fragment_and_runs_end_with_blocks(fast_device, side, lanes):
    can = replace(fast_device.capabilities, fragment=side, subgroup_size=lanes, max_workgroup_memory=32 << 10)
    tuning = gpu_tuning(can).changed(matrix_decode_positions=1, matrix_decode_sharing=1, matrix_decode_head_size=256)
    found = 0
    for size, sharing, rows, window in itertools.product(
        (24, 64, 80, 128, 256), (1, 5, 8, 17, 32), (1, 16), (0, 1, 128)
    ):
        how = Attention(4 * sharing, Rope("neox", size, 10000.0), size**-0.5, window)
        units = matrix_decode_partition(Cache("kv", 4, size), how, rows, 500, tuning, can)
        if units is None:
            assert size != 64
            continue
        found += 1
        spread, keys = units.partition, units.key_tiles * side
        assert sharing % spread.shared == 0 and spread.shared <= units.queries <= side
        assert PAGE % keys == 0 and spread.grain == keys and spread.lanes == lanes
        assert keys * size // (4 * lanes) <= MAX_LOADS
        nbytes = matrix_decode_bytes(size, side, units.key_tiles, units.queries)
        assert nbytes <= can.max_workgroup_memory
        assert window == 0 or (spread.runs - 1) * 2 * spread.grain < window, "runs of a window are worth joining"
    assert found


HEADS = [(4, 128, 4, 16, 128, 4), (8, 64, 4, 8, 64, 8), (2, 128, 2, 16, 128, 4), (2, 256, 2, 32, 128, 4)]


@pytest.mark.parametrize(("sharing", "size", "shared", "lanes_per_key", "lanes", "prefetch_depth"), HEADS)
def test_a_lane_keeps_only_values_that_fit_registers(
    fast_device, sharing, size, shared, lanes_per_key, lanes, prefetch_depth
):
    can = replace(fast_device.capabilities, subgroup_width=32, max_workgroup_memory=48 << 10)
    how = Attention(8 * sharing, Rope("neox", size, 10000.0), size**-0.5)
    spread = decode_partition(Cache("kv", 8, size), how, 1, 64, gpu_tuning(can), can)
    assert (spread.shared, spread.lanes_per_key, spread.lanes, spread.prefetch_depth) == (
        shared,
        lanes_per_key,
        lanes,
        prefetch_depth,
    )
    assert shared * size // lanes_per_key <= LANE_FLOATS


@pytest.mark.parametrize(("size", "loaded"), [(64, 8), (80, 2), (96, 4), (128, 4), (256, 4)])
def test_a_lane_of_odd_heads_loads_as_few_keys_as_its_registers_have_room_for(fast_device, size, loaded):
    """Two lanes share ten groups of eight numbers: ACO spilled 195 registers with a prefetch of four keys."""
    can = replace(fast_device.capabilities, subgroup=True, subgroup_width=32, max_workgroup_memory=48 << 10, fragment=0)
    how = Attention(8, Rope("neox", size, 10000.0), size**-0.5)
    spreads = (
        decode_partition(Cache("kv", 8, size), how, 1, 64, gpu_tuning(replace(can, subgroup_size=lanes)), can)
        for lanes in (32, 0)  # a size that every kernel has; AMD's compiler chooses it
    )
    assert [spread.prefetch_depth for spread in spreads] == [loaded, loaded]
