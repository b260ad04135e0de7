"""A random RWKV-7 of two layers in a GGUF file, whose tensors and keys a test may change."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.gguf.writer import F32, U32, gguf, number_key, tensor, text_key, written

LAYERS, WIDTH, INNER, RANK, VOCABULARY = 2, 64, 96, 8, 40

Tensors = dict[str, np.ndarray]
KEYS = {
    "rwkv7.block_count": LAYERS,
    "rwkv7.embedding_length": WIDTH,
    "rwkv7.feed_forward_length": INNER,
    "rwkv7.wkv.head_size": 64,
    "rwkv7.context_length": 4096,
}


def tiny_tensors(seed: int = 0, ranks: Sequence[int] = (RANK,) * 4, layers: int = LAYERS) -> Tensors:
    """Returns parameters of a realistic size. Receptance resembles the key: otherwise a first token consists of
    rounding errors.
    """
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(name: str) -> Tensors:
        return {f"{name}.weight": 1 + normal(WIDTH), f"{name}.bias": normal(WIDTH)}

    tensors = {"token_embd.weight": normal(VOCABULARY, WIDTH) * 8, "output.weight": normal(VOCABULARY, WIDTH)}
    tensors |= norm("token_embd_norm") | norm("output_norm")
    for i in range(layers):
        at = f"blk.{i}.time_mix"
        key = normal(WIDTH, WIDTH)
        tensors |= norm(f"blk.{i}.attn_norm") | norm(f"blk.{i}.attn_norm_2") | norm(f"{at}_ln")
        tensors |= {f"{at}_key.weight": key, f"{at}_receptance.weight": key + normal(WIDTH, WIDTH)}
        tensors |= {f"{at}_{name}.weight": normal(WIDTH, WIDTH) for name in ("value", "output")}
        tensors[f"{at}_lerp_fused.weight"] = rng.random((6, 1, 1, WIDTH), np.float32)
        for name, rank in zip("wagv" if i else "wag", ranks, strict=False):
            tensors |= {f"{at}_{name}1.weight": normal(rank, WIDTH), f"{at}_{name}2.weight": normal(WIDTH, rank)}
        tensors |= {f"{at}_{name}0.weight": normal(WIDTH) * 8 for name in ("wav" if i else "wa")}
        tensors |= {f"{at}_{name}.weight": rng.random(WIDTH, np.float32) for name in ("k_k", "k_a", "r_k")}
        tensors |= {
            f"blk.{i}.channel_mix_lerp_k.weight": rng.random(WIDTH, np.float32),
            f"blk.{i}.channel_mix_key.weight": normal(INNER, WIDTH),
            f"blk.{i}.channel_mix_value.weight": normal(WIDTH, INNER),
        }
    return tensors


def write(folder: Path, tensors: Mapping[str, np.ndarray], **keys: int) -> Path:
    """Writes the file. `keys` replace those of KEYS, with dots written as two underscores."""
    numbers = KEYS | {f"rwkv7.{name.replace('__', '.')}": value for name, value in keys.items()}
    rows = [text_key("general.architecture", "rwkv7"), number_key("rwkv7.attention.layer_norm_epsilon", F32, 1e-5)]
    rows += [number_key(name, U32, value) for name, value in numbers.items()]
    table, data = [], b""
    for name, array in tensors.items():
        table.append(tensor(name, array.shape[::-1], len(data), kind=0))
        data += array.astype(np.float32).tobytes()
        data += bytes(-len(data) % 32)
    return written(folder, gguf(rows, table, data))
