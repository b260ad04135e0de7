"""A random transformer of two layers in a GGUF file, of any dense architecture; tests may change tensors and keys."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.gguf.writer import F32, U32, gguf, number_key, tensor, text_key, written

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, SIZE, VOCABULARY = 2, 64, 96, 4, 2, 24, 40

Tensors = dict[str, np.ndarray]
KEYS = {
    "block_count": LAYERS,
    "embedding_length": WIDTH,
    "feed_forward_length": INNER,
    "context_length": 1024,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": SIZE,
    "attention.value_length": SIZE,
    "rope.dimension_count": SIZE,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
}
KINDS = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}  # as GGUF numbers types


def tiny_tensors(arch: str, seed: int = 0) -> Tensors:
    """Returns parameters of a realistic size, under llama.cpp's names."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    tensors = {"token_embd.weight": normal(VOCABULARY, WIDTH) * 8, "output_norm.weight": 1 + normal(WIDTH)}
    tensors["output.weight"] = normal(VOCABULARY, WIDTH)
    for i in range(LAYERS):
        at, sizes = f"blk.{i}", {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
        tensors |= {f"{at}.{name}_norm.weight": 1 + normal(WIDTH) for name in ("attn", "ffn")}
        tensors |= {f"{at}.attn_{name}.weight": normal(size, WIDTH) * 2 for name, size in sizes.items()}
        tensors[f"{at}.attn_output.weight"] = normal(WIDTH, HEADS * SIZE)
        tensors |= {f"{at}.ffn_{name}.weight": normal(INNER, WIDTH) for name in ("gate", "up")}
        tensors[f"{at}.ffn_down.weight"] = normal(WIDTH, INNER)
        if arch == "qwen2":
            tensors |= {f"{at}.attn_{name}.bias": normal(size) * 5 for name, size in sizes.items()}
        if arch == "qwen3":
            tensors |= {f"{at}.attn_{name}_norm.weight": 1 + normal(SIZE) for name in "qk"}
    return tensors


def write(folder: Path, arch: str, tensors: Mapping[str, np.ndarray], **keys: float | str) -> Path:
    """Writes the file. `keys` replace those of KEYS, with dots written as two underscores."""
    rows = [text_key("general.architecture", arch)]
    for name, value in (KEYS | {name.replace("__", "."): value for name, value in keys.items()}).items():
        full = f"{arch}.{name}"
        if isinstance(value, str):
            rows.append(text_key(full, value))
        else:
            rows.append(number_key(full, F32 if isinstance(value, float) else U32, value))
    table, data = [], b""
    for name, array in tensors.items():
        table.append(tensor(name, array.shape[::-1], len(data), kind=KINDS[array.dtype]))
        data += array.tobytes()
        data += bytes(-len(data) % 32)
    return written(folder, gguf(rows, table, data))
