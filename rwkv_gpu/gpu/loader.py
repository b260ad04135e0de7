"""Loads parameters from a file to the GPU: reads, repacks and uploads bounded pieces, several at a time."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import OutOfMemory
from ..gguf.file import GGUFFile, TensorInfo
from ..gguf.formats import Format
from ..gguf.planes import dequantise_rows, pack_rows, split_rows
from . import native
from .device import Buffer, Device
from .staging import Staging, Target, split
from .weights import (
    BY_NAME,
    DeviceWeight,
    Layout,
    Shard,
    Weights,
    align,
    as_shard,
    exchange,
    layout,
    targets,
    write_rows,
)

PIECE = 4 << 20  # bytes of the file that are read at a time
IN_FLIGHT = 4  # pieces that are read while others are uploaded
STAGING = 16 << 20  # maximum bytes of a copy to the device: a piece, converted to any format

ROW_TABLE = "per_layer_token_embd.weight"  # of which a step reads some rows for each token

Progress = Callable[[int, int], None]  # bytes of the file done, and in total


def block_of(name: str) -> str:
    """The block in a name: `blk.3` for `blk.3.ffn_key.weight`; the whole name if there is none."""
    found = re.match(r"(?:enc\.)?blk\.\d+(?=\.)", name)
    return found[0] if found else name


@dataclass(frozen=True)
class Parameter:
    """A parameter to load: a matrix [..., K] or a vector, made of tensors of the file.

    Several tensors are concatenated; with `alternate` their rows are interleaved: gate, up, gate, up ...
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[TensorInfo, ...]
    format: Format
    alternate: bool = False
    part: Callable[..., npt.NDArray[np.uint8]] | None = None  # makes its rows from those of the tensors
    host: bool = False  # whether it stays in main memory, which the GPU can read
    whole: bool = False  # whether its rows have no gaps, as kernels read them as one vector

    @property
    def is_row_table(self) -> bool:
        """True if a step reads some rows of it for each token, and nothing else."""
        return self.name == ROW_TABLE

    @property
    def is_experts(self) -> bool:
        """True if the tensor has one matrix per expert of a mixture."""
        return len(self.shape) > 2 and "_exps." in self.name

    @property
    def block(self) -> str:
        """The block in its name."""
        return block_of(self.name)

    @property
    def rows(self) -> int:
        """The number of stored rows."""
        return 1 if self.whole else int(np.prod(self.shape[:-1]))

    @property
    def width(self) -> int:
        """The number of weights in a row."""
        return int(np.prod(self.shape)) if self.whole else self.shape[-1]


@dataclass(frozen=True)
class Place:
    """Some rows of a parameter, and their target."""

    parameter: Parameter
    shard: Shard
    where: Layout


@dataclass(frozen=True)
class Piece:
    """Rows of a shard that are read and uploaded together."""

    place: Place
    row: int  # row of the shard
    rows: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        p = self.place.parameter
        return sum(t.nbytes for t in p.tensors) * self.rows // p.rows

    @property
    def is_last(self) -> bool:
        """True if it ends its place."""
        return self.row + self.rows == self.place.shard.rows

    def read(self, file: GGUFFile) -> npt.NDArray[np.uint8]:
        """The rows as in the file, [rows, bytes of a row]."""
        return _read_rows(file, self.place.parameter, self.place.shard.first + self.row, self.rows)


def load_weights(
    device: Device, file: GGUFFile, parameters: Sequence[Parameter], progress: Progress | None = None
) -> Weights:
    """Loads all parameters to the device. Host memory is limited to a few pieces and wgpu's staging."""
    places: list[Place] = []
    weights = place_weights(device, parameters, partial(allocate_weights, device), places)
    total = sum(tensor.nbytes for parameter in parameters for tensor in parameter.tensors)
    done = 0
    staging = Staging(device, STAGING, 2 * IN_FLIGHT)
    with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="rwkv-gpu-load") as pool:
        jobs = (partial(_stage, file, piece, staging.take()) for place in places for piece in _pieces(place))
        for piece, upload, goals in _ahead(pool, jobs):
            place = piece.place
            staging.copy(upload, goals)
            if piece.is_last:
                exchange(device, place.parameter.format, place.shard, place.where)
            done += piece.nbytes
            if progress:
                progress(done, total)
    staging.close()
    return weights


def _stage(file: GGUFFile, piece: Piece, upload: "native.Upload") -> tuple[Piece, "native.Upload", Sequence[Target]]:
    """Reads a piece and splits its rows into planes in a staging buffer."""
    place = piece.place
    goals = targets(place.shard, place.where, piece.row, piece.rows)
    parts = split(upload.memory, [nbytes for _, _, nbytes in goals])
    planes = len(place.where.row_bytes)
    split_rows(place.parameter.format, piece.read(file), parts[:planes])
    for part in parts[planes:]:
        part[:] = place.where.table
    return piece, upload, goals


def write_weights(device: Device, file: GGUFFile, places: Iterable[Place]) -> None:
    """Writes parameters to their places piece by piece, on a device whose memory the host can write."""
    for place in places:
        for piece in _pieces(place):
            planes = pack_rows(place.parameter.format, piece.read(file))
            write_rows(device, place.shard, place.where, piece.row, planes)


def allocate_weights(device: Device, nbytes: int, host: bool) -> Buffer:
    """Allocates a buffer for parameters, on the GPU or in main memory."""
    return device.buffer(nbytes, "weights in main memory" if host else "weights", host=host)


def device_bytes(device: Device, parameters: Sequence[Parameter]) -> int:
    """Bytes that `load_weights` would allocate on the device."""
    return sum(nbytes for nbytes, host, _ in buffers_of(device, parameters) if not host)


def host_bytes(device: Device, parameters: Sequence[Parameter]) -> int:
    """Bytes that `load_weights` would allocate in main memory."""
    return sum(nbytes for nbytes, host, _ in buffers_of(device, parameters) if host)


Members = list[tuple[Parameter, int, int]]  # parameter, first row, number of rows


def buffers_of(device: Device, parameters: Sequence[Parameter]) -> Iterator[tuple[int, bool, Members]]:
    """Yields each buffer's size, whether it is in main memory, and its contents.

    Neighbouring parameters of one block and format share a buffer if one binding can hold it, so that one dispatch can
    read several. A parameter that is too large for a binding is cut into shards of whole rows, each with its own
    buffer. In main memory, experts have separate buffers.
    """
    limit = min(device.capabilities.max_binding, device.capabilities.max_buffer)
    shared: dict[tuple[str, str, bool, bool], Members] = {}
    sizes: dict[tuple[str, str, bool, bool], int] = {}
    for p in parameters:
        nbytes = align(layout(p.format, p.rows, p.width).nbytes)
        if nbytes > limit:
            for first, rows in _cut(p, limit):
                yield align(layout(p.format, rows, p.width).nbytes), p.host, [(p, first, rows)]
            continue
        key = p.block, p.format.name, p.host, p.host and p.is_experts
        if key in shared and sizes[key] + nbytes > limit:
            yield sizes.pop(key), p.host, shared.pop(key)
        shared.setdefault(key, []).append((p, 0, p.rows))
        sizes[key] = sizes.get(key, 0) + nbytes
    for key, members in shared.items():
        yield sizes[key], members[0][0].host, members


def _cut(parameter: Parameter, limit: int) -> Iterator[tuple[int, int]]:
    """Yields (first row, rows) of shards within the limit. Shards of a mixture consist of whole experts."""
    unit = parameter.shape[-2] if len(parameter.shape) > 2 else 64
    nbytes = layout(parameter.format, unit, parameter.width).nbytes
    if nbytes > limit:
        raise OutOfMemory(
            f"{unit} rows of '{parameter.name}' take {nbytes:,} bytes but the device binds {limit:,} at most; "
            "use a smaller quantisation or another device"
        )
    most = limit // nbytes * unit
    for first in range(0, parameter.rows, most):
        yield first, min(most, parameter.rows - first)


def place_weights(
    device: Device,
    parameters: Sequence[Parameter],
    allocate: Callable[[int, bool], Buffer],
    places: list[Place] | None = None,
) -> Weights:
    """Assigns every parameter its place in a buffer, without loading it.

    `allocate(nbytes, host)` creates a buffer, in main memory if `host`. `places` collects the places.
    """
    weights = Weights(device)
    shards: dict[str, list[Shard]] = {}
    for nbytes, host, members in buffers_of(device, parameters):
        buffer = allocate(nbytes, host)
        at = 0
        for parameter, first, rows in members:
            where = layout(parameter.format, rows, parameter.width)
            shard = as_shard(buffer, at, parameter.format, first, rows, where)
            shards.setdefault(parameter.name, []).append(shard)
            at += align(where.nbytes)
            if places is not None:
                places.append(Place(parameter, shard, where))
    for p in parameters:
        weights.add(p.name, DeviceWeight(p.format, p.shape, tuple(shards[p.name])))
    return weights


def _pieces(place: Place) -> Iterator[Piece]:
    """The pieces of a place."""
    p, rows = place.parameter, place.shard.rows
    # A multiple of 4, so that the rows of every plane start at a whole word.
    step = max(4, PIECE // max(p.format.row_bytes(p.width), sum(t.nbytes for t in p.tensors) // p.rows) // 4 * 4)
    for row in range(0, rows, step):
        yield Piece(place, row, min(step, rows - row))


def _read_rows(file: GGUFFile, p: Parameter, row: int, count: int) -> npt.NDArray[np.uint8]:
    """Rows of a parameter in its format, [count, bytes of a row]."""
    if p.alternate:
        each = len(p.tensors)
        turns = [_read_tensor(file, tensor, p, row // each, count // each) for tensor in p.tensors]
        return np.stack(turns, axis=1).reshape(count, -1)
    if p.part:
        whole = [np.frombuffer(file.read(t), np.uint8).reshape(-1, t.format.row_bytes(t.shape[-1])) for t in p.tensors]
        return p.part(*whole).reshape(p.rows, -1)[row : row + count]
    if len(p.tensors) == 1:
        return _read_tensor(file, p.tensors[0], p, row, count)
    every = [_read_bytes(file, t, p, 0, (1, t.nbytes)) for t in p.tensors]  # several vectors may form one row
    return np.concatenate(every, axis=1).reshape(p.rows, -1)[row : row + count]


def _read_tensor(file: GGUFFile, tensor: TensorInfo, p: Parameter, row: int, count: int) -> npt.NDArray[np.uint8]:
    """Rows of a tensor of the file with the width of the parameter."""
    width = tensor.format.row_bytes(p.width)
    return _read_bytes(file, tensor, p, row * width, (count, width))


def _read_bytes(
    file: GGUFFile, tensor: TensorInfo, p: Parameter, start: int, shape: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """A part of a tensor of the file, converted if the parameter is stored in another format."""
    raw = np.empty(shape, np.uint8)
    file.read_into(tensor, start, raw.reshape(-1).data)
    return raw if tensor.format is p.format else convert(raw, tensor.format, p.format)


def convert(raw: npt.NDArray[np.uint8], source: Format, target: Format) -> npt.NDArray[np.uint8]:
    """Converts rows to a float format."""
    values = np.ascontiguousarray(dequantise_rows(source, raw))
    if target.name == "BF16":
        return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
    return values.astype({"F32": np.float32, "F16": np.float16}[target.name]).view(np.uint8)


def common_float_format(file: GGUFFile, tensors: Iterable[TensorInfo]) -> Format:
    """The smallest float format that represents all of these float matrices exactly."""
    every = list(tensors)
    for name in ("F16", "BF16"):
        if any(t.format.name == name for t in every) and all(_fits(file, t, BY_NAME[name]) for t in every):
            return BY_NAME[name]
    return BY_NAME["F32"] if len({t.type for t in every}) > 1 else every[0].format


def _fits(file: GGUFFile, tensor: TensorInfo, target: Format) -> bool:
    if tensor.format is target:
        return True
    raw = np.frombuffer(file.read(tensor), np.uint8).reshape(-1, tensor.format.row_bytes(tensor.shape[-1]))
    values = dequantise_rows(tensor.format, raw)
    with np.errstate(over="ignore"):
        back = dequantise_rows(target, convert(raw, tensor.format, target))
    return bool(np.array_equal(values, back))


T = TypeVar("T")


def _ahead(pool: ThreadPoolExecutor, jobs: Iterator[Callable[[], T]]) -> Iterator[T]:
    """Yields results in order, with a bounded number of jobs in flight."""
    under_way: deque[Future[T]] = deque()
    for job in jobs:
        under_way.append(pool.submit(job))
        if len(under_way) >= IN_FLIGHT:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def host_weights(file: GGUFFile, parameters: Sequence[Parameter]) -> Mapping[str, npt.NDArray[np.float32]]:
    """Every parameter as float32, for the numpy interpreter."""
    values = {}
    for p in parameters:
        raw = _read_rows(file, p, 0, p.rows)
        values[p.name] = dequantise_rows(p.format, raw).reshape(p.shape)
    return values
