"""Tests how workgroups share the rows and columns of a matrix on matrix units."""

from dataclasses import replace

import pytest

from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import LINE, GemmConfig
from rwkv_gpu.kernels.gemm_partition import partition_lines, partition_rows

H200 = replace(LIMITS["h200"], fragment=16)
PROCESSORS, MEMORY = 132, 48 << 10


def partition(outs: list[int], width: int, parts: int, rows: int = 16) -> GemmConfig:
    config = default_tuning(H200).gemm_config(rows, out=sum(outs), width=width, packed=True, quantised=True)
    config = replace(config, joined_parts=parts)
    if config.kernel == "linear/line_gemm":
        return partition_lines(config, outs, width, 32, MEMORY)
    return partition_rows(config, outs, width, MEMORY)


def workgroups(config: GemmConfig, outs: list[int]) -> int:
    return sum(-(-out // config.r) for out in outs) * config.joined_parts


@pytest.mark.parametrize(
    ("outs", "width", "cut"),
    [
        ([5120], 17920, True),  # down of Phi-4
        ([35840], 5120, False),  # its gate and up, 17 fragments for each processor
        ([4096], 14336, True),  # down of Llama 8B: as even as one part, with twice as many subgroups
        ([2560], 10240, True),  # value of RWKV-7 2.9B
        ([2560], 2560, False),  # its output, which is too short
        ([2048], 2048, False),
    ],
)
def test_columns_are_split_where_that_is_faster(outs, width, cut):
    found = partition(outs, width, 0)
    assert (found.joined_parts > 1) == cut
    assert workgroups(found, outs) <= PROCESSORS


@pytest.mark.parametrize(("out", "width"), [(128256, 4096), (65536, 2048)])
def test_a_vocabulary_is_not_cut(out, width):
    """A vocabulary needs many rounds anyway, and each of them would have to add up its parts."""
    assert partition([out], width, 0).joined_parts == 1


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("outs", [[5120, 1280, 1280], [4096, 1024, 1024], [8192, 4096, 32, 32], [5120]])
def test_the_last_round_of_workgroups_is_at_least_half_full(outs, parts):
    """No workgroup has rows of two matrices, so each matrix may need one more workgroup."""
    found = partition(outs, 4096, parts)
    assert found.joined_parts == parts
    assert not PROCESSORS < workgroups(found, outs) < 1.5 * PROCESSORS


@pytest.mark.parametrize("rows", [16, 32])
def test_all_parts_have_columns(rows):
    for width in range(4096, 32768, 1024):
        found = partition([5120], width, 0, rows)
        stages = -(-width // (found.columns * found.joined_parts))
        assert (found.joined_parts - 1) * stages * found.columns < width
        assert found.columns % LINE == 0


@pytest.mark.parametrize(
    ("rows", "out", "width", "parts"),
    [
        (128, 28672, 4096, 1),  # two rounds of tiles: parts need two rounds, too
        (128, 4096, 14336, 4),  # 32 tiles: four parts fill a round
        (128, 2560, 10240, 6),
        (256, 6144, 4096, 1),  # 96 tiles: halves need two rounds
        (512, 6144, 4096, 2),  # 192 tiles take two rounds; halves take three rounds of half the length
        (512, 4096, 14336, 1),  # 128 tiles
        (2048, 28672, 4096, 1),
        (128, 256, 64, 1),  # too few columns
    ],
)
def test_tiles_of_prompts_are_split_where_that_costs_less(rows, out, width, parts):
    config = default_tuning(H200).gemm_config(rows, out=out, width=width, packed=True)
    tiles = -(-out // config.r) * -(-rows // config.tb)
    assert config.cuts(tiles, [width]) == parts
