"""What takes the steps of a model: the interface of all runners, and what they do alike. Knows no text."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..models.registry import Contents, Model
from ..ops.batch import Batch, BatchArrays
from ..ops.kv_format import KV_FORMATS
from ..ops.parts import Part
from ..ops.sampler_state import GpuSamplerState, HostSamplerState
from ..ops.vocabulary import Cache, Choosing
from .adapters import Adapters
from .cache.config import CacheConfig, CacheOptions
from .cache.kv import PagedKVCache, PageTables, names
from .cache.states import StatePages
from .cache.store import CopyPages, SequenceStore
from .device_sampling import remember
from .sampling_params import SamplingParams
from .step_result import PendingStep, SamplingInputs

Logits = npt.NDArray[np.float32]
# What a plan gives: logits, the input of the head, values for other parts, or how tokens are chosen where they are.
Output = Literal["logits", "hidden", "crossing"] | Choosing
StateArrays = Mapping[str, npt.NDArray[Any]]
Arrays = dict[str, npt.NDArray[Any]]
NOTHING: Arrays = {}


class Runner(ABC):
    """Takes steps on a GPU, in numpy, or on several devices."""

    store: SequenceStore

    def __init__(self, model: Model, adapters: Adapters, chunk_size: int, options: CacheOptions) -> None:
        self.model = model
        self.adapters = adapters
        self.cache_config = config = CacheConfig.of(model, chunk_size=chunk_size, **options)
        self.vocabulary = model.vocabulary  # token ids that it knows
        self.slots = config.slots  # sequences that it has room for
        self.chunk_size = chunk_size  # rows that a step may have
        self.context = config.context if model.caches else None  # positions of a sequence, where there is a limit
        self.page_and_state_bytes = config.each(model.caches, model.states)  # of all layers

    @property
    @abstractmethod
    def compile_seconds(self) -> float:
        """Spent so far on recording plans and compiling their shaders."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Steps under way that keep it busy: more make nothing faster."""

    @abstractmethod
    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:
        """Sets a step going that samples, and that may feed what was sampled before. The batch is a placed one."""

    @abstractmethod
    def warm_up(self) -> Iterator[None]:
        """Gets ready, in pieces, what the first requests would wait for."""

    @abstractmethod
    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        """What penalties look back on and what biases there are, before the first draw of a sequence."""

    def prepare(self, batch: Batch) -> Batch:
        """The batch with a place for all that it writes; raises CacheFull, and takes nothing, where there is none."""
        return self.store.prepare(batch)

    def step(self, batch: Batch) -> Logits:
        """The logits of the rows that the batch asks for, [R, V]; the states move on."""
        return self.run(self.prepare(batch), "logits")

    def hidden(self, batch: Batch) -> Logits:
        """The same, but what the head would make logits of, [R, D]"""
        return self.run(self.prepare(batch), "hidden")

    @abstractmethod
    def run(self, batch: Batch, what: Output) -> Logits:
        """A step of a placed batch that gives logits, or the input of the head."""

    def fitted(self, length: int, states: StateArrays) -> StateArrays | None:
        """What any runner of this model has read of a sequence of that length, as `write_state` takes it; else None."""
        return fitted(self.model, self.cache_config, length, states)

    @abstractmethod
    def read_state(self, slot: int) -> StateArrays:
        """What a sequence has come to, by name."""

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        """Puts a sequence where `read_state` was taken, with no more of window layers than its next row sees."""
        near = any(0 < cache.window <= length for cache in self.model.caches)
        self.store.begin(slot, length, length if near else 0)
        self.put_state(slot, states)

    @abstractmethod
    def put_state(self, slot: int, states: StateArrays) -> None:
        """The state of a sequence that has its place."""

    @abstractmethod
    def close(self) -> None:
        """Gives back all memory."""


@dataclass(frozen=True)
class Share:
    """What a runner gets that runs one part of a model, and what it has in common with those of the other parts."""

    part: Part
    tables: PageTables
    store: SequenceStore
    arrays: BatchArrays


class PendingRows(Protocol):
    """Values that leave a part, on their way."""

    def wait(self) -> Arrays:
        """The values by name, [T, ...] each; asked for once."""


class ReadyPart(Protocol):
    """A step of a part that is ready but for its late inputs."""

    def forward(self, late: Arrays) -> PendingRows:
        """Sets it going; it gives the values which leave the part."""

    def sample(self, late: Arrays) -> PendingStep:
        """Sets it going; it is of the last part, which samples."""

    def discard(self) -> None:
        """Forgets it: it will not begin."""


class PartRunner(Runner):
    """Runs a model on a GPU or in numpy; with a `share`, one part of it. `arrived` has what other parts computed."""

    asynchronous: bool  # whether it computes while the host goes on
    sampler_state: GpuSamplerState | HostSamplerState
    copy_pages: CopyPages  # moves the bytes of pages in its layers that have such a window

    def __init__(
        self, model: Model, adapters: Adapters, chunk_size: int, share: Share | None, options: CacheOptions
    ) -> None:
        super().__init__(model, adapters, chunk_size, options)
        self._share = share
        self._part = None if share is None else share.part
        self.contents: Contents = model if share is None else share.part
        self._arrays = BatchArrays() if share is None else share.arrays

    @abstractmethod
    def ready(self, batch: Batch, sampling: SamplingInputs) -> ReadyPart:
        """Does ahead what can be done before late inputs are known: what arrives, and ids that are to be sampled."""

    @abstractmethod
    def run(self, batch: Batch, what: Output, arrived: Arrays = NOTHING) -> Logits: ...

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        remember(self.sampler_state, slot, ids, params)

    def _join_adapters(self) -> Arrays:
        """The values of the factors that it reads, by their names."""
        self._factors, values = self.adapters.factors(self.model)  # by the name of each weight
        used = None if self._part is None else self._part.used
        return {name: array for name, array in values.items() if used is None or name in used}

    def _with_adapters(self, batch: Batch) -> Batch:
        """A batch without wishes for adapters, of which every row then wants each as it was loaded."""
        return replace(batch, adapters=np.tile(self.adapters.scales(), (batch.rows, 1)))

    def _inputs(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        """What plans read of a batch."""
        if self._factors and batch.adapters is None:
            batch = self._with_adapters(batch)
        return self._arrays.of(batch)

    def _place(self, caches: PagedKVCache) -> None:
        """Gives its sequences their places: those of all parts, where it runs one of several."""
        self.copy_pages = caches.copy_pages
        share = self._share
        self.store = share.store if share else store_of(self.model, self.cache_config, caches, self.copy_pages)


def unadapted(g: Any) -> Any:
    """The vocabulary of a model without adapters."""
    return g


def store_of(model: Model, config: CacheConfig, caches: PagedKVCache | PageTables, copy: CopyPages) -> SequenceStore:
    """The pages and states of a model's sequences."""
    states = StatePages(config.states, config.history, config.apart) if model.states else None
    return SequenceStore(caches.pager if model.caches else None, states, copy, caches.windows)


def fitted(model: Model, config: CacheConfig, length: int, states: StateArrays) -> StateArrays | None:
    """The arrays of a sequence of that length in the shapes that a runner keeps; None if they are of another model.

    Of layers with a window, those that were read with another context may hold all positions, or the last ones only.
    """
    shapes: dict[str, tuple[int, ...]] = {state.name: state.shape for state in model.states}
    caches = {name: cache for cache in model.caches for name in names(cache)}
    shapes |= {name: (config.kept(cache, length), *config.shape(cache)[2:]) for name, cache in caches.items()}
    if states.keys() != shapes.keys():
        return None
    arrays = {}
    for name, array in states.items():
        shape = shapes[name]
        if name in caches:
            array = _as_stored(array, caches[name], config)
        if name in caches and (window := caches[name].window) and len(array) in (length, min(length, window - 1)):
            rows = np.zeros((shape[0], *array.shape[1:]), array.dtype)
            count = min(len(array), len(rows))
            rows[len(rows) - count :] = array[len(array) - count :]
            array = rows
        if array.shape != shape:
            return None
        arrays[name] = array
    return arrays


def _as_stored(array: npt.NDArray[Any], cache: Cache, config: CacheConfig) -> npt.NDArray[Any]:
    """Keys or values that were saved in one format in that of a runner; those of no format stay as they are."""
    wanted = config.format_of(cache)
    formats = [f for f in KV_FORMATS.values() if array.dtype == f.dtype and array.shape[-1] == f.width(cache.size)]
    if not formats or formats[0] is wanted:
        return array
    return wanted.store(formats[0].load(array, cache.size))


def prefill(
    runner: Runner,
    ids: Sequence[int],
    *,
    slot: int = 0,
    start: int = 0,
    chunk_size: int | None = None,
    every: bool = False,
) -> Logits:
    """Feeds a sequence in chunks: the logits after its last token, or of every position. [R, V]"""
    size = min(chunk_size or runner.chunk_size, runner.chunk_size)
    logits = []
    for at in range(0, len(ids), size):
        piece = runner.step(Batch.of([(slot, start + at, ids[at : at + size])], every=every))
        if every or at + size >= len(ids):
            logits.append(piece)
    return np.concatenate(logits)
