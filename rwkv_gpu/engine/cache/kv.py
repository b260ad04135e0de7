"""The keys and values of all sequences, in pages: the memory, on a device or in numpy."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpu.device import Buffer, Device
from ...gpu.plan import Slice
from ...ops.batch import Batch
from ...ops.kv_format import KV_FORMATS, kv_format
from ...ops.memory import Caches
from ...ops.vocabulary import PAGE, Cache
from .config import CacheConfig
from .pager import Copy, Pager
from .store import WindowPages

SHORT_PAGES = 8  # of a sequence whose decode needs no runs
GROWTH = 8  # from one size of plan to the next: a long context costs nothing before it is used

Q8 = KV_FORMATS["q8"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PageTables:
    """Which pages each sequence has, the same in all layers: those of all positions, and those of each window."""

    pager: Pager
    windows: Mapping[int, WindowPages]

    @classmethod
    def of(cls, caches: Sequence[Cache], config: CacheConfig) -> "PageTables":
        """Those of a model with these caches."""
        windows = {
            window: WindowPages(
                Pager(config.pages_of(window), config.context, window, config.slack),
                sum(len(cache.stored) * config.page_bytes(cache) for cache in caches if cache.window == window),
            )
            for window in config.windows(caches)
        }
        return cls(Pager(config.pages if caches else 0, config.context), windows)


class PagedKVCache(ABC):
    """Pages of a model's caches, or of those in one part of it, and whose they are."""

    def __init__(self, caches: Sequence[Cache], config: CacheConfig, tables: PageTables | None = None) -> None:
        self.caches = list(caches)
        self.cache_config = config
        tables = tables or PageTables.of(caches, config)
        self.pager, self.windows = tables.pager, tables.windows

    def read(self, slot: int) -> dict[str, Array]:
        """Keys and values of a sequence as stored, [L, KV, width] each; of a window, those that are seen again."""
        length = self.pager.length(slot)
        arrays = {}
        for cache in self.caches:
            held = self._pager_of(cache).held(slot)
            first = length - self.cache_config.kept(cache, length) - held.first * PAGE
            for what, name in enumerate(names(cache)):
                parts = [self._read_pages(cache, what, pages) for pages in neighbours(held.pages)]
                whole = np.concatenate(parts).reshape(-1, *parts[0].shape[2:]) if parts else self._empty(cache, 0)
                arrays[name] = whole[first : length - held.first * PAGE]
        return arrays

    def write(self, slot: int, arrays: Mapping[str, Array]) -> None:
        """Fills the pages of a sequence with what `read` has given."""
        length = self.pager.length(slot)
        for cache in self.caches:
            held = self._pager_of(cache).held(slot)
            for what, name in enumerate(names(cache)):
                whole = self._empty(cache, len(held.pages) * PAGE)
                end = length - held.first * PAGE
                whole[end - len(arrays[name]) : end] = arrays[name]
                paged, at = whole.reshape(len(held.pages), PAGE, *whole.shape[1:]), 0
                for pages in neighbours(held.pages):
                    self._write_pages(cache, what, pages, paged[at : at + len(pages)])
                    at += len(pages)

    def _empty(self, cache: Cache, positions: int) -> Array:
        """Keys of so many positions, [L, KV, width]"""
        shape = self.cache_config.shape(cache)
        return np.zeros((positions, *shape[2:]), self.cache_config.format_of(cache).dtype)

    def _pager_of(self, cache: Cache) -> Pager:
        return self.windows[cache.window].pager if cache.window in self.windows else self.pager

    def _of_window(self, window: int) -> list[Cache]:
        """The layers whose pages those of a window are; 0 is all others."""
        return [cache for cache in self.caches if (cache.window if cache.window in self.windows else 0) == window]

    @abstractmethod
    def copy_pages(self, copies: Sequence[Copy], window: int = 0) -> None:
        """Pages to others, in every layer with such a window."""

    @abstractmethod
    def _read_pages(self, cache: Cache, what: int, pages: range) -> Array:
        """Keys (0) or values (1) of neighbouring pages, [pages, PAGE, KV, width]"""

    @abstractmethod
    def _write_pages(self, cache: Cache, what: int, pages: range, parts: Array) -> None:
        """The reverse."""


class HostKVCache(PagedKVCache):
    """Pages in numpy."""

    def __init__(self, caches: Sequence[Cache], config: CacheConfig, tables: PageTables | None = None) -> None:
        super().__init__(caches, config, tables)
        self.arrays: dict[str, tuple[Array, ...]] = {
            cache.name: tuple(np.zeros(config.shape(cache), config.format_of(cache).dtype) for _ in cache.stored)
            for cache in caches
        }

    def copy_pages(self, copies: Sequence[Copy], window: int = 0) -> None:
        for pages in (pages for cache in self._of_window(window) for pages in self.arrays[cache.name]):
            for copy in copies:
                pages[copy.target] = pages[copy.source]

    def _read_pages(self, cache: Cache, what: int, pages: range) -> Array:
        parts: Array = self.arrays[cache.name][what][pages.start : pages.stop]
        return parts

    def _write_pages(self, cache: Cache, what: int, pages: range, parts: Array) -> None:
        self.arrays[cache.name][what][pages.start : pages.stop] = parts


class GpuKVCache(PagedKVCache):
    """Pages on a device: a buffer for the keys of each layer, and one for the values where they are stored."""

    def __init__(
        self, device: Device, caches: Sequence[Cache], config: CacheConfig, tables: PageTables | None = None
    ) -> None:
        super().__init__(caches, config, tables)
        self._device = device
        self._max_pages = config.max_pages if caches else 0
        self._buffers: dict[str, tuple[Buffer, ...]] = {
            cache.name: tuple(device.buffer(config.nbytes(cache), "kv") for _ in cache.stored) for cache in caches
        }

    def placed(self, max_pages: int) -> Caches:
        """The pages as a plan binds them, for sequences of so many."""
        places = {name: tuple(map(whole, buffers)) for name, buffers in self._buffers.items()}
        context = self.cache_config.context
        return Caches(places, self.cache_config.kind, max_pages, context, tuple(self.windows))

    def plan_pages(self, batch: Batch) -> int:
        """Pages of a sequence that a plan for this batch must reckon with: few plans, so few sizes."""
        if not batch.single or not self._buffers:
            return self._max_pages
        pages = SHORT_PAGES
        for segment in batch.segments:
            while pages * PAGE <= segment.start:
                pages *= GROWTH
        return min(pages, self._max_pages)

    def copy_pages(self, copies: Sequence[Copy], window: int = 0) -> None:
        by_size: defaultdict[int, list[Buffer]] = defaultdict(list)
        for cache in self._of_window(window):
            by_size[self._page_bytes(cache)] += self._buffers[cache.name]
        for size, buffers in by_size.items():
            for copy in copies:
                self._device.copy_within(buffers, copy.source * size, copy.target * size, size)

    def _read_pages(self, cache: Cache, what: int, pages: range) -> Array:
        size, config = self._page_bytes(cache), self.cache_config
        data = self._device.read(self._buffers[cache.name][what], len(pages) * size, pages.start * size)
        return np.frombuffer(data, config.format_of(cache).dtype).reshape(len(pages), *config.shape(cache)[1:])

    def _write_pages(self, cache: Cache, what: int, pages: range, parts: Array) -> None:
        self._device.write(self._buffers[cache.name][what], parts, pages.start * self._page_bytes(cache))

    def _page_bytes(self, cache: Cache) -> int:
        return self.cache_config.page_bytes(cache)


def neighbours(pages: Sequence[int]) -> Iterator[range]:
    """The pages, as runs of those that lie behind one another."""
    start = 0
    for end in range(1, len(pages) + 1):
        if end == len(pages) or pages[end] != pages[end - 1] + 1:
            yield range(pages[start], pages[end - 1] + 1)
            start = end


def whole(buffer: Buffer) -> Slice:
    """All of a buffer."""
    return Slice(buffer, 0, buffer.nbytes)


def names(cache: Cache) -> tuple[str, ...]:
    """What its keys and its values are called, as far as they are stored."""
    return tuple(f"{cache.name}.{what}" for what in cache.stored)


class Compact:
    """Saves keys and values in q8: about half the bytes of f16, at the error of `--kv q8`. Runners take them back.

    Recurrent states and latents stay as they are.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        quantised = [cache for cache in caches if kv_format("q8", cache) is Q8]
        self._sizes = {name: cache.size for cache in quantised for name in names(cache)}

    def nbytes(self, states: Mapping[str, Array]) -> int:
        """Bytes of a state in this form."""
        return sum(self._nbytes(name, states) for name in states)

    def _nbytes(self, name: str, states: Mapping[str, Array]) -> int:
        array, size = states[name], self._sizes.get(name)
        return array.nbytes if size is None else array.size // size * Q8.nbytes(size)

    def __call__(self, states: Mapping[str, Array]) -> Mapping[str, Array]:
        """A state in this form."""
        return {name: Q8.store(array) if name in self._sizes else array for name, array in states.items()}
