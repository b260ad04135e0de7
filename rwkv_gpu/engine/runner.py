"""Runs the steps of a model: the interface of all runners, and their shared code. Sees no text."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..models.heads import DraftHead, Predicting
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


class DraftOutput(NamedTuple):
    """Tokens that the model's head drafts."""

    how: Choosing
    link: int  # number of the head's block


# Output of a plan: logits, the input of the output matrix, values for other parts, rows of images, or sampled tokens.
Output = Literal["logits", "hidden", "crossing", "features"] | Choosing | DraftOutput
StateArrays = Mapping[str, npt.NDArray[Any]]
Arrays = dict[str, npt.NDArray[Any]]
NOTHING: Arrays = {}
KEYS_AND_VALUES = ".keys", ".values"  # ends of the names of saved arrays of a cache


class Runner(ABC):
    """Runs steps on a GPU, in numpy, or on several devices."""

    store: SequenceStore

    def __init__(self, model: Model, adapters: Adapters, chunk_size: int, options: CacheOptions) -> None:
        self.model = model
        self.adapters = adapters
        self.cache_config = config = CacheConfig.of(model, chunk_size=chunk_size, **options)
        self.vocabulary = model.vocabulary  # number of token ids
        self.slots = config.slots  # maximum number of running sequences
        self.chunk_size = chunk_size  # maximum rows of a step
        self.context = config.context if model.caches else None  # maximum positions of a sequence; None without a limit
        self.page_and_state_bytes = config.each(model.caches, model.states)  # over all layers

    @property
    @abstractmethod
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Steps in flight that keep it busy; more bring no speed."""

    @property
    def follows(self) -> bool:
        """True if the device counts right drafts, so that a step may follow one whose drafts are not counted yet."""
        return False

    @abstractmethod
    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:
        """Submits a sampling step of a placed batch. It may feed tokens sampled by earlier steps in flight."""

    @property
    def head(self) -> DraftHead | None:
        """The head of the model that drafts, if it is in use."""
        return self.model.head if isinstance(self.model, Predicting) else None

    def draft(self, batch: Batch, sampling: SamplingInputs, number: int = 0) -> PendingStep:
        """Submits step `number` of a draft of the head: reads one token of each sequence, and samples the next ones."""
        raise NotImplementedError("the model has no head in use")

    def _link(self, number: int) -> int:
        """The block of the head that drafts token `number`. The last block also drafts all later tokens."""
        assert self.head is not None, "it drafts"
        return min(number, self.head.links - 1)

    def draft_place(self, slot: int, number: int) -> int:
        """Returns the place where a drafted token of a slot is sampled, and the id by which later rows refer to it."""
        raise NotImplementedError("the model has no head in use")

    def forget_row(self, slot: int, length: int) -> None:
        """Clears the hidden row before position `length`, which a draft head reads: it may belong to another text."""
        del slot, length

    @abstractmethod
    def warm_up(self) -> Iterator[None]:
        """Prepares plans and shaders piece by piece, so that the first requests do not wait for them."""

    @abstractmethod
    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        """Stores the tokens for penalties and the biases of a sequence before its first sample."""

    def prepare(self, batch: Batch) -> Batch:
        """Places everything that the batch writes. Raises CacheFull, with nothing taken, if there is no room."""
        return self.store.prepare(batch)

    def step(self, batch: Batch) -> Logits:
        """Runs a batch and returns the logits of its output rows, [R, V]. States advance."""
        return self.run(self.prepare(batch), "logits")

    def hidden(self, batch: Batch) -> Logits:
        """Like `step`, but returns the input of the head, [R, D]"""
        return self.run(self.prepare(batch), "hidden")

    @abstractmethod
    def run(self, batch: Batch, what: Output) -> Logits:
        """Runs a placed batch and returns logits, or the input of the head."""

    def fitted(self, length: int, states: StateArrays) -> StateArrays | None:
        """Converts a state read by any runner of this model for `write_state`; None if it does not fit."""
        return fitted(self.model, self.cache_config, length, states)

    @abstractmethod
    def read_state(self, slot: int) -> StateArrays:
        """Returns the state and caches of a sequence, by name."""

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        """Restores a sequence from `read_state`, keeping only the attention window of layers that have one."""
        near = any(0 < cache.window <= length for cache in self.model.caches)
        self.store.begin(slot, length, length if near else 0)
        self.put_state(slot, states)

    @abstractmethod
    def put_state(self, slot: int, states: StateArrays) -> None:
        """Writes the state of a sequence that has a place."""

    @abstractmethod
    def close(self) -> None:
        """Frees all memory."""


@dataclass(frozen=True)
class Share:
    """Settings of a runner for one part of a model, and the objects it shares with the other parts."""

    part: Part
    tables: PageTables
    store: SequenceStore
    arrays: BatchArrays


class PendingRows(Protocol):
    """Output values of a part, still being computed."""

    def wait(self) -> Arrays:
        """Returns the values by name, [T, ...] each. Call it once."""


class ReadyPart(Protocol):
    """A step of a part, prepared except for its late inputs."""

    def forward(self, late: Arrays) -> PendingRows:
        """Submits it; returns the values that leave the part."""

    def sample(self, late: Arrays) -> PendingStep:
        """Submits it and samples; for the last part only."""

    def discard(self) -> None:
        """Drops the step without submitting it."""


class PartRunner(Runner):
    """Runs a model on a GPU or in numpy; with a `share`, one part of it. `arrived` holds values from other parts."""

    asynchronous: bool  # whether it computes while the host continues
    sampler_state: GpuSamplerState | HostSamplerState
    copy_pages: CopyPages  # copies pages in its layers with a given window

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
        """Prepares a step before its late inputs (values from other parts, ids to be sampled) are known."""

    @abstractmethod
    def run(self, batch: Batch, what: Output, arrived: Arrays = NOTHING) -> Logits: ...

    @abstractmethod
    def features(self, batch: Batch) -> Iterator[Arrays | None]:
        """Runs the function with this name in a tower, such as a vision encoder.

        Yields None after each part that it has submitted, so that other steps can follow it. Then yields the results.
        """

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        remember(self.sampler_state, slot, ids, params)

    def draft_place(self, slot: int, number: int) -> int:
        return self.sampler_state.draft_place(slot, number)

    @property
    def _drafts(self) -> int:
        """Drafted tokens of a sequence that are sampled on the device."""
        return self.cache_config.drafts if self.head else 0

    def _join_adapters(self) -> Arrays:
        """Returns the values of its adapter factors, by name."""
        self._factors, values = self.adapters.factors(self.model)  # by the name of each weight
        used = None if self._part is None else self._part.used
        return {name: array for name, array in values.items() if used is None or name in used}

    def _with_adapters(self, batch: Batch) -> Batch:
        """Fills in the adapters' default scales if a batch has none."""
        if batch.adapters is not None:
            return batch
        return replace(batch, adapters=np.tile(self.adapters.scales(), (batch.rows, 1)))

    def _inputs(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        """Returns the inputs of a plan for this batch."""
        if self._factors:
            batch = self._with_adapters(batch)
        return self._arrays.of(batch)

    def _place(self, caches: PagedKVCache) -> None:
        """Creates the sequence store, or takes the one shared by all parts."""
        self.copy_pages = caches.copy_pages
        share = self._share
        self.store = share.store if share else store_of(self.model, self.cache_config, caches, self.copy_pages)


def unadapted(g: Any) -> Any:
    """Returns the vocabulary of a model without adapters."""
    return g


def store_of(model: Model, config: CacheConfig, caches: PagedKVCache | PageTables, copy: CopyPages) -> SequenceStore:
    """Creates the store for the pages and states of a model's sequences."""
    states = StatePages(config.states, config.history, config.spacing) if model.states else None
    return SequenceStore(caches.pager if model.caches else None, states, copy, caches.windows)


def fitted(model: Model, config: CacheConfig, length: int, states: StateArrays) -> StateArrays | None:
    """Converts saved arrays of a sequence of that length to this runner's shapes; None if they are of another model.

    For layers with a window, arrays saved with another context may hold all positions, or only the last ones. Arrays
    may be saved with another draft head, or without: drafts are then worse until the sequence has grown.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for state in model.states:
        given = states.get(state.name)
        if given is None or given.shape != state.shape or given.dtype not in (np.float16, np.float32):
            return None
        arrays[state.name] = given.astype(np.float32, copy=False)
    of_head = model.head.caches if isinstance(model, Predicting) else ()
    for cache, name in [(one, name) for one in model.caches for name in names(one)]:
        found = _fitted_rows(states[name], cache, config, length) if name in states else None
        if found is None and cache in of_head:
            found = np.zeros((config.kept(cache, length), *config.shape(cache)[2:]), config.format_of(cache).dtype)
        if found is None:
            return None
        arrays[name] = found
    others = states.keys() - arrays.keys()
    return arrays if all(name.endswith(KEYS_AND_VALUES) for name in others) else None


def _fitted_rows(array: npt.NDArray[Any], cache: Cache, config: CacheConfig, length: int) -> npt.NDArray[Any] | None:
    """Saved keys or values in this runner's shape; None if they do not fit."""
    shape = config.kept(cache, length), *config.shape(cache)[2:]
    array = _as_stored(array, cache, config)
    if cache.window and len(array) in (length, min(length, cache.window - 1)):
        rows = np.zeros((shape[0], *array.shape[1:]), array.dtype)
        count = min(len(array), len(rows))
        rows[len(rows) - count :] = array[len(array) - count :]
        array = rows
    return array if array.shape == shape else None


def _as_stored(array: npt.NDArray[Any], cache: Cache, config: CacheConfig) -> npt.NDArray[Any]:
    """Converts saved keys or values to this runner's format. Arrays without a format stay as they are."""
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
    """Feeds a sequence in chunks. Returns the logits of its last token, or of every position. [R, V]"""
    size = min(chunk_size or runner.chunk_size, runner.chunk_size)
    logits = []
    for at in range(0, len(ids), size):
        piece = runner.step(Batch.of([(slot, start + at, ids[at : at + size])], every=every))
        if every or at + size >= len(ids):
            logits.append(piece)
    return np.concatenate(logits)
