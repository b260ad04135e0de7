"""Speculative decoding, as the engine sees it: drafts are proposed, a step verifies them, wrong rows are rolled back.

The model samples every row of such a step as it would have sampled it alone, by the same seed and number of the draw.
Rows are right as long as the draft has the sampled tokens. So the answer is that without drafts, at any temperature.
"""

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


class Speculation:
    """The drafts of an engine that has a speculator.

    The engine calls `begin` for a new sequence, `propose` before it schedules a step, `accept` for each sequence of a
    step that is done, and `measure` after each of its own steps.
    """

    def __init__(self, speculator: Speculator, runner: Runner, slots: Slots, clock: Callable[[], float]) -> None:
        self.speculator = speculator
        self.begin = speculator.begin
        self.close = speculator.close
        self._runner = runner
        self._slots = slots
        self._clock = clock
        self._costs = {False: StepCosts(), True: StepCosts()}  # True: where the host samples or follows a grammar
        self._sequences = 0  # of the step that was submitted last
        self._decodes = False  # whether all of its rows are sampled, and no proposer reads beside it
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

    @property
    def _now(self) -> float:
        """Seconds by a clock that stands still while shaders are compiled."""
        return self._clock() - self._runner.compile_seconds - self.speculator.compile_seconds

    # ---------------------------------------------------------------- around a step

    def propose(self, ready: Sequence[TokenSequence], *, wanted: bool) -> None:
        """Gives sequences that decode a `draft` to verify, where that pays and is `wanted`."""
        gate, rows = self.speculator.gate, self._runner.chunk_size
        drafting = [one.drafting for one in ready if one.drafting is not None]
        gate.decide(drafting, len(ready), self.costs, partial(self.speculator.pays, len(ready), rows, self.costs))
        for sequence in ready:
            sequence.draft = []
            if sequence.drafting is not None:
                self._turn(sequence, gate.on)
        if wanted and gate.on:
            began = self._now
            self._drafted = self.speculator.propose(ready, rows, self.costs)
            if self._drafted.steps or self._drafted.reading:
                self._drafting = self._now - began

    def accept(self, sequence: TokenSequence) -> None:
        """Learns how many rows of a sequence's last step were right, and rolls the others back."""
        right, sequence.rows_right = sequence.rows_right, 0
        drafted, sequence.draft = len(sequence.draft), []
        self._generated += right
        drafting = sequence.drafting
        if drafting is None or not right:
            return
        if not drafting.on and not drafted:  # the sequence may have given its slot back meanwhile
            self.speculator.watch(sequence, len(self._slots.running) or 1, self.costs)
            return
        drafting.verified(drafted, right - 1)
        self.drafted += drafted
        self.accepted += right - 1
        if sequence.slot >= 0 and right <= drafted:
            sequence.fed = self._runner.store.truncate(sequence.slot, sequence.fed - (1 + drafted - right))

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

    # ---------------------------------------------------------------- what steps take

    def measure(self, submitted: Sequence[ScheduledChunk]) -> None:
        """Learns how long a step took that had no prompt, and whether its drafts have gained.

        `submitted` are the chunks of the step that was submitted meanwhile; none where the engine only collected.
        """
        rows = sum(chunk.end - chunk.start for chunk in submitted)
        drafted, self._drafted = self._drafted, Drafted()
        if submitted:
            self._sequences = len(submitted)
            decodes = all(chunk.samples == chunk.end - chunk.start for chunk in submitted)
            self._decodes = decodes and not drafted.reading
        tokens, self._generated = self._generated, 0
        drafting, self._drafting = self._drafting, 0.0
        if not rows and not tokens:
            return  # nothing was computed: the host was waited for
        now = self._now
        seconds, self._stepped = now - self._stepped - drafting, now
        gate, sequences = self.speculator.gate, self._sequences
        kind = (gate.on, sequences) if self._decodes else None
        if drafted.read:
            gate.read(drafting - drafted.steps * self.costs.draft_step(sequences), sequences, self.costs)
        elif drafted.steps:
            self.costs.drafted(drafted.steps, sequences, drafting)
        if kind is None or kind != self._kind:
            self._kind, self._window = kind, []
        elif gate.on and rows:
            self.costs.measured(rows, seconds, ahead=False)
            gate.verified(tokens, rows, sequences, self.costs, drafted.steps)
        elif not gate.on:
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
