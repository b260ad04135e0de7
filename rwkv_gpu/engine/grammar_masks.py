"""The masks of all grammars, computed on threads of their own: a slow grammar delays its own request and no other."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from .sequence import TokenSequence

THREADS = 4
GRACE = 0.002  # seconds that a step waits for a new mask, once, so that its sequence steps with the others
PATIENCE = 0.005  # seconds that it waits where there is nothing else to do


class GrammarMasks:
    """Gives each sequence its next mask when it is there. A sequence without one is not sampled."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(THREADS, "rwkv-gpu-grammar")  # starts threads when they are needed
        self._late: set[TokenSequence] = set()  # who was waited for before

    def take(self, sequences: Sequence[TokenSequence], *, idle: bool) -> None:
        """Gives out the masks that are computed; `idle` says that no step is under way."""
        masking = {future: sequence for sequence in sequences if (future := sequence.masking) is not None}
        if not masking:
            return
        new = [future for future, sequence in masking.items() if sequence not in self._late]
        if new:
            wait(new, GRACE)
        elif idle and all(sequence.masking or sequence.paused for sequence in sequences):
            wait(masking, PATIENCE, FIRST_COMPLETED)
        self._late = {sequence for future, sequence in masking.items() if not future.done()}
        for future, sequence in masking.items():
            if future.done():
                sequence.take_mask()

    def close(self) -> None:
        """Computes no more."""
        self.executor.shutdown(wait=False, cancel_futures=True)
