"""Tuning values as files: profiles/*.toml, and tables of them in saved files.

A profile is for a kind of device. It may name another profile as its `base`. Its values replace those of the base, and
its table rows come first. Tables are lists of blocks. Other keys of a block than `rows` apply to all of its rows;
`source` is where the values were measured, and `needs` lists the capabilities that they require.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, TypeVar, get_args, get_origin

from ..gpu.device import Capabilities
from .amd import instead_of, is_amd
from .expert_config import ExpertConfig
from .gemm_config import UNLIMITED, GemmConfig
from .parts import SUMS_OF_PARTS
from .tuning import GROUPS, ExpertLimits, GemmLimits, Tuning

Typed = TypeVar("Typed")
Row = tuple[Any, Any]  # limits and a configuration
TABLES = {"gemm_table": (GemmLimits, GemmConfig), "expert_table": (ExpertLimits, ExpertConfig)}
ABOUT_BLOCK = ("source", "needs", "all_or_none", "rows")  # keys of a block that are not values of its rows
Config = TypeVar("Config", GemmConfig, ExpertConfig)
MAX_STAGED_BYTES = 48 << 10  # maximum workgroup memory of skinny_gemm
MAX_FRAGMENTS = 4  # maximum fragments of x per subgroup


@lru_cache(256)
def tuning_of(name: str, can: Capabilities) -> Tuning:
    """The tuning of a profile, without configurations that the device cannot run."""
    base, *others = reversed(_chain(name))
    values: dict[str, Any] = {group: typed(cls, base[group]) for group, cls in GROUPS.items()}
    values |= {table: tuple(_rows(base, table, can)) for table in TABLES}
    tuning = Tuning(**values)
    for profile in others:
        tuning = _overlaid(tuning, profile, can)
    return tuning


def with_profile(tuning: Tuning, name: str, can: Capabilities) -> Tuning:
    """The tuning with the values of a profile on top."""
    for profile in reversed(_chain(name)):
        tuning = _overlaid(tuning, profile, can)
    return tuning


@cache
def _chain(name: str) -> tuple[Mapping[str, Any], ...]:
    """A profile, its base, the base of its base, and so on."""
    text = resources.files("rwkv_gpu.profiles").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    profile = tomllib.loads(text)
    return (profile, *(_chain(profile["base"]) if "base" in profile else ()))


def _overlaid(tuning: Tuning, profile: Mapping[str, Any], can: Capabilities) -> Tuning:
    values = {name: value for group in GROUPS for name, value in profile.get(group, {}).items()}
    tables = {name: _joined([*_rows(profile, name, can)], tuning.value(name)) for name in TABLES if name in profile}
    return tuning.changed(**values, **tables)


def _joined(own: list[Row], base: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows of a profile, followed by those rows of its base that may still apply."""
    bounds = [limits.rest for limits, _ in own if limits.rest is not None]
    end = min(bounds, default=None)
    return (*own, *(row for row in base if end is None or _most(row[0]) <= end))


def _most(limits: GemmLimits | ExpertLimits) -> float:
    return limits.max_rows if isinstance(limits, GemmLimits) else limits.max_choices


def _rows(profile: Mapping[str, Any], table: str, can: Capabilities) -> Iterator[Row]:
    """The rows that a device can run. If several configurations of one kernel fit the same work, only the first."""
    seen = set()
    for block in profile.get(table, ()):
        if all(getattr(can, name) >= least for name, least in block.get("needs", {}).items()):
            rows = [(limits, adapted(config, can)) for limits, config in rows_of(block, table)]
            able = [(limits, config) for limits, config in rows if config.runs_on(can)]
            for limits, config in able if able == rows or "all_or_none" not in block else ():
                key = limits, config.kernel, getattr(config, "copies", False)
                if key not in seen:
                    seen.add(key)
                    yield limits, config


def rows_of(block: Mapping[str, Any], table: str) -> Iterator[Row]:
    """The rows of a block of a table."""
    shared = {name: value for name, value in block.items() if name not in ABOUT_BLOCK}
    limits, config = TABLES[table]
    names = {field.name for field in fields(limits)}
    for row in block["rows"]:
        whole = {**shared, **row}
        yield (
            typed(limits, {name: value for name, value in whole.items() if name in names}),
            typed(config, {name: value for name, value in whole.items() if name not in names}),
        )


def row_data(limits: GemmLimits | ExpertLimits, config: GemmConfig | ExpertConfig) -> dict[str, Any]:
    """The content of a row in a file: its non-default values."""
    return {
        field.name: getattr(one, field.name)
        for one in (limits, config)
        for field in fields(one)
        if getattr(one, field.name) != field.default
    }


def typed(cls: type[Typed], values: Mapping[str, Any]) -> Typed:
    """Builds a dataclass from values of a file. Raises ValueError for unknown names, wrong types or absurd numbers."""
    types = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in types or not _of_type(value, types[name]):
            raise ValueError(f"{name} = {value!r} is not a value of {cls.__name__}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _of_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(one, get_args(kind)[0]) for one in value)
    if isinstance(value, bool) or kind is bool:
        return type(value) is kind
    if (isinstance(value, int) and not 0 <= value <= UNLIMITED) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        return False
    return isinstance(value, int | float if kind is float else kind)


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
    if config.takes(SUMS_OF_PARTS):  # each subgroup has its own rows of W
        fragments = min(MAX_FRAGMENTS, -(-config.fragments_of_x * was // side))
        return replace(config, fragments_of_x=fragments, tb=fragments * side)
    if config.entry.x_order == "fragments":  # so that each lane has a chunk to decode
        least = config.subgroup_width * 32 // (side * config.columns)
        grown = max(config.fragments_of_w, least)
        return replace(config, fragments_of_w=grown, r=config.r // config.fragments_of_w * grown)
    return config
