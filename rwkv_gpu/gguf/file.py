"""An open GGUF model: typed metadata, tensors by name, their bytes on demand. No GPU, no dequantisation.

with GGUFFile.open("model.gguf") as f:
    layers = f.int("rwkv7.block_count", low=1, high=1024)
    data = f.read(f.tensors["token_embd.weight"])
"""

import copy
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import BadFile, BadInput, printable

from .cursor import Value
from .fields import REQUIRED, Fields
from .override import Override
from .planes import dequantise_rows
from .scan import Header, TensorInfo, scan
from .source import Source

__all__ = ["REQUIRED", "GGUFFile", "TensorInfo", "Value"]

PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One file of a model, open and scanned."""

    path: Path
    source: Source
    header: Header

    @property
    def fields(self) -> Fields:
        return Fields(str(self.path), self.header.metadata)


class GGUFFile(Fields):
    """A GGUF file, or all parts of a split model as one file. Any thread may read."""

    def __init__(self, parts: Sequence[Part], tensors: Mapping[str, TensorInfo]) -> None:
        super().__init__(str(parts[0].path), MappingProxyType(dict(parts[0].header.metadata)))
        self.path = parts[0].path
        self.paths = [part.path for part in parts]
        self.version = parts[0].header.version
        self.overridden: Mapping[str, Override] = {}  # keys of the metadata that were replaced
        self.separate: frozenset[str] = frozenset()  # names of matrices that are not interleaved with other matrices
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(tensors))  # in the order of the file
        self.nbytes = sum(part.source.nbytes for part in parts)
        self._sources = [part.source for part in parts]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Scans the file, and all other parts if it is one part of a split model."""
        with ExitStack() as stack:
            parts = _open_all(Path(path), stack)
            file = cls(parts, _joined(parts))
            stack.pop_all()  # the file owns the sources now
        return file

    def override(self, values: Mapping[str, Override]) -> None:
        """Replaces keys of the metadata, or adds them."""
        self.metadata = MappingProxyType({**self.metadata, **values})
        self.overridden = {**self.overridden, **values}

    def joined(self, other: "GGUFFile", own: Mapping[str, TensorInfo], more: Mapping[str, TensorInfo]) -> "GGUFFile":
        """A file of some of its tensors, and of `more` from another, for reading while both are open.

        Errors name the other file.
        """
        joined = copy.copy(self)
        first = len(self._sources)
        moved = {name: replace(tensor, part=first + tensor.part) for name, tensor in more.items()}
        joined.tensors = MappingProxyType({**own, **moved})
        joined.path, joined._path = other.path, other._path
        joined.nbytes = self.nbytes + sum(tensor.nbytes for tensor in more.values())
        joined._sources = [*self._sources, *other._sources]
        return joined

    def require(self, name: str, shape: Sequence[int]) -> None:
        """Called before a model takes a tensor: a file without a table of tensors adds it."""

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def values(self, tensor: TensorInfo) -> npt.NDArray[np.float32]:
        """Reads all of a small tensor as float32, in its shape, for use on the host."""
        raw = np.frombuffer(self.read(tensor), np.uint8).reshape(-1, tensor.format.row_bytes(tensor.shape[-1]))
        return dequantise_rows(tensor.format, raw).reshape(tensor.shape).astype(np.float32)

    def read(self, tensor: TensorInfo, start: int = 0, stop: int | None = None) -> bytes:
        """The stored bytes of a tensor, or those from start to stop."""
        stop = tensor.nbytes if stop is None else stop
        _check_range(tensor, start, stop)
        return self._sources[tensor.part].read(tensor.offset + start, stop - start)

    def reopen(self, tensor: TensorInfo) -> Source:
        """The part of the file with this tensor, opened again."""
        return self._sources[tensor.part].reopen()

    def read_into(self, tensor: TensorInfo, start: int, view: memoryview) -> None:
        """Fills the view with the stored bytes of a tensor from start on."""
        _check_range(tensor, start, start + view.nbytes)
        self._sources[tensor.part].read_into(tensor.offset + start, view.cast("B"))


def _check_range(tensor: TensorInfo, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= tensor.nbytes:
        raise BadInput(f"tensor '{tensor.name}' has {tensor.nbytes} bytes; asked for bytes {start} to {stop}")


def _open_all(path: Path, stack: ExitStack) -> list[Part]:
    """All parts of the model, in order; a file that is not split is its only part."""
    given = _open_part(path, 0, stack)
    count = given.fields.int("split.count", low=0, high=65535, default=0)
    if count < 2:  # merged files have a count of 0
        return [given]
    parts = [_open_part(part, i, stack) for i, part in enumerate(_part_paths(path, count))]
    given.source.close()
    total = sum(len(part.header.tensors) for part in parts)
    for i, part in enumerate(parts):
        said = tuple(part.fields.int(f"split.{key}", low=0) for key in ("no", "count", "tensors.count"))
        if said != (i, count, total):
            raise BadFile(
                f"{part.source.path}: is part {said[0] + 1} of {said[1]} with {said[2]} tensors, "
                f"expected part {i + 1} of {count} with {total}; restore the original names of the parts"
            )
    return parts


def _open_part(path: Path, index: int, stack: ExitStack) -> Part:
    source = Source(path)
    stack.callback(source.close)
    return Part(path, source, scan(source, index))


def _part_paths(path: Path, count: int) -> list[Path]:
    """The paths of all parts of a split model. Raises BadFile if one is missing."""
    name = PART.fullmatch(path.name)
    if name is None or int(name["count"]) != count:
        wanted = f"-00001-of-{count:05d}.gguf"
        raise BadFile(
            f"{printable(str(path))}: is one of {count} parts (split.count), but its name does not end like "
            f"'{wanted}', so that the others cannot be found; restore the original names of the parts"
        )
    paths = [path.with_name(f"{name['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    for i, part in enumerate(paths):
        if not part.exists():
            raise BadFile(f"{printable(str(part))}: part {i + 1} of {count} is missing; download it next to the others")
    return paths


def _joined(parts: Sequence[Part]) -> dict[str, TensorInfo]:
    """The tensors of all parts, each name once."""
    tensors: dict[str, TensorInfo] = {}
    for part in parts:
        for name, tensor in part.header.tensors.items():
            if name in tensors:
                raise BadFile(
                    f"{part.source.path}: tensor '{name}' is in an earlier part already, expected each name once"
                )
            tensors[name] = tensor
    return tensors
