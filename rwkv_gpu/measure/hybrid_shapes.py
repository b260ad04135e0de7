"""The true shapes of well-known models with recurrent layers."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gguf.header import Value
from .quants import EXPERTS, Quant, Shape, Tensors, byte_vocabulary, keyed, rows

TOP = """
token_embd              V,D          first
LAST                    D
output                  untied*V,D   head
"""
NORM = "ffn_norm.weight D"
FEED = """
ffn_gate                gated*I,D    matrices
ffn_up                  I,D          matrices
ffn_down                D,I          matrices
"""
MAMBA = """
ssm_in                  inputs,D     matrices
ssm_conv1d              convolved,4
ssm_conv1d.bias         convolved
ssm_dt.bias             H
ssm_a.                  H,1
ssm_d.                  H,1
ssm_norm                groups,grouped
ssm_out                 D,S          matrices
"""
ATTENTION = """
attn_{q,k}_norm         liquid*size
attn_q                  Q,D          matrices
attn_k                  KV,D         matrices
attn_v                  KV,D         head
attn_output             D,Q          matrices
"""
CONVOLUTION = """
shortconv.conv.weight   D,3
shortconv.in_proj.weight  3*D,D      matrices
shortconv.out_proj.weight D,D        matrices
"""
MIXERS = {"m": MAMBA, "a": ATTENTION, "p": MAMBA.rstrip() + ATTENTION, "c": CONVOLUTION, "e": EXPERTS}


@dataclass(frozen=True)
class Heads:
    """The sizes of attention."""

    count: int = 0
    kv: int = 0
    size: int = 0


@dataclass(frozen=True)
class Mamba:
    """The sizes of Mamba-2 mixers."""

    heads: int = 0
    size: int = 0
    state: int = 0
    groups: int = 1
    normed: bool = True

    @property
    def width(self) -> int:
        """Of x, z and y."""
        return self.heads * self.size


@dataclass(frozen=True)
class Experts:
    """The sizes of mixtures of experts."""

    count: int = 0
    used: int = 0
    inner: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Hybrid:
    """The sizes of a model with recurrent layers.

    `layers` has a letter for each: m for Mamba-2, a for attention, p for both in parallel, c for a short convolution,
    e for experts alone. `then` says what follows in each layer: f, a gated feed-forward; e, experts; or nothing.
    """

    arch: str
    width: int
    vocabulary: int
    layers: str
    then: str = ""
    inner: int = 0
    heads: Heads = Heads()
    mamba: Mamba = Mamba()
    experts: Experts = Experts()
    gated: bool = True  # feed-forwards
    tied: bool = True

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        heads, ssm, experts, liquid = self.heads, self.mamba, self.experts, self.arch.startswith("lfm2")
        convolved = ssm.width + 2 * ssm.groups * ssm.state
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "untied": int(not self.tied), "liquid": int(liquid),
            "Q": heads.count * heads.size, "KV": heads.kv * heads.size, "size": heads.size,
            "inputs": ssm.width + convolved + ssm.heads, "convolved": convolved, "H": ssm.heads, "S": ssm.width,
            "groups": ssm.groups * ssm.normed, "grouped": ssm.width // ssm.groups, "E": experts.count,
            "X": experts.inner, "shared": experts.shared, "oss": 0, "gated": int(self.gated),
            "scored": int(not self.gated),
        }  # fmt: skip
        formats = vars(quant) | {"experts": quant.matrices, "first": quant.head if self.tied else quant.embedding}
        yield from rows(TOP.replace("LAST", "token_embd_norm" if liquid else "output_norm"), formats, sizes)
        then = {"f": FEED, "e": EXPERTS}.get(self.then, "")
        if self.then:
            then = NORM.replace(".weight", "." if self.arch == "falcon-h1" else ".weight") + then
        for i, kind in enumerate(self.layers):
            yield from rows("attn_norm D\n" + MIXERS[kind] + then, formats, sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        ssm, experts, heads = self.mamba, self.experts, self.heads
        attends = [kind in "ap" for kind in self.layers]
        feeds = [bool(self.then) or kind in "ef" for kind in self.layers]
        inner = experts.inner if "e" in self.layers + self.then else self.inner
        sizes: dict[str, Value] = {
            "context_length": 131072, "embedding_length": self.width, "block_count": len(self.layers),
            "attention.layer_norm_rms_epsilon": 1e-5, "attention.head_count": heads.count,
            "attention.head_count_kv": [heads.kv * one for one in attends],
            "feed_forward_length": [inner * one for one in feeds] if not self.then else inner,
            "rope.freq_base": 10000.0, "rope.scaling.finetuned": False, "shortconv.l_cache": 3,
        }  # fmt: skip
        if self.arch == "falcon-h1":
            sizes["attention.head_count_kv"] = heads.kv
        if heads.size:
            sizes |= {"attention.key_length": heads.size, "attention.value_length": heads.size}
        if ssm.heads:
            sizes |= {
                "ssm.conv_kernel": 4, "ssm.inner_size": ssm.width, "ssm.state_size": ssm.state,
                "ssm.time_step_rank": ssm.heads, "ssm.group_count": ssm.groups,
            }  # fmt: skip
        if experts.count:
            sizes |= {
                "expert_count": experts.count, "expert_used_count": experts.used,
                "expert_feed_forward_length": experts.inner, "expert_shared_feed_forward_length": experts.shared,
                "expert_weights_norm": True,
            }  # fmt: skip
        if self.arch.startswith("nemotron"):
            sizes["attention.layer_norm_epsilon"] = 1e-5  # which llama.cpp reads for its norms without a mean, too
        return keyed(self.arch, sizes) | byte_vocabulary(self.vocabulary)


HYBRIDS: dict[str, Shape] = {
    "mamba2-2.7b": Hybrid("mamba2", 2560, 50288, "m" * 64, mamba=Mamba(80, 64, 128)),
    "granite4-h-tiny-7b": Hybrid(
        "granitehybrid", 1536, 100352, "".join("a" if i % 10 == 5 else "m" for i in range(40)), "e",
        heads=Heads(12, 4, 128), mamba=Mamba(48, 64, 128), experts=Experts(64, 6, 512, shared=1024),
    ),
    "falcon-h1-3.1b": Hybrid(
        "falcon-h1", 2560, 65536, "p" * 32, "f", 6144,
        heads=Heads(10, 2, 128), mamba=Mamba(32, 128, 256, normed=False), tied=False,
    ),
    "nemotron3-nano-32b": Hybrid(
        "nemotron_h_moe", 2688, 131072, "mememaemememaemememaemememaemememaememememaememememe",
        heads=Heads(32, 2, 128), mamba=Mamba(64, 64, 128, groups=8),
        experts=Experts(128, 6, 1856, shared=3712), gated=False, tied=False,
    ),
    "lfm2-1.2b": Hybrid(
        "lfm2", 2048, 65536, "".join("a" if i in (2, 5, 8, 10, 12, 14) else "c" for i in range(16)), "f", 8192,
        heads=Heads(32, 8, 64),
    ),
}  # fmt: skip
