"""Cache sizes: context length, number of sequences, and how much is kept for later requests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from ...errors import BadInput, OutOfMemory
from ...gpu.device import Device
from ...models.registry import Contents, Model
from ...ops.kv_format import KV_FORMATS, KVFormat, KVType, kv_format
from ...ops.vocabulary import PAGE, STATE_TYPES, Cache, State, StateType

DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 4
DEFAULT_CACHE = 256 << 20  # bytes for pages and states of ended sequences
MIN_CHECKPOINTS = 4  # default minimum of states: a chat leaves up to three in a turn
# Default number of states if they take at most USUAL_STATES: edits of a long chat restart nearby
USUAL_CHECKPOINTS = 16
USUAL_STATES = 1 << 30  # bytes
MAX_CHECKPOINTS = 64  # maximum of these states
DEFAULT_CHECKPOINT_INTERVAL = 512  # tokens between two states stored while reading a text
DEFAULT_CHUNK = 512  # rows of a step
DEFAULT_LOOK_AHEAD = 15  # steps in flight, if they are short, before the host knows the result of the first


class CacheOptions(TypedDict, total=False):
    """The options of a `CacheConfig` that callers may set."""

    slots: int
    context: int | None
    kv: KVType
    states: StateType
    tokens: int | None
    cache_bytes: int | None
    look_ahead: int
    checkpoint_interval: int
    drafts: int
    initial: int
    rewind: int


@dataclass(frozen=True)
class CacheConfig:
    """Cache sizes: positions per sequence, number of sequences, number format."""

    context: int
    slots: int
    kind: KVType
    tokens: int = 0  # positions of all sequences together; 0 allows the maximum for each
    look_ahead: int = DEFAULT_LOOK_AHEAD  # steps that a sequence may run ahead of its known tokens
    checkpoints: int = 0  # additional states, for sequences that may be continued
    cache_bytes: int = DEFAULT_CACHE  # limit for pages and states that no running sequence needs
    # Minimum number of tokens between two stored states of a sequence
    checkpoint_interval: int = DEFAULT_CHECKPOINT_INTERVAL
    chunk_size: int = DEFAULT_CHUNK  # maximum rows of a step
    drafts: int = 0  # maximum drafted tokens of a sequence in a step
    initial: int = 0  # 1 if every text begins with a tuned state
    rewind: int = 0  # number of last tokens within which a sequence can go back to any length
    state_type: StateType = "f32"  # of the matrices of recurrent states

    @classmethod
    def of(cls, model: Model, *, chunk_size: int = DEFAULT_CHUNK, **options: Unpack[CacheOptions]) -> "CacheConfig":
        """Returns the configuration for a model. Options left out follow from its training and the defaults."""
        kind, asked = options.get("kv", "f16"), options.get("cache_bytes")
        if not isinstance(kind, str) or kind not in KV_FORMATS:
            raise BadInput(f"kv is {kind!r}; known: {', '.join(KV_FORMATS)}")
        state_type = options.get("states", "f32")
        if state_type not in STATE_TYPES:
            raise BadInput(f"states is {state_type!r}; known: {', '.join(STATE_TYPES)}")
        state_bytes = sum(state.nbytes(state_type) for state in model.states)
        room = _default_cache(state_bytes) if asked is None else asked
        look_ahead = options.get("look_ahead", DEFAULT_LOOK_AHEAD)
        interval = options.get("checkpoint_interval", DEFAULT_CHECKPOINT_INTERVAL)
        named = ("cache_bytes", room, 0), ("look_ahead", look_ahead, 0), ("checkpoint_interval", interval, 1)
        for name, value, least in named:
            if value < least:
                raise BadInput(f"{name} is {value:,}; it must be at least {least}")
        context, tokens = _context_of(model, options.get("context")), options.get("tokens")
        if tokens is not None and tokens < context and model.caches:
            raise BadInput(
                f"there is room for {tokens:,} tokens in all; it must be at least the context of {context:,}"
            )
        checkpoints = min(MAX_CHECKPOINTS, room // state_bytes) if state_bytes else 0
        counts = options.get("drafts", 0), options.get("initial", 0), options.get("rewind", 0)
        slots = options.get("slots", 1)
        config = cls(
            context, slots, kind, tokens or 0, look_ahead, checkpoints, room, interval, chunk_size, *counts, state_type
        )
        if asked is not None:
            return config
        # The pages of one context are allocated in any case, so let them stay: a long chat is not recomputed at every
        # turn.
        page_bytes, _ = config.each(model.caches, model.states)
        return replace(config, cache_bytes=room + config.max_pages * page_bytes)

    @property
    def max_pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.context // PAGE)

    @property
    def pages(self) -> int:
        """Pages of all sequences."""
        return -(-self.tokens // PAGE) if self.tokens else self.slots * self.max_pages

    @property
    def slack(self) -> int:
        """Positions kept before a window, so that a sequence can go back to its known tokens and to a page boundary."""
        return max(self.look_ahead, self.drafts, self.rewind) + PAGE

    def window_pages(self, window: int) -> int:
        """Pages per sequence in layers with a window: the positions that a step's rows attend to, plus the slack."""
        return -(-(window + self.slack + self.chunk_size) // PAGE) + 2

    def windows(self, caches: Sequence[Cache]) -> tuple[int, ...]:
        """Windows that get their own pages, because these are fewer than a whole sequence needs."""
        sizes = sorted({cache.window for cache in caches if cache.window})
        return tuple(window for window in sizes if self.window_pages(window) < self.max_pages)

    def pages_of(self, window: int) -> int:
        """Total pages in layers with a window: for all sequences, and the same number of stored prefixes."""
        if not window or self.window_pages(window) >= self.max_pages:
            return self.pages
        return min(self.pages, 2 * self.slots * self.window_pages(window))

    def kept(self, cache: Cache, length: int) -> int:
        """Positions of a sequence that a saved state holds for a layer: all, or those that the next row sees."""
        return min(length, cache.window - 1) if self.windows([cache]) else length

    @property
    def history(self) -> int:
        """States per sequence: the newest, and enough to go back before all tokens not yet known."""
        return max(min(self.look_ahead, 2), self.rewind) + 2

    @property
    def spacing(self) -> int:
        """Minimum number of tokens between two states of a sequence; above 1 with a long look-ahead."""
        return 1 if self.rewind else max(1, self.look_ahead - 1)

    @property
    def states(self) -> int:
        """Total number of states, including one for each drafted token, since a step keeps them all."""
        return self.slots * (self.history + self.drafts) + self.checkpoints + self.initial

    def shape(self, cache: Cache) -> tuple[int, int, int, int]:
        """The shape of one layer's keys, and of its values if they are stored."""
        return self.pages_of(cache.window), PAGE // cache.step, cache.heads, self.format_of(cache).width(cache.size)

    def format_of(self, cache: Cache) -> KVFormat:
        """The number format of a cache."""
        return kv_format(self.kind, cache)

    def nbytes(self, cache: Cache) -> int:
        """Bytes of one layer's keys; its values take the same, if they are stored."""
        return self.pages_of(cache.window) * self.page_bytes(cache)

    def page_bytes(self, cache: Cache) -> int:
        """Bytes of one page of one layer's keys; its values take the same, if they are stored."""
        return PAGE // cache.step * cache.heads * self.format_of(cache).nbytes(cache.size)

    def state_bytes(self, state: State) -> int:
        """Bytes of all pages of one state."""
        return self.states * state.nbytes(self.state_type)

    def each(self, caches: Sequence[Cache], states: Sequence[State]) -> tuple[int, int]:
        """Bytes of one page and of one state over all layers, except layers with window pages."""
        plain = [cache for cache in caches if not self.windows([cache])]
        page = sum(len(cache.stored) * self.page_bytes(cache) for cache in plain)
        return page, sum(state.nbytes(self.state_type) for state in states)

    def total(self, caches: Sequence[Cache], states: Sequence[State] = ()) -> int:
        """Size of all layers."""
        pages = sum(len(cache.stored) * self.nbytes(cache) for cache in caches)
        return pages + sum(self.state_bytes(state) for state in states)


def _context_of(model: Model, asked: int | None) -> int:
    """The requested context, which must not exceed the training length; by default that length."""
    trained = model.context or 0
    if asked is None:
        return min(trained, DEFAULT_CONTEXT)
    if asked < 1 or (trained and asked > trained):
        limit = f"between 1 and the {trained:,} that the model was trained on" if trained else "at least 1"
        raise BadInput(f"context is {asked:,}; it must be {limit}")
    return asked


def _default_cache(state_bytes: int) -> int:
    """Bytes for ended sequences, in addition to the pages of one context."""
    usual = min(USUAL_CHECKPOINTS * state_bytes, USUAL_STATES)
    return max(DEFAULT_CACHE, MIN_CHECKPOINTS * state_bytes, usual)


def within_bindings(device: Device, model: Contents, config: CacheConfig, *, whole: bool = True) -> CacheConfig:
    """A config whose caches and states kernels can bind. Raises OutOfMemory if there is none.

    For a `whole` model, a shorter look-ahead may be chosen, as it needs fewer states.
    """
    limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
    largest = max((config.nbytes(cache) for cache in model.caches), default=0)
    if largest > limit:
        raise OutOfMemory(
            f"the keys of one layer take {largest:,} bytes for {config.slots} sequences of {config.context:,} tokens, "
            f"but this device binds {limit:,} at most; load with a smaller context"
            + (", or kv q8" * (config.kind in ("f32", "f16")))
        )
    for ahead in range(config.look_ahead, -1, -1) if whole else (config.look_ahead,):
        found = replace(config, look_ahead=ahead)
        largest = max((found.state_bytes(state) for state in model.states), default=0)
        if largest <= limit:
            return found
    raise OutOfMemory(
        f"the states of one layer take {largest:,} bytes for {config.slots} sequences, but this device binds "
        f"{limit:,} at most; load with fewer sequences, or less cache"
    )
