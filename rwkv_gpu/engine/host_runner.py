"""A model, or a part of one, that takes its steps in numpy."""

import ctypes
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile
from ..gpu.loader import host_weights
from ..models.registry import Contents, Model
from ..ops.adapted import AdaptedOps
from ..ops.batch import Batch
from ..ops.reference import Reference
from ..ops.sampler_state import HostSamplerState
from ..ops.sampling import Drawing
from .adapters import NO_ADAPTERS, Adapters
from .cache.config import CacheOptions
from .cache.kv import HostKVCache
from .parameters import parameters_of
from .runner import NOTHING, Arrays, Logits, Output, PartRunner, PendingRows, ReadyPart, Share, StateArrays, unadapted
from .step_result import CompletedStep, PendingStep, SampledRow, SamplingInputs, StepResult


class HostRunner(PartRunner):
    """Steps in numpy: the same model, or one part of it, through the reference interpreter."""

    asynchronous = False  # what is submitted is done at once
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
        self._matrix = sum(sizes) // max(1, len(sizes))  # numbers of a matrix, on average
        self._weights: Mapping[str, npt.NDArray[Any]] = {
            **host_weights(file, parameters_of(file, contents)),
            **self._join_adapters(),
        }
        self._states = {state.name: np.zeros((config.states, *state.shape), np.float32) for state in contents.states}
        self.sampler_state = HostSamplerState(config.slots, model.vocabulary)
        self._caches = HostKVCache(contents.caches, config, None if share is None else share.tables)
        self._place(self._caches)

    def ready(self, batch: Batch, sampling: SamplingInputs) -> ReadyPart:
        """A step of this part, which has nothing to do ahead."""
        return HostReadyPart(self, batch, sampling)

    def forward(self, batch: Batch, arrived: Arrays) -> PendingRows:
        """A step of this part, for those that come after it."""
        return HostPendingRows(self._compute(self._reference(batch), "forward", arrived)[1])

    def submit(self, batch: Batch, sampling: SamplingInputs, arrived: Arrays = NOTHING) -> PendingStep:
        reference = self._reference(batch, Drawing(self.sampler_state, sampling.rows, sampling.masks))
        logits, _ = self._compute(reference, "forward", arrived)
        words = reference.sample(logits, how=sampling.how)
        chosen = SampledRow.rows(words.tobytes(), len(words))
        return CompletedStep(StepResult(chosen, logits if sampling.logits else None))

    def warm_up(self) -> Iterator[None]:
        """There is nothing to get ready."""
        return iter(())

    def run(self, batch: Batch, what: Output, arrived: Arrays = NOTHING) -> Logits:
        """A step of a placed batch that gives logits, or the input of the head."""
        rows, _ = self._compute(self._reference(batch), "hidden" if what == "hidden" else "forward", arrived)
        return rows

    def _compute(self, reference: Reference, function: str, arrived: Arrays) -> tuple[Logits, Arrays]:
        """What a function of the model gives, and what leaves this part."""
        batch, adapted = reference.batch, unadapted
        if self._factors:
            scales = (batch if batch.adapters is not None else self._with_adapters(batch)).adapters
            adapted = partial(AdaptedOps, factors=self._factors, scales=scales)
        # What becomes infinite or NaN is seen in the logits: numpy need not warn of it as well.
        with self._blas.sized(batch.rows * self._matrix), np.errstate(all="ignore"):
            if self._part is not None:
                return self._part.run(reference, function, batch.ids, arrived, adapted)
            return getattr(self.model, function)(adapted(reference), batch.ids), {}

    def _reference(self, placed: Batch, drawing: Drawing | None = None) -> Reference:
        return Reference(self._weights, self._states, placed, self._caches.arrays, drawing, self.cache_config.context)

    def read_state(self, slot: int) -> StateArrays:
        arrays = {name: array[self.store.state(slot)].copy() for name, array in self._states.items()}
        return arrays | self._caches.read(slot)

    def put_state(self, slot: int, states: StateArrays) -> None:
        """The state of a sequence that has its place."""
        for name, array in self._states.items():
            array[self.store.state(slot)] = states[name]
        self._caches.write(slot, states)

    def close(self) -> None:
        self._weights, self._states = {}, {}


# A step cannot be interrupted: so many multiplications take a tenth of a second on one core. Fewer rows are slow.
STEP, LEAST_ROWS = 1 << 30, 64


def rows_on_host(model: Model, chunk_size: int, slots: int) -> int:
    """The rows of a step in numpy, of `chunk_size` at most, so that it is soon done."""
    return min(chunk_size, max(LEAST_ROWS, slots, STEP // max(1, sum(matrix_sizes(model)))))


def matrix_sizes(contents: Contents) -> list[int]:
    """Numbers of each matrix; of a stack of them, of one."""
    return [math.prod(weight.shape[-2:]) for weight in contents.weights if len(weight.shape) > 1]


@dataclass(frozen=True)
class HostReadyPart:
    """A step of a part in numpy, to be computed once its late inputs are known."""

    runner: HostRunner
    batch: Batch
    sampling: SamplingInputs

    def forward(self, late: Arrays) -> PendingRows:
        return self.runner.forward(self.batch, late)

    def sample(self, late: Arrays) -> PendingStep:
        return self.runner.submit(self.batch, self.sampling, late)

    def discard(self) -> None:
        """Nothing was done for it."""


@dataclass(frozen=True)
class HostPendingRows:
    """Values that leave a part, computed at once."""

    arrays: Arrays

    def wait(self) -> Arrays:
        return self.arrays


SMALL = 1 << 24  # multiplications, of one product, that one thread does in a few milliseconds
NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class Blas:
    """How many threads numpy multiplies with, as far as its library can be told.

    Its OpenBLAS shares even small products out, and waits for all, spinning. On two cores that others use too, a step
    of a small model takes ten times as long that way. Where numpy brings another library, nothing is changed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.set_threads: Any = None  # where it can be told
        self.threads = 1
        package = Path(np.__file__).parent
        for place in [folder] if folder else [package.with_name("numpy.libs"), package / ".dylibs"]:
            for path in sorted(place.glob("*openblas*")):
                self._find(path)

    @contextmanager
    def sized(self, multiplications: int) -> Iterator[None]:
        """Inside, small products are done by one thread."""
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
        except OSError:  # no library, or none of this machine
            return
        for name in NAMES:
            try:
                self.threads = getattr(library, name.format("get_num_threads"))()
                self.set_threads = getattr(library, name.format("set_num_threads"))
            except AttributeError:
                continue
            return
