"""Drafts in the steps of an engine: who gets them, which were right, and whether they pay."""

import time
from collections.abc import Sequence

from ..device_sampling import samples_on_device
from ..runner import Runner
from ..sequence import TokenSequence
from ..slots import Slots
from .speculator import Speculator


class VerifiedSteps:
    """Steps that may verify drafts. Without a speculator it only counts tokens."""

    def __init__(self, runner: Runner, slots: Slots, speculator: Speculator | None) -> None:
        self._runner = runner
        self._slots = slots
        self._speculator = speculator
        self._generated = 0  # tokens, of all requests since the last measurement
        self._stepped = 0.0  # when the last step ended, by a clock that stands still while shaders are compiled
        self.drafted = self.accepted = 0  # tokens that were drafted, and those that were right

    def draft(self, ready: Sequence[TokenSequence], *, wanted: bool) -> None:
        """Gives sequences that decode tokens to verify, where that pays."""
        speculator = self._speculator
        if speculator is None:
            return
        for sequence in ready:
            sequence.draft = []
            if sequence.drafting is not None:
                self._turn(sequence, speculator.gate.on)
        if wanted and speculator.gate.on:
            speculator.draft(ready, self._runner.chunk_size)

    def _turn(self, sequence: TokenSequence, on: bool) -> None:
        """Drafting on or off. Rows of one sequence are sampled one after the other where a grammar or penalties ask."""
        assert sequence.drafting is not None
        sequence.drafting.on = on
        here = not sequence.samples_in_order or not samples_on_device(sequence.request.params)
        if here or on == sequence.on_host or sequence.in_flight:
            return
        sequence.sample_on_host(on)
        self._slots.draws[sequence.slot] = sequence.draw()
        if not on:
            self._runner.remember(sequence.slot, sequence.ids, sequence.request.params)

    def settle(self, sequence: TokenSequence, right: int) -> None:
        """Of the rows of its last step so many were right; what the others have written is forgotten."""
        self._generated += right
        drafted, sequence.draft, sequence.rows_right = len(sequence.draft), [], 0
        if not drafted:
            return
        assert sequence.drafting is not None
        sequence.drafting.verified(drafted, right - 1)
        self.drafted += drafted
        self.accepted += right - 1
        if sequence.slot >= 0 and right <= drafted:
            sequence.fed = self._runner.store.truncate(sequence.slot, sequence.fed - (1 + drafted - right))

    def measure(self) -> None:
        """Tells the gate how long a step took, where all that runs decodes."""
        tokens, self._generated = self._generated, 0
        if self._speculator is None:
            return
        now = time.perf_counter() - self._runner.compile_seconds
        seconds, self._stepped = now - self._stepped, now
        running = self._slots.running
        decodes = all(len(sequence.ids) - sequence.fed <= 1 for sequence in running)
        drafts = any(sequence.drafting for sequence in running)
        known = tuple(sequence.id for sequence in running) if decodes and drafts else None
        self._speculator.gate.stepped(known, tokens, seconds)
