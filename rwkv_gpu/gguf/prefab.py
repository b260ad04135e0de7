"""Prefab files of web-rwkv and Ai00: the tensors of a model as CBOR. Weights may be quantised to 8 or 4 bits.

Tensors get the names that they have in web-rwkv's safetensors files (.st).
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import BadFile, printable
from .stored import Floats, Stored

MAX_ITEMS, DEEPEST, LONGEST_TEXT = 1 << 20, 12, 64
TYPES = {1: "U8", 2: "F16", 4: "F32"}  # by bytes per number
BLOCKS = {"Int8": 128, "Fp4": 64, "Nf4": 64}  # numbers of a block, which share a range
HALVED_EVERY = 6  # layers; for versions whose files do not store it
NAMES = {
    "layers": "blocks", "att_ln": "ln1", "att_layer_norm": "ln1", "ffn_ln": "ln2", "ffn_layer_norm": "ln2",
    "gn": "ln_x", "group_norm": "ln_x", "w_k": "key.weight", "w_v": "value.weight", "w_r": "receptance.weight",
    "w_g": "gate.weight", "w_o": "output.weight", "w": "weight", "b": "bias", "layer_norm": "ln",
}  # fmt: skip
ENDS = {"embed.ln": "blocks.0.ln0", "head.ln": "ln_out", "embed.weight": "emb.weight"}


@dataclass(frozen=True)
class QuantisedMatrix(Stored):
    """A quantised matrix. The codes of a block have 8 bits within a range, or 4 bits that index a table."""

    codes: Stored
    ranges: Stored
    table: Stored | None

    def read(self) -> Floats:
        """The dequantised matrix in float32."""
        raw = np.frombuffer(self.codes.bytes(), np.uint8)
        ranges = self.ranges.read().reshape(-1)
        if self.table is None:
            low, high = (np.repeat(ranges[side::2], BLOCKS["Int8"])[: raw.size] for side in (0, 1))
            return (low + raw * ((high - low) / np.float32(255))).astype(np.float32).reshape(self.shape)
        codes = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)
        return (self.table.read()[codes] * np.repeat(ranges, BLOCKS["Fp4"])[: codes.size]).reshape(self.shape)


@dataclass(frozen=True)
class Powers(Stored):
    """Decays as web-rwkv saves them: exp(-exp(decay)), or -exp(decay) in RWKV-4. `read` returns `decay`."""

    exponents: bool

    def read(self) -> Floats:
        found = super().read().astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):  # numbers that are not finite are refused later
            return np.log(-found if self.exponents else -np.log(found)).astype(np.float32)


def is_prefab(path: Path) -> bool:
    """True if a file begins with a CBOR map whose first key is that of a model."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(9)[1:] == b"\x67context"


def stored_in_prefab(path: Path) -> tuple[dict[str, Stored], int]:
    """The tensors, not yet read, and the number of layers after which outputs are halved. Raises BadFile."""
    try:
        with open(path, "rb") as file:
            reader = _Cbor(path, file)
            top = reader.item()
            if reader.left:
                raise ValueError("bytes follow its end")
        tensors = dict(_named(_walk(top["tensor"]), top["info"]))
        every = top.get("rescale", HALVED_EVERY)
        if not isinstance(every, int) or every < 1:
            raise ValueError("its rescale is not a number of layers")
        return tensors, every
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        what = printable(str(error)[:100]) or type(error).__name__
        raise BadFile(f"{path} is not a valid prefab file ({what}); save it again") from None


def _named(found: Iterator[tuple[str, Stored]], info: Any) -> Iterator[tuple[str, Stored]]:
    """The tensors, with the names and shapes that they have in a checkpoint."""
    heads, version = info["num_head"], info["version"]
    if not isinstance(heads, int) or heads < 1:
        raise ValueError("its number of heads is not a positive integer")
    for path, tensor in found:
        name = ".".join(NAMES.get(part, part) for part in path.split("."))
        name = next((new + name[len(old) :] for old, new in ENDS.items() if name.startswith(old)), name)
        if name.endswith(".time_mix"):  # RWKV-6: five rows
            for i, letter in enumerate("wkvrg"):
                yield f"{name}_{letter}", tensor.rows(i, i + 1)
            continue
        if ".ln_x." in name:
            tensor = replace(tensor, shape=(tensor.count,))
        if name.endswith(".time_first" if version == "V6" else (".time_first", ".time_decay")) and version != "V4":
            tensor = replace(tensor, shape=(heads, tensor.count // heads))
        if name.endswith(".time_decay") and version != "V6":
            tensor = Powers(tensor.path, tensor.offset, tensor.type, tensor.shape, version == "V4")
        yield name, tensor


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Stored]]:
    """The tensors of a part of the file, each with its path."""
    if isinstance(value, list):
        value = {str(i): one for i, one in enumerate(value)}
    if not isinstance(value, dict):
        raise TypeError("a part of it is not a tensor")
    if value.keys() == {"shape", "data"}:
        yield path[1:], _tensor(value)
    elif value.keys() == {"Fp16"}:
        yield path[1:], _tensor(value["Fp16"])
    elif len(value) == 1 and BLOCKS.keys() >= value.keys():
        [(kind, parts)] = value.items()
        yield path[1:], _coded(BLOCKS[kind], {name: _tensor(one) for name, one in parts.items()})
    else:
        for name, one in value.items():
            yield from _walk(one, f"{path}.{name}")


def _tensor(value: Any) -> Stored:
    """A tensor. Raises an error if its bytes do not fit its shape."""
    data, shape = value["data"], value["shape"]
    if not isinstance(data, Stored) or not isinstance(shape, list) or len(shape) != 4:
        raise TypeError("a tensor has no shape of four numbers, or no bytes")
    if not all(type(size) is int and size > 0 for size in shape):
        raise ValueError("a tensor has no numbers")
    count = math.prod(shape)
    width, rest = divmod(data.count, count)
    if rest or width not in TYPES:
        raise ValueError("the size of a tensor does not match its shape")
    return Stored(data.path, data.offset, TYPES[width], tuple(_without_ones(shape[::-1])))


def _without_ones(shape: list[int]) -> list[int]:
    first = next((i for i, size in enumerate(shape) if size > 1), 3)
    return shape[first:]


def _coded(block: int, parts: dict[str, Stored]) -> QuantisedMatrix:
    """A matrix from its codes, the ranges of its blocks, and for 4 bits the table."""
    codes, ranges, table = parts["w"], parts["m"], parts.get("q")
    per_byte, per_block = (1, 2) if table is None else (2, 1)
    shape = (*codes.shape[:-1], codes.shape[-1] * per_byte)
    blocks = -(-math.prod(shape) // block)
    if codes.type != "U8" or ranges.type != "F16" or ranges.count != blocks * per_block:
        raise ValueError("a matrix has codes and ranges that do not belong together")
    if (block == BLOCKS["Int8"]) != (table is None) or (table and (table.type, table.count) != ("F32", 16)):
        raise ValueError("a matrix has no table of 16 numbers")
    return QuantisedMatrix(codes.path, codes.offset, codes.type, shape, codes, ranges, table)


class _Cbor:
    """Reads CBOR as serde writes it. A byte string is returned as its place in the file, and not read."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self._items = path, file, 0
        self._size = self.left = os.fstat(file.fileno()).st_size

    def item(self, depth: int = 0) -> Any:
        """The next item."""
        self._items += 1
        if depth > DEEPEST or self._items > MAX_ITEMS:
            raise ValueError("it is nested too deeply, or has too many parts")
        kind, small = divmod(self._bytes(1)[0], 32)
        if small > 27:
            raise ValueError("it has a part of unknown length")
        number = small if small < 24 else int.from_bytes(self._bytes(1 << (small - 24)), "big")
        if kind == 0:
            return number
        if kind == 2:
            return self._place(number)
        if kind == 3 and number <= LONGEST_TEXT:
            return self._bytes(number).decode()
        if kind in (4, 5) and number > self.left:
            raise ValueError("a list is longer than the file")
        if kind == 4:
            return [self.item(depth + 1) for _ in range(number)]
        if kind == 5:
            pairs = [(self.item(depth + 1), self.item(depth + 1)) for _ in range(number)]
            if not all(isinstance(key, str) for key, _ in pairs) or len(dict(pairs)) < number:
                raise ValueError("a name is not a text, or occurs twice")
            return dict(pairs)
        raise ValueError("a part of it is of an unknown kind")

    def _place(self, nbytes: int) -> Stored:
        offset = self._size - self.left
        if nbytes > self.left:
            raise ValueError("a tensor is beyond the end of the file")
        self.left -= nbytes
        self._file.seek(nbytes, os.SEEK_CUR)
        return Stored(self._path, offset, "U8", (nbytes,))

    def _bytes(self, count: int) -> bytes:
        found = self._file.read(count) if count <= self.left else b""
        if len(found) != count:
            raise ValueError("it ends early")
        self.left -= count
        return found
