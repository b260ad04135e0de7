"""Speculative decoding: proposes drafts, verifies them in a step, and rolls back wrong rows.

The model samples every row of such a step with the same seed and draw number as without drafts. Rows are accepted
while the draft equals the sampled tokens. So drafts never change an answer, at any temperature.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...ops.batch import Placement
from ..device_sampling import samples_on_device
from ..runner import Runner
from ..scheduler import ScheduledChunk
from ..sequence import TokenSequence
from ..slots import Slots
from .costs import StepCosts
from .head_drafts import HeadDrafts, QueuedDrafts
from .speculator import Drafted, Speculator

WINDOW = 16  # steps in a measurement without drafts; several results arrive at a time


class Speculation:
    """Connects an engine with its speculator.

    The engine calls `begin` for a new sequence, `propose` before it schedules a step, `submit` before it submits that,
    `accept` for each sequence of a completed step, and `measure` after each of its own steps.
    """

    def __init__(self, speculator: Speculator, runner: Runner, slots: Slots, clock: Callable[[], float]) -> None:
        self.speculator = speculator
        self.begin = speculator.begin
        self.close = speculator.close
        self._runner = runner
        self._slots = slots
        self._clock = clock
        self._costs = {False: StepCosts(), True: StepCosts()}  # True: the host samples or follows a grammar
        self._sequences = 0  # number of sequences in the last submitted step
        self._decodes = False  # whether all its rows are sampled, and no proposer reads meanwhile
        self._drafted = Drafted()  # for the next step, or the last submitted one
        self._drafting = 0.0  # seconds spent on drafting it
        self._generated = 0  # tokens of all requests since the last measurement
        self._kind: tuple[bool, int] | None = None  # kind of step being measured; a change restarts the measurement
        self._stepped = 0.0  # time at which the last step ended
        self._window: list[tuple[int, float]] = []  # token count and arrival time of each step
        self.drafted = self.accepted = 0  # total tokens drafted, and accepted

    @property
    def costs(self) -> StepCosts:
        """Step times for the kind of the running sequences."""
        return self._costs[any(one.on_host or one.request.grammar is not None for one in self._slots.running)]

    @property
    def _now(self) -> float:
        """Time in seconds, excluding shader compilation."""
        return self._clock() - self._runner.compile_seconds - self.speculator.compile_seconds

    # ---------------------------------------------------------------- around a step

    def propose(self, ready: Sequence[TokenSequence], *, wanted: bool) -> bool:
        """Sets the `draft` of decoding sequences, if drafts pay and are `wanted`.

        Returns False if the results of the step in flight must be known first.
        """
        gate, rows = self.speculator.gate, self._runner.chunk_size
        drafting = [one.drafting for one in ready if one.drafting is not None]
        gate.decide(drafting, len(ready), self.costs, partial(self.speculator.pays, len(ready), rows, self.costs))
        for sequence in ready:
            sequence.draft = []
            if sequence.drafting is not None:
                self._turn(sequence, gate.on)
        unverified = [sequence for sequence in ready if sequence.unverified]
        if unverified and any(sequence.fed + 1 < len(sequence.ids) for sequence in ready):
            return False  # steps with prompts do not follow others
        if wanted and gate.on:
            began = self._now
            self._drafted = self.speculator.propose(ready, rows, self.costs)
            if self._drafted.steps or self._drafted.reading:
                self._drafting = self._now - began
        return all(sequence.draft for sequence in unverified)

    def submit(self, chunks: Sequence[ScheduledChunk], placements: Sequence[Placement]) -> QueuedDrafts | None:
        """Submits the steps that draft for a scheduled step; None if there are none."""
        queued, self.speculator.queued = self.speculator.queued, {}
        pairs = [pair for pair in zip(chunks, placements, strict=True) if pair[0].samples > 1]
        pairs = [pair for pair in pairs if pair[0].sequence in queued]
        if not pairs:
            return None
        proposer = queued[pairs[0][0].sequence]
        assert isinstance(proposer, HeadDrafts)
        return proposer.submit([chunk for chunk, _ in pairs], [placement for _, placement in pairs])

    def accept(self, sequence: TokenSequence) -> None:
        """Records how many rows of a sequence's last step were right, and rolls back the others."""
        right, sequence.rows_right = sequence.rows_right, 0
        drafted = sequence.rows_drafted
        self._generated += right
        drafting = sequence.drafting
        if drafting is None or not right:
            return
        if not drafting.on and not drafted:  # the sequence may have lost its slot meanwhile
            self.speculator.watch(sequence, len(self._slots.running) or 1, self.costs)
            return
        drafting.verified(drafted, right - 1)
        self.drafted += drafted
        self.accepted += right - 1
        known = len(sequence.ids) - 1  # tokens that may be fed; fewer are, if it lost its slot since the step
        if sequence.slot < 0 or right > drafted or sequence.fed <= known:
            return
        if sequence.in_flight and not sequence.finish_reason:
            sequence.fed = self._runner.store.correct(sequence.slot, known, drafted + 1 - right)
        else:
            sequence.fed = self._runner.store.truncate(sequence.slot, known)

    def _turn(self, sequence: TokenSequence, on: bool) -> None:
        """Turns drafting on or off. With a grammar or penalties, the rows of a sequence are then sampled one by one."""
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
        """Measures the time of a step without prompts, and whether its drafts gained.

        `submitted` are the chunks of the step submitted meanwhile; empty if the engine only collected results.
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
            return  # nothing was computed; the step waited for the host
        if not tokens and any(sequence.unverified for sequence in self._slots.running):
            return  # the next step is submitted before the result of this one is awaited
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
            if self.costs.without(sequences) is not None:
                took = self.costs.relative(rows, sequences, drafted.steps)
                self.speculator.gain.add(took, tokens / sequences)
        elif not gate.on:
            self._measure_ahead(sequences, tokens, now)
            gate.undrafted(tokens, sequences)

    def _measure_ahead(self, sequences: int, tokens: int, now: float) -> None:
        """Measures steps submitted ahead: the slope of token arrival times, over enough steps to average out bursts."""
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
