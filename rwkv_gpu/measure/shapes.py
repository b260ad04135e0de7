"""Shapes of well-known models: sizes, tensors by name, and llama.cpp's formats for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..gguf.header import Value
from .mixture_shapes import HYBRIDS, MIXTURES
from .quants import QUANTS, Quant, Shape, Tensors, byte_vocabulary, keyed, rows
from .recurrent_shapes import RECURRENT, RWKV7

MEAN, FIRST = 1, 2  # values of `pooling_type`


@dataclass(frozen=True)
class Transformer:
    """The sizes of a transformer; with experts, `inner` is the width of each."""

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
    used: int = 0  # experts per row
    head_norms: bool = False
    after: bool = False  # whether branches are also normed after their matrices
    fused: bool = False  # whether q, k, v are one matrix, and gate and up another
    projection: int = 0  # for an encoder: width between the two final projection matrices of embeddings
    keys: Mapping[str, Value] = field(default_factory=dict)  # additional metadata

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "Q": self.heads * self.size,
            "KV": self.kv_heads * self.size, "size": self.size, "E": self.experts, "P": self.projection,
            "untied": int(not self.tied), "normed": int(self.head_norms), "fused": int(self.fused),
            "parts": int(not self.fused), "after": int(self.after),
        }  # fmt: skip
        formats = vars(quant) | {"first": quant.head if self.tied else quant.embedding}
        yield from rows("top", formats, sizes)
        for i in range(self.layers):
            feed = "transformer experts" if self.experts else "transformer feed"
            fine = {"fine": quant.head if self._finer(i) else quant.matrices}
            yield from rows(f"attention, {feed}", formats | fine, sizes, f"blk.{i}.")
        yield from rows("projection", formats, sizes)

    def _finer(self, layer: int) -> bool:
        """Layers in which llama.cpp's mixes use more bits: the first and last eighth, and every third between them."""
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * self.layers // 8 or (layer - eighth) % 3 == 2

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 32768, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads, "attention.key_length": self.size,
            "attention.value_length": self.size, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": self.size, "rope.freq_base": 10000.0,
        }  # fmt: skip
        if self.experts:
            sizes |= {
                "expert_count": self.experts, "expert_used_count": self.used, "expert_feed_forward_length": self.inner,
            }  # fmt: skip
        return keyed(self.arch, sizes | dict(self.keys)) | byte_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class Latent:
    """The sizes of a model with latent attention, and experts after one dense layer."""

    layers: int
    width: int
    inner: int  # width of the dense layer
    expert: int  # width of each expert
    heads: int
    nope: int
    value: int
    vocabulary: int
    used: int  # experts per row
    shared: int  # experts used by every row
    q_rank: int = 0
    latent: int = 512
    rotary: int = 64
    experts: int = 64
    sigmoid: bool = False
    heads_after: int = 0  # heads that predict further tokens
    arch = "deepseek2"

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "X": self.expert, "H": self.heads,
            "R": self.q_rank, "C": self.latent, "rotary": self.rotary, "nope": self.nope, "value": self.value,
            "key": self.nope + self.rotary, "E": self.experts, "scored": int(self.sigmoid), "gated": 1, "oss": 0,
            "shared": self.shared * self.expert,
            "ranked": int(self.q_rank > 0), "direct": int(not self.q_rank), "untied": 1,
        }  # fmt: skip
        formats = vars(quant) | {"first": quant.embedding, "experts": quant.matrices}
        yield from rows("top", formats, sizes)
        for i in range(self.layers):
            yield from rows(f"latent attention, {'experts' if i else 'feed'}", formats, sizes, f"blk.{i}.")
        for i in range(self.layers, self.layers + self.heads_after):
            yield from rows("latent attention, experts, draft head", formats, sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 163840, "embedding_length": self.width, "block_count": self.layers + self.heads_after,
            "feed_forward_length": self.inner, "attention.head_count": self.heads, "attention.head_count_kv": 1,
            "attention.kv_lora_rank": self.latent, "attention.key_length": self.latent + self.rotary,
            "attention.value_length": self.latent, "attention.key_length_mla": self.nope + self.rotary,
            "attention.value_length_mla": self.value, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": self.rotary, "rope.freq_base": 10000.0, "leading_dense_block_count": 1,
            "expert_count": self.experts, "expert_used_count": self.used, "expert_shared_count": self.shared,
            "expert_feed_forward_length": self.expert, "expert_weights_norm": self.sigmoid,
            "expert_gating_func": 2 if self.sigmoid else 1, "expert_weights_scale": 1.8 if self.sigmoid else 1.0,
        }  # fmt: skip
        if self.heads_after:
            sizes["nextn_predict_layers"] = self.heads_after
        if self.q_rank:
            sizes["attention.q_lora_rank"] = self.q_rank
        return keyed(self.arch, sizes) | byte_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class Bert:
    """The sizes of a BERT: learned positions, and biases in all matrices."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int
    context: int = 512
    types: int = 2  # token types
    pooling: int = FIRST
    eps: float = 1e-12
    arch = "bert"

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        turns = self.arch == "nomic-bert"
        sizes = {"V": self.vocabulary, "D": self.width, "I": self.inner, "types": self.types}
        yield from rows("encoder", vars(quant), sizes | {"C": 0 if turns else self.context})
        for i in range(self.layers):
            yield from rows(f"{self.arch} layer", vars(quant), sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": self.context, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads, "attention.causal": False,
            "attention.layer_norm_epsilon": self.eps, "pooling_type": self.pooling,
        }  # fmt: skip
        if self.arch == "nomic-bert":
            sizes["rope.freq_base"] = 1000.0
        types: dict[str, Value] = {"tokenizer.ggml.token_type_count": self.types}
        return keyed(self.arch, sizes) | types | byte_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class NomicBert(Bert):
    """A BERT with rotary positions: one matrix for q, k and v, a gate, and no biases."""

    arch = "nomic-bert"


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
    """The sizes of a Gemma 3 model."""
    sizes = layers, width, inner, heads, kv_heads, size, 262144
    return Transformer("gemma3", *sizes, tied=True, head_norms=True, after=True, keys=GEMMA3_KEYS)


ENCODERS: dict[str, Shape] = {
    "all-minilm-l6-v2": Bert(6, 384, 1536, 12, 30522, pooling=MEAN),
    "bge-large-en-v1.5": Bert(24, 1024, 4096, 16, 30522),
    "bge-m3": Bert(24, 1024, 4096, 16, 250002, 8192, types=1, eps=1e-5),
    "nomic-embed-text-v1.5": NomicBert(12, 768, 3072, 12, 30522, 2048, pooling=MEAN),
}

SHAPES: dict[str, Shape] = {
    **RECURRENT,
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
        "gemma-embedding", 24, 768, 1152, 3, 1, 256, 262144,
        tied=True, head_norms=True, after=True, projection=3072, keys=EMBEDDING_GEMMA_KEYS,
    ),
    **ENCODERS,
    **MIXTURES,
    **HYBRIDS,
}  # fmt: skip

__all__ = ["QUANTS", "RWKV7", "SHAPES", "Latent", "Quant", "Shape", "Transformer"]
