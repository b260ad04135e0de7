"""Golden models with heads that predict further tokens: a tiny model with one more block of random weights.

Only what llama.cpp says of them is kept (`head-*.npz`, by record_heads.py); the files are made anew from a seed.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.planes import dequantise_rows

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Headed:
    """A tiny model and how its heads differ from its last block."""

    base: str
    template: int = -1  # the block whose shapes the head has, from the end
    heads: int = 1
    own_output: bool = False  # whether heads have a norm and an output matrix
    renamed: dict[str, str] = field(default_factory=dict)  # tensors of the template, "" for those that it lacks
    keys: dict[str, Any] = field(default_factory=dict)


HEADED = {
    "qwen35": Headed("tiny-qwen35"),
    "qwen35moe": Headed("tiny-qwen35moe", own_output=True),
    "qwen3next": Headed("tiny-qwen3next"),
    "deepseek2": Headed("tiny-deepseek2"),
}


def write_headed(path: Path, name: str, *, plain: bool = False) -> Path:
    """The file of a model with heads; `plain`: its twin in float32."""
    how = HEADED[name]
    source = HERE / f"{how.base}.gguf"
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    layers = int(reader.fields[f"{arch}.block_count"].contents())
    writer = gguf.GGUFWriter(path, arch)
    for key, found in reader.fields.items():
        value = found.contents()
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, *sub = found.types
        if key == f"{arch}.block_count":
            value += how.heads
        elif key.startswith(arch) and isinstance(value, list) and len(value) == layers and "sections" not in key:
            value = [*value, *[value[how.template]] * how.heads]
        if key.removeprefix(f"{arch}.") not in how.keys:
            writer.add_key_value(key, value, kind, sub_type=sub[0] if sub else None)
    writer.add_uint32(f"{arch}.nextn_predict_layers", how.heads)
    for key, value in how.keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool, list: writer.add_array}
        add[type(value)](f"{arch}.{key}", value)
    with GGUFFile.open(source) as file:
        for tensor, info in file.tensors.items():
            raw = np.frombuffer(file.read(info), np.uint8)
            _add(writer, tensor, raw, info.shape, info.format, plain=plain)
        for tensor, values in _heads(file, how, layers).items():
            writer.add_tensor(tensor, values.astype(np.float32) if plain else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, raw: np.ndarray, shape: tuple[int, ...], fmt: Any, *, plain: bool) -> None:
    rows = raw.reshape(math.prod(shape[:-1]), -1)
    if plain:
        writer.add_tensor(name, np.ascontiguousarray(dequantise_rows(fmt, rows).reshape(shape), np.float32))
    elif fmt.name == "F32":
        writer.add_tensor(name, rows.view(np.float32).reshape(shape))
    else:
        kept = rows.reshape(*shape[:-1], -1)
        writer.add_tensor(name, kept, raw_dtype=gguf.GGMLQuantizationType(fmt.type))


def _heads(file: GGUFFile, how: Headed, layers: int) -> dict[str, np.ndarray]:
    """Random tensors in the shapes of a block, and those that join a token and a row."""
    random = np.random.default_rng(42)
    width, vocabulary = file.tensors["token_embd.weight"].shape[::-1]
    template = layers + how.template if how.template < 0 else how.template
    made: dict[str, np.ndarray] = {}
    for head in range(how.heads):
        shapes = {}
        for name, info in file.tensors.items():
            short = name.removeprefix(f"blk.{template}.")
            if short != name and how.renamed.get(short, short):
                shapes[how.renamed.get(short, short)] = info.shape
        shapes |= {"nextn.enorm.weight": (width,), "nextn.hnorm.weight": (width,)}
        shapes["nextn.eh_proj.weight"] = width, 2 * width
        if how.own_output:
            shapes |= {"nextn.shared_head_norm.weight": (width,), "nextn.shared_head_head.weight": (vocabulary, width)}
        for short, shape in shapes.items():
            values = random.standard_normal(shape) / np.sqrt(shape[-1])
            if len(shape) == 1:
                values = 0.1 * random.standard_normal(shape) + ("norm" in short)
            made[f"blk.{layers + head}.{short}"] = values.astype(np.float32 if len(shape) == 1 else np.float16)
    return made
