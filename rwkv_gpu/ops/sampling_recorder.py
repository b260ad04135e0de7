"""Sampling recorded: the winner of each block of a row, what may be kept where tokens are cut off, then the row's."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..gpu.shader import Constant
from .recording import Recording
from .sampling import DRAW, NO_TOKEN, Flag, Reason
from .seats import RING
from .values import Computed, Operand, Value

SPAN = 1024  # tokens of a block
LIST = 8192  # tokens that may be kept and are looked at again without going through all
FEW = 512  # tokens that are ranked by comparing each with all others
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
        chosen = Value((rows, 4), np.uint32)
        read: dict[str, Operand] = {
            "logits": logits,
            "draws": self.input("draws", DRAW, (rows,)),
            "counts": self.seats.counts,
            "parts": Value((rows, 8 * blocks)),
            "list": Value((rows, 1 + 2 * LIST, 2), np.uint32),
        }
        if masked:
            read["masks"] = self.input("masks", np.uint32, (rows, -(-vocabulary // 32)))
        written: dict[str, Operand] = {"chosen": chosen, "said": self.seats.said}
        shared = ("draw", "adjust", "order", "part", "masked" if masked else "open")
        constants: dict[str, Constant] = {"V": vocabulary, "BLOCKS": blocks, "SPAN": SPAN, "LIST": LIST, **CONSTANTS}
        choosing: dict[str, Constant] = {"RING": RING, **REASONS}
        several = "workgroup" if self.tuning.reduce == "workgroup" else "subgroup"
        truncating = ("truncate", f"subtotal_{several}")

        def record(kernel: str, more: Sequence[str], lanes: tuple[str, int], chooses: bool, groups: int) -> None:
            cuts = "truncate" in more
            parts = (*(f"sampling/{part}" for part in (*shared, *more)), f"lanes/{lanes[0]}")
            values = {"WG": lanes[1], **constants, **(choosing if chooses else {}), **({"FEW": FEW} if cuts else {})}
            done = {"done": Computed(("none done", rows), partial(np.zeros, rows, np.uint32))}
            joined = done if "joined" in more else {}
            self.record("", (kernel, *parts), values, read | (written if chooses else {}) | joined, groups=groups)

        if self._joins(len(read) + len(written) + 1):
            record("sample_blocks", ("joined", "choice", "uncut"), self._block_lanes, True, rows * blocks)
            record("sample_list", ("joined", "choice", *truncating), self._block_lanes, True, rows * blocks)
        else:
            record("sample_blocks", ("apart",), self._block_lanes, False, rows * blocks)
            record("sample_list", ("apart",), self._block_lanes, False, rows * blocks)
            record("sample_row", ("apart", "choice", *truncating), (several, self._lanes), True, rows)
        return chosen

    def _joins(self, buffers: int) -> bool:
        """Whether the workgroup of a row that is done last chooses its token."""
        can = self.device.capabilities
        return self.tuning.one_joins and can.coherent and can.max_storage_buffers >= buffers

    @property
    def _lanes(self) -> int:
        """Lanes for a row."""
        return SOFTWARE_LANES if self.device.capabilities.software else LANES

    @property
    def _block_lanes(self) -> tuple[str, int]:
        """How the lanes of a block reduce, and how many they are: of one subgroup, if it needs no barriers."""
        alone = self.tuning.reduce == "one_subgroup"
        return self.tuning.reduce, self.tuning.row_lanes if alone else self._lanes
