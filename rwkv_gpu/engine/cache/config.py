"""How much memory sequences get: what one may have, how many there may be, and what is kept for those to come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import numpy as np

from ...errors import BadInput, OutOfMemory
from ...gpu.device import Device
from ...models.registry import Contents, Model
from ...ops.kv_format import KV_FORMATS, KVFormat, KVType, kv_format
from ...ops.vocabulary import PAGE, Cache, State

DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 4
DEFAULT_CACHE = 256 << 20  # bytes kept of sequences that have ended
LEAST_CHECKPOINTS = 4  # states that fit into these, by default: a chat leaves up to three in a turn
USUAL_CHECKPOINTS = 16  # the same, as far as they take no more than USUAL_STATES: a long talk goes on near any edit
USUAL_STATES = 1 << 30  # bytes
MOST_CHECKPOINTS = 64  # states among these
DEFAULT_CHECKPOINT_INTERVAL = 512  # tokens between two states that are stored on the way through a text
DEFAULT_CHUNK = 512  # rows of a step
DEFAULT_LOOK_AHEAD = 15  # steps that may be under way, where they are short, while the host learns of the first


class CacheOptions(TypedDict, total=False):
    """What a caller may ask of a `CacheConfig`."""

    slots: int
    context: int | None
    kv: KVType
    tokens: int | None
    cache_bytes: int | None
    look_ahead: int
    checkpoint_interval: int
    drafts: int
    initial: int
    rewind: int


@dataclass(frozen=True)
class CacheConfig:
    """How much is kept: positions of a sequence, sequences, and how a number is stored."""

    context: int
    slots: int
    kind: KVType
    tokens: int = 0  # positions of all sequences together; 0 is as many as they may come to
    look_ahead: int = DEFAULT_LOOK_AHEAD  # steps that a sequence may be ahead of what is known of it
    checkpoints: int = 0  # states beside those, of sequences that may be continued
    cache_bytes: int = DEFAULT_CACHE  # that pages and states may take which no sequence needs at the moment
    checkpoint_interval: int = DEFAULT_CHECKPOINT_INTERVAL  # tokens, at least, between two stored states of a sequence
    chunk_size: int = DEFAULT_CHUNK  # rows that a step may have
    drafts: int = 0  # tokens of a sequence that a step may verify
    initial: int = 0  # 1 where every text begins with a tuned state
    rewind: int = 0  # tokens that a sequence may go back, to any length on the way

    @classmethod
    def of(cls, model: Model, *, chunk_size: int = DEFAULT_CHUNK, **options: Unpack[CacheOptions]) -> "CacheConfig":
        """CacheConfig for a model; what is not asked for is as it was trained, and as is usual."""
        kind, asked = options.get("kv", "f16"), options.get("cache_bytes")
        if not isinstance(kind, str) or kind not in KV_FORMATS:
            raise BadInput(f"kv is {kind!r}; known: {', '.join(KV_FORMATS)}")
        state_bytes = sum(4 * int(np.prod(state.shape)) for state in model.states)
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
        checkpoints = min(MOST_CHECKPOINTS, room // state_bytes) if state_bytes else 0
        counts = options.get("drafts", 0), options.get("initial", 0), options.get("rewind", 0)
        slots = options.get("slots", 1)
        config = cls(context, slots, kind, tokens or 0, look_ahead, checkpoints, room, interval, chunk_size, *counts)
        if asked is not None:
            return config
        # Pages are allocated in any case: those of a whole talk may stay, or a long one is computed anew at every turn.
        page_bytes, _ = config.each(model.caches, model.states)
        return replace(config, cache_bytes=room + config.max_pages * page_bytes)

    @property
    def max_pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.context // PAGE)

    @property
    def pages(self) -> int:
        """Pages in all."""
        return -(-self.tokens // PAGE) if self.tokens else self.slots * self.max_pages

    @property
    def slack(self) -> int:
        """Positions behind a window that a sequence keeps: it may go back to what is known, and to a whole page."""
        return max(self.look_ahead, self.drafts, self.rewind) + PAGE

    def window_pages(self, window: int) -> int:
        """Pages that one sequence has of layers with a window: what the rows of a step see, and the slack."""
        return -(-(window + self.slack + self.chunk_size) // PAGE) + 2

    def windows(self, caches: Sequence[Cache]) -> tuple[int, ...]:
        """The windows that are worth pages of their own: those of fewer pages than a whole sequence has."""
        sizes = sorted({cache.window for cache in caches if cache.window})
        return tuple(window for window in sizes if self.window_pages(window) < self.max_pages)

    def pages_of(self, window: int) -> int:
        """Pages in all of layers with a window: for all sequences, and for as many prefixes that are kept."""
        if not window or self.window_pages(window) >= self.max_pages:
            return self.pages
        return min(self.pages, 2 * self.slots * self.window_pages(window))

    def kept(self, cache: Cache, length: int) -> int:
        """Positions of a sequence that a saved state has of a layer: all, or those that its next row sees."""
        return min(length, cache.window - 1) if self.windows([cache]) else length

    @property
    def history(self) -> int:
        """States of a sequence: its newest, and so many that it can go back to before all that is not known yet."""
        return max(min(self.look_ahead, 2), self.rewind) + 2

    @property
    def apart(self) -> int:
        """Tokens between two of these, where it looks so far ahead that they cannot be each a token from the next."""
        return 1 if self.rewind else max(1, self.look_ahead - 1)

    @property
    def states(self) -> int:
        """States in all: also one for each drafted token, since a step keeps them all."""
        return self.slots * (self.history + self.drafts) + self.checkpoints + self.initial

    def shape(self, cache: Cache) -> tuple[int, int, int, int]:
        """Of the keys of one layer as an array, and of its values where they are stored, too."""
        return self.pages_of(cache.window), PAGE, cache.heads, self.format_of(cache).width(cache.size)

    def format_of(self, cache: Cache) -> KVFormat:
        """How a cache is stored."""
        return kv_format(self.kind, cache)

    def nbytes(self, cache: Cache) -> int:
        """Of the keys of one layer; of its values as many, where they are stored."""
        return self.pages_of(cache.window) * self.page_bytes(cache)

    def page_bytes(self, cache: Cache) -> int:
        """Of the keys of one layer in one page; of its values as many, where they are stored."""
        return PAGE * cache.heads * self.format_of(cache).nbytes(cache.size)

    def state_bytes(self, state: State) -> int:
        """Of all the pages of one state."""
        return self.states * 4 * int(np.prod(state.shape))

    def each(self, caches: Sequence[Cache], states: Sequence[State]) -> tuple[int, int]:
        """Bytes of one page and of one state in all layers, but for those with pages of a window."""
        plain = [cache for cache in caches if not self.windows([cache])]
        page = sum(len(cache.stored) * self.page_bytes(cache) for cache in plain)
        return page, sum(4 * int(np.prod(state.shape)) for state in states)

    def total(self, caches: Sequence[Cache], states: Sequence[State] = ()) -> int:
        """Bytes of all layers."""
        pages = sum(len(cache.stored) * self.nbytes(cache) for cache in caches)
        return pages + sum(self.state_bytes(state) for state in states)


def _context_of(model: Model, asked: int | None) -> int:
    """Positions of a sequence: as many as are asked for, which the model must have been trained on."""
    trained = model.context or 0
    if asked is None:
        return min(trained, DEFAULT_CONTEXT)
    if asked < 1 or (trained and asked > trained):
        limit = f"between 1 and the {trained:,} that the model was trained on" if trained else "at least 1"
        raise BadInput(f"context is {asked:,}; it must be {limit}")
    return asked


def _default_cache(state_bytes: int) -> int:
    """Bytes kept of sequences that have ended, beside the pages of one context."""
    usual = min(USUAL_CHECKPOINTS * state_bytes, USUAL_STATES)
    return max(DEFAULT_CACHE, LEAST_CHECKPOINTS * state_bytes, usual)


def check_bindings(device: Device, model: Contents, config: CacheConfig) -> None:
    """Refuses what no kernel could bind."""
    limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
    largest = max((config.nbytes(cache) for cache in model.caches), default=0)
    if largest > limit:
        raise OutOfMemory(
            f"the keys of one layer take {largest:,} bytes for {config.slots} sequences of {config.context:,} tokens, "
            f"but this device binds {limit:,} at most; load with a smaller context"
            + (", or kv q8" * (config.kind in ("f32", "f16")))
        )
    largest = max((config.state_bytes(state) for state in model.states), default=0)
    if largest > limit:
        raise OutOfMemory(
            f"the states of one layer take {largest:,} bytes for {config.slots} sequences, but this device binds "
            f"{limit:,} at most; load with fewer sequences, or less cache"
        )
