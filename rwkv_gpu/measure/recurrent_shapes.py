"""Shapes of well-known RNNs: RWKV, and gated delta nets."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gguf.header import Value
from .quants import Quant, Shape, Tensors, byte_vocabulary, keyed, rows, rwkv_vocabulary


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
        """All tensors, in file order."""
        sizes = {"D": self.width, "V": self.vocabulary, "decay": self.decay, "iclr": self.iclr, "gate": self.gate}
        yield from rows("rwkv", vars(quant), sizes)
        for i in range(self.layers):
            # The first layer has no value residual; llama.cpp's converter writes copies of `a` in its place.
            value = self.value if i else self.iclr
            yield from rows("rwkv7 layer", vars(quant), sizes | {"value": value}, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 1 << 20, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": 4 * self.width, "attention.head_count": 0, "wkv.head_size": 64,
            "attention.layer_norm_epsilon": 1e-5, "token_shift_count": 2, "attention.decay_lora_rank": self.decay,
            "attention.iclr_lora_rank": self.iclr, "attention.value_residual_mix_lora_rank": self.value,
            "attention.gate_lora_rank": self.gate,
        }  # fmt: skip
        return keyed(self.arch, sizes) | rwkv_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class RWKV6:
    """The sizes of an RWKV-6 World model: width and the ranks of its LoRAs."""

    layers: int
    width: int
    mix: int  # rank of each part of the token shift
    decay: int
    vocabulary: int = 65536
    arch = "rwkv6"

    @property
    def inner(self) -> int:
        """Width of the channel mix."""
        return self.width * 7 // 2 // 32 * 32

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        sizes = {"D": self.width, "V": self.vocabulary, "I": self.inner, "H": self.width // 64}
        sizes |= {"mix": self.mix, "decay": self.decay}
        yield from rows("rwkv", vars(quant), sizes)
        for i in range(self.layers):
            yield from rows("rwkv6 layer", vars(quant), sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 1 << 20, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": 0, "wkv.head_size": 64,
            "attention.layer_norm_epsilon": 1e-5, "rescale_every_n_layers": 6, "time_mix_extra_dim": self.mix,
            "time_decay_extra_dim": self.decay,
        }  # fmt: skip
        return keyed(self.arch, sizes) | rwkv_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class DeltaNets:
    """The sizes of a model of gated delta nets, with gated attention in every fourth layer.

    With experts, `inner` is the
    width of each expert, and of the shared one.
    """

    arch: str
    layers: int
    width: int
    inner: int
    heads: int  # attention heads, 256 wide
    kv_heads: int
    value_heads: int  # heads of delta nets, 128 wide
    vocabulary: int
    key_heads: int = 16
    experts: int = 0
    used: int = 0
    size: int = 256
    state: int = 128
    heads_after: int = 0  # heads that predict further tokens

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        is_next, inner = self.arch == "qwen3next", self.value_heads * self.state
        sizes = {
            "D": self.width, "V": self.vocabulary, "I": self.inner, "E": self.experts, "size": self.size,
            "Q": self.heads * self.size, "KV": self.kv_heads * self.size, "H": self.value_heads, "S": inner,
            "state": self.state, "channels": inner + 2 * self.key_heads * self.state,
            "next": int(is_next), "apart": int(not is_next),
            "routed": int(self.experts > 0), "dense": int(not self.experts), "untied": 1,
        }  # fmt: skip
        formats = vars(quant) | {"first": quant.embedding}
        yield from rows("top", formats, sizes)
        for i in range(self.layers):
            mixer = "gated attention" if i % 4 == 3 else "delta net"
            yield from rows(f"{mixer}, delta feed", formats, sizes, f"blk.{i}.")
        for i in range(self.layers, self.layers + self.heads_after):
            yield from rows("gated attention, delta feed, draft head", formats, sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 262144, "embedding_length": self.width,
            "block_count": self.layers + self.heads_after,
            "feed_forward_length": self.inner, "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads, "attention.key_length": self.size,
            "attention.value_length": self.size, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": self.size // 4, "rope.freq_base": 1e7, "full_attention_interval": 4,
            "ssm.conv_kernel": 4, "ssm.state_size": self.state, "ssm.group_count": self.key_heads,
            "ssm.time_step_rank": self.value_heads, "ssm.inner_size": self.value_heads * self.state,
        }  # fmt: skip
        if self.heads_after:
            sizes["nextn_predict_layers"] = self.heads_after
        if self.experts:
            sizes |= {
                "expert_count": self.experts, "expert_used_count": self.used, "expert_feed_forward_length": self.inner,
            }  # fmt: skip
        if self.arch != "qwen3next":
            sizes["rope.dimension_sections"] = [11, 11, 10, 0]  # for time, height and width: equal positions in text
        return keyed(self.arch, sizes) | byte_vocabulary(self.vocabulary)


RECURRENT: dict[str, Shape] = {
    "rwkv7-0.1b": RWKV7(12, 768, 64, 64, 32, 128),
    "rwkv7-0.4b": RWKV7(24, 1024, 64, 64, 32, 128),
    "rwkv7-1.5b": RWKV7(24, 2048, 96, 96, 64, 256),
    "rwkv7-2.9b": RWKV7(32, 2560, 96, 96, 64, 320),
    "rwkv7-7.2b": RWKV7(32, 4096, 128, 128, 96, 480),
    "rwkv7-13.3b": RWKV7(61, 4096, 192, 192, 128, 384),
    "rwkv6-1.6b": RWKV6(24, 2048, 32, 64),
    "rwkv6-3b": RWKV6(32, 2560, 32, 64),
    "rwkv6-7.6b": RWKV6(32, 4096, 64, 128),
    "rwkv6-14b": RWKV6(61, 4096, 64, 128),
    "qwen3.5-9b": DeltaNets("qwen35", 32, 4096, 12288, 16, 4, 32, 248320),
    "qwen3.5-27b": DeltaNets("qwen35", 64, 5120, 17408, 24, 4, 48, 248320),
    "qwen3.5-35b-a3b": DeltaNets("qwen35moe", 40, 2048, 512, 16, 2, 32, 248320, experts=256, used=8),
    "qwen3-next-80b-a3b": DeltaNets("qwen3next", 48, 2048, 512, 16, 2, 32, 151936, experts=512, used=10),
}
