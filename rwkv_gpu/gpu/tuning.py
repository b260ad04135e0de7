"""The constants that kernels are specialised by, chosen for a device."""

from dataclasses import dataclass

from .device import Capabilities


@dataclass(frozen=True)
class Tuning:
    """How work is spread over lanes. Every choice gives the same answer; some are faster."""

    row_lanes: int  # lanes that share one row of a norm, a softmax, a dot product
    map_lanes: int  # lanes of a workgroup that maps element by element
    reduce: str  # the part that sums over lanes: workgroup, subgroup, one_subgroup


def default_tuning(can: Capabilities) -> Tuning:
    """What to start from on a device that nobody has tuned."""
    if not can.subgroup:
        return Tuning(row_lanes=64, map_lanes=64, reduce="workgroup")
    if can.software:  # barriers are slow in software: one subgroup a workgroup needs none
        return Tuning(row_lanes=can.subgroup_size, map_lanes=64, reduce="one_subgroup")
    return Tuning(row_lanes=128, map_lanes=128, reduce="subgroup")
