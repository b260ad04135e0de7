"""A strict scan of one GGUF file: header, metadata, and the offset of every tensor. It reads no weights.

The layout is computed, not trusted: tensors lie in order, aligned, without gap or overlap, and end with the file.
The offsets in the file must agree with it, so no tensor can point at another's bytes or outside the file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rwkv_gpu.errors import BadFile, UnsupportedModel

from .cursor import Cursor, Value, shown
from .formats import FORMATS, SIZES, Format
from .source import Source

VERSIONS = (2, 3)
MAX_COUNT = 1 << 16  # maximum number of keys, and of tensors; the largest models have some thousands
KEY_MAX = 65535  # bytes
NAME_MAX = 63  # bytes; ggml's own limit
ALIGNMENTS = tuple(1 << bit for bit in range(3, 17))

SMALLEST_KEY = 8 + 1 + 4 + 1  # length, name, type, value
SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # length, name, dimension count, one dimension, type, offset

FOREIGN = {  # first bytes of other kinds of files: the kind, and the remedy
    b"version https://git-lfs": "a Git LFS pointer: fetch the file itself with 'git lfs pull'",
    b"<": "a web page: download the file itself",
    b"PK\3\4": "a zip archive or PyTorch checkpoint: run `rwkv-gpu convert` or llama.cpp's convert_hf_to_gguf.py",
    b"lmgg": "a GGML file of before GGUF: download or convert the model again",
    b"fmgg": "a GGML file of before GGUF: download or convert the model again",
    b"tjgg": "a GGML file of before GGUF: download or convert the model again",
}


@dataclass(frozen=True)
class TensorInfo:
    """The place of a tensor: `nbytes` at `offset` of file number `part`; shape outermost first, as in numpy."""

    name: str
    type: int
    shape: tuple[int, ...]
    part: int
    offset: int
    nbytes: int

    @property
    def format(self) -> Format:
        """The format of its numbers; raises UnsupportedModel if no kernel reads it."""
        if self.type not in FORMATS:
            raise UnsupportedModel(
                f"tensor '{self.name}' is of type {SIZES[self.type].name}, which is not supported; "
                f"known: {_known()}; requantise the model with llama-quantize"
            )
        return FORMATS[self.type]

    @property
    def stored(self) -> Format:
        """The format, even if no kernel reads it: such tensors may still be copied."""
        return SIZES[self.type]

    def rows_in(self, shape: Sequence[int]) -> int:
        """The number of rows of that shape in this tensor; a row of a vector is a number."""
        return math.prod(shape) // (self.shape[-1] if len(self.shape) > 1 else 1)

    def rows(self, first: int, count: int) -> "TensorInfo":
        """A range of rows of a matrix [M, K], or of a tensor [..., K] taken as rows, as a separate tensor."""
        nbytes = self.nbytes // math.prod(self.shape[:-1] or self.shape)
        shape = (count, *self.shape[1:][-1:])
        return replace(self, shape=shape, offset=self.offset + first * nbytes, nbytes=count * nbytes)


@dataclass(frozen=True)
class Header:
    """The header of one GGUF file."""

    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]


def scan(source: Source, part: int = 0) -> Header:
    """Reads and checks all that precedes the weights."""
    cursor = Cursor(source)
    version = _version(cursor, source)
    n_tensors = _count(cursor, "the tensor count", SMALLEST_TENSOR)
    n_keys = _count(cursor, "the metadata count", SMALLEST_KEY)
    metadata = _metadata(cursor, n_keys)
    alignment = metadata.get("general.alignment", 32)
    assert isinstance(alignment, int)  # _metadata checked it
    tensors: dict[str, TensorInfo] = {}
    end = 0  # end of the data so far, from the start of the data
    for i in range(n_tensors):
        at = cursor.pos
        tensor = _tensor(cursor, f"tensor {i + 1} of {n_tensors}", source, part)
        if tensor.name in tensors:
            raise cursor.bad(f"tensor '{tensor.name}'", at, "a second one of that name", "each name once")
        _check_offset(cursor, tensor, at, end, alignment)
        tensors[tensor.name] = tensor
        end = tensor.offset + tensor.nbytes
    return Header(version, metadata, _placed(cursor, source, tensors, alignment))


def _version(cursor: Cursor, source: Source) -> int:
    if source.nbytes == 0:
        raise BadFile(f"{source.path}: is empty (0 bytes), expected a GGUF model; download it again")
    head = source.read(0, min(source.nbytes, 32))
    if head[:4] != b"GGUF":
        safetensors = {
            head[:8] + b"{": "a safetensors file: run `rwkv-gpu convert` or llama.cpp's convert_hf_to_gguf.py"
        }
        names = [name for start, name in (FOREIGN | safetensors).items() if head.startswith(start)]
        found = " ".join([shown(head[:4]), *(f"({name})" for name in names)])
        raise cursor.bad("the magic", 0, found, "'GGUF': this is not a GGUF model")
    cursor.take(4, "the magic")
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        raise cursor.bad("the version", 4, f"{version:#x}, a big-endian file", "a little-endian one: convert it again")
    if version not in VERSIONS:
        remedy = "the model must be converted again" if version < min(VERSIONS) else "update rwkv-gpu, or convert again"
        raise cursor.bad("the version", 4, str(version), f"2 or 3: {remedy}")
    return version


def _count(cursor: Cursor, what: str, smallest: int) -> int:
    at, n = cursor.pos, cursor.count(what, smallest)
    if n > MAX_COUNT:
        raise cursor.bad(what, at, str(n), f"at most {MAX_COUNT}")
    return n


def _metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for i in range(count):
        at = cursor.pos
        key = cursor.name(f"metadata key {i + 1} of {count}", KEY_MAX)
        what = f"metadata key {shown(key)}"
        if key in metadata:
            raise cursor.bad(what, at, "a second one of that name", "each key once")
        value = cursor.value(what, cursor.kind(f"the type of {what}"))
        if key == "general.alignment":
            _check_alignment(cursor, what, at, value)
        metadata[key] = value
    return metadata


def _check_alignment(cursor: Cursor, what: str, at: int, value: Value) -> None:
    if type(value) is not int or value not in ALIGNMENTS:
        expected = f"a power of two from {ALIGNMENTS[0]} to {ALIGNMENTS[-1]}"
        raise cursor.bad(what, at, shown(value), expected)


def _tensor(cursor: Cursor, what: str, source: Source, part: int) -> TensorInfo:
    """One row of the tensor table; its offset is relative to the start of the data."""
    name = cursor.name(f"the name of {what}", NAME_MAX)
    what = f"tensor '{name}'"
    at, n_dims = cursor.pos, cursor.u32(f"the dimension count of {what}")
    if not 1 <= n_dims <= 4:
        raise cursor.bad(f"the dimension count of {what}", at, str(n_dims), "1 to 4")
    at, dims = cursor.pos, [cursor.u64(f"dimension {i} of {what}") for i in range(n_dims)]
    if 0 in dims:
        raise cursor.bad(f"the shape of {what}", at, str(dims), "dimensions of at least 1")
    kind = cursor.u32(f"the type of {what}")
    if kind not in SIZES:
        raise UnsupportedModel(
            f"{source.path}: {what} is of type {kind}, which is not known (retired, newer than this version, or a "
            f"damaged file); known: {_known()}; requantise the model with llama-quantize"
        )
    size = SIZES[kind]
    if dims[0] % size.block:
        raise cursor.bad(f"the shape of {what}", at, str(dims), f"rows of a multiple of {size.block} ({size.name})")
    nbytes = math.prod(dims) // size.block * size.nbytes
    return TensorInfo(name, kind, tuple(reversed(dims)), part, cursor.u64(f"the offset of {what}"), nbytes)


def _check_offset(cursor: Cursor, tensor: TensorInfo, at: int, end: int, alignment: int) -> None:
    expected = _aligned(end, alignment)
    if tensor.offset == expected:
        return
    if tensor.offset % alignment:
        fault = f"not a multiple of {alignment}"
    else:
        fault = "over the tensor before it" if tensor.offset < expected else "a gap"
    raise cursor.bad(f"tensor '{tensor.name}'", at, f"the offset {tensor.offset}, {fault}", str(expected))


def _placed(cursor: Cursor, source: Source, tensors: Mapping[str, TensorInfo], alignment: int) -> dict[str, TensorInfo]:
    """The tensors with offsets from the start of the file. All are inside it, and only padding follows."""
    start = _aligned(cursor.pos, alignment)
    end = cursor.pos
    placed = {}
    for name, tensor in tensors.items():
        at = start + tensor.offset
        end = at + tensor.nbytes
        if end > source.nbytes:
            short = f"{max(source.nbytes - at, 0)} of its {tensor.nbytes} bytes"
            raise cursor.bad(f"the data of tensor '{name}'", at, short, "all: cut short or damaged, download it again")
        placed[name] = replace(tensor, offset=at)
    if source.nbytes > end + alignment:
        found = f"{source.nbytes - end} more bytes"
        raise cursor.bad("the end of the data", end, found, f"the end of the file (and up to {alignment} of padding)")
    return placed


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _known() -> str:
    return ", ".join(fmt.name for fmt in FORMATS.values())
