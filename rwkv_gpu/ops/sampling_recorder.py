"""Sampling recorded: the winner of each block of a row, what may be kept where tokens are cut off, then the row's."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..gpu.shader import Constant
from .recording import Recording
from .sampler_state import RING
from .sampling import DRAW, NO_TOKEN, Flag, Reason
from .values import Computed, Operand, Value
from .vocabulary import Choosing

SPAN = 1024  # tokens of a block
LIST = 8192  # tokens that may be kept and are looked at again without going through all
FEW = 512  # tokens that are ranked by comparing each with all others
LANES = 256  # of a workgroup, that any device can run
ROOMY = 32 << 10  # bytes of workgroup memory with which a row that is alone may have a lane for each token of a block
SOFTWARE_LANES = 64  # there a barrier costs by the lanes that wait

CONSTANTS: dict[str, Constant] = {
    "SKIP": int(Flag.SKIP),
    "GREEDY": int(Flag.GREEDY),
    "PENALISED": int(Flag.PENALISED),
    "MASKED": int(Flag.MASKED),
    "NO_TOKEN": NO_TOKEN,
}
REASONS: dict[str, Constant] = {
    "BAD_NUMBERS": int(Reason.BAD_NUMBERS),
    "NOTHING_LEFT": int(Reason.NOTHING_LEFT),
    "SKIPPED": int(Reason.SKIPPED),
}
# Of parts that have such, what they are specialised by, and what they bind.
OWN: dict[str, dict[str, Constant]] = {
    "choice": REASONS,
    "remember": {"RING": RING},
    "truncate": {"FEW": FEW},
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


class SamplingRecorder(Recording):
    """The end of a step that chooses tokens."""

    def sample(self, logits: Value, *, how: Choosing = "any") -> Value:
        assert self.sampler_state is not None, "sampling needs the sampler state"
        rows, vocabulary = logits.shape
        lanes = self._block_lanes(rows)
        blocks = -(-vocabulary // SPAN)
        chosen = Value((rows, 4), np.uint32)
        operands: dict[str, Operand] = {
            "logits": logits,
            "draws": self.input("draws", DRAW, (rows,)),
            "counts": self.sampler_state.counts,
            "parts": Value((rows, 8 * blocks)),
            "list": Value((rows, 1 + 2 * LIST, 2), np.uint32),
            "chosen": chosen,
            "sampled": self.sampler_state.sampled,
            "done": Computed(("none done", rows), partial(np.zeros, rows, np.uint32)),
        }
        if how == "masked":
            operands["masks"] = self.input("masks", np.uint32, (rows, -(-vocabulary // 32)))
        adjusting = ("unadjusted",) if how == "plain" else ("adjust", "masked" if how == "masked" else "no_mask")
        choosing = ("choice",) if how == "plain" else ("choice", "remember")
        several = "workgroup" if self.tuning.reduce == "workgroup" else "subgroup"
        cutting = ("order", "truncate", f"subtotal_{several}")

        def record(kernel: str, parts: Sequence[str], lanes: tuple[str, int], groups: int) -> None:
            parts = ("draw", "part", "whole", *adjusting, *parts)
            bound = ("logits", "draws", *(name for part in parts for name in BOUND.get(part, ())))
            own = {name: value for part in parts for name, value in OWN.get(part, {}).items()}
            constants = {"V": vocabulary, "BLOCKS": blocks, "SPAN": SPAN, "WG": lanes[1], **CONSTANTS, **own}
            shader = (kernel, *(f"sampling/{part}" for part in parts), f"lib/lanes/{lanes[0]}")
            self.record("", shader, constants, {name: operands[name] for name in bound}, groups=groups)

        cuts = how != "plain"
        if self._joins(len(operands)):
            record("sampling/sample_blocks", ("last_workgroup", *choosing, "no_truncation"), lanes, rows * blocks)
            if cuts:
                listing = ("list_coherent", "last_workgroup", *choosing, *cutting)
                record("sampling/sample_list", listing, lanes, rows * blocks)
            return chosen
        record("sampling/sample_blocks", ("next_dispatch", "no_choice"), lanes, rows * blocks)
        if cuts:
            record("sampling/sample_list", ("list", "next_dispatch", "no_choice", "order"), lanes, rows * blocks)
        last = ("list", *cutting) if cuts else ("no_truncation",)
        record("sampling/sample_row", ("next_dispatch", *choosing, *last), (several, self._lanes), rows)
        return chosen

    def _joins(self, buffers: int) -> bool:
        """Whether the workgroup of a row that is done last chooses its token."""
        can = self.device.capabilities
        return self.tuning.last_workgroup_joins and can.coherent and can.max_storage_buffers >= buffers

    @property
    def _lanes(self) -> int:
        """Lanes for a row."""
        return SOFTWARE_LANES if self.device.capabilities.software else LANES

    def _block_lanes(self, rows: int) -> tuple[str, int]:
        """How the lanes of a block reduce, and how many they are: of one subgroup, if it needs no barriers."""
        if self.tuning.reduce == "one_subgroup":
            return self.tuning.reduce, self.tuning.row_lanes
        can = self.device.capabilities
        if rows > 1 or can.software or can.max_workgroup_memory < ROOMY:
            return self.tuning.reduce, self._lanes
        return self.tuning.reduce, min(SPAN, 1 << (can.max_invocations.bit_length() - 1))
