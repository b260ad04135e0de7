"""The default tuning of a device: its profile, and variants of it for trials."""

from functools import lru_cache

from ..gpu.device import Capabilities
from .amd import is_amd
from .profiles import tuning_of, with_profile
from .rwkv import BY_CHUNKS
from .tuning import Tuning


@lru_cache(64)
def default_tuning(can: Capabilities) -> Tuning:
    """The tuning of a device that has not been tuned."""
    if can.subgroup:
        plain = tuning_of("software", can) if can.software and can.subgroup_size == 8 else gpu_tuning(can)
    else:
        plain = tuning_of("webgpu", can)
    return on_matrix_units(plain, can) if can.fragment else plain


def gpu_tuning(can: Capabilities) -> Tuning:
    """The tuning of a GPU with subgroups, without matrix units."""
    tuning = tuning_of("amd" if is_amd(can) else "nvidia", can)
    return tuning.changed(row_lanes=min(tuning.lanes.row_lanes, can.max_invocations))


def on_matrix_units(tuning: Tuning, can: Capabilities) -> Tuning:
    """The tuning that uses matrix units for prompts, batches, mixtures, attention and Mamba-2, if that is faster."""
    if can.software:
        return with_profile(tuning, "software-matrix-units", can)
    return with_profile(tuning, "matrix-units" if is_amd(can) else "nvidia-matrix-units", can)


def reductions(can: Capabilities) -> dict[str, Tuning]:
    """Tunings for trials: every way that the device can divide a row among lanes."""
    default = default_tuning(can)
    ways = {"workgroup": default.changed(row_lanes=64, reduce="workgroup")}
    if can.subgroup:
        ways["subgroup"] = default.changed(row_lanes=4 * can.subgroup_width, reduce="subgroup")
    if can.subgroup_size:
        ways["one subgroup"] = default.changed(row_lanes=can.subgroup_size, reduce="one_subgroup")
    return ways


def in_chunks(can: Capabilities) -> dict[str, Tuning]:
    """Tunings for trials: several ways to compute the recurrences of prompts in chunks of tokens."""
    if not BY_CHUNKS.met(can):
        return {}
    chunked = default_tuning(can).changed(chunk_tokens=8, chunk_min_rows=1, chunks_without_removal=True)
    return {
        "chunks": chunked,
        "chunks, two rows for eight lanes": chunked.changed(
            chunk_tokens=16, chunk_rows_per_lane=2, chunk_lanes_per_row=8
        ),
        "chunks, a lane a row": chunked.changed(reduce="workgroup", row_lanes=64),
    }
