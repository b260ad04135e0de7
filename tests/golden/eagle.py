"""EAGLE-3 files for golden models: a layer of random weights, whose results llama.cpp recorded (`eagle-*.npz`).

The three files differ in optional parts: own embedding, own vocabulary, frequency divisors, and norms.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.golden.heads import HERE, add_tensors


@dataclass(frozen=True)
class Eagle:
    """A tiny model, and the optional parts of its EAGLE-3 file."""

    base: str
    layers: tuple[int, int, int]  # whose input is read
    width: int = 256
    known: int = 0  # tokens of its own vocabulary; 0 is all, by the model's matrix
    embedding: bool = True  # whether it has its own
    normed_rows: bool = False
    read_norm: bool = False
    factors: bool = False


EAGLES = {
    "llama": Eagle("tiny-llama", (0, 1, 1), width=96, known=150, factors=True),
    "qwen3": Eagle("tiny-qwen3", (1, 0, 1), embedding=False, normed_rows=True, read_norm=True),
    "gpt-oss": Eagle("tiny-gpt-oss", (1, 3, 2), known=200, embedding=False),
}
HEADS, KV, SIZE, INNER = 4, 2, 32, 96


def write_eagle(path: Path, name: str, *, plain: bool = False) -> Path:
    """Writes the EAGLE-3 file of a golden model, or with `plain` its copy in float32."""
    how, reader = EAGLES[name], gguf.GGUFReader(HERE / f"{EAGLES[name].base}.gguf")
    arch = reader.fields["general.architecture"].contents()
    model_width = int(reader.fields[f"{arch}.embedding_length"].contents())
    writer = gguf.GGUFWriter(path, "eagle3")
    copy_fields(reader, writer, "tokenizer.")
    numbers = {
        "block_count": 1, "context_length": 1024, "embedding_length": how.width, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.key_length": SIZE,
        "attention.value_length": SIZE, "target_hidden_size": model_width,
    }  # fmt: skip
    for key, value in numbers.items():
        writer.add_uint32(f"eagle3.{key}", value)
    writer.add_float32("eagle3.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("eagle3.target_layers", list(how.layers))
    writer.add_bool("eagle3.norm_before_residual", how.normed_rows)
    writer.add_bool("eagle3.norm_before_fc", how.read_norm)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].contents())
    for tensor, values in _tensors(how, model_width, vocabulary).items():
        writer.add_tensor(tensor, values.astype(np.float32) if plain and values.dtype == np.float16 else values)
    return closed(writer, path)


def write_twin(path: Path, base: str) -> Path:
    """Writes a copy of a golden model in float32."""
    source = HERE / f"{base}.gguf"
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    copy_fields(reader, writer, "")
    add_tensors(writer, source, plain=True)
    return closed(writer, path)


def copy_fields(reader: Any, writer: Any, start: str) -> None:
    """Copies the metadata whose keys begin so."""
    for key, found in reader.fields.items():
        if key.startswith(start) and not key.startswith("GGUF.") and key != "general.architecture":
            kind, *sub = found.types
            writer.add_key_value(key, found.contents(), kind, sub_type=sub[0] if sub else None)


def closed(writer: Any, path: Path) -> Path:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(how: Eagle, model_width: int, vocabulary: int) -> dict[str, np.ndarray]:
    random, width = np.random.default_rng(7), how.width
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, 3 * model_width), "output_norm.weight": (width,),
        **{f"blk.0.{norm}.weight": (width,) for norm in ("attn_norm", "attn_norm_2", "ffn_norm")},
        "blk.0.attn_q.weight": (HEADS * SIZE, 2 * width), "blk.0.attn_k.weight": (KV * SIZE, 2 * width),
        "blk.0.attn_v.weight": (KV * SIZE, 2 * width), "blk.0.attn_output.weight": (width, HEADS * SIZE),
        "blk.0.ffn_gate.weight": (INNER, width), "blk.0.ffn_up.weight": (INNER, width),
        "blk.0.ffn_down.weight": (width, INNER),
    }  # fmt: skip
    if how.embedding:
        shapes["token_embd.weight"] = vocabulary, width
    if how.read_norm:
        shapes["enc.output_norm.weight"] = (3 * model_width,)
    if how.known:
        shapes["output.weight"] = how.known, width
    made: dict[str, np.ndarray] = {}
    for tensor, shape in shapes.items():
        values = random.standard_normal(shape) * (2 / np.sqrt(shape[-1]))
        if len(shape) == 1:
            values = 1 + 0.1 * random.standard_normal(shape)
        made[tensor] = values.astype(np.float32 if len(shape) == 1 else np.float16)
    if how.factors:
        made["rope_freqs.weight"] = np.linspace(1, 4, SIZE // 2, dtype=np.float32)
    if how.known:
        made["d2t"] = np.sort(random.permutation(vocabulary)[: how.known]).astype(np.int64)
    return made
