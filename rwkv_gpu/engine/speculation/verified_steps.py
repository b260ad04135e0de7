"""Drafts in the steps of an engine: who gets them, which were right, and what steps take."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..device_sampling import samples_on_device
from ..runner import Runner
from ..scheduler import ScheduledChunk
from ..sequence import TokenSequence
from ..slots import Slots
from .costs import StepCosts
from .speculator import Drafted, Speculator

WINDOW = 16  # steps without drafts of a measurement: their results come several at a time


class VerifiedSteps:
    """Steps that may verify drafts. Without a speculator it does nothing."""

    def __init__(self, runner: Runner, slots: Slots, speculator: Speculator | None, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock
        self._slots = slots
        self._speculator = speculator
        self._costs = {False: StepCosts(), True: StepCosts()}  # True: where the host samples or follows a grammar
        self._rows = self._sequences = 0  # of the step that was submitted last
        self._decodes = False  # whether all of its rows are sampled, and no draft model reads beside it
        self._drafted = Drafted()  # for the step to come, or the one that was submitted last
        self._drafting = 0.0  # seconds that it took
        self._generated = 0  # tokens, of all requests since the last measurement
        self._kind: tuple[bool, int] | None = None  # of steps that are measured: a change begins a new measurement
        self._stepped = 0.0  # when the last step ended
        self._window: list[tuple[int, float]] = []  # tokens, and when they were known
        self.drafted = self.accepted = 0  # tokens that were drafted, and those that were right

    @property
    def costs(self) -> StepCosts:
        """What steps of those that run take."""
        return self._costs[any(one.on_host or one.request.grammar is not None for one in self._slots.running)]

    def draft(self, ready: Sequence[TokenSequence], *, wanted: bool) -> None:
        """Gives sequences that decode tokens to verify, where that pays."""
        speculator = self._speculator
        if speculator is None:
            return
        drafting = [one.drafting for one in ready if one.drafting is not None]
        pays = partial(speculator.pays, len(ready), self._runner.chunk_size, self.costs)
        speculator.gate.decide(drafting, len(ready), self.costs, pays)
        for sequence in ready:
            sequence.draft = []
            if sequence.drafting is not None:
                self._turn(sequence, speculator.gate.on)
        if wanted and speculator.gate.on:
            began = self._now
            self._drafted = speculator.draft(ready, self._runner.chunk_size, self.costs)
            if self._drafted.steps or self._drafted.reading:
                self._drafting = self._now - began

    @property
    def _now(self) -> float:
        """Seconds by a clock that stands still while shaders are compiled."""
        compiling = 0.0 if self._speculator is None else self._speculator.compile_seconds
        return self._clock() - self._runner.compile_seconds - compiling

    def _turn(self, sequence: TokenSequence, on: bool) -> None:
        """Drafting on or off. Rows of one sequence are sampled one after the other where a grammar or penalties ask."""
        assert sequence.drafting is not None
        sequence.drafting.on = on
        here = not sequence.samples_in_order or not samples_on_device(sequence.request.params)
        if here or on == sequence.on_host or sequence.in_flight:
            return
        sequence.sample_on_host(on)
        self._slots.draw(sequence)
        if not on:
            self._runner.remember(sequence.slot, sequence.ids, sequence.request.params)

    def submitted(self, chunks: Sequence[ScheduledChunk]) -> None:
        """A step of these was submitted."""
        if self._speculator is None:
            return
        self._rows, self._sequences = sum(chunk.end - chunk.start for chunk in chunks), len(chunks)
        self._decodes = not self._drafted.reading and all(chunk.samples == chunk.end - chunk.start for chunk in chunks)

    def settle(self, sequence: TokenSequence, right: int) -> None:
        """Of the rows of its last step so many were right; what the others have written is forgotten."""
        self._generated += right
        drafted, sequence.draft, sequence.rows_right = len(sequence.draft), [], 0
        drafting, speculator = sequence.drafting, self._speculator
        if drafting is None or speculator is None or not right:
            return
        if not drafting.on and not drafted:
            running = self._slots.running or [sequence]  # it may have given its slot back meanwhile
            gained = drafting.watch(sequence.ids, partial(speculator.planned, running, self.costs))
            speculator.gate.watched(gained, len(running))
            return
        drafting.verified(drafted, right - 1)
        self.drafted += drafted
        self.accepted += right - 1
        if sequence.slot >= 0 and right <= drafted:
            sequence.fed = self._runner.store.truncate(sequence.slot, sequence.fed - (1 + drafted - right))

    def measure(self) -> None:
        """Learns how long a step took that had no prompt, and whether its drafts have gained."""
        speculator = self._speculator
        if speculator is None:
            return
        tokens, self._generated = self._generated, 0
        rows, self._rows = self._rows, 0
        drafted, self._drafted = self._drafted, Drafted()
        drafting, self._drafting = self._drafting, 0.0
        if not rows and not tokens:
            return  # nothing was computed: the host was waited for
        now = self._now
        seconds, self._stepped = now - self._stepped - drafting, now
        gate, sequences = speculator.gate, self._sequences
        on = gate.on
        kind = (on, sequences) if self._decodes else None
        if drafted.read:
            gate.read(drafting - drafted.steps * self.costs.draft_step(sequences), sequences, self.costs)
        elif drafted.steps:
            self.costs.drafted(drafted.steps, sequences, drafting)
        if kind is None or kind != self._kind:
            self._kind, self._window = kind, []
        elif on and rows:
            self.costs.measured(rows, seconds, ahead=False)
            gate.verified(tokens, rows, sequences, self.costs, drafted.steps)
        elif not on:
            self._measure_ahead(sequences, tokens, now)
            gate.undrafted(tokens, sequences)

    def _measure_ahead(self, sequences: int, tokens: int, now: float) -> None:
        """Steps that are submitted ahead: the slope of when tokens are known, of so many that portions do not count."""
        if not self._window and not tokens:
            return
        self._window.append((tokens + (self._window[-1][0] if self._window else 0), now))
        if len(self._window) <= WINDOW:
            return
        counts, times = np.array(self._window).T
        self._window = []
        if np.ptp(counts):
            slope = float(np.polyfit(counts, times - times[0], 1)[0])
            self.costs.measured(sequences, max(0.0, slope * sequences), ahead=True)
