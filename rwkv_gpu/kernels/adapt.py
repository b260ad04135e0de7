"""Adapts configurations of profiles, measured on one device, to the subgroups and fragments of another."""

from dataclasses import replace
from typing import TypeVar

from ..gpu.device import Capabilities
from .amd import instead_of, is_amd
from .expert_config import ExpertConfig
from .gemm_config import GemmConfig

Config = TypeVar("Config", GemmConfig, ExpertConfig)
MAX_STAGED_BYTES = 48 << 10  # maximum workgroup memory of skinny_gemm
MAX_FRAGMENTS = 4  # maximum fragments of x per subgroup
OWN_ROWS = ("linear/subgroup_gemm", "linear/line_gemm")  # kernels in which each subgroup has its own rows of W


def adapted(config: Config, can: Capabilities) -> Config:
    """The config for the subgroups and fragments of a device."""
    if config.fragment:
        return _on_fragments(config, can)
    if isinstance(config, ExpertConfig):
        return _expert_lanes(config, can.subgroup_width) if config.subgroup_width > 1 else config
    if config.subgroup_width > 1:
        config = _gemm_lanes(config, can.subgroup_width)
    return instead_of(config) if is_amd(can) else config


def _gemm_lanes(config: GemmConfig, width: int) -> GemmConfig:
    """Sets lanes per row: gemv may span subgroups; other kernels keep the number of subgroups that share a row."""
    if config.kernel == "linear/gemv":
        return replace(config, subgroup_width=width)
    subgroups = max(1, config.lanes_per_row // config.subgroup_width)
    lanes = min(config.lanes_per_row // subgroups, width) * subgroups
    config = replace(config, subgroup_width=width, lanes_per_row=lanes)
    while config.staged and config.workgroup_bytes > MAX_STAGED_BYTES:  # more subgroups need more sums
        config = replace(config, staged=config.staged - 1)
    return config


def _expert_lanes(config: ExpertConfig, width: int) -> ExpertConfig:
    """Sets lanes per row: two subgroups at most for expert_gemv, one for expert_gemv_int."""
    if config.of_floats == config:
        return replace(config, subgroup_width=width, sum_lanes_per_row=min(config.sum_lanes_per_row, 2 * width))
    whole = config.sum_lanes_per_row == config.subgroup_width
    return replace(
        config,
        subgroup_width=width,
        lanes_per_row=min(config.lanes_per_row, width),
        sum_lanes_per_row=width if whole else min(config.sum_lanes_per_row, width),
    )


def _on_fragments(config: Config, can: Capabilities) -> Config:
    """Keeps the numbers of subgroups and fragments; if each subgroup has its own rows of W, keeps the rows of x."""
    side, was = can.fragment, config.fragment
    if not side:
        return config  # the device cannot run it anyway
    config = replace(
        config,
        wg=config.wg // config.subgroup_width * can.subgroup_size,
        r=config.r // was * side,
        tb=config.tb // was * side,
        subgroup_width=can.subgroup_size,
        fragment=side,
    )
    if not isinstance(config, GemmConfig):
        return config
    if config.kernel in OWN_ROWS:
        fragments = min(MAX_FRAGMENTS, -(-config.fragments_of_x * was // side))
        return replace(config, fragments_of_x=fragments, tb=fragments * side)
    if config.kernel == "linear/skinny_gemm_matrix":  # so that each lane has a chunk to decode
        least = config.subgroup_width * 32 // (side * config.columns)
        grown = max(config.fragments_of_w, least)
        return replace(config, fragments_of_w=grown, r=config.r // config.fragments_of_w * grown)
    return config
