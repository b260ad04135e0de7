"""Runs the steps of a model, or of one part of it, in numpy."""

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ..gguf.file import GGUFFile
from ..gguf.row_table import RowTable
from ..gpu.loader import host_weights
from ..models.registry import Contents, Model
from ..ops.adapted import AdaptedOps
from ..ops.batch import Batch
from ..ops.media import with_media
from ..ops.reference import Reference
from ..ops.sampler_state import HostSamplerState
from ..ops.sampling import Drawing
from .adapters import NO_ADAPTERS, Adapters
from .cache.config import CacheOptions
from .cache.kv import HostKVCache
from .forks import computing
from .parameters import parameters_of
from .runner import NOTHING, Arrays, Logits, Output, PartRunner, PendingRows, ReadyPart, Share, StateArrays, unadapted
from .step_result import CompletedStep, PendingStep, SampledRow, SamplingInputs, StepResult


class HostRunner(PartRunner):
    """Runs steps in numpy through the reference interpreter: the same model, or one part of it."""

    asynchronous = False  # a submitted step is computed at once
    ahead = 0
    compile_seconds = 0.0
    sampler_state: HostSamplerState

    def __init__(
        self,
        file: GGUFFile,
        model: Model,
        *,
        chunk_size: int = 512,
        adapters: Adapters = NO_ADAPTERS,
        share: Share | None = None,
        **options: Unpack[CacheOptions],
    ) -> None:
        super().__init__(model, adapters, chunk_size, share, options)
        config, contents = self.cache_config, self.contents
        self._blas = Blas()
        sizes = matrix_sizes(contents)
        self._matrix = sum(sizes) // max(1, len(sizes))  # mean number of elements of a matrix
        parameters = parameters_of(file, contents)
        self._weights: dict[str, Any] = {
            **host_weights(file, [p for p in parameters if not p.is_row_table]),
            **self._join_adapters(),
        }
        self._states = {
            state.name: np.zeros((config.states, *state.shape), state.dtype(config.state_type))
            for state in contents.states
        }
        rows = [self.head.rows] if self.head and self.head.rows else []
        self._slot_rows = {one.name: np.zeros((config.slots, *one.shape), np.float32) for one in rows}
        self.sampler_state = HostSamplerState(config.slots, model.vocabulary, self._drafts)
        self._caches = HostKVCache(contents.caches, config, None if share is None else share.tables)
        self._place(self._caches)
        self._tables = {p.name: RowTable(file, p.tensors[0]) for p in parameters if p.is_row_table}
        self._weights |= self._tables

    def ready(self, batch: Batch, sampling: SamplingInputs) -> ReadyPart:
        """A step of this part; nothing can be done in advance."""
        return HostReadyPart(self, batch, sampling)

    def forward(self, batch: Batch, arrived: Arrays) -> PendingRows:
        """Computes a step of this part, for the parts after it."""
        return HostPendingRows(self._compute(self._reference(batch), "forward", arrived)[1])

    def submit(self, batch: Batch, sampling: SamplingInputs, arrived: Arrays = NOTHING) -> PendingStep:
        reference = self._reference(batch, Drawing(self.sampler_state, sampling.rows, sampling.masks))
        logits, _ = self._compute(reference, "forward", arrived)
        words = reference.sample(logits, how=sampling.how)
        chosen = SampledRow.rows(words.tobytes(), len(words))
        return CompletedStep(StepResult(chosen, logits if sampling.logits else None))

    def draft(self, batch: Batch, sampling: SamplingInputs, number: int = 0) -> PendingStep:
        reference = self._reference(batch, Drawing(self.sampler_state, sampling.rows))
        logits, _ = self._compute(reference, "draft", NOTHING, self._link(number))
        words = reference.sample(logits, how=sampling.how)
        return CompletedStep(StepResult(SampledRow.rows(words.tobytes(), len(words)), logits))

    def forget_row(self, slot: int, length: int) -> None:
        for rows in self._slot_rows.values():
            rows[slot, (length - 1) % rows.shape[1]] = 0

    def warm_up(self) -> Iterator[None]:
        """Does nothing: there is nothing to prepare."""
        return iter(())

    def run(self, batch: Batch, what: Output, arrived: Arrays = NOTHING) -> Logits:
        """Runs a placed batch and returns logits, or the input of the head."""
        rows, _ = self._compute(self._reference(batch), "hidden" if what == "hidden" else "forward", arrived)
        return rows

    def features(self, batch: Batch) -> Iterator[Arrays | None]:
        rows: Any = self._compute(self._reference(self.prepare(batch)), "features", NOTHING)[0]
        yield rows

    def _compute(self, reference: Reference, function: str, arrived: Arrays, *more: int) -> tuple[Logits, Arrays]:
        """Runs a function of the model; returns its result, and the values that leave this part."""
        batch, adapted = reference.batch, unadapted
        if self._factors:
            scales = self._with_adapters(batch).adapters
            adapted = partial(AdaptedOps, factors=self._factors, scales=scales)
        g = with_media(adapted(reference), batch.extra_inputs)
        # Infinite or NaN values are detected in the logits, so numpy need not warn of them.
        with computing(), self._blas.sized(batch.rows * self._matrix), np.errstate(all="ignore"):
            if self._part is not None:
                return self._part.run(reference, function, batch.ids, arrived, adapted)
            return getattr(self.model, function)(g, batch.ids, *more), {}

    def _reference(self, placed: Batch, drawing: Drawing | None = None) -> Reference:
        states, caches = self._states | self._slot_rows, self._caches.arrays
        return Reference(self._weights, states, placed, caches, drawing, self.cache_config.context)

    def read_state(self, slot: int) -> StateArrays:
        arrays = {name: array[self.store.state(slot)].astype(np.float32) for name, array in self._states.items()}
        return arrays | self._caches.read(slot)

    def put_state(self, slot: int, states: StateArrays) -> None:
        """Writes the state of a sequence that has a place."""
        for name, array in self._states.items():
            array[self.store.state(slot)] = states[name]
        self._caches.write(slot, states)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        self._weights, self._states = {}, {}


# This many multiplications take a tenth of a second on one core. Longer steps would delay interrupts, and steps of few
# rows are slow per row.
STEP, MIN_ROWS = 1 << 30, 64


def rows_on_host(model: Model, chunk_size: int, slots: int) -> int:
    """Rows of a step in numpy: at most `chunk_size`, and few enough for a short step."""
    return min(chunk_size, max(MIN_ROWS, slots, STEP // max(1, sum(matrix_sizes(model)))))


def matrix_sizes(contents: Contents) -> list[int]:
    """Number of elements of each matrix; for a stack of matrices, of one."""
    return [math.prod(weight.shape[-2:]) for weight in contents.weights if len(weight.shape) > 1]


@dataclass(frozen=True)
class HostReadyPart:
    """A step of a part in numpy, computed once its late inputs are known."""

    runner: HostRunner
    batch: Batch
    sampling: SamplingInputs

    def forward(self, late: Arrays) -> PendingRows:
        return self.runner.forward(self.batch, late)

    def sample(self, late: Arrays) -> PendingStep:
        return self.runner.submit(self.batch, self.sampling, late)

    def discard(self) -> None:
        """Does nothing: nothing was prepared."""


@dataclass(frozen=True)
class HostPendingRows:
    """Output values of a part, computed at once."""

    arrays: Arrays

    def wait(self) -> Arrays:
        return self.arrays


SMALL = 1 << 24  # multiplications of one product that one thread does in a few milliseconds
NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class Blas:
    """Controls the number of threads of numpy's BLAS, if it is OpenBLAS.

    OpenBLAS distributes even small products to all threads, and waits for them by spinning. On two shared cores, a step
    of a small model then takes ten times as long. With any other library, nothing is changed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.set_threads: Any = None  # None if the library cannot be controlled
        self.threads = 1
        package = Path(np.__file__).parent
        for place in [folder] if folder else [package.with_name("numpy.libs"), package / ".dylibs"]:
            for path in sorted(place.glob("*openblas*")):
                self._find(path)

    @contextmanager
    def sized(self, multiplications: int) -> Iterator[None]:
        """A context in which small products use one thread."""
        if self.set_threads is None or multiplications > SMALL:
            yield
            return
        self.set_threads(1)
        try:
            yield
        finally:
            self.set_threads(self.threads)

    def _find(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # no such library, or not for this machine
            return
        for name in NAMES:
            try:
                self.threads = getattr(library, name.format("get_num_threads"))()
                self.set_threads = getattr(library, name.format("set_num_threads"))
            except AttributeError:
                continue
            return
