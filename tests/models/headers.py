"""Headers of published files: the keys and tensors that llama.cpp's converter writes for each family, as recorded.

`python -m tests.golden.record_headers LLAMA.CPP` records them. Keys have the values of the reference model; tensors
have its true shapes. Layers with the same tensors are one row.
"""

import json
import lzma
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rwkv_gpu.gguf.formats import FORMATS
from tests.gguf.parts import Parts, Row, Stored, nbytes, row_bytes
from tests.gguf.writer import ARRAY, BOOL, F32, I32, STRING, U32, gguf, tensor

PATH = Path(__file__).parent / "published_headers.json.xz"
KINDS = {"UINT32": U32, "INT32": I32, "FLOAT32": F32, "BOOL": BOOL, "STRING": STRING, "ARRAY": ARRAY}
TYPES = {fmt.name: number for number, fmt in FORMATS.items()}
OWN = "general.", "tokenizer."  # keys that do not affect the shape of a model


@dataclass(frozen=True)
class Header:
    """The keys and tensors that a converter writes for one class of models. Tensors are unknown for unpublished
    classes.
    """

    name: str
    arch: str
    keys: dict[str, tuple[str, Any]]
    layers: list[tuple[list[int], list[tuple[str, list[int], str]]]]  # numbers of layers, and their tensors

    def tensors(self) -> Iterator[Stored]:
        for numbers, rows in self.layers:
            for number in numbers:
                for name, shape, kind in rows:
                    yield Stored(name.replace("{i}", str(number)).encode(), shape[::-1], TYPES[kind], b"")


@cache
def headers() -> dict[str, Header]:
    """Returns the recorded headers by the publisher's class of model."""
    found = json.loads(lzma.decompress(PATH.read_bytes()))
    return {name: Header(name, one["keys"]["general.architecture"][1], **one) for name, one in found.items()}


def header_of(parts: Parts, arch: str) -> Header | None:
    """Returns a header of the family, of a model that has experts if this one has some; None if none is recorded."""
    mixture = any(row.name.endswith(b".expert_count") for row in parts.rows)
    found = [one for one in headers().values() if one.arch == arch]
    return next((one for one in found if (f"{arch}.expert_count" in one.keys) == mixture), next(iter(found), None))


def with_keys(parts: Parts, header: Header | None) -> None:
    """Gives a small model the keys of a published header that it lacks, and lists in place of single numbers."""
    if header is None:
        return
    arch = header.arch
    known = {row.name.decode(): row for row in parts.rows}
    blocks, width = (known[f"{arch}.{name}"].value for name in ("block_count", "embedding_length"))
    published = header.keys[f"{arch}.block_count"][1]
    for key, (kind, value) in header.keys.items():
        if key.startswith(OWN):
            continue
        own = known.get(key)
        if kind == "ARRAY":
            value = value[:blocks] if len(value) == published else value
            if own is not None:
                value = own.value if own.kind == ARRAY else [own.value] * blocks
            parts.rows = [row for row in parts.rows if row is not own]
            parts.rows.append(Row(key.encode(), ARRAY, value, _element(value[0])))
        elif own is None:
            parts.set(key, KINDS[kind], _small(key, value, width, known, arch))


def _small(key: str, value: Any, width: int, known: dict[str, Row], arch: str) -> Any:
    """Returns the value of a key that a small model lacks, in its own size."""
    if key.endswith((".attention.key_length", ".attention.value_length")):
        return width // known[f"{arch}.attention.head_count"].value
    if key.endswith(".nextn_predict_layers"):
        return 0  # drafting heads are separate models
    if key.endswith((".expert_group_count", ".expert_group_used_count")):
        return 1
    if key == "gemma3n.attention.shared_kv_layers":
        return 0
    return value.encode() if isinstance(value, str) else value


def _element(value: Any) -> int:
    return BOOL if isinstance(value, bool) else I32 if isinstance(value, int) else F32


def write_true_size(header: Header, path: Path) -> Path:
    """Writes the header of the published model. The file has its true length, and a hole in place of the weights."""
    rows = [
        Row(key.encode(), ARRAY, value, _element(value[0]))
        if kind == "ARRAY"
        else Row(key.encode(), KINDS[kind], value.encode() if isinstance(value, str) else value)
        for key, (kind, value) in header.keys.items()
        if value != []
    ]
    table, places, place = [], [], 0
    for one in header.tensors():
        places.append(place)
        table.append(tensor(one.name, one.dims, place, kind=one.kind))
        place += -(-nbytes(one) // 32) * 32
    with open(path, "wb") as out:
        start = out.write(gguf([row_bytes(row) for row in rows], table, b""))
        out.truncate(start + place)
        for one, at in zip(header.tensors(), places, strict=True):
            if one.name.startswith(b"rope_f"):  # the loader reads factors of frequencies
                out.seek(start + at)
                out.write(struct.pack("<f", 1.0) * one.dims[0])
    return path
