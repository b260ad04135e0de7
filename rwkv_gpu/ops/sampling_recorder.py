"""Sampling recorded: the winner of each block of a row, then the row's."""

import numpy as np

from ..gpu.shader import Constant
from .recording import Recording
from .sampling import DRAW, NO_TOKEN, Flag, Reason
from .seats import RING
from .values import Operand, Value

SPAN = 1024  # tokens of a block
LIST = 8192  # tokens that may be kept and are looked at again without going through all
LANES = 256  # of a workgroup, that any device can run
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


class SamplingRecorder(Recording):
    """The end of a step that chooses tokens."""

    def sample(self, logits: Value, *, masked: bool = False) -> Value:
        assert self.seats is not None, "sampling needs seats"
        rows, vocabulary = logits.shape
        blocks = -(-vocabulary // SPAN)
        parts, kept = Value((rows, 8 * blocks)), Value((rows, 2 * LIST, 2), np.uint32)
        chosen = Value((rows, 4), np.uint32)
        read: dict[str, Operand] = {
            "logits": logits,
            "draws": self.input("draws", DRAW, (rows,)),
            "counts": self.seats.counts,
        }
        if masked:
            read["masks"] = self.input("masks", np.uint32, (rows, -(-vocabulary // 32)))
        shared = ("sampling/draw", "sampling/adjust", "sampling/part", "sampling/masked" if masked else "sampling/open")
        constants: dict[str, Constant] = {"V": vocabulary, "BLOCKS": blocks, **CONSTANTS}
        self.record(
            "",
            ("sample_blocks", *shared, f"lanes/{self.tuning.reduce}"),
            {"SPAN": SPAN, "WG": self._block_lanes, **constants},
            {**read, "parts": parts},
            groups=rows * blocks,
        )
        lanes = "workgroup" if self.tuning.reduce == "workgroup" else "subgroup"
        self.record(
            "",
            ("sample_row", *shared, "sampling/truncate", f"sampling/subtotal_{lanes}", f"lanes/{lanes}"),
            {"LIST": LIST, "RING": RING, "WG": self._lanes, **constants, **REASONS},
            {**read, "parts": parts, "list": kept, "chosen": chosen, "said": self.seats.said},
            groups=rows,
        )
        return chosen

    @property
    def _lanes(self) -> int:
        """Lanes for a row."""
        return SOFTWARE_LANES if self.device.capabilities.software else LANES

    @property
    def _block_lanes(self) -> int:
        """Lanes for a block: those of one subgroup where they need no barriers."""
        return self.tuning.row_lanes if self.tuning.reduce == "one_subgroup" else self._lanes
