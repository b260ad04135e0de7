"""Sampling recorded: the winner of each block of a row, what may be kept where tokens are cut off, then the row's."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..gpu.shader import Constant
from .recording import Recording
from .sampling import DRAW, NO_TOKEN, Flag, Reason
from .seats import RING
from .values import Operand, Value

SPAN = 1024  # tokens of a block
LIST = 8192  # tokens that may be kept and are looked at again without going through all
FEW = 512  # tokens that are ranked by comparing each with all others
LANES = 256  # of a workgroup, that any device can run
SOFTWARE_LANES = 64  # there a barrier costs by the lanes that wait

Constants = Mapping[str, Constant]
Operands = Mapping[str, Operand]

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
        parts, kept = Value((rows, 8 * blocks)), Value((rows, 1 + 2 * LIST, 2), np.uint32)
        chosen = Value((rows, 4), np.uint32)
        read: dict[str, Operand] = {
            "logits": logits,
            "draws": self.input("draws", DRAW, (rows,)),
            "counts": self.seats.counts,
            "parts": parts,
        }
        if masked:
            read["masks"] = self.input("masks", np.uint32, (rows, -(-vocabulary // 32)))
        shared = ("draw", "adjust", "order", "part", "masked" if masked else "open")
        constants = {"V": vocabulary, "BLOCKS": blocks, "SPAN": SPAN, **CONSTANTS}
        several = "workgroup" if self.tuning.reduce == "workgroup" else "subgroup"

        def record(
            kernel: str, more: Sequence[str], lanes: tuple[str, int], special: Constants, written: Operands, groups: int
        ) -> None:
            parts = (*(f"sampling/{part}" for part in (*shared, *more)), f"lanes/{lanes[0]}")
            values = {"WG": lanes[1], "LIST": LIST, **constants, **special}
            self.record("", (kernel, *parts), values, {**read, **written}, groups=groups)

        record("sample_blocks", (), self._block_lanes, {"Listed": "u32"}, {}, rows * blocks)
        record("sample_list", (), self._block_lanes, {"Listed": "atomic<u32>"}, {"list": kept}, rows * blocks)
        record(
            "sample_row",
            ("truncate", f"subtotal_{several}"),
            (several, self._lanes),
            {"Listed": "u32", "RING": RING, "FEW": FEW, **REASONS},
            {"list": kept, "chosen": chosen, "said": self.seats.said},
            rows,
        )
        return chosen

    @property
    def _lanes(self) -> int:
        """Lanes for a row."""
        return SOFTWARE_LANES if self.device.capabilities.software else LANES

    @property
    def _block_lanes(self) -> tuple[str, int]:
        """How the lanes of a block reduce, and how many they are: of one subgroup, if it needs no barriers."""
        alone = self.tuning.reduce == "one_subgroup"
        return self.tuning.reduce, self.tuning.row_lanes if alone else self._lanes
