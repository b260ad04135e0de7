"""Writes a model again with its matrices in other formats.

Metadata is copied byte by byte. Tensors are read, quantised and written some rows at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..replace_file import replace_file
from ..writer_lock import WriterLock
from .cursor import Cursor
from .file import GGUFFile
from .formats import Format
from .header import TensorDescription, Value, aligned, write_header
from .mixes import Mix, Rule, formats_of
from .planes import dequantise_rows
from .quantise import quantise_rows
from .scan import TensorInfo
from .source import Source

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int, str], None]  # bytes done, all bytes, and the tensor
CHUNK = 1 << 22  # weights at a time


def requantise(
    source: Path,
    target: Path,
    mix: Mix,
    imatrix: Mapping[str, Floats] | None = None,
    progress: Progress | None = None,
    rules: Sequence[Rule] = (),
) -> dict[str, Format]:
    """Writes the model of `source` in the formats of a mix, and returns these. `target` appears when it is complete."""
    with GGUFFile.open(source) as file:
        if any(target.exists() and path.samefile(target) for path in file.paths):
            raise BadInput(f"{target} is the model itself; give another name")
        tensors = list(file.tensors.values())
        formats = formats_of(mix, tensors, rules)
        weights = {t.name: _weights(imatrix or {}, t) for t in tensors if formats[t.name] != t.stored}
        if imatrix is not None and all(one is None for one in weights.values()):
            raise BadInput("the imatrix has no tensor of this model; give the one that was measured with it")
        described = [TensorDescription(t.name, t.shape, formats[t.name]) for t in tensors]
        header = _header(file, mix, described)
        contents = (
            _written(file, t, new.format, weights.get(t.name)) for t, new in zip(tensors, described, strict=True)
        )
        write_model(target, header, described, contents, [t.nbytes for t in tensors], progress)
    return formats


def write_model(
    target: Path,
    header: bytes,
    tensors: Sequence[TensorDescription],
    contents: Iterable[Iterable[bytes]],
    sizes: Sequence[int],
    progress: Progress | None,
    lock: WriterLock | None = None,
) -> None:
    """Writes a file of a header and the contents of each tensor, piece by piece.

    `progress` gets the sum of `sizes` so far. `lock` is that of a caller who has already locked the file.
    """

    def write(out: BinaryIO) -> None:
        out.write(header)
        done = 0
        for tensor, pieces, size in zip(tensors, contents, sizes, strict=True):
            for piece in pieces:
                out.write(piece)
            out.write(bytes(aligned(tensor.nbytes) - tensor.nbytes))
            done += size
            if progress is not None:
                progress(done, sum(sizes), tensor.name)

    replace_file(target, write=write, patience=0, private=False, lock=lock)


def type_keys(mix: Mix) -> dict[str, Value]:
    """The metadata that states the formats of a file."""
    return {"general.file_type": mix.file_type, "general.quantization_version": 2}


def _written(file: GGUFFile, tensor: TensorInfo, fmt: Format, weights: Floats | None) -> Iterator[bytes]:
    """The bytes of a tensor in a format, some rows at a time."""
    if fmt == tensor.stored:
        step = 1 << 24
        for start in range(0, tensor.nbytes, step):
            yield file.read(tensor, start, min(start + step, tensor.nbytes))
        return
    width = tensor.shape[-1]
    rows, row_bytes = tensor.nbytes // tensor.format.row_bytes(width), tensor.format.row_bytes(width)
    matrices = 1 if weights is None else len(weights)
    each = rows // matrices
    step = max(1, CHUNK // width)
    for matrix in range(matrices):
        for start in range(matrix * each, (matrix + 1) * each, step):
            count = min(step, (matrix + 1) * each - start)
            raw = np.frombuffer(file.read(tensor, start * row_bytes, (start + count) * row_bytes), np.uint8)
            values = dequantise_rows(tensor.format, raw.reshape(count, row_bytes))
            if not np.isfinite(values).all():
                raise BadInput(f"tensor '{tensor.name}' has numbers that are infinite or NaN; the file is damaged")
            yield quantise_rows(fmt, values, None if weights is None else weights[matrix]).tobytes()


def _weights(imatrix: Mapping[str, Floats], tensor: TensorInfo) -> Floats | None:
    """The importance of a tensor's columns. [matrices, width]"""
    found = imatrix.get(tensor.name)
    if found is None:
        return None
    matrices = tensor.shape[0] if len(tensor.shape) == 3 else 1
    if found.size != matrices * tensor.shape[-1]:
        raise BadInput(
            f"the imatrix has {found.size} columns for {tensor.name}, the model {matrices * tensor.shape[-1]}; "
            "give the one that was measured with this model"
        )
    return found.reshape(matrices, tensor.shape[-1])


def _header(file: GGUFFile, mix: Mix, tensors: list[TensorDescription]) -> bytes:
    """The header: all metadata of the source, except about splits and formats."""
    own = type_keys(mix)
    others = (*own, "general.alignment")
    kept = [raw for key, raw in _raw_metadata(file.paths[0]) if not key.startswith("split.") and key not in others]
    return write_header(own, tensors, kept)


def _raw_metadata(path: Path) -> Iterator[tuple[str, bytes]]:
    """Each key of a file, with the bytes of the key and its value. The file was scanned before."""
    source = Source(path)
    try:
        cursor = Cursor(source)
        cursor.take(16, "the head")
        for _ in range(cursor.u64("the metadata count")):
            start = cursor.pos
            key = cursor.string("a key")
            cursor.value("a value", cursor.kind("a type"))
            yield key, source.read(start, cursor.pos - start)
    finally:
        source.close()
