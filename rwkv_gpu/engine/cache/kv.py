"""Keys and values of all sequences, in pages: their memory on a device or in numpy."""

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

SHORT_PAGES = 8  # a sequence with at most this many pages needs no split attention
GROWTH = 8  # factor between plan sizes, so that a long context costs nothing before it is used

Q8 = KV_FORMATS["q8"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PageTables:
    """Page tables of all sequences: one for layers with all positions, and one for each window.

    Shared by all layers.
    """

    pager: Pager
    windows: Mapping[int, WindowPages]

    @classmethod
    def of(cls, caches: Sequence[Cache], config: CacheConfig) -> "PageTables":
        """Creates the tables for a model with these caches."""
        windows = {
            window: WindowPages(
                Pager(config.pages_of(window), config.context, window, config.slack),
                sum(len(cache.stored) * config.page_bytes(cache) for cache in caches if cache.window == window),
            )
            for window in config.windows(caches)
        }
        return cls(Pager(config.pages if caches else 0, config.context), windows)


class PagedKVCache(ABC):
    """The pages of a model's caches, or of one part's, with their page tables."""

    def __init__(self, caches: Sequence[Cache], config: CacheConfig, tables: PageTables | None = None) -> None:
        self.caches = list(caches)
        self.cache_config = config
        tables = tables or PageTables.of(caches, config)
        self.pager, self.windows = tables.pager, tables.windows

    def read(self, slot: int) -> dict[str, Array]:
        """Reads a sequence's keys and values as stored, [L, KV, width] each.

        For layers with a window, it reads only positions that later rows see.
        """
        length = self.pager.length(slot)
        arrays = {}
        for cache in self.caches:
            held = self._pager_of(cache).held(slot)
            first = length - self.cache_config.kept(cache, length) - held.first * PAGE
            end = -(-(length - held.first * PAGE) // cache.step)  # in rows, of which a page has PAGE / step
            for what, name in enumerate(names(cache)):
                parts = [self._read_pages(cache, what, pages) for pages in neighbours(held.pages)]
                whole = np.concatenate(parts).reshape(-1, *parts[0].shape[2:]) if parts else self._empty(cache, 0)
                arrays[name] = whole[first // cache.step : end]
        return arrays

    def write(self, slot: int, arrays: Mapping[str, Array]) -> None:
        """Fills the pages of a sequence with arrays from `read`."""
        length = self.pager.length(slot)
        for cache in self.caches:
            held = self._pager_of(cache).held(slot)
            each, end = PAGE // cache.step, -(-(length - held.first * PAGE) // cache.step)
            for what, name in enumerate(names(cache)):
                whole = self._empty(cache, len(held.pages) * each)
                whole[end - len(arrays[name]) : end] = arrays[name]
                paged, at = whole.reshape(len(held.pages), each, *whole.shape[1:]), 0
                for pages in neighbours(held.pages):
                    self._write_pages(cache, what, pages, paged[at : at + len(pages)])
                    at += len(pages)

    def _empty(self, cache: Cache, positions: int) -> Array:
        """Zero keys for that many positions, [L, KV, width]"""
        shape = self.cache_config.shape(cache)
        return np.zeros((positions, *shape[2:]), self.cache_config.format_of(cache).dtype)

    def _pager_of(self, cache: Cache) -> Pager:
        return self.windows[cache.window].pager if cache.window in self.windows else self.pager

    def _of_window(self, window: int) -> list[Cache]:
        """The layers that use the pages of a window; 0 is all others."""
        return [cache for cache in self.caches if (cache.window if cache.window in self.windows else 0) == window]

    @abstractmethod
    def copy_pages(self, copies: Sequence[Copy], window: int = 0) -> None:
        """Copies pages to others, in every layer with this window."""

    @abstractmethod
    def _read_pages(self, cache: Cache, what: int, pages: range) -> Array:
        """Keys (0) or values (1) of consecutive pages, [pages, PAGE, KV, width]"""

    @abstractmethod
    def _write_pages(self, cache: Cache, what: int, pages: range, parts: Array) -> None:
        """Writes keys (0) or values (1) of consecutive pages."""


class HostKVCache(PagedKVCache):
    """Pages in numpy arrays."""

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
    """Pages on a device: per layer, one buffer for keys, and one for values if they are stored."""

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
        """The pages as a plan binds them, for sequences of up to `max_pages` pages."""
        places = {name: tuple(map(whole, buffers)) for name, buffers in self._buffers.items()}
        context = self.cache_config.context
        return Caches(places, self.cache_config.kind, max_pages, context, tuple(self.windows))

    def plan_pages(self, batch: Batch) -> int:
        """Pages per sequence that a plan for this batch allows for. Few sizes, so that there are few plans."""
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
    """Groups pages into ranges of consecutive ones."""
    start = 0
    for end in range(1, len(pages) + 1):
        if end == len(pages) or pages[end] != pages[end - 1] + 1:
            yield range(pages[start], pages[end - 1] + 1)
            start = end


def whole(buffer: Buffer) -> Slice:
    """A slice of the whole buffer."""
    return Slice(buffer, 0, buffer.nbytes)


def names(cache: Cache) -> tuple[str, ...]:
    """The names of a cache's keys and values, as far as they are stored."""
    return tuple(f"{cache.name}.{what}" for what in cache.stored)


class Compact:
    """Compresses saved keys and values to q8: about half the bytes of f16, with the error of `--kv q8`.

    Runners accept the result.

    Recurrent states and latents are left unchanged.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        quantised = [cache for cache in caches if kv_format("q8", cache) is Q8]
        self._sizes = {name: cache.size for cache in quantised for name in names(cache)}

    def nbytes(self, states: Mapping[str, Array]) -> int:
        """Size of a state in this form."""
        return sum(self._nbytes(name, states) for name in states)

    def _nbytes(self, name: str, states: Mapping[str, Array]) -> int:
        array, size = states[name], self._sizes.get(name)
        return array.nbytes if size is None else array.size // size * Q8.nbytes(size)

    def __call__(self, states: Mapping[str, Array]) -> Mapping[str, Array]:
        """Converts a state to this form."""
        return {name: Q8.store(array) if name in self._sizes else array for name, array in states.items()}
