"""The true shapes of well-known models: sizes, tensors by name, and the formats that llama.cpp gives them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..gguf.header import Value
from .encoder_shapes import ENCODERS, MEAN
from .hybrid_shapes import HYBRIDS
from .mixture_shapes import MIXTURES
from .quants import QUANTS, Quant, Shape, Tensors, byte_vocabulary, norm, rwkv_vocabulary, whole
from .recurrent_shapes import RECURRENT


@dataclass(frozen=True)
class RWKV7:
    """The sizes of an RWKV-7 World model: width and the ranks of its LoRAs."""

    layers: int
    width: int
    decay: int
    iclr: int
    value: int
    gate: int
    vocabulary: int = 65536
    arch = "rwkv7"

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        d = self.width
        yield "token_embd.weight", (self.vocabulary, d), quant.embedding
        for name in ("token_embd_norm", "output_norm"):
            yield from norm(name, d)
        yield "output.weight", (self.vocabulary, d), quant.head
        for i in range(self.layers):
            yield from norm(f"blk.{i}.attn_norm", d)
            yield from norm(f"blk.{i}.attn_norm_2", d)
            yield from self._time_mix(f"blk.{i}.time_mix", quant, first=i == 0)
            yield f"blk.{i}.channel_mix_lerp_k.weight", (1, 1, d), "F32"
            yield f"blk.{i}.channel_mix_key.weight", (4 * d, d), quant.matrices
            yield f"blk.{i}.channel_mix_value.weight", (d, 4 * d), quant.matrices

    def _time_mix(self, at: str, quant: Quant, *, first: bool) -> Tensors:
        d = self.width
        yield f"{at}_lerp_fused.weight", (6, 1, 1, d), "F32"
        # The first layer has no value residual; llama.cpp's converter puts a copy of a there.
        value = self.iclr if first else self.value
        for letter, rank in (("w", self.decay), ("a", self.iclr), ("v", value), ("g", self.gate)):
            kind = "F32" if letter == "w" else quant.lora
            yield f"{at}_{letter}1.weight", (rank, d), kind
            yield f"{at}_{letter}2.weight", (d, rank), kind
            if letter != "g":
                yield f"{at}_{letter}0.weight", (d,), "F32"
        for name in ("k_k", "k_a", "r_k"):
            yield f"{at}_{name}.weight", (d,), "F32"
        yield from norm(f"{at}_ln", d)
        for name in ("receptance", "key", "value", "output"):
            yield f"{at}_{name}.weight", (d, d), quant.matrices

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        ranks = {"decay": self.decay, "iclr": self.iclr, "value_residual_mix": self.value, "gate": self.gate}
        return {
            "rwkv7.context_length": 1 << 20,
            "rwkv7.embedding_length": self.width,
            "rwkv7.block_count": self.layers,
            "rwkv7.feed_forward_length": 4 * self.width,
            "rwkv7.attention.head_count": 0,
            "rwkv7.wkv.head_size": 64,
            "rwkv7.attention.layer_norm_epsilon": 1e-5,
            "rwkv7.token_shift_count": 2,
            **{f"rwkv7.attention.{name}_lora_rank": rank for name, rank in ranks.items()},
            **rwkv_vocabulary(self.vocabulary),
        }


@dataclass(frozen=True)
class Transformer:
    """The sizes of a transformer; with experts, `inner` is that of each."""

    arch: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    size: int
    vocabulary: int
    tied: bool = False
    experts: int = 0
    used: int = 0  # experts of a row
    head_norms: bool = False
    after: bool = False  # whether branches are normed after their matrices, too
    fused: bool = False  # whether q, k, v are one matrix, and gate and up another
    projection: int = 0  # of an encoder: numbers between the two matrices that embeddings go through at the end
    keys: Mapping[str, Value] = field(default_factory=dict)  # of the metadata, beyond those of all

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        yield "token_embd.weight", (self.vocabulary, self.width), quant.head if self.tied else quant.embedding
        yield "output_norm.weight", (self.width,), "F32"
        if not self.tied:
            yield "output.weight", (self.vocabulary, self.width), quant.head
        for i in range(self.layers):
            fine = quant.head if self._finer(i) else quant.matrices
            yield from self._attention(f"blk.{i}.attn", quant.matrices, fine)
            yield from self._feed(f"blk.{i}.ffn", quant.matrices, fine)
        if self.projection:
            yield "dense_2.weight", (self.projection, self.width), quant.matrices
            yield "dense_3.weight", (self.width, self.projection), quant.matrices

    def _finer(self, layer: int) -> bool:
        """Where llama.cpp's mixes spend more bits: the first and last eighth, and every third between."""
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * self.layers // 8 or (layer - eighth) % 3 == 2

    def _attention(self, at: str, plain: str, fine: str) -> Tensors:
        d, inner, kv = self.width, self.heads * self.size, self.kv_heads * self.size
        yield f"{at}_norm.weight", (d,), "F32"
        if self.head_norms:
            yield f"{at}_q_norm.weight", (self.size,), "F32"
            yield f"{at}_k_norm.weight", (self.size,), "F32"
        if self.fused:
            yield f"{at}_qkv.weight", (inner + 2 * kv, d), fine
        else:
            yield f"{at}_q.weight", (inner, d), plain
            yield f"{at}_k.weight", (kv, d), plain
            yield f"{at}_v.weight", (kv, d), fine
        yield f"{at}_output.weight", (d, inner), plain
        if self.after:
            yield f"{at.removesuffix('attn')}post_attention_norm.weight", (d,), "F32"

    def _feed(self, at: str, plain: str, fine: str) -> Tensors:
        yield f"{at}_norm.weight", (self.width,), "F32"
        each: tuple[int, ...] = ()
        end = ""
        if self.experts:
            yield f"{at}_gate_inp.weight", (self.experts, self.width), "F32"
            each, end = (self.experts,), "_exps"
        if self.fused:
            yield f"{at}_up.weight", (2 * self.inner, self.width), plain
        else:
            yield f"{at}_gate{end}.weight", (*each, self.inner, self.width), plain
            yield f"{at}_up{end}.weight", (*each, self.inner, self.width), plain
        yield f"{at}_down{end}.weight", (*each, self.width, self.inner), whole(fine, self.inner)
        if self.after:
            yield f"{at.removesuffix('ffn')}post_ffw_norm.weight", (self.width,), "F32"

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        arch = self.arch
        mixture = {"expert_count": self.experts, "expert_used_count": self.used}
        mixture["expert_feed_forward_length"] = self.inner
        return {
            f"{arch}.context_length": 32768,
            f"{arch}.embedding_length": self.width,
            f"{arch}.block_count": self.layers,
            f"{arch}.feed_forward_length": self.inner,
            f"{arch}.attention.head_count": self.heads,
            f"{arch}.attention.head_count_kv": self.kv_heads,
            f"{arch}.attention.key_length": self.size,
            f"{arch}.attention.value_length": self.size,
            f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
            f"{arch}.rope.dimension_count": self.size,
            f"{arch}.rope.freq_base": 10000.0,
            **({f"{arch}.{name}": value for name, value in mixture.items()} if self.experts else {}),
            **{f"{arch}.{name}": value for name, value in self.keys.items()},
            **byte_vocabulary(self.vocabulary),
        }


@dataclass(frozen=True)
class Latent:
    """The sizes of a model of latent attention, with experts after one dense layer."""

    layers: int
    width: int
    inner: int  # of the dense layer
    expert: int  # of each expert
    heads: int
    nope: int
    value: int
    vocabulary: int
    used: int  # experts of a row
    shared: int  # experts that every row takes
    q_rank: int = 0
    latent: int = 512
    rotary: int = 64
    experts: int = 64
    sigmoid: bool = False
    arch = "deepseek2"

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        yield "token_embd.weight", (self.vocabulary, self.width), quant.embedding
        yield "output_norm.weight", (self.width,), "F32"
        yield "output.weight", (self.vocabulary, self.width), quant.head
        for i in range(self.layers):
            yield from self._attention(f"blk.{i}.attn", quant)
            yield f"blk.{i}.ffn_norm.weight", (self.width,), "F32"
            if i:
                yield from self._experts(f"blk.{i}", quant)
            else:
                yield from self._feed("blk.0.ffn", "", (), self.inner, quant)

    def _attention(self, at: str, quant: Quant) -> Tensors:
        d, h, c, key = self.width, self.heads, self.latent, self.nope + self.rotary
        yield f"{at}_norm.weight", (d,), "F32"
        if self.q_rank:
            yield f"{at}_q_a.weight", (self.q_rank, d), quant.matrices
            yield f"{at}_q_a_norm.weight", (self.q_rank,), "F32"
            yield f"{at}_q_b.weight", (h * key, self.q_rank), quant.matrices
        else:
            yield f"{at}_q.weight", (h * key, d), quant.matrices
        yield f"{at}_kv_a_mqa.weight", (c + self.rotary, d), quant.matrices
        yield f"{at}_kv_a_norm.weight", (c,), "F32"
        yield f"{at}_k_b.weight", (h, c, self.nope), whole(quant.matrices, self.nope)
        yield f"{at}_v_b.weight", (h, self.value, c), quant.matrices
        yield f"{at}_output.weight", (d, h * self.value), quant.matrices

    def _experts(self, at: str, quant: Quant) -> Tensors:
        yield f"{at}.ffn_gate_inp.weight", (self.experts, self.width), "F32"
        if self.sigmoid:
            yield f"{at}.exp_probs_b.bias", (self.experts,), "F32"
        yield from self._feed(f"{at}.ffn", "_exps", (self.experts,), self.expert, quant)
        yield from self._feed(f"{at}.ffn", "_shexp", (), self.shared * self.expert, quant)

    def _feed(self, at: str, end: str, each: tuple[int, ...], inner: int, quant: Quant) -> Tensors:
        for name in ("gate", "up"):
            yield f"{at}_{name}{end}.weight", (*each, inner, self.width), quant.matrices
        yield f"{at}_down{end}.weight", (*each, self.width, inner), whole(quant.matrices, inner)

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 163840, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads, "attention.head_count_kv": 1,
            "attention.kv_lora_rank": self.latent, "attention.key_length": self.latent + self.rotary,
            "attention.value_length": self.latent, "attention.key_length_mla": self.nope + self.rotary,
            "attention.value_length_mla": self.value, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": self.rotary, "rope.freq_base": 10000.0, "leading_dense_block_count": 1,
            "expert_count": self.experts, "expert_used_count": self.used, "expert_shared_count": self.shared,
            "expert_feed_forward_length": self.expert, "expert_weights_norm": self.sigmoid,
            "expert_gating_func": 2 if self.sigmoid else 1, "expert_weights_scale": 1.8 if self.sigmoid else 1.0,
        }  # fmt: skip
        if self.q_rank:
            sizes["attention.q_lora_rank"] = self.q_rank
        return {
            **{f"{self.arch}.{key}": value for key, value in sizes.items()},
            **byte_vocabulary(self.vocabulary),
        }


GEMMA3_KEYS: Mapping[str, Value] = {
    "attention.sliding_window": 1024, "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
}  # fmt: skip
MINISTRAL3_KEYS: Mapping[str, Value] = {
    "rope.freq_base": 1e6, "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0,
    "rope.scaling.original_context_length": 16384, "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.1,
}  # fmt: skip
EMBEDDING_GEMMA_KEYS: Mapping[str, Value] = {
    "context_length": 2048, "attention.sliding_window": 512, "rope.freq_base": 1e6, "pooling_type": MEAN,
    "dense_2_feat_in": 768, "dense_2_feat_out": 3072, "dense_3_feat_in": 3072, "dense_3_feat_out": 768,
}  # fmt: skip


def gemma3(layers: int, width: int, inner: int, heads: int, kv_heads: int, size: int) -> Transformer:
    """A Gemma 3."""
    sizes = layers, width, inner, heads, kv_heads, size, 262144
    return Transformer("gemma3", *sizes, tied=True, head_norms=True, after=True, keys=GEMMA3_KEYS)


SHAPES: dict[str, Shape] = {
    "rwkv7-0.1b": RWKV7(12, 768, 64, 64, 32, 128),
    "rwkv7-0.4b": RWKV7(24, 1024, 64, 64, 32, 128),
    "rwkv7-1.5b": RWKV7(24, 2048, 96, 96, 64, 256),
    "rwkv7-2.9b": RWKV7(32, 2560, 96, 96, 64, 320),
    "rwkv7-7.2b": RWKV7(32, 4096, 128, 128, 96, 480),
    "rwkv7-13.3b": RWKV7(61, 4096, 192, 192, 128, 384),
    "tinyllama-1.1b": Transformer("llama", 22, 2048, 5632, 32, 4, 64, 32000),
    "llama-1.2b": Transformer("llama", 16, 2048, 8192, 32, 8, 64, 128256, tied=True),
    "llama-8b": Transformer("llama", 32, 4096, 14336, 32, 8, 128, 128256),
    "mistral-24b": Transformer("llama", 40, 5120, 32768, 32, 8, 128, 131072),
    "qwen3-0.6b": Transformer("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, tied=True, head_norms=True),
    "qwen3-8b": Transformer("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, head_norms=True),
    "deepseek-v2-lite-16b": Latent(27, 2048, 10944, 1408, 16, 128, 128, 102400, used=6, shared=2),
    "glm-4.7-flash-30b": Latent(
        47, 2048, 10240, 1536, 20, 192, 256, 154880, used=4, shared=1, q_rank=768, sigmoid=True
    ),
    "qwen3-30b-a3b": Transformer("qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, experts=128, used=8, head_norms=True),
    "gemma3-4b": gemma3(34, 2560, 10240, 8, 4, 256),
    "gemma3-12b": gemma3(48, 3840, 15360, 16, 8, 256),
    "gemma3-27b": gemma3(62, 5376, 21504, 32, 16, 128),
    "phi4-14.7b": Transformer("phi3", 40, 5120, 17920, 40, 10, 128, 100352, fused=True),
    "ministral3-8.5b": Transformer("mistral3", 34, 4096, 14336, 32, 8, 128, 131072, keys=MINISTRAL3_KEYS),
    "mixtral-8x7b-46.7b": Transformer("llama", 32, 4096, 14336, 32, 8, 128, 32000, experts=8, used=2),
    "embeddinggemma-300m": Transformer(
        "gemma-embedding",
        24,
        768,
        1152,
        3,
        1,
        256,
        262144,
        tied=True,
        head_norms=True,
        after=True,
        projection=3072,
        keys=EMBEDDING_GEMMA_KEYS,
    ),
    **ENCODERS,
    **MIXTURES,
    **RECURRENT,
    **HYBRIDS,
}

__all__ = ["QUANTS", "RWKV7", "SHAPES", "Latent", "Quant", "Shape", "Transformer"]
