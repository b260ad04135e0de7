"""Lowering of sampling: the best tokens of each block of a row, truncation of the row, then the draw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...gpu.shader import Constant
from ...kernels.parts import LAST_WORKGROUP
from ..graph import Node
from ..nodes import Accept, Sample
from ..sampler_state import BIASES, RING
from ..sampling import NO_TOKEN, Flag, Reason
from ..values import CachedTensor, Operand, Value
from .context import Lowering

SPAN = 1024  # tokens of a block
LIST = 8192  # capacity of the list of candidate tokens; the list saves passes over the whole row
RANKED_DIRECTLY = 512  # maximum number of tokens that are ranked by comparing each with all others
LANES = 256  # lanes of a workgroup that any device can run
LANE_PER_TOKEN_MEMORY = (
    32 << 10
)  # bytes of workgroup memory needed for one lane per token of a block in steps of one row
SOFTWARE_LANES = 64  # lanes on software devices, where a barrier costs time per lane

CONSTANTS: dict[str, Constant] = {
    "SKIP": int(Flag.SKIP),
    "GREEDY": int(Flag.GREEDY),
    "PENALISED": int(Flag.PENALISED),
    "MASKED": int(Flag.MASKED),
    "BIASED": int(Flag.BIASED),
    "NO_TOKEN": NO_TOKEN,
}
REASONS: dict[str, Constant] = {
    "BAD_NUMBERS": int(Reason.BAD_NUMBERS),
    "NOTHING_LEFT": int(Reason.NOTHING_LEFT),
    "SKIPPED": int(Reason.SKIPPED),
}
# Constants and operands of parts, in addition to the common ones.
OWN: dict[str, dict[str, Constant]] = {
    "adjust": {"BIASES": BIASES},
    "choice": REASONS,
    "remember": {"RING": RING},
    "truncate": {"FEW": RANKED_DIRECTLY},
    "list": {"LIST": LIST},
    "list_coherent": {"LIST": LIST},
}
BOUND = {
    "adjust": ("counts",),
    "masked": ("masks",),
    "next_dispatch": ("parts",),
    "last_workgroup": ("parts", "done"),
    "list": ("list",),
    "list_coherent": ("list",),
    "choice": ("chosen", "sampled"),
}


@dataclass(frozen=True)
class Sampling:
    """State shared by the dispatches of one sampling op."""

    to: Lowering
    node: Node
    vocabulary: int
    adjusting: tuple[str, ...]
    operands: Mapping[str, Operand]

    @property
    def blocks(self) -> int:
        """The number of blocks of a row."""
        return -(-self.vocabulary // SPAN)

    def emit(self, kernel: str, parts: Sequence[str], lanes: tuple[str, int], groups: int) -> None:
        """Emits a dispatch of a kernel with parts, adding the constants and operands of each part."""
        parts = ("draw", "part", "whole", *self.adjusting, *parts)
        bound = ("logits", "draws", *(name for part in parts for name in BOUND.get(part, ())))
        own = {name: value for part in parts for name, value in OWN.get(part, {}).items()}
        constants = {"V": self.vocabulary, "BLOCKS": self.blocks, "SPAN": SPAN, "WG": lanes[1], **CONSTANTS, **own}
        joining = [LAST_WORKGROUP] if "last_workgroup" in parts else []
        shader = (f"sampling/{kernel}", *(f"sampling/{part}" for part in parts), *joining, f"lib/lanes/{lanes[0]}")
        self.to.emit(self.node, "", shader, constants, {name: self.operands[name] for name in bound}, groups=groups)


def sample(to: Lowering, node: Node, op: Sample) -> None:
    rows, vocabulary = op.logits.shape
    adjusting = ("unadjusted",) if op.how == "plain" else ("adjust", "masked" if op.how == "masked" else "no_mask")
    choosing = ("choice",) if op.how == "plain" else ("choice", "remember")
    several = "workgroup" if to.tuning.lanes.reduce == "workgroup" else "subgroup"
    cutting = ("order", "truncate", f"subtotal_{several}")
    parts = Sampling(to, node, vocabulary, adjusting, _operands(to, op))
    lanes, groups, cuts = _block_lanes(to, rows), rows * parts.blocks, op.how != "plain"
    if _joins(to, len(parts.operands)):
        parts.emit("sample_blocks", ("last_workgroup", *choosing, "no_truncation"), lanes, groups)
        if cuts:
            parts.emit("sample_list", ("list_coherent", "last_workgroup", *choosing, *cutting), lanes, groups)
        return
    parts.emit("sample_blocks", ("next_dispatch", "no_choice"), lanes, groups)
    if cuts:
        parts.emit("sample_list", ("list", "next_dispatch", "no_choice", "order"), lanes, groups)
    last = ("list", *cutting) if cuts else ("no_truncation",)
    parts.emit("sample_row", ("next_dispatch", *choosing, *last), (several, _lanes(to)), rows)


def accept(to: Lowering, node: Node, op: Accept) -> None:
    state = to.memory.sampler_state
    assert state is not None, "sampling needs the sampler state"
    operands: dict[str, Operand] = {"segments": to.segments, "sampled": state.sampled, "lengths": state.lengths}
    to.emit_elements(node, ("sampling/accept",), {"NO_TOKEN": NO_TOKEN}, operands, count=op.chosen.shape[0])


def _operands(to: Lowering, op: Sample) -> dict[str, Operand]:
    state = to.memory.sampler_state
    assert state is not None, "sampling needs the sampler state"
    rows, vocabulary = op.logits.shape
    operands: dict[str, Operand] = {
        "logits": op.logits,
        "draws": to.draws(rows),
        "counts": state.counts,
        "parts": Value((rows, 8 * -(-vocabulary // SPAN))),
        "list": Value((rows, 1 + 2 * LIST, 2), np.uint32),
        "chosen": op.chosen,
        "sampled": state.sampled,
        "done": CachedTensor(("none done", rows), partial(np.zeros, rows, np.uint32)),
    }
    if op.how == "masked":
        operands["masks"] = to.graph.input("masks", np.uint32, (rows, -(-vocabulary // 32)))
    return operands


def _joins(to: Lowering, buffers: int) -> bool:
    """True if the last workgroup to finish a row chooses its token, without another dispatch."""
    return to.tuning.fusion.last_workgroup_reduces and to.can.coherent and to.can.max_storage_buffers >= buffers


def _lanes(to: Lowering) -> int:
    """The number of lanes for a row."""
    return SOFTWARE_LANES if to.can.software else LANES


def _block_lanes(to: Lowering, rows: int) -> tuple[str, int]:
    """The reduction of a block and its number of lanes: one subgroup if possible, which needs no barriers."""
    if to.tuning.lanes.reduce == "one_subgroup":
        return to.tuning.lanes.reduce, to.tuning.lanes.row_lanes
    if rows > 1 or to.can.software or to.can.max_workgroup_memory < LANE_PER_TOKEN_MEMORY:
        return to.tuning.lanes.reduce, _lanes(to)
    return to.tuning.lanes.reduce, min(
        SPAN, to.tuning.lanes.sampling_lanes, 1 << (to.can.max_invocations.bit_length() - 1)
    )
