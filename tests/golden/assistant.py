"""Assistant files for golden models of Gemma 4: random weights. `assistant-*.npz` has llama.cpp's results."""

from pathlib import Path

import gguf
import numpy as np

from tests.golden.eagle import closed, copy_fields
from tests.golden.heads import HERE

ASSISTANTS = {"gemma4": "tiny-gemma4", "gemma4-experts": "tiny-gemma4-experts"}  # models by assistant
LAYERS, WIDTH, INNER, HEADS = 2, 64, 96, 4  # a window layer and a full one


def write_assistant(path: Path, name: str, *, plain: bool = False) -> Path:
    """Writes the assistant of a golden model, or with `plain` its copy in float32."""
    reader = gguf.GGUFReader(HERE / f"{ASSISTANTS[name]}.gguf")

    def of_model(key: str) -> int:
        return int(reader.fields[f"gemma4.{key}"].contents())

    width, sizes = (
        of_model("embedding_length"),
        (of_model("attention.key_length_swa"), of_model("attention.key_length")),
    )
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    copy_fields(reader, writer, "tokenizer.")
    numbers = {
        "block_count": LAYERS, "nextn_predict_layers": LAYERS, "context_length": 1024, "embedding_length": WIDTH,
        "embedding_length_out": width, "feed_forward_length": INNER, "attention.key_length": sizes[1],
        "attention.value_length": sizes[1], "attention.key_length_swa": sizes[0],
        "attention.value_length_swa": sizes[0], "rope.dimension_count": sizes[1], "rope.dimension_count_swa": sizes[0],
        "attention.shared_kv_layers": 0, "attention.sliding_window": of_model("attention.sliding_window"),
    }  # fmt: skip
    for key, value in numbers.items():
        writer.add_uint32(f"gemma4-assistant.{key}", value)
    kv = reader.fields["gemma4.attention.head_count_kv"].contents()
    writer.add_array("gemma4-assistant.attention.head_count_kv", kv[-2:] if isinstance(kv, list) else [kv] * 2)
    writer.add_uint32("gemma4-assistant.attention.head_count", HEADS)
    writer.add_array("gemma4-assistant.attention.sliding_window_pattern", [True, False])
    for key, number in {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}.items():
        writer.add_float32(f"gemma4-assistant.{key}", number)
    writer.add_float32("gemma4-assistant.attention.layer_norm_rms_epsilon", 1e-6)
    factors = next(one.data for one in reader.tensors if one.name == "rope_freqs.weight")
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].contents())
    for tensor, values in {**_tensors(width, sizes, vocabulary), "rope_freqs.weight": np.array(factors)}.items():
        writer.add_tensor(tensor, values.astype(np.float32) if plain and values.dtype == np.float16 else values)
    return closed(writer, path)


def _tensors(width: int, sizes: tuple[int, int], vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, WIDTH), "output_norm.weight": (WIDTH,),
        "nextn.pre_projection.weight": (WIDTH, 2 * width), "nextn.post_projection.weight": (width, WIDTH),
    }  # fmt: skip
    norms = "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"
    for i, size in enumerate(sizes):
        shapes |= {f"blk.{i}.{norm}.weight": (WIDTH,) for norm in norms} | {
            f"blk.{i}.attn_q.weight": (HEADS * size, WIDTH), f"blk.{i}.attn_output.weight": (WIDTH, HEADS * size),
            f"blk.{i}.attn_q_norm.weight": (size,), f"blk.{i}.layer_output_scale.weight": (1,),
            f"blk.{i}.ffn_gate.weight": (INNER, WIDTH), f"blk.{i}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{i}.ffn_down.weight": (WIDTH, INNER),
        }  # fmt: skip
    made: dict[str, np.ndarray] = {}
    for tensor, shape in shapes.items():
        values = random.standard_normal(shape) * (2 / np.sqrt(shape[-1]))
        if len(shape) == 1:
            values = 1 + 0.1 * random.standard_normal(shape)
        made[tensor] = values.astype(np.float32 if len(shape) == 1 else np.float16)
    return made
