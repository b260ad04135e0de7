"""The true shapes of well-known RNNs and hybrids other than RWKV-7."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gguf.header import Value
from .quants import Quant, Shape, Tensors, byte_vocabulary, norm, rwkv_vocabulary


@dataclass(frozen=True)
class RWKV6:
    """The sizes of an RWKV-6 World model: width and the ranks of its LoRAs."""

    layers: int
    width: int
    mix: int  # rank of each part of the shift
    decay: int
    vocabulary: int = 65536
    arch = "rwkv6"

    @property
    def inner(self) -> int:
        """Width of the channel mix."""
        return self.width * 7 // 2 // 32 * 32

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
            yield from self._time_mix(f"blk.{i}.time_mix", quant)
            at = f"blk.{i}.channel_mix"
            for name in ("k", "r"):
                yield f"{at}_lerp_{name}.weight", (1, 1, d), "F32"
            yield f"{at}_key.weight", (self.inner, d), quant.matrices
            yield f"{at}_value.weight", (d, self.inner), quant.matrices
            yield f"{at}_receptance.weight", (d, d), quant.matrices

    def _time_mix(self, at: str, quant: Quant) -> Tensors:
        d = self.width
        yield f"{at}_lerp_x.weight", (1, 1, d), "F32"
        yield f"{at}_lerp_fused.weight", (5, 1, 1, d), "F32"
        yield f"{at}_w1.weight", (5 * self.mix, d), "F32"
        yield f"{at}_w2.weight", (5, d, self.mix), "F32"
        yield f"{at}_decay.weight", (d,), "F32"
        yield f"{at}_decay_w1.weight", (self.decay, d), "F32"
        yield f"{at}_decay_w2.weight", (d, self.decay), "F32"
        yield f"{at}_first.weight", (d // 64, 64), "F32"
        yield from norm(f"{at}_ln", d)
        for name in ("receptance", "key", "value", "gate", "output"):
            yield f"{at}_{name}.weight", (d, d), quant.matrices

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        return {
            "rwkv6.context_length": 1 << 20,
            "rwkv6.embedding_length": self.width,
            "rwkv6.block_count": self.layers,
            "rwkv6.feed_forward_length": self.inner,
            "rwkv6.attention.head_count": 0,
            "rwkv6.wkv.head_size": 64,
            "rwkv6.attention.layer_norm_epsilon": 1e-5,
            "rwkv6.rescale_every_n_layers": 6,
            "rwkv6.time_mix_extra_dim": self.mix,
            "rwkv6.time_decay_extra_dim": self.decay,
            **rwkv_vocabulary(self.vocabulary),
        }


@dataclass(frozen=True)
class DeltaNets:
    """The sizes of a model of gated delta nets, with gated attention in every fourth layer; with experts, `inner` is
    the width of each, and of the shared one.
    """

    arch: str
    layers: int
    width: int
    inner: int
    heads: int  # of attention, 256 wide
    kv_heads: int
    value_heads: int  # of delta nets, 128 wide
    vocabulary: int
    key_heads: int = 16
    experts: int = 0
    used: int = 0
    size: int = 256
    state: int = 128

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        yield "token_embd.weight", (self.vocabulary, self.width), quant.embedding
        yield "output_norm.weight", (self.width,), "F32"
        yield "output.weight", (self.vocabulary, self.width), quant.head
        for i in range(self.layers):
            yield f"blk.{i}.attn_norm.weight", (self.width,), "F32"
            yield from self._attention(f"blk.{i}.attn", quant) if i % 4 == 3 else self._delta_net(f"blk.{i}", quant)
            yield f"blk.{i}.post_attention_norm.weight", (self.width,), "F32"
            yield from self._feed(f"blk.{i}.ffn", quant)

    def _attention(self, at: str, quant: Quant) -> Tensors:
        d, inner, kv = self.width, self.heads * self.size, self.kv_heads * self.size
        for name in ("q", "k"):
            yield f"{at}_{name}_norm.weight", (self.size,), "F32"
        yield f"{at}_q.weight", (2 * inner, d), quant.matrices
        yield f"{at}_k.weight", (kv, d), quant.matrices
        yield f"{at}_v.weight", (kv, d), quant.head
        yield f"{at}_output.weight", (d, inner), quant.matrices

    def _delta_net(self, at: str, quant: Quant) -> Tensors:
        d, heads, inner = self.width, self.value_heads, self.value_heads * self.state
        channels = inner + 2 * self.key_heads * self.state
        yield f"{at}.attn_qkv.weight", (channels, d), quant.matrices
        yield f"{at}.attn_gate.weight", (inner, d), quant.matrices
        rates = {"ssm_ba": 2 * heads} if self.arch == "qwen3next" else {"ssm_beta": heads, "ssm_alpha": heads}
        for name, rows in rates.items():
            yield f"{at}.{name}.weight", (rows, d), quant.matrices
        yield f"{at}.ssm_conv1d.weight", (channels, 4), "F32"
        yield f"{at}.ssm_dt.bias", (heads,), "F32"
        yield f"{at}.ssm_a", (heads,), "F32"
        yield f"{at}.ssm_norm.weight", (self.state,), "F32"
        yield f"{at}.ssm_out.weight", (d, inner), quant.matrices

    def _feed(self, at: str, quant: Quant) -> Tensors:
        kinds: dict[str, tuple[int, ...]] = {"": ()}
        if self.experts:
            yield f"{at}_gate_inp.weight", (self.experts, self.width), "F32"
            yield f"{at}_gate_inp_shexp.weight", (self.width,), "F32"
            kinds = {"_exps": (self.experts,), "_shexp": ()}
        for end, each in kinds.items():
            yield f"{at}_gate{end}.weight", (*each, self.inner, self.width), quant.matrices
            yield f"{at}_up{end}.weight", (*each, self.inner, self.width), quant.matrices
            yield f"{at}_down{end}.weight", (*each, self.width, self.inner), quant.head

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 262144, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads, "attention.key_length": self.size,
            "attention.value_length": self.size, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": self.size // 4, "rope.freq_base": 1e7, "full_attention_interval": 4,
            "ssm.conv_kernel": 4, "ssm.state_size": self.state, "ssm.group_count": self.key_heads,
            "ssm.time_step_rank": self.value_heads, "ssm.inner_size": self.value_heads * self.state,
        }  # fmt: skip
        mixture: dict[str, Value] = {
            "expert_count": self.experts, "expert_used_count": self.used, "expert_feed_forward_length": self.inner,
        }  # fmt: skip
        every = sizes | (mixture if self.experts else {})
        if self.arch != "qwen3next":
            every["rope.dimension_sections"] = [11, 11, 10, 0]  # of time, height and width: equal positions in text
        return {**{f"{self.arch}.{key}": value for key, value in every.items()}, **byte_vocabulary(self.vocabulary)}


RECURRENT: dict[str, Shape] = {
    "rwkv6-1.6b": RWKV6(24, 2048, 32, 64),
    "rwkv6-3b": RWKV6(32, 2560, 32, 64),
    "rwkv6-7.6b": RWKV6(32, 4096, 64, 128),
    "rwkv6-14b": RWKV6(61, 4096, 64, 128),
    "qwen3.5-9b": DeltaNets("qwen35", 32, 4096, 12288, 16, 4, 32, 248320),
    "qwen3.5-27b": DeltaNets("qwen35", 64, 5120, 17408, 24, 4, 48, 248320),
    "qwen3.5-35b-a3b": DeltaNets("qwen35moe", 40, 2048, 512, 16, 2, 32, 248320, experts=256, used=8),
    "qwen3-next-80b-a3b": DeltaNets("qwen3next", 48, 2048, 512, 16, 2, 32, 151936, experts=512, used=10),
}
