"""Finds the fastest constants for a device by whole steps of a model, one purpose after the other.

A candidate is right before it is timed: its kernel against numpy, and where it is no kernel of its own the logits of
the model against those of the constants that the device starts from. What wins is the next one's incumbent.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..engine.runner import GpuRunner
from ..errors import DeviceLost, RwkvGpuError
from ..gguf.file import GGUFFile
from ..gpu.device import Device
from ..gpu.plan import Plan
from ..gpu.tuned import Choice, shown
from ..gpu.tuning import MANY, ExpertShape, LinearShape, Tuning
from ..ops.batch import Batch
from . import candidates
from .bench import on_gpu, rewind
from .check import close, expert_samples, experts_are_right, linear_is_right, matrix_samples
from .duel import Lap, Verdict, duel
from .workload import Workload

ROWS = (1, 2, 4, 8, 16, 32, 64)  # bounds of a ladder below the chunk
WORDS_APART = 1e-2  # of the largest logit: random models make much of how sums are rounded
CHOICES = (1.5, 3.0, 6.0)  # of each expert: bounds of the ladder
LADDERS, LANES = 0.7, 0.85  # of the time, until which products, and then lanes, may be tried

Say = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """Constants that differ in one thing from the incumbent's."""

    name: str
    tuning: Tuning
    right: Callable[[], bool] | None = None  # of its kernel; None compares logits


class Tuner:
    """The search on one model. `tuning` is the best so far, `choices` are the reasons."""

    def __init__(self, runner: GpuRunner, file: GGUFFile, *, seconds: float, precision: str, say: Say) -> None:
        self.runner = runner
        self.tuning = self.start = runner.tuning
        self.choices: list[Choice] = []
        self._file = file
        self._precision = precision
        self._begun, self._seconds = time.monotonic(), seconds
        self.share = 1.0  # of the time, that may be spent for now
        self._say = say
        self._verdicts: dict[LinearShape | ExpertShape, bool] = {}

    @property
    def time_left(self) -> bool:
        """Whether another candidate may be tried."""
        return time.monotonic() < self._begun + self.share * self._seconds

    @cached_property
    def _matrices(self) -> list[Any]:
        return matrix_samples(self._file)

    @cached_property
    def _experts(self) -> list[Any]:
        return list(expert_samples(self._file))

    def linear(self, chunk: int) -> None:
        """The ladder of matrix kernels by rows, from decode to the chunk; for short runs apart where there are some."""
        bounds: tuple[int, ...] = (*(rows for rows in ROWS if rows < chunk), MANY)
        names = ["linear"]
        self.tuning = replace(self.tuning, linear=candidates.in_ladder(self.tuning.linear, bounds))
        if any(sample.format.run < 32 for sample in self._matrices):
            names.append("linear_short")
            short = self.tuning.linear_short or self.tuning.linear
            self.tuning = replace(self.tuning, linear_short=candidates.in_ladder(short, bounds))
        if self.tuning.linear_packed:
            names.insert(0, "linear_packed")
            packed = candidates.in_ladder(self.tuning.linear_packed, bounds)
            self.tuning = replace(self.tuning, linear_packed=packed)
        # The ends of the ladder matter most, so that they come first.
        for at in sorted(range(len(bounds)), key=lambda i: (0 < i < len(bounds) - 1, i)):
            rows = chunk if bounds[at] == MANY else bounds[at]
            if rows <= self.runner.slots or rows > candidates.FEW or rows == chunk:
                for name in names:
                    self._matrix_step(name, at, rows)

    def _matrix_step(self, name: str, at: int, rows: int) -> None:
        ladder, can = getattr(self.tuning, name), self.runner.device.capabilities
        few = rows <= self.runner.slots
        work = Workload("tg", 1, 0, rows, rows) if few else Workload("pp", rows, 0, 1, rows)
        tried = [
            Candidate(shown(shape), changed(self.tuning, name, at, shape), partial(self._right, shape))
            for shape in candidates.linear_shapes(can, rows, self._precision, packed=name == "linear_packed")
            if shape != ladder[at][1]
        ]
        runs = {"linear_short": "short runs", "linear_packed": "matrices of integers"}.get(name, "matrices")
        self.improve(f"{runs}, {rows} row{'s' if rows > 1 else ''}", shown(ladder[at][1]), tried, work)

    def experts(self, chunk: int) -> None:
        """The ladder of kernels for experts, by choices of each."""
        every = next(t for name, t in self._file.tensors.items() if name.endswith("ffn_gate_exps.weight")).shape[0]
        arch = self._file.str("general.architecture")
        used = self._file.int(f"{arch}.expert_used_count")
        ladder = self.tuning.experts
        for at, bound in enumerate(bound for bound, _ in ladder):
            rows = chunk if bound == MANY else max(1, int(bound * every / used)) if at else 1
            few = rows <= self.runner.slots
            work = Workload("tg", 1, 0, rows, rows) if few else Workload("pp", min(rows, chunk), 0, 1, min(rows, chunk))
            tried = [
                Candidate(shown(shape), self._with_experts(at, shape), partial(self._right, shape))
                for shape in candidates.expert_shapes(self.runner.device.capabilities)
                if shape != self.tuning.experts[at][1]
            ]
            what = f"experts, {work.tokens * work.batch} rows"
            self.improve(what, shown(self.tuning.experts[at][1]), tried, work)

    def _with_experts(self, at: int, shape: ExpertShape) -> Tuning:
        """One sort serves both ladders, so that their tiles are as large."""
        tuning = changed(self.tuning, "experts", at, shape)
        if not tuning.experts_short:
            return tuning
        halved = replace(shape, r=max(2, shape.r // 2)) if shape.kernel == "experts_lane" else shape
        return changed(tuning, "experts_short", at, halved)

    def lanes(self, name: str, what: str, work: Workload) -> None:
        """Lanes of a workgroup for what is no product."""
        if name == "row_lanes" and self.tuning.reduce == "one_subgroup":
            return  # a subgroup has the lanes it has
        self.number(name, what, candidates.lanes(self.runner.device.capabilities, getattr(self.tuning, name)), work)

    def number(self, name: str, what: str, counts: Sequence[int], work: Workload) -> None:
        """A constant that is one of some numbers."""
        now = getattr(self.tuning, name)
        tried = [Candidate(str(count), with_field(self.tuning, name, count)) for count in counts if count != now]
        self.improve(what, str(now), tried, work)

    def switch(self, name: str, what: str, work: Workload) -> None:
        """A constant that is one of two ways."""
        now, names = getattr(self.tuning, name), ("no", "yes")
        tried = Candidate(names[not now], with_field(self.tuning, name, not now))
        self.improve(what, names[now], [tried], work)

    def improve(self, what: str, default: str, tried: Sequence[Candidate], work: Workload) -> None:
        """Tries candidates for as long as there is time; the best that is right and surely faster stays."""
        if not (tried and self.time_left):
            return
        batch = self._batch(work)
        first = incumbent = self._lap(self.tuning, batch)
        wanted = self._logits(self.tuning, batch)
        chosen, right, wrong = default, 0, []
        for candidate in tried:
            if not self.time_left:
                break
            try:
                fine = candidate.right() if candidate.right else self._same(candidate.tuning, batch, wanted)
                challenger = self._lap(candidate.tuning, batch) if fine else incumbent
            except DeviceLost:
                raise
            except RwkvGpuError:  # a shape that this device cannot compile or run
                fine = False
            if not fine:
                wrong.append(candidate.name)
                continue
            right += 1
            if duel(incumbent, challenger).better:
                self.tuning, incumbent, chosen = candidate.tuning, challenger, candidate.name
        verdict = duel(first, incumbent) if incumbent is not first else Verdict(0.0, 0.0, 0)
        self.runner.device.pipelines.clear()  # those of all candidates add up
        self.choices.append(Choice(what, chosen, default, verdict.gain, verdict.error, right, tuple(wrong)))
        self._say(f"{what}: {chosen}" + (f", {verdict.gain:.0%} less time than {default}" if chosen != default else ""))

    def setting(self, what: str, default: int, tried: Iterable[int], lap: Callable[[int], float]) -> int:
        """The value by which whole passes are fastest, by our own clock."""
        best, right = default, 0
        if not self.time_left:
            return default
        for value in tried:
            if value != default and self.time_left:
                right += 1
                if duel(partial(lap, best), partial(lap, value), 6).better:
                    best = value
        verdict = duel(partial(lap, default), partial(lap, best), 6) if best != default else Verdict(0.0, 0.0, 0)
        self.choices.append(Choice(what, str(best), str(default), verdict.gain, verdict.error, right))
        self._say(f"{what}: {best}")
        return best

    def _right(self, shape: LinearShape | ExpertShape) -> bool:
        if shape not in self._verdicts:
            device = self.runner.device
            self._verdicts[shape] = (
                linear_is_right(device, shape, self._matrices)
                if isinstance(shape, LinearShape)
                else experts_are_right(device, shape, self._experts)
            )
        return self._verdicts[shape]

    def _batch(self, work: Workload) -> Batch:
        """The first step of a workload, in its place."""
        self.runner.chunk_size = max(work.chunk, work.batch)
        rewind(self.runner, work)
        return self.runner.prepare(work.steps()[0])

    def _plan(self, tuning: Tuning, batch: Batch) -> Plan:
        self.runner.retune(tuning)
        return self.runner.plan_for(batch)

    def _lap(self, tuning: Tuning, batch: Batch) -> Lap:
        """A lap of the plan, once it has run."""
        given = batch.rows, batch.arrays(), len(batch.segments), len(batch.outputs)
        lap = partial(self._plan(tuning, batch).lap, *given)
        lap()
        return lap

    def _logits(self, tuning: Tuning, batch: Batch) -> Any:
        plan = self._plan(tuning, batch)
        plan.run(batch.rows, batch.arrays(), len(batch.segments), len(batch.outputs))
        return plan.read("logits", len(batch.outputs)).astype(np.float32)

    def _same(self, tuning: Tuning, batch: Batch, wanted: Any) -> bool:
        return close(self._logits(tuning, batch), wanted, WORDS_APART)


def with_field(tuning: Tuning, name: str, value: Any) -> Tuning:
    """The same but for one field."""
    return replace(tuning, **{name: value})


def changed(tuning: Tuning, name: str, at: int, shape: LinearShape | ExpertShape) -> Tuning:
    """The same but for one rung of a ladder."""
    ladder = getattr(tuning, name)
    return with_field(tuning, name, (*ladder[:at], (ladder[at][0], shape), *ladder[at + 1 :]))


def pass_seconds(runner: GpuRunner, work: Workload, look_ahead: int | None = None) -> float:
    """Of a whole workload, by our own clock."""
    runner.chunk_size = max(work.chunk, work.batch)
    return on_gpu(runner, work, work.steps(), look_ahead).seconds


@dataclass(frozen=True)
class Limits:
    """How far a search goes."""

    seconds: float
    precision: str  # see candidates.PRECISIONS
    chunk: int  # rows of a prompt's step, while kernels are tuned
    chunks: tuple[int, ...]  # that are tried
    decode: int  # tokens of a pass, where steps are tuned
    batch: int  # sequences of a decode step, at most
    depth: int  # that a decode step looks back over, where attention is tuned

    @property
    def context(self) -> int:
        """Positions that a sequence needs."""
        return max(*self.chunks, self.depth + 1)

    @classmethod
    def of(cls, device: Device, seconds: float, precision: str) -> "Limits":
        """What minutes are enough for."""
        if device.capabilities.software:
            return cls(seconds, precision, 64, (32, 64, 128, 256), 4, 8, 1000)
        return cls(seconds, precision, 512, (64, 128, 256, 512, 1024), 32, 32, 4000)


@dataclass(frozen=True)
class Found:
    """What a search on one model gives."""

    tuning: Tuning
    chunk_size: int
    layers_per_submit: int
    look_ahead: int
    choices: tuple[Choice, ...]


def tune(runner: GpuRunner, file: GGUFFile, limits: Limits, say: Say) -> Found:
    """Kernels by rows, then lanes, then how steps are cut, and how far they run ahead of the host."""
    tuner = Tuner(runner, file, seconds=limits.seconds, precision=limits.precision, say=say)
    attends, mixes = bool(runner.model.caches), any(len(weight.shape) > 2 for weight in runner.model.weights)
    tuner.share = LADDERS
    tuner.linear(limits.chunk)
    if mixes:
        tuner.experts(limits.chunk)
    decode, prompt = Workload("tg", 1, 0, 1, 1), Workload("pp", limits.chunk, 0, 1, limits.chunk)
    tuner.share = LANES
    tuner.lanes("row_lanes", "lanes of a norm", decode)
    tuner.lanes("map_lanes", "lanes by element", prompt)
    if runner.model.states:
        tuner.switch("mixes_ahead", "products that norm and mix what they read", decode)
    if attends:
        far = Workload("tg", 1, limits.depth, 1, 1)
        tuner.number("attend_run", "positions of a run", (32, 64, 128, 256, 512), far)
        tuner.lanes("attend_lanes", "lanes that attend", far)
        if tuner.tuning.one_side:
            tuner.number("one_side", "lanes that share a key", (8, 16), far)
            tuner.number("one_lanes", "lanes that attend in decode", (64, 128, 256), far)
    if runner.model.states and tuner.tuning.head_side:
        tuner.number("head_side", "lanes that share a row of a state", (4, 8, 16), decode)
        tuner.number("late_rows", "rows whose LoRAs end within the time mix", (0, tuner.tuning.late_rows), decode)
    tuner.share = 1.0
    runner.retune(tuner.tuning)
    longest = max(limits.chunks)

    def prefill(chunk: int) -> float:
        return pass_seconds(runner, Workload("pp", longest, 0, 1, chunk))

    said = Workload("tg", limits.decode, 0, 1, 1)

    def cut(layers: int) -> float:
        runner.layers_per_submit = layers
        return pass_seconds(runner, said)

    chunk = tuner.setting("chunk size", min(512, longest), limits.chunks, prefill)
    layers = tuner.setting("layers per submit", 0, (1, 2, 4, 8, 16), cut)
    runner.layers_per_submit = layers
    most = runner.room.look_ahead
    ahead = tuner.setting("look-ahead", min(2, most), range(most + 1), lambda n: pass_seconds(runner, said, n))
    return Found(tuner.tuning, chunk, layers, ahead, tuple(tuner.choices))
