"""GGUF files of true shapes with random weights, for measuring what trained ones would take.

    python -m benchmarks.synthetic rwkv7-0.1b OUT.gguf [--quant q4_k_m]

Quantised tensors are random bytes with small scales: what they say is noise, what they cost is the truth. Formats
follow llama.cpp's mixes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import gguf
import numpy as np

from rwkv_gpu.gguf.formats import FORMATS, Format

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
# Where a block of a format holds float16 scales.
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,)}


@dataclass(frozen=True)
class RWKV7:
    """The sizes of an RWKV-7 World model."""

    layers: int
    width: int
    decay: int
    iclr: int
    value: int
    gate: int
    vocabulary: int = 65536


@dataclass(frozen=True)
class Dense:
    """The sizes of a dense transformer; q and k are normed where the architecture says so."""

    arch: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    size: int
    vocabulary: int
    tied: bool = False


SHAPES: dict[str, RWKV7 | Dense] = {
    "rwkv7-0.1b": RWKV7(12, 768, 64, 64, 32, 128),
    "rwkv7-0.4b": RWKV7(24, 1024, 64, 64, 32, 128),
    "rwkv7-1.5b": RWKV7(24, 2048, 96, 96, 64, 256),
    "rwkv7-2.9b": RWKV7(32, 2560, 96, 96, 64, 320),
    "rwkv7-7.2b": RWKV7(32, 4096, 128, 128, 96, 480),
    "tinyllama-1.1b": Dense("llama", 22, 2048, 5632, 32, 4, 64, 32000),
    "llama-8b": Dense("llama", 32, 4096, 14336, 32, 8, 128, 128256),
    "qwen3-0.6b": Dense("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, tied=True),
    "qwen3-8b": Dense("qwen3", 36, 4096, 12288, 32, 8, 128, 151936),
}
# The formats of (matrices, embedding, head, LoRAs).
QUANTS = {
    "q4_k_m": ("Q4_K", "Q4_K", "Q6_K", "F16"),
    "q8_0": ("Q8_0", "Q8_0", "Q8_0", "F16"),
    "f16": ("F16", "F16", "F16", "F16"),
}


def dense_tensors(s: Dense, quant: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, shape, format): v and down in the head's format in half of the layers, as llama.cpp mixes them."""
    big, embedding, head, _ = QUANTS[quant]
    d, kv = s.width, s.kv_heads * s.size
    yield "token_embd.weight", (s.vocabulary, d), head if s.tied else embedding
    yield "output_norm.weight", (d,), "F32"
    if not s.tied:
        yield "output.weight", (s.vocabulary, d), head
    for i in range(s.layers):
        at, finer = f"blk.{i}", head if i % 2 else big
        yield f"{at}.attn_norm.weight", (d,), "F32"
        yield f"{at}.ffn_norm.weight", (d,), "F32"
        if s.arch == "qwen3":
            yield f"{at}.attn_q_norm.weight", (s.size,), "F32"
            yield f"{at}.attn_k_norm.weight", (s.size,), "F32"
        yield f"{at}.attn_q.weight", (s.heads * s.size, d), big
        yield f"{at}.attn_k.weight", (kv, d), big
        yield f"{at}.attn_v.weight", (kv, d), finer
        yield f"{at}.attn_output.weight", (d, s.heads * s.size), big
        yield f"{at}.ffn_gate.weight", (s.inner, d), big
        yield f"{at}.ffn_up.weight", (s.inner, d), big
        yield f"{at}.ffn_down.weight", (d, s.inner), finer


def tensors(s: RWKV7, quant: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, shape, format) as llama.cpp names them."""
    big, embedding, head, lora = QUANTS[quant]
    d = s.width
    yield "token_embd.weight", (s.vocabulary, d), embedding
    for name in ("token_embd_norm", "output_norm"):
        yield f"{name}.weight", (d,), "F32"
        yield f"{name}.bias", (d,), "F32"
    yield "output.weight", (s.vocabulary, d), head
    for i in range(s.layers):
        at = f"blk.{i}"
        for name in ("attn_norm", "attn_norm_2"):
            yield f"{at}.{name}.weight", (d,), "F32"
            yield f"{at}.{name}.bias", (d,), "F32"
        yield f"{at}.time_mix_lerp_fused.weight", (6, 1, 1, d), "F32"
        # The first layer has no value residual; llama.cpp's converter puts a copy of a there.
        for letter, rank in (("w", s.decay), ("a", s.iclr), ("v", s.value if i else s.iclr), ("g", s.gate)):
            yield f"{at}.time_mix_{letter}1.weight", (rank, d), "F32" if letter == "w" else lora
            yield f"{at}.time_mix_{letter}2.weight", (d, rank), "F32" if letter == "w" else lora
            if letter != "g":
                yield f"{at}.time_mix_{letter}0.weight", (d,), "F32"
        for name in ("k_k", "k_a", "ln"):
            yield f"{at}.time_mix_{name}.weight", (d,), "F32"
        yield f"{at}.time_mix_ln.bias", (d,), "F32"
        yield f"{at}.time_mix_r_k.weight", (d,), "F32"
        for name in ("receptance", "key", "value", "output"):
            yield f"{at}.time_mix_{name}.weight", (d, d), big
        yield f"{at}.channel_mix_lerp_k.weight", (1, 1, d), "F32"
        yield f"{at}.channel_mix_key.weight", (4 * d, d), big
        yield f"{at}.channel_mix_value.weight", (d, 4 * d), big


def values(name: str, shape: tuple[int, ...], fmt: Format, rng: np.random.Generator) -> np.ndarray:
    """Random rows whose products stay near one."""
    scale = 0.5 / np.sqrt(shape[-1])
    if fmt.block == 1:
        norm = name.endswith(("norm.weight", "norm_2.weight", "ln.weight"))
        data = (rng.standard_normal(shape) * (0.1 if len(shape) == 1 else scale) + norm).astype(np.float32)
        # LoRAs that started as float16 are float16 in float32, too.
        data = data.astype(np.float16)
        return data if fmt.name == "F16" else data.astype(np.float32)
    raw = rng.integers(0, 256, (shape[0], fmt.row_bytes(shape[-1])), np.uint8)
    blocks = raw.reshape(-1, fmt.nbytes)
    d = np.array([scale / (400 if fmt.name.endswith("_K") else 60)], np.float16).view(np.uint8)
    for at in SCALES[fmt.name]:
        blocks[:, at : at + 2] = d
    return raw


def write(path: Path, shape: str, quant: str = "q4_k_m") -> None:
    """The whole model."""
    s, rng = SHAPES[shape], np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "rwkv7" if isinstance(s, RWKV7) else s.arch, use_temp_file=True)
    writer.add_name(f"{shape}-{quant} (random)")
    writer.add_embedding_length(s.width)
    writer.add_block_count(s.layers)
    if isinstance(s, RWKV7):
        describe_rwkv7(writer, s)
        rows = tensors(s, quant)
    else:
        describe_dense(writer, s)
        rows = dense_tensors(s, quant)
    for name, size, kind in rows:
        fmt = BY_NAME[kind]
        data = values(name, size, fmt, rng)
        writer.add_tensor(name, data, raw_dtype=None if fmt.block == 1 else gguf.GGMLQuantizationType(fmt.type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe_rwkv7(writer: gguf.GGUFWriter, s: RWKV7) -> None:
    """Sizes, and a vocabulary of bytes."""
    writer.add_context_length(1 << 20)
    writer.add_feed_forward_length(4 * s.width)
    writer.add_head_count(0)
    writer.add_wkv_head_size(64)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_shift_count(2)
    for key, rank in (("decay", s.decay), ("iclr", s.iclr), ("value_residual_mix", s.value), ("gate", s.gate)):
        writer.add_uint32(f"rwkv7.attention.{key}_lora_rank", rank)
    writer.add_tokenizer_model("rwkv")
    padding = (f"[PAD{n}]" for n in range(257, s.vocabulary))
    writer.add_token_list(["<s>", *(f"\\x{n:02x}" for n in range(256)), *padding])
    writer.add_token_types([3, *[1] * 256, *[5] * (s.vocabulary - 257)])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def describe_dense(writer: gguf.GGUFWriter, s: Dense) -> None:
    """Sizes, and a vocabulary of bytes."""
    writer.add_context_length(8192)
    writer.add_feed_forward_length(s.inner)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.size)
    writer.add_value_length(s.size)
    writer.add_rope_dimension_count(s.size)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    writer.add_token_list(tokens + [f"<pad{n}>" for n in range(len(tokens), s.vocabulary)])
    writer.add_token_scores([-float(n) for n in range(s.vocabulary)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [5] * (s.vocabulary - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


@click.command()
@click.argument("shape", type=click.Choice(list(SHAPES)))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--quant", type=click.Choice(list(QUANTS)), default="q4_k_m", show_default=True)
def main(shape: str, path: Path, quant: str) -> None:
    write(path, shape, quant)
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
