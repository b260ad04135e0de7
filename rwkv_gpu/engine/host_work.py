"""Host computations for sequences between steps, on separate threads.

These are sampling from logits that are read back, logits processors and grammars. A slow one delays its own request
only.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from .sequence import TokenSequence

THREADS = 4
GRACE = 0.005  # seconds that a step waits, once, for new work, so that its sequence joins the step
PATIENCE = 0.02  # seconds to wait if there is nothing else to do


class HostWork:
    """Delivers finished host work to sequences. A sequence has no steps while its work is pending."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(THREADS, "rwkv-gpu-host")  # starts threads on demand
        self._waited: set[TokenSequence] = set()  # sequences that a step has waited for before

    def take(self, sequences: Sequence[TokenSequence], *, idle: bool) -> list[TokenSequence]:
        """Delivers finished work and returns its sequences; `idle`: no step is in flight."""
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
        """Stops the threads."""
        self.executor.shutdown(wait=False, cancel_futures=True)
