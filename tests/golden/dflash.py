"""DFlash files for golden models: layers of random weights, whose results llama.cpp recorded (`dflash-*.npz`).

The files differ in optional parts: own embedding and vocabulary, windows, sinks, norms and scales.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tests.golden.eagle import HEADS, INNER, KV, SIZE, closed, copy_fields
from tests.golden.heads import HERE


@dataclass(frozen=True)
class Flash:
    """The optional parts of a DFlash file for a tiny model."""

    base: str
    read: tuple[int, ...]  # layers of the model whose inputs it reads
    blocks: int = 2
    known: int = 0  # number of tokens in its own vocabulary; 0: the model's vocabulary
    embedding: bool = False  # True if the file has its own embedding
    window: int = 0  # window of the first layer
    extras: bool = False  # sinks, norms after branches, and scales
    sections: bool = False  # M-RoPE, of which only the time is used
    causal: bool = False


FLASHES = {
    "qwen3": Flash("tiny-qwen3", (1, 0)),
    "llama": Flash("tiny-llama", (0, 1, 1), known=150, embedding=True, window=9, extras=True),
    "gemma4": Flash("tiny-gemma4", (1, 5, 3)),
    "qwen35": Flash("tiny-qwen35", (3, 1), blocks=1, sections=True, causal=True),
}
MASK, BLOCK = 4, 5


def write_dflash(path: Path, name: str, *, plain: bool = False) -> Path:
    """Writes the DFlash file of a golden model, or with `plain` its copy in float32."""
    how, reader = FLASHES[name], gguf.GGUFReader(HERE / f"{FLASHES[name].base}.gguf")
    arch = reader.fields["general.architecture"].contents()
    width = int(reader.fields[f"{arch}.embedding_length"].contents())
    writer = gguf.GGUFWriter(path, "dflash")
    copy_fields(reader, writer, "tokenizer.")
    writer.add_uint32("tokenizer.ggml.mask_token_id", MASK)
    numbers = {
        "block_count": how.blocks, "context_length": 1024, "embedding_length": width, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.key_length": SIZE,
        "attention.value_length": SIZE, "block_size": BLOCK,
    }  # fmt: skip
    for key, value in numbers.items():
        writer.add_uint32(f"dflash.{key}", value)
    writer.add_float32("dflash.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("dflash.rope.freq_base", 1e5)
    writer.add_array("dflash.target_layers", list(how.read))
    if how.window:
        writer.add_uint32("dflash.attention.sliding_window", how.window)
        writer.add_array("dflash.attention.sliding_window_pattern", [i == 0 for i in range(how.blocks)])
    if how.extras:
        writer.add_float32("dflash.embedding_scale", 3.0)
    if how.sections:
        writer.add_array("dflash.rope.dimension_sections", [SIZE // 2, 0, 0, 0])
    if how.causal:
        writer.add_bool("dflash.attention.causal", True)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].contents())
    for tensor, values in _tensors(how, width, vocabulary).items():
        writer.add_tensor(tensor, values.astype(np.float32) if plain and values.dtype == np.float16 else values)
    return closed(writer, path)


def _tensors(how: Flash, width: int, vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, len(how.read) * width), "output_norm.weight": (width,), "enc.output_norm.weight": (width,),
    }  # fmt: skip
    extra: dict[str, tuple[int, ...]] = {
        "attn_sinks.weight": (HEADS,), "post_attention_norm.weight": (width,), "post_ffw_norm.weight": (width,),
        "layer_output_scale.weight": (1,),
    }  # fmt: skip
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,), "ffn_norm.weight": (width,), "attn_q_norm.weight": (SIZE,),
        "attn_k_norm.weight": (SIZE,), "attn_q.weight": (HEADS * SIZE, width), "attn_k.weight": (KV * SIZE, width),
        "attn_v.weight": (KV * SIZE, width), "attn_output.weight": (width, HEADS * SIZE),
        "ffn_gate.weight": (INNER, width), "ffn_up.weight": (INNER, width), "ffn_down.weight": (width, INNER),
        **(extra if how.extras else {}),
    }  # fmt: skip
    for i in range(how.blocks):
        shapes |= {f"blk.{i}.{tensor}": shape for tensor, shape in of_layer.items()}
    if how.embedding:
        shapes["token_embd.weight"] = vocabulary, width
    if how.known:
        shapes["output.weight"] = how.known, width
    made: dict[str, np.ndarray] = {}
    for tensor, shape in shapes.items():
        values = random.standard_normal(shape) * (2 / np.sqrt(shape[-1]))
        if len(shape) == 1:
            values = 1 + 0.1 * random.standard_normal(shape)
        made[tensor] = values.astype(np.float32 if len(shape) == 1 else np.float16)
    if how.known:
        made["d2t"] = np.sort(random.permutation(vocabulary)[: how.known]).astype(np.int64)
    return made
