"""What the host computes for a sequence between its steps, on threads of its own.

That is sampling from logits that are read back, logits processors and grammars. What is slow delays its own request
and no other.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from .sequence import TokenSequence

THREADS = 4
GRACE = 0.005  # seconds that a step waits for new work, once, so that its sequence steps with the others
PATIENCE = 0.02  # seconds that it waits where there is nothing else to do


class HostWork:
    """Hands the results of such work to the sequences. One that waits for its result has no steps."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(THREADS, "rwkv-gpu-host")  # starts threads when they are needed
        self._waited: set[TokenSequence] = set()  # who was waited for before

    def take(self, sequences: Sequence[TokenSequence], *, idle: bool) -> list[TokenSequence]:
        """Hands out what is done, and gives those who have it; `idle` says that no step is in flight."""
        working = {sequence.work: sequence for sequence in sequences if sequence.work is not None}
        if not working:
            return []
        new = [work for work, sequence in working.items() if sequence not in self._waited]
        if new:
            wait(new, GRACE)
        elif idle and all(sequence.work or sequence.paused for sequence in sequences):
            wait(working, PATIENCE)
        self._waited = {sequence for work, sequence in working.items() if not work.done()}
        return [sequence for work, sequence in working.items() if work.done() and sequence.take_work()]

    def close(self) -> None:
        """Computes no more."""
        self.executor.shutdown(wait=False, cancel_futures=True)
