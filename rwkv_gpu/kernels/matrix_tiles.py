"""Constants and workgroup memory of kernels with tiles on matrix units."""

from typing import Protocol

from ..gpu.shader import Constant
from .gemm_config import LINE, GemmConfig

SUMS_WITHIN = 32 << 10  # maximum bytes of workgroup memory for writing out all sums of a tile at once


class MatrixConfig(Protocol):
    """The fields that configurations of products and of products with experts share for tiles on matrix units."""

    @property
    def wg(self) -> int: ...
    @property
    def r(self) -> int: ...
    @property
    def tb(self) -> int: ...
    @property
    def subgroup_width(self) -> int: ...
    @property
    def fragment(self) -> int: ...
    @property
    def fragments_of_w(self) -> int: ...
    @property
    def fragments_of_x(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def prefetch_depth(self) -> int: ...


def fragments_of(rows: int, fragment: int) -> int:
    """The number of fragments that hold `rows` rows, rounded up to one, two or a multiple of four."""
    least = -(-rows // fragment)
    return least if least <= 2 else -(-least // 4) * 4


def subgroup_tile(config: GemmConfig) -> dict[str, Constant]:
    """Constants of subgroup_gemm."""
    return {**_by_subgroups(config), "STEP": config.columns // subgroups_along_k(config) // 2}


def subgroup_bytes(config: GemmConfig) -> int:
    """Bytes of its workgroup memory: 32 columns of W per subgroup, a stage of x, sums, padding, scales and bounds."""
    of_w = config.wg // config.subgroup_width * config.fragment * 80
    return of_w + config.columns // 64 * config.tb * 144 + _fragment_bytes(config) + _words_bytes(config)


def line_tile(config: GemmConfig) -> dict[str, Constant]:
    """Constants of line_gemm."""
    return {**_by_subgroups(config), "PAIRS": config.pairs, "COPIES": config.prefetch_depth, "MAX_ASKED": 4}


def _by_subgroups(config: GemmConfig) -> dict[str, Constant]:
    """Constants shared by subgroup_gemm and line_gemm."""
    return {
        **matrix_units(config.fragment, config.subgroup_width),
        "FM": config.fragments_of_w,
        "FT": config.fragments_of_x,
        "ALONG_K": subgroups_along_k(config),
        "STAGE": config.columns,
        "PARTS": config.joined_parts,
        "AT_ONCE": 1,
        "MAX_ASKED": 2,
    }


def line_bytes(config: GemmConfig) -> int:
    """Bytes of its workgroup memory: 32 columns of W, a stage of x, sums, padding, scales and flags."""
    of_w = config.r * subgroups_along_k(config) * 80
    of_x = config.columns // LINE * config.pairs * config.prefetch_depth * (config.tb * 144 + 16)
    return of_w + of_x + _fragment_bytes(config) + _words_bytes(config)


def _words_bytes(config: GemmConfig) -> int:
    """Bytes of the scales of x, and of two flags: the workgroup has work, and it is the last to finish."""
    return 4 * config.tb + (16 if config.joined_parts == 1 else 32)


def matrix_units(fragment: int, subgroup_width: int) -> dict[str, Constant]:
    """Constants of a kernel on matrix units: the types of fragments, and the subgroup size."""
    side = f"coop_mat{fragment}x{fragment}"
    types = {"Sums": f"{side}<f32, C>", "Left": f"{side}<f16, A>", "Right": f"{side}<f16, B>"}
    return {"S": fragment, "SUBGROUP": subgroup_width, **types}


def matrix_tile(config: MatrixConfig) -> dict[str, Constant]:
    """Constants of a kernel of tiles on matrix units."""
    return {
        **matrix_units(config.fragment, config.subgroup_width),
        "FM": config.fragments_of_w,
        "FT": config.fragments_of_x,
        "ALONG_K": subgroups_along_k(config),
        "COLUMNS": config.columns,
        "DEPTH": config.prefetch_depth,
        "AT_ONCE": _fragments_at_once(config, _staged_bytes(config)),
        "MAX_ASKED": 8,  # epilogue inputs that a lane loads at a time; kernels of subgroups lack the registers
    }


def matrix_tile_bytes(config: MatrixConfig) -> int:
    """Bytes of workgroup memory: a step of W and of x, sums to write out, and the bounds of columns."""
    staged = _staged_bytes(config)
    return staged + _fragments_at_once(config, staged) * _fragment_bytes(config) + 16


def _fragments_at_once(config: MatrixConfig, staged: int) -> int:
    """The number of fragments per subgroup whose sums are written out together: all, or one if memory is short."""
    every = config.fragments_of_w * config.fragments_of_x
    return every if staged + every * _fragment_bytes(config) <= SUMS_WITHIN else 1


def _fragment_bytes(config: MatrixConfig) -> int:
    """Bytes of the sums of one fragment of each subgroup."""
    return 4 * config.wg // config.subgroup_width * config.fragment**2


def _staged_bytes(config: MatrixConfig) -> int:
    return 2 * (config.r + config.tb) * (config.columns // 64 * 72)


def subgroups_along_k(config: MatrixConfig) -> int:
    """The number of subgroups that divide the columns."""
    sides = config.fragments_of_w * config.fragments_of_x * config.fragment**2
    return config.wg // config.subgroup_width * sides // (config.r * config.tb)
