"""Parameters on the GPU: packed into aligned planes, in shards that fit a binding."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf.codebooks import codebook
from ..gguf.formats import FORMATS, Format
from ..gguf.planes import PLANES, pack_rows, plane_row_bytes
from .device import Buffer, Device
from .plan import Slice, fold
from .shader import Constant, link
from .staging import Target

Tensor = tuple[Format, npt.NDArray[np.uint8], tuple[int, ...]]  # [rows, bytes of a row in the file], and its shape

BOOK_HEADER = 4  # words before the tables of an expert cache: steps, choices, misses, padding
ALIGN = 256  # alignment of a matrix in a shared buffer
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
FORMAT_OF = {np.dtype(np.float32): BY_NAME["F32"], np.dtype(np.float16): BY_NAME["F16"]}


@dataclass(frozen=True)
class Shard:
    """Whole rows of a matrix in one binding."""

    slice: Slice
    first: int  # row of the matrix
    rows: int
    parts: tuple[str, ...]  # the shader parts that decode it
    run: int  # weights that are decoded at a time
    planes: tuple[int, ...]  # start of each of four planes, in vec4s

    @property
    def packed(self) -> bool:
        """True if its weights are small integers with scales."""
        return "formats/packed" in self.parts

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of the shader parts."""
        return {f"PLANE{n}": start for n, start in enumerate(self.planes)}

    def moved(self, vec4s: int) -> "Shard":
        """The shard relative to a binding that starts `vec4s` earlier."""
        return replace(self, planes=tuple(start + vec4s for start in self.planes))


@dataclass(frozen=True)
class DeviceWeight:
    """A parameter in GPU memory, with its format."""

    format: Format
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class ExpertCache:
    """A cache in GPU memory of recently used experts of a layer in main memory.

    The GPU maintains the table of which expert is in which slot (`moe/cache_lookup`).
    """

    name: str  # name of the layer
    experts: int
    slots: int
    sources: Mapping[str, Shard]  # all experts of each matrix, in main memory
    weights: Mapping[str, DeviceWeight]  # the cached experts of each matrix, one per slot
    sizes: Mapping[str, tuple[int, ...]]  # vec4s of an expert in each of four planes
    book: Slice

    def misses(self, device: Device) -> tuple[int, int]:
        """The number of choices so far, and of those whose expert had to be copied."""
        words = np.frombuffer(device.read(self.book.buffer, 4 * BOOK_HEADER, self.book.offset), np.uint32)
        return int(words[1]), int(words[2])


class Weights(Mapping[str, DeviceWeight]):
    """A model's parameters on one device, by name."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._weights: dict[str, DeviceWeight] = {}
        self._joined: dict[Hashable, Slice] = {}
        self._computed: dict[Hashable, Slice] = {}
        self.caches: Mapping[str, ExpertCache] = {}  # by names of their matrices

    def __getitem__(self, name: str) -> DeviceWeight:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def add(self, name: str, weight: DeviceWeight) -> None:
        """Adds a parameter."""
        self._weights[name] = weight

    def through(self, caches: Sequence[ExpertCache]) -> "Weights":
        """The same parameters, with cached experts in place of matrices that have a cache."""
        seen = Weights(self._device)
        seen._weights = self._weights | {name: weight for cache in caches for name, weight in cache.weights.items()}
        seen._joined, seen._computed = self._joined, self._computed
        seen.caches = {name: cache for cache in caches for name in cache.weights}
        return seen

    def joined(self, names: Sequence[str | None], lengths: Sequence[int]) -> Slice:
        """Float32 vectors joined into one, cached; zeros for None."""
        key = tuple(names), tuple(lengths)
        if key not in self._joined:
            buffer = self._device.buffer(4 * sum(lengths), "weights")
            at = 0
            for name, length in zip(names, lengths, strict=True):
                if name is not None:
                    [shard] = self._weights[name].shards
                    self._device.copy(shard.slice.buffer, shard.slice.offset, buffer, at, 4 * length)
                at += 4 * length
            self._joined[key] = Slice(buffer, 0, buffer.nbytes)
        return self._joined[key]

    def computed(self, key: Hashable, make: Callable[[], npt.NDArray[Any]]) -> Slice:
        """An array derived from parameters, cached by key."""
        if key not in self._computed:
            buffer = self._device.upload(make(), "tables")
            self._computed[key] = Slice(buffer, 0, buffer.nbytes)
        return self._computed[key]

    def read_vector(self, name: str) -> npt.NDArray[np.float32]:
        """Reads a float32 parameter back from the device."""
        [shard] = self._weights[name].shards
        count = self._weights[name].shape[-1]
        return np.frombuffer(self._device.read(shard.slice.buffer, 4 * count, shard.slice.offset), np.float32)


@dataclass(frozen=True)
class Layout:
    """The layout of the planes of some rows of a matrix, in bytes from the start of the matrix."""

    starts: tuple[int, ...]  # starts of the planes, and of the codebook if the format has one
    row_bytes: tuple[int, ...]  # bytes per row of each plane
    nbytes: int
    table: npt.NDArray[np.uint8]  # the codebook


def layout(fmt: Format, rows: int, width: int) -> Layout:
    """Lays out planes one after the other, aligned to 16 bytes, followed by the format's codebook."""
    row_bytes = plane_row_bytes(fmt, width)
    starts, end = [], 0
    for one in row_bytes:
        starts.append(end)
        end += -(-rows * one // 16) * 16
    table = codebook(fmt.name)
    if table.size:
        starts.append(end)
    return Layout(tuple(starts), row_bytes, end + table.size, table)


def align(nbytes: int) -> int:
    """Rounds up to where the next matrix of a shared buffer may start."""
    return -(-nbytes // ALIGN) * ALIGN


def as_shard(buffer: Buffer, offset: int, fmt: Format, first: int, rows: int, where: Layout) -> Shard:
    """The shard of a layout at an offset of a buffer."""
    planes = tuple(start // 16 for start in where.starts)
    return Shard(
        Slice(buffer, offset, where.nbytes), first, rows, fmt.parts, fmt.run, planes + (0,) * (4 - len(planes))
    )


def targets(shard: Shard, where: Layout, row: int, rows: int) -> list[Target]:
    """Where rows are written in each plane, and the codebook with row 0. `row` counts from the start of the shard."""
    parts = [(start + row * one, rows * one) for start, one in zip(where.starts, where.row_bytes, strict=False)]
    if where.table.size and row == 0:
        parts.append((where.starts[-1], where.table.size))
    return [(shard.slice.buffer, shard.slice.offset + start, nbytes) for start, nbytes in parts]


def write_rows(device: Device, shard: Shard, where: Layout, row: int, planes: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Writes packed rows to their targets; `row` is within the shard."""
    places = targets(shard, where, row, len(planes[0]))
    for (buffer, offset, _), data in zip(places, [*planes, where.table][: len(places)], strict=True):
        device.write(buffer, data, offset)


def exchange(device: Device, fmt: Format, shard: Shard, where: Layout) -> None:
    """Has the device exchange the bits of planes whose rows were only split."""
    for plane, start, row_bytes in zip(PLANES[fmt.name], where.starts, where.row_bytes, strict=False):
        if plane.exchanges:
            blocks = shard.rows * row_bytes // plane.nbytes
            job = device.upload(np.concatenate([np.array([start // 4, blocks], np.uint32), plane.table]), "tables")
            bound = [(job, 0, job.nbytes), (shard.slice.buffer, shard.slice.offset, shard.slice.nbytes)]
            device.dispatch(link("weights/exchange"), bound, fold(-(-blocks // 64), device.capabilities.max_workgroups))


def upload_tensor(device: Device, fmt: Format, raw: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> DeviceWeight:
    """Uploads a parameter [rows, bytes of a row in the file] to a separate buffer."""
    where = layout(fmt, len(raw), shape[-1])
    shard = as_shard(device.buffer(where.nbytes, "weights"), 0, fmt, 0, len(raw), where)
    _fill(device, shard, where, fmt, raw)
    return DeviceWeight(fmt, shape, (shard,))


def upload_together(device: Device, tensors: Mapping[str, Tensor], host: bool = False) -> Weights:
    """Uploads parameters in file formats; those of one format share a buffer, as in a block of a model.

    With `host`, the buffers are in main memory.
    """
    weights = place_together(device, tensors, lambda nbytes: device.buffer(nbytes, "weights", host=host))
    for name, (fmt, raw, shape) in tensors.items():
        _fill(device, weights[name].shards[0], layout(fmt, len(raw), shape[-1]), fmt, raw)
    return weights


def place_together(device: Device, tensors: Mapping[str, Tensor], allocate: Callable[[int], Buffer]) -> Weights:
    """Allocates parameters without writing them."""
    weights, ends, starts = Weights(device), Counter[Format](), {}
    places = {name: layout(fmt, len(raw), shape[-1]) for name, (fmt, raw, shape) in tensors.items()}
    for name, (fmt, _, _) in tensors.items():
        starts[name] = ends[fmt]
        ends[fmt] += align(places[name].nbytes)
    buffers = {fmt: allocate(end) for fmt, end in ends.items()}
    for name, (fmt, raw, shape) in tensors.items():
        shard = as_shard(buffers[fmt], starts[name], fmt, 0, len(raw), places[name])
        weights.add(name, DeviceWeight(fmt, shape, (shard,)))
    return weights


def _fill(device: Device, shard: Shard, where: Layout, fmt: Format, raw: npt.NDArray[np.uint8]) -> None:
    """Writes a parameter to its shards."""
    write_rows(device, shard, where, 0, pack_rows(fmt, raw))


def upload_weights(device: Device, arrays: Mapping[str, npt.NDArray[Any]]) -> Weights:
    """Uploads float arrays."""
    weights = Weights(device)
    for name, array in arrays.items():
        rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
        weights.add(name, upload_tensor(device, FORMAT_OF[array.dtype], rows.view(np.uint8), array.shape))
    return weights
