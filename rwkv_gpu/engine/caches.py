"""The keys and values of all sequences, in pages: memory on a device or in numpy, under one pager."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, OutOfMemory
from ..gpu.device import Buffer, Device
from ..gpu.plan import Slice
from ..models.registry import Model
from ..ops.batch import Batch
from ..ops.recording import Caches
from ..ops.vocabulary import PAGE, Cache
from .pager import Copy, Pager, Wanted

DEFAULT_CONTEXT = 4096
SHORT_PAGES = 8  # of a sequence whose decode needs no runs

Array = npt.NDArray[Any]
Kind = Literal["f16", "f32"]
DTYPES: dict[Kind, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32}


@dataclass(frozen=True)
class Room:
    """How much is kept: positions of a sequence, sequences, and how a number is stored."""

    context: int
    slots: int
    kind: Kind

    @classmethod
    def of(cls, model: Model, context: int | None, slots: int, kind: Kind) -> "Room":
        """Room for a model; without a wish, as much as it was trained on and is usual."""
        if kind not in DTYPES:
            raise BadInput(f"kv is '{kind}'; known: {', '.join(DTYPES)}")
        trained = model.context or 0
        if context is None:
            return cls(min(trained, DEFAULT_CONTEXT), slots, kind)
        if context < 1 or (trained and context > trained):
            limit = f"between 1 and the {trained:,} that the model was trained on" if trained else "at least 1"
            raise BadInput(f"context is {context:,}; it must be {limit}")
        return cls(context, slots, kind)

    @property
    def max_pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.context // PAGE)

    @property
    def pages(self) -> int:
        """Pages in all."""
        return self.slots * self.max_pages

    def shape(self, cache: Cache) -> tuple[int, int, int, int]:
        """Of the keys of one layer, and of its values."""
        return self.pages, PAGE, cache.heads, cache.size

    def nbytes(self, cache: Cache) -> int:
        """Of the keys of one layer, and as many of its values."""
        return int(np.prod(self.shape(cache))) * np.dtype(DTYPES[self.kind]).itemsize

    def total(self, caches: Sequence[Cache]) -> int:
        """Bytes of all layers."""
        return sum(2 * self.nbytes(cache) for cache in caches)


class Paged(ABC):
    """Pages of a model's caches, and whose they are."""

    def __init__(self, caches: Sequence[Cache], room: Room) -> None:
        self.caches = caches
        self.room = room
        self.pager = Pager(room.pages, room.context)

    def prepare(self, batch: Batch) -> Batch:
        """The batch with its page tables, once every row has a place of its own."""
        if not self.caches:
            return batch
        copies = self.pager.prepare([Wanted(s.slot, s.start, s.count) for s in batch.segments])
        if copies:
            self._copy_pages(copies)
        return batch.paged({s.slot: self.pager.table(s.slot) for s in batch.segments})

    def read(self, slot: int) -> dict[str, npt.NDArray[np.float32]]:
        """Keys and values of a sequence, [L, KV, N] each."""
        length, table = self.pager.length(slot), self.pager.table(slot)
        arrays = {}
        for cache in self.caches:
            for what, name in enumerate(_names(cache)):
                pages = [self._read_page(cache, what, page) for page in table]
                whole = np.concatenate(pages) if pages else np.zeros((0, cache.heads, cache.size))
                arrays[name] = whole[:length].astype(np.float32)
        return arrays

    def write(self, slot: int, arrays: Mapping[str, Array]) -> None:
        """A sequence becomes what `read` has given."""
        if not self.caches:
            return
        length = len(arrays[_names(self.caches[0])[0]])
        self.pager.truncate(slot, 0)
        if length:
            self.pager.prepare([Wanted(slot, 0, length)])
        for cache in self.caches:
            for what, name in enumerate(_names(cache)):
                for i, page in enumerate(self.pager.table(slot)):
                    part = np.zeros((PAGE, cache.heads, cache.size), DTYPES[self.room.kind])
                    rows = arrays[name][i * PAGE : (i + 1) * PAGE]
                    part[: len(rows)] = rows
                    self._write_page(cache, what, page, part)

    @abstractmethod
    def _copy_pages(self, copies: Sequence[Copy]) -> None:
        """Pages to others, in every layer."""

    @abstractmethod
    def _read_page(self, cache: Cache, what: int, page: int) -> Array:
        """Keys (0) or values (1) of a page, [PAGE, KV, N]"""

    @abstractmethod
    def _write_page(self, cache: Cache, what: int, page: int, part: Array) -> None:
        """The reverse."""


class HostCaches(Paged):
    """Pages in numpy."""

    def __init__(self, caches: Sequence[Cache], room: Room) -> None:
        super().__init__(caches, room)
        dtype = DTYPES[room.kind]
        self.arrays: dict[str, tuple[Array, Array]] = {
            cache.name: (np.zeros(room.shape(cache), dtype), np.zeros(room.shape(cache), dtype)) for cache in caches
        }

    def _copy_pages(self, copies: Sequence[Copy]) -> None:
        for pages in (pages for both in self.arrays.values() for pages in both):
            for copy in copies:
                pages[copy.target] = pages[copy.source]

    def _read_page(self, cache: Cache, what: int, page: int) -> Array:
        part: Array = self.arrays[cache.name][what][page]
        return part

    def _write_page(self, cache: Cache, what: int, page: int, part: Array) -> None:
        self.arrays[cache.name][what][page] = part


class GpuCaches(Paged):
    """Pages on a device: a buffer for the keys and one for the values of each layer."""

    def __init__(self, device: Device, caches: Sequence[Cache], room: Room) -> None:
        super().__init__(caches, room)
        check_bindings(device, caches, room)
        self._device = device
        self._buffers: dict[str, tuple[Buffer, Buffer]] = {
            cache.name: (device.buffer(room.nbytes(cache), "kv"), device.buffer(room.nbytes(cache), "kv"))
            for cache in caches
        }

    def placed(self, max_pages: int) -> Caches:
        """The pages as a plan binds them, for sequences of so many."""
        places = {name: (whole(keys), whole(values)) for name, (keys, values) in self._buffers.items()}
        return Caches(places, self.room.kind, max_pages)

    def plan_pages(self, batch: Batch) -> int:
        """Pages of a sequence that a plan for this batch must reckon with: few plans, so few sizes."""
        longest = max((s.start + s.count for s in batch.segments), default=0)
        short = batch.single and longest <= SHORT_PAGES * PAGE
        return min(SHORT_PAGES, self.room.max_pages) if short else self.room.max_pages

    def _copy_pages(self, copies: Sequence[Copy]) -> None:
        for cache in self.caches:
            size = self._page_bytes(cache)
            for buffer in self._buffers[cache.name]:
                for copy in copies:
                    self._device.copy(buffer, copy.source * size, buffer, copy.target * size, size)

    def _read_page(self, cache: Cache, what: int, page: int) -> Array:
        size = self._page_bytes(cache)
        data = self._device.read(self._buffers[cache.name][what], size, page * size)
        return np.frombuffer(data, DTYPES[self.room.kind]).reshape(self.room.shape(cache)[1:])

    def _write_page(self, cache: Cache, what: int, page: int, part: Array) -> None:
        self._device.write(self._buffers[cache.name][what], part, page * self._page_bytes(cache))

    def _page_bytes(self, cache: Cache) -> int:
        return self.room.nbytes(cache) // self.room.pages


def check_bindings(device: Device, caches: Sequence[Cache], room: Room) -> None:
    """Refuses what no kernel could bind."""
    limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
    largest = max((room.nbytes(cache) for cache in caches), default=0)
    if largest > limit:
        raise OutOfMemory(
            f"the keys of one layer take {largest:,} bytes for {room.slots} sequences of {room.context:,} tokens, but "
            f"this device binds {limit:,} at most; load with a smaller context" + (", or kv f16" * (room.kind == "f32"))
        )


def whole(buffer: Buffer) -> Slice:
    """All of a buffer."""
    return Slice(buffer, 0, buffer.nbytes)


def _names(cache: Cache) -> tuple[str, str]:
    return f"{cache.name}.keys", f"{cache.name}.values"
