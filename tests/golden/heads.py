"""Golden models with heads that predict further tokens: a tiny model with an additional block of random weights.

Only llama.cpp's results are stored (`head-*.npz`, by record_heads.py); the files are generated from a seed.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.planes import dequantise_rows
from tests.gguf.parts import Stored, take_apart

HERE = Path(__file__).resolve().parent


ONLY_OF_LAYERS = "rope.dimension_sections", "indexer.types"  # keys whose lists have no entries for heads
FEED = "ffn_gate", "ffn_up", "ffn_down"


@dataclass(frozen=True)
class Headed:
    """A tiny model, and the differences between its heads and its last block."""

    base: str
    template: int = -1  # the block whose shapes the head copies, counted from the end
    heads: int = 1
    own_output: bool = False  # whether heads have a norm and an output matrix
    lacks: tuple[str, ...] = ()  # prefixes of the template's tensors that heads lack
    added: dict[str, str] = field(default_factory=dict)  # more tensors, and the tensors whose shapes they copy
    keys: dict[str, Any] = field(default_factory=dict)


HEADED = {
    "qwen35": Headed("tiny-qwen35"),
    "qwen35moe": Headed("tiny-qwen35moe", own_output=True),
    "qwen3next": Headed("tiny-qwen3next"),
    "deepseek2": Headed("tiny-deepseek2"),
    "deepseek32": Headed("tiny-deepseek32"),
    "glm-dsa": Headed("tiny-glm-dsa"),
    "bailingmoe3": Headed("tiny-bailingmoe3", added={"layer_output_norm": "output_norm"}),
    "bailingmoe2": Headed("tiny-bailingmoe2", added={"layer_output_norm": "output_norm"}),
    "glm4moe": Headed("tiny-glm4moe", own_output=True),
    "hy_v3": Headed("tiny-hy_v3"),
    "mimo2": Headed("tiny-mimo2", heads=3, lacks=(*FEED, "exp_probs"), added={name: f"blk.0.{name}" for name in FEED}),
    "nemotron_h_moe": Headed(
        "tiny-nemotron_h_moe",
        added={
            **{name: f"blk.2.{name}" for name in ("attn_q", "attn_k", "attn_v", "attn_output")},
            **dict.fromkeys(("post_attention_norm", "nextn.shared_head_norm"), "output_norm"),
        },
        keys={"attention.head_count_kv": [0, 0, 2, 0, 0, 2], "feed_forward_length": [0, 64, 0, 0, 64, 64]},
    ),
    "step35": Headed("tiny-step35", heads=3),
}


def write_headed(path: Path, name: str, *, plain: bool = False) -> Path:
    """Writes a model with heads, or with `plain` its copy in float32."""
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
        elif (
            key.startswith(arch)
            and isinstance(value, list)
            and len(value) == layers
            and not key.endswith(ONLY_OF_LAYERS)
        ):
            value = [*value, *[value[how.template]] * how.heads]
        if key.removeprefix(f"{arch}.") not in how.keys:
            writer.add_key_value(key, value, kind, sub_type=sub[0] if sub else None)
    writer.add_uint32(f"{arch}.nextn_predict_layers", how.heads)
    for key, value in how.keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool, list: writer.add_array}
        add[type(value)](f"{arch}.{key}", value)
    add_tensors(writer, source, plain=plain)
    with GGUFFile.open(source) as file:
        for tensor, values in _heads(file, how, layers).items():
            writer.add_tensor(tensor, values.astype(np.float32) if plain else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensors(writer: Any, source: Path, *, plain: bool) -> None:
    """Adds all tensors of a file, with `plain` in float32."""
    with GGUFFile.open(source) as file:
        for tensor, info in file.tensors.items():
            raw = np.frombuffer(file.read(info), np.uint8)
            _add(writer, tensor, raw, info.shape, info.format, plain=plain)


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
    """Returns random tensors in the shapes of a block, and those that combine a token and a row."""
    random = np.random.default_rng(42)
    width, vocabulary = file.tensors["token_embd.weight"].shape[::-1]
    template = layers + how.template if how.template < 0 else how.template
    made: dict[str, np.ndarray] = {}
    for head in range(how.heads):
        shapes = {}
        for name, info in file.tensors.items():
            short = name.removeprefix(f"blk.{template}.")
            if short != name and not short.startswith(how.lacks):
                shapes[short] = info.shape
        shapes |= {f"{name}.weight": file.tensors[f"{of}.weight"].shape for name, of in how.added.items()}
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


def write_apart(folder: Path, name: str, *, says: bool) -> tuple[Path, Path]:
    """Writes a model without its heads, and a file of these heads. If it `says` so, its metadata still counts them."""
    how = HEADED[name]
    whole = write_headed(folder / f"whole-{name}.gguf", name).read_bytes()
    model, mtp = take_apart(whole), take_apart(whole)
    arch = bytes(model.row("general.architecture").value).decode()
    blocks = model.row(f"{arch}.block_count")
    first = blocks.value - how.heads

    def of_head(tensor: Stored) -> bool:
        block = re.match(rb"blk\.(\d+)\.", tensor.name)
        return block is not None and int(block[1]) >= first

    model.tensors = [one for one in model.tensors if not of_head(one)]
    shared = b"token_embd.weight", b"output.weight", b"output_norm.weight"
    mtp.tensors = [one for one in mtp.tensors if of_head(one) or one.name in shared]
    if not says:
        for row in model.rows:
            if row.name.startswith(arch.encode()) and isinstance(row.value, list) and len(row.value) == blocks.value:
                row.value = row.value[:first]
        blocks.value = first
        model.rows = [row for row in model.rows if row.name != f"{arch}.nextn_predict_layers".encode()]
    paths = folder / f"model-{name}.gguf", folder / f"mtp-{name}.gguf"
    for path, parts in zip(paths, (model, mtp), strict=True):
        path.write_bytes(parts.built())
    return paths
