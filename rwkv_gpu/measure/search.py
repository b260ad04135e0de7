"""Searches for the fastest tuning constants by timing whole model steps, one purpose after the other.

A candidate is checked before it is timed. Its kernel is compared with numpy. A candidate that changes no single kernel
is checked by the model's logits, against those of the initial constants. The winner becomes the next incumbent.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..engine.gpu_runner import GpuRunner
from ..errors import DeviceLost, RwkvGpuError
from ..gguf.file import GGUFFile
from ..gpu.device import Capabilities
from ..gpu.plan import Plan
from ..gpu.profile import time_replay
from ..kernels.expert_config import ExpertConfig
from ..kernels.gemm_config import UNLIMITED, GemmConfig
from ..kernels.gemv import MAX_GEMV_ROWS
from ..kernels.registry import expert_candidates, gemm_candidates
from ..kernels.tuned import Choice, shown
from ..kernels.tuning import GemmLimits, Tuning
from ..ops.batch import Batch
from .bench import rewind
from .check import close, expert_samples, experts_are_right, linear_is_right, matrix_samples
from .compare import TimedRun, Verdict, compare
from .workload import Workload

ROWS = (1, 2, 4, 8, 16, 32, 64)  # row limits of the table below the chunk size
WORDS_APART = 1e-2  # allowed difference relative to the largest logit: random models amplify rounding

EVEN = Verdict(0.0, 0.0, 0)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """Constants that differ in one value from the incumbent's."""

    name: str
    tuning: Tuning
    right: Callable[[], bool] | None = None  # checks its kernel; None compares logits


class Tuner:
    """The search on one model. `tuning` is the best so far, `choices` explain it."""

    def __init__(self, runner: GpuRunner, file: GGUFFile, *, seconds: float, precision: str, say: Say) -> None:
        self.runner = runner
        self.tuning = runner.tuning
        self.choices: list[Choice] = []
        self._file = file
        self._precision = precision
        self._begun, self._seconds = time.monotonic(), seconds
        self.share = 1.0  # share of the time that may be used so far
        self._say = say
        self._verdicts: dict[GemmConfig | ExpertConfig, bool] = {}

    @property
    def time_left(self) -> bool:
        """True if another candidate may be tried."""
        return time.monotonic() < self._begun + self.share * self._seconds

    @cached_property
    def _matrices(self) -> list[Any]:
        return matrix_samples(self._file)

    @cached_property
    def _experts(self) -> list[Any]:
        return list(expert_samples(self._file))

    def linear(self, chunk: int) -> None:
        """Tunes the table of matrix kernels: by rows, from decode to the chunk, and by size."""
        bounds: tuple[int, ...] = (*(rows for rows in ROWS if rows < chunk), UNLIMITED)
        short = any(sample.format.run < 32 for sample in self._matrices)
        self.tuning = with_bounds(self.tuning, bounds, short=short)
        slots, steps = self.runner.slots, []
        for at, (limits, config) in enumerate(self.tuning.gemm_table):
            most = limits.max_rows
            if _sized(limits, config):
                steps.append((chunk if most > MAX_GEMV_ROWS else min(most, slots), at))
            elif (most <= slots or most > MAX_GEMV_ROWS) and (short or limits.max_run == UNLIMITED):
                steps.append((chunk if most == UNLIMITED else most, at))
        # Decode and the chunk matter most, so they come first.
        for rows, at in sorted(steps, key=lambda step: (1 < step[0] < chunk, step[0])):
            self._matrix_step(at, rows)

    def _matrix_step(self, at: int, rows: int) -> None:
        can, (limits, now) = self.runner.device.capabilities, self.tuning.gemm_table[at]
        few = rows <= self.runner.slots
        work = Workload("tg", 1, 0, rows, rows) if few else Workload("pp", rows, 0, 1, rows)
        tried = [
            Candidate(shown(shape), changed(self.tuning, "gemm_table", at, shape), partial(self._right, shape))
            for shape in gemm_candidates(can, rows, self._precision, packed=limits.packed)
            if shape != now
        ]
        short = limits.max_run < UNLIMITED
        what = "short runs" if short else "matrices of integers" if limits.packed else "matrices"
        self.improve(f"{what}{_to(limits)}, {rows} row{'s' if rows > 1 else ''}", shown(now), tried, work)

    def experts(self, chunk: int) -> None:
        """Tunes the table of kernels for experts, by choices per expert."""
        every = next(t for name, t in self._file.tensors.items() if name.endswith("ffn_gate_exps.weight")).shape[0]
        arch = self._file.str("general.architecture")
        used = self._file.int(f"{arch}.expert_used_count")
        table = self.tuning.expert_table
        tuned = [at for at, (limits, _) in enumerate(table) if limits.max_run == UNLIMITED and not limits.heads]
        for at in tuned:
            bound = table[at][0].max_choices
            rows = chunk if bound == UNLIMITED else max(1, int(bound * every / used)) if at > tuned[0] else 1
            few = rows <= self.runner.slots
            work = Workload("tg", 1, 0, rows, rows) if few else Workload("pp", min(rows, chunk), 0, 1, min(rows, chunk))
            now = self.tuning.expert_table[at][1]
            tried = [
                Candidate(shown(shape), self._with_experts(at, shape), partial(self._right, shape))
                for shape in expert_candidates(self.runner.device.capabilities)
                if shape != now
            ]
            self.improve(f"experts, {work.tokens * work.batch} rows", shown(now), tried, work)

    def _with_experts(self, at: int, shape: ExpertConfig) -> Tuning:
        """One sort serves all matrices, so the tiles for formats of short runs get the same size."""
        tuning, limits = changed(self.tuning, "expert_table", at, shape), self.tuning.expert_table[at][0]
        halved = replace(shape, r=max(2, shape.r // 2)) if shape.kernel == "moe/expert_gemm_lane" else shape
        for other, (short, _) in enumerate(tuning.expert_table):
            if short.max_run < UNLIMITED and replace(short, max_run=UNLIMITED) == limits:
                tuning = changed(tuning, "expert_table", other, halved)
        return tuning

    def lanes(self, name: str, what: str, work: Workload) -> None:
        """Tunes the workgroup sizes of kernels that are not products."""
        if name == "row_lanes" and self.tuning.lanes.reduce == "one_subgroup":
            return  # the lanes of a subgroup are fixed
        self.number(name, what, lane_counts(self.runner.device.capabilities, self.tuning.value(name)), work)

    def number(self, name: str, what: str, counts: Sequence[int], work: Workload) -> None:
        """Tunes a constant with numeric values."""
        now = self.tuning.value(name)
        tried = [Candidate(str(count), self.tuning.changed(**{name: count})) for count in counts if count != now]
        self.improve(what, str(now), tried, work)

    def switch(self, name: str, what: str, work: Workload) -> None:
        """Tunes a constant with two values."""
        now, names = self.tuning.value(name), ("no", "yes")
        tried = Candidate(names[not now], self.tuning.changed(**{name: not now}))
        self.improve(what, names[now], [tried], work)

    def improve(self, what: str, default: str, tried: Sequence[Candidate], work: Workload) -> None:
        """Tries candidates while there is time; keeps the best one that is correct and significantly faster."""
        if not (tried and self.time_left):
            return
        batch, begun = self._batch(work), self.tuning
        plan = self._plan(begun, batch)
        kernels, wanted = _kernels(plan), self._logits(plan, batch)
        first = incumbent = self._timed_replay(plan, batch)
        chosen, right, wrong = default, 0, []
        for candidate in tried:
            if not self.time_left:
                break
            try:
                plan = self._plan(candidate.tuning, batch)
                if _kernels(plan) == kernels:
                    break  # nothing in this model has that size or format
                fine = candidate.right() if candidate.right else close(self._logits(plan, batch), wanted, WORDS_APART)
                challenger = self._timed_replay(plan, batch) if fine else incumbent
            except DeviceLost:
                raise
            except RwkvGpuError:  # a configuration that this device cannot compile or run
                fine = False
            if not fine:
                wrong.append(candidate.name)
                continue
            right += 1
            if compare(incumbent, challenger).better:
                self.tuning, incumbent, chosen = candidate.tuning, challenger, candidate.name
        self.runner.device.pipelines.clear()  # the pipelines of all candidates would add up
        if not (right or wrong):
            return
        verdict = compare(first, incumbent) if incumbent is not first else EVEN
        if not verdict.better:  # a winner by chance, or no winner
            self.tuning, chosen, verdict = begun, default, EVEN
        self.choices.append(Choice(what, chosen, default, verdict.gain, verdict.error, right, tuple(wrong)))
        self._say(f"{what}: {chosen}" + (f", {verdict.gain:.0%} less time than {default}" if chosen != default else ""))

    def setting(self, what: str, default: int, tried: Iterable[int], seconds: Callable[[int], float]) -> int:
        """The value with the fastest whole passes, by the host's clock."""
        best, right = default, 0
        if not self.time_left:
            return default
        for value in tried:
            if value != default and self.time_left:
                right += 1
                if compare(partial(seconds, best), partial(seconds, value), 6).better:
                    best = value
        verdict = compare(partial(seconds, default), partial(seconds, best), 6) if best != default else EVEN
        if not verdict.better:
            best, verdict = default, EVEN
        self.choices.append(Choice(what, str(best), str(default), verdict.gain, verdict.error, right))
        self._say(f"{what}: {best}")
        return best

    def _right(self, shape: GemmConfig | ExpertConfig) -> bool:
        if shape not in self._verdicts:
            device = self.runner.device
            self._verdicts[shape] = (
                linear_is_right(device, shape, self._matrices)
                if isinstance(shape, GemmConfig)
                else experts_are_right(device, shape, self._experts)
            )
        return self._verdicts[shape]

    def _batch(self, work: Workload) -> Batch:
        """The first step of a workload, placed."""
        self.runner.chunk_size = max(work.chunk, work.batch)
        rewind(self.runner, work)
        return self.runner.prepare(work.steps()[0])

    def _plan(self, tuning: Tuning, batch: Batch) -> Plan:
        self.runner.retune(tuning)
        return self.runner.plan_for(batch)

    def _timed_replay(self, plan: Plan, batch: Batch) -> TimedRun:
        """A function that times a replay of a plan, which has run once before."""
        replay = partial(time_replay, plan, *_given(batch))
        replay()
        return replay

    def _logits(self, plan: Plan, batch: Batch) -> Any:
        plan.run(*_given(batch))
        return plan.read("logits", len(batch.outputs)).astype(np.float32)


def _given(batch: Batch) -> tuple[int, dict[str, Any], int, int]:
    return batch.rows, batch.arrays(), len(batch.segments), len(batch.outputs)


def _kernels(plan: Plan) -> list[Any]:
    return [(dispatch.pipeline, dispatch.grid) for dispatch in plan.dispatches]


def _sized(limits: GemmLimits, config: GemmConfig) -> bool:
    """True if a row of the table applies only to some sizes of matrices, or to x of a certain format."""
    return limits.sized or config.copies


def _to(limits: GemmLimits) -> str:
    """Describes the size limit of matrices: to 4096 x 18432"""
    named = ("any" if count == UNLIMITED else str(count) for count in (limits.max_out, limits.max_width))
    return "" if limits.max_out == limits.max_width == UNLIMITED else f" to {' x '.join(named)}"


def changed(tuning: Tuning, table: str, at: int, shape: GemmConfig | ExpertConfig) -> Tuning:
    """A copy with one row of a table changed."""
    rows = tuning.value(table)
    return tuning.changed(**{table: (*rows[:at], (rows[at][0], shape), *rows[at + 1 :])})


def lane_counts(can: Capabilities, current: int) -> list[int]:
    """Lane counts other than the current one that the device supports."""
    tried = (8, 16, 32, 64, 128, 256, 512, 1024)
    return [count for count in tried if count != current and can.subgroup_width <= count <= can.max_invocations]


def with_bounds(tuning: Tuning, bounds: Sequence[int], *, short: bool) -> Tuning:
    """A copy whose table rows for all matrices of a kind of format have these row limits.

    Formats of short runs are a separate kind if the table already separates them, or with `short`.
    """
    sized = [row for row in tuning.gemm_table if _sized(*row)]
    rest = [row for row in tuning.gemm_table if not _sized(*row)]
    kinds = [GemmLimits(packed=True)] if any(limits.packed for limits, _ in rest) else []
    if short or any(limits.max_run < UNLIMITED for limits, _ in rest):
        kinds.append(GemmLimits(max_run=31))
    by_rows = replace(tuning, gemm_table=tuple(rest))
    rows = (
        (replace(kind, max_rows=bound), by_rows.gemm_config(bound, min(32, kind.max_run), packed=kind.packed))
        for kind in (*kinds, GemmLimits())
        for bound in bounds
    )
    return replace(tuning, gemm_table=(*sized, *rows))
