"""Headers of published files: the keys and tensors that llama.cpp's converter writes for each family, as recorded.

`python -m tests.golden.record_headers LLAMA.CPP` records them, and record_shapes the tensors that it cannot. Sizes are
those of the publisher's config.json, or the defaults of its class in transformers. Layers with the same tensors are
one row.

A name that ends in .gguf is a published file: its keys and values are those that llama.cpp printed when users loaded
it. Its tensors are those of public tables, or those that the converter writes for these sizes; where llama.cpp printed
how many there are, their number is the same.
"""

import json
import lzma
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rwkv_gpu.gguf.formats import FORMATS, SIZES
from rwkv_gpu.gguf.planes import dequantise_rows
from rwkv_gpu.gguf.quantise import quantise_rows
from tests.gguf.parts import Parts, Row, Stored, nbytes, row_bytes
from tests.gguf.writer import ARRAY, BOOL, F32, I32, STRING, U32, U64, gguf, tensor

PATH = Path(__file__).parent / "published_headers.json.xz"
FILES = ".gguf"  # ends the names of published files
KINDS = {"UINT32": U32, "INT32": I32, "FLOAT32": F32, "BOOL": BOOL, "STRING": STRING, "ARRAY": ARRAY}
TYPES = {fmt.name: number for number, fmt in SIZES.items()}
OPTIONAL = re.compile(rb"(^output\.weight|_factors_\w+\.weight|rope_freqs\.weight|\.bias)$")
LONG = ".layer_multipliers", ".head_offsets", ".head_vocab_sizes"  # lists that the converter writes as U64
OWN = "general.", "tokenizer."  # keys that do not affect the shape of a model


@dataclass(frozen=True)
class Header:
    """The keys and tensors that a converter writes for one class of models."""

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


def golden_of(header: Header) -> str:
    """Returns the golden model of the family, with experts if the published model has them."""
    experts = {"llama": "tiny-llama-experts", "granite_swa": "experts-granite_swa"}
    names = {"olmo2": "tiny-olmo3", "minimax-m3": "leading-minimax-m3"} | (
        experts if f"{header.arch}.expert_count" in header.keys else {}
    )
    if any(".dea_q." in name for _, rows in header.layers for name, *_ in rows):
        return "tiny-deep-rwkv7.gguf"
    return names.get(header.arch, f"tiny-{header.arch}") + ".gguf"


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
            if key.endswith(".recurrent_layers"):
                value = [(i + 1) % known[f"{arch}.full_attention_interval"].value > 0 for i in range(blocks)]
            if own is not None:
                value = own.value if own.kind == ARRAY else [own.value] * blocks
            parts.rows = [row for row in parts.rows if row is not own]
            parts.rows.append(Row(key.encode(), ARRAY, value, _element(key, value)))
        elif own is None:
            parts.set(key, KINDS[kind], _small(key, value, width, known, arch))


def normal(name: str) -> str:
    """Returns a name with {i} in place of the number of a layer."""
    return re.sub(r"^((?:(?:enc|dec)\.)?blk)\.\d+\.", r"\1.{i}.", name)


def with_tensors(parts: Parts, header: Header | None) -> None:
    """Gives a small model the names and types of a published header's tensors, in sizes of its own.

    Tensors that it lacks are added, such as biases. Optional ones that the header lacks are removed.
    """
    if header is None or not header.layers:
        return
    kinds = {name: TYPES[kind] for _, rows in header.layers for name, _, kind in rows}
    _split(parts, kinds)
    parts.tensors = [
        one for one in parts.tensors if not OPTIONAL.search(one.name) or normal(one.name.decode()) in kinds
    ]
    own = {one.name.decode(): one for one in parts.tensors}
    known = {normal(name) for name in own}
    for name in sorted(set(kinds) - known):
        for like in [one for one in own if one.startswith("blk.")] if "{i}" in name else [""]:
            whole = name.replace("{i}", like.split(".")[1]) if like else name
            dims = _dims(whole, own, parts, header.arch)
            if dims and whole not in own:
                values = np.random.default_rng(len(own)).standard_normal(math.prod(dims)) * 0.02
                values = np.ones(dims) if name.startswith("rope_") else values
                own[whole] = Stored(whole.encode(), dims, TYPES["F32"], values.astype("<f4").tobytes())
    parts.tensors = [_typed(one, kinds.get(normal(name), one.kind)) for name, one in own.items()]


def _split(parts: Parts, kinds: dict[str, int]) -> None:
    """Splits fused q, k and v, or fuses gates and inputs of experts, where the header does so."""
    for one in list(parts.tensors):
        stem = one.name.decode()
        if stem.endswith(("attn_qkv.weight", "attn_qkv.bias")) and normal(stem) not in kinds:
            rows = np.frombuffer(one.data, np.uint8).reshape(one.dims[-1], -1)
            arch = parts.row("general.architecture").value.decode()
            heads, groups = (parts.row(f"{arch}.attention.{key}").value for key in ("head_count", "head_count_kv"))
            size, parts.tensors = len(rows) // (heads + 2 * groups), [t for t in parts.tensors if t is not one]
            for letter, part in zip("qkv", np.split(rows, [heads * size, (heads + groups) * size]), strict=True):
                dims = [*one.dims[:-1], len(part)]
                parts.tensors.append(Stored(stem.replace("qkv", letter).encode(), dims, one.kind, part.tobytes()))
        fused = stem.replace("ffn_gate_exps", "ffn_gate_up_exps")
        if fused != stem and normal(fused) in kinds:
            up = next(t for t in parts.tensors if t.name.decode() == stem.replace("gate", "up"))
            both = [np.frombuffer(t.data, np.uint8).reshape(t.dims[2], -1) for t in (one, up)]
            parts.tensors = [t for t in parts.tensors if t is not one and t is not up]
            dims = [one.dims[0], 2 * one.dims[1], one.dims[2]]
            parts.tensors.append(Stored(fused.encode(), dims, one.kind, np.concatenate(both, 1).tobytes()))


def _dims(name: str, own: dict[str, Stored], parts: Parts, arch: str) -> list[int] | None:
    """Returns the dims of a tensor that a small model lacks, by its relatives; None if this layer has none."""
    rows = {row.name.decode().removeprefix(f"{arch}."): row.value for row in parts.rows}
    if name == "output.weight":
        return own["token_embd.weight"].dims
    if name == "rope_freqs.weight":
        return [rows["rope.dimension_count"] // 2]
    if name.endswith("exp_probs_b.bias"):
        return [rows["expert_count"]] if name.replace("exp_probs_b.bias", "ffn_gate_inp.weight") in own else None
    relative = own.get(name.replace(".bias", ".weight"))
    return relative.dims[1:] if relative else None


def _typed(one: Stored, kind: int) -> Stored:
    """Returns a tensor in another type of numbers, if its rows are whole blocks of that type."""
    if kind not in FORMATS or kind == one.kind or one.dims[0] % FORMATS[kind].block:
        return one
    raw = np.frombuffer(one.data, np.uint8).reshape(math.prod(one.dims[1:]), -1)
    return Stored(
        one.name, one.dims, kind, quantise_rows(FORMATS[kind], dequantise_rows(FORMATS[one.kind], raw)).tobytes()
    )


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


def _element(key: str, values: list[Any]) -> int:
    if not isinstance(values[0], int):
        return F32
    return BOOL if isinstance(values[0], bool) else U64 if key.endswith(LONG) else I32


def rows_of(header: Header) -> list[Row]:
    """Returns the keys as rows of a file. Empty lists are left out, as by the converter."""
    return [
        Row(key.encode(), ARRAY, value, _element(key, value))
        if kind == "ARRAY"
        else Row(key.encode(), KINDS[kind], value.encode() if isinstance(value, str) else value)
        for key, (kind, value) in header.keys.items()
        if value != []
    ]


def write_true_size(header: Header, path: Path) -> Path:
    """Writes the header of the published model. The file has its true length, and a hole in place of the weights."""
    rows = rows_of(header)
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
