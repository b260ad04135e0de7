"""Shapes of well-known models with experts or with several kinds of layers, and of Gemma 4."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..gguf.header import Value
from .quants import Quant, Shape, Tensors, byte_vocabulary, keyed, rows

MIXERS = {
    "m": "mamba", "a": "hybrid attention", "p": "mamba, hybrid attention", "c": "convolution", "e": "experts",
}  # fmt: skip
FEEDS = {"": "", "f": ", hybrid norm, feed", "e": ", hybrid norm, experts"}


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
        """Total width of x, z and y."""
        return self.heads * self.size


@dataclass(frozen=True)
class Experts:
    """The sizes of mixtures of experts."""

    count: int = 0
    used: int = 0
    inner: int = 0
    shared: int = 0


NO_EXPERTS = Experts()


@dataclass(frozen=True)
class Routed:
    """The sizes of a transformer with experts. Those of gpt-oss are MXFP4 in every file, and have biases."""

    arch: str
    layers: int
    width: int
    vocabulary: int
    heads: Heads
    experts: Experts
    inner: int = 0  # width of the leading dense layers
    leading: int = 0
    keys: Mapping[str, Value] = field(default_factory=dict)

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        heads, experts, oss = self.heads, self.experts, self.arch == "gpt-oss"
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "Q": heads.count * heads.size,
            "KV": heads.kv * heads.size, "heads": heads.count, "E": experts.count, "X": experts.inner,
            "shared": experts.shared, "oss": int(oss), "scored": int(not oss), "gated": 1, "untied": 1,
        }  # fmt: skip
        formats = vars(quant) | {"first": quant.embedding, "experts": "MXFP4" if oss else quant.matrices}
        yield from rows("top", formats, sizes)
        for i in range(self.layers):
            feed = "feed" if i < self.leading else "experts"
            yield from rows(f"biased attention, {feed}", formats, sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 131072, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner or self.experts.inner, "attention.head_count": self.heads.count,
            "attention.head_count_kv": self.heads.kv, "attention.key_length": self.heads.size,
            "attention.value_length": self.heads.size, "attention.layer_norm_rms_epsilon": 1e-5,
            "leading_dense_block_count": self.leading, "expert_count": self.experts.count,
            "expert_used_count": self.experts.used, "expert_feed_forward_length": self.experts.inner, **self.keys,
        }  # fmt: skip
        return keyed(self.arch, sizes) | byte_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class Gemma4:
    """The sizes of a Gemma 4 model: every `period`-th layer has full attention, with heads of 512."""

    layers: int
    width: int
    inner: int
    heads: int
    kv: int  # KV heads of window layers
    full_kv: int  # KV heads of full layers
    period: int = 6
    window: int = 1024
    per_layer: int = 0  # width of the per-layer embeddings
    shared: int = 0  # layers that reuse the keys of others
    experts: Experts = NO_EXPERTS
    values: bool = False  # whether full layers have a V matrix
    vocabulary: int = 262144
    size: int = 256
    full_size: int = 512
    arch = "gemma4"

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "L": self.layers, "P": self.per_layer,
            "F": self.full_size // 2, "heads": self.heads, "E": self.experts.count, "X": self.experts.inner,
            "deep": int(self.per_layer > 0), "routed": int(self.experts.count > 0),
        }  # fmt: skip
        yield from rows("gemma4", vars(quant), sizes)
        for i in range(self.layers):
            full, own = self._is_full(i), i < self.layers - self.shared
            size, kv = (self.full_size, self.full_kv) if full else (self.size, self.kv)
            values = own and (self.values or not full)
            of_layer = {"size": size, "kv": kv, "own": int(own), "values": int(values)}
            yield from rows("gemma4 layer", vars(quant), sizes | of_layer, f"blk.{i}.")

    def _is_full(self, i: int) -> bool:
        return i % self.period == self.period - 1

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
        full = [self._is_full(i) for i in range(self.layers)]
        sizes: dict[str, Value] = {
            "context_length": 131072, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads,
            "attention.head_count_kv": [self.full_kv if one else self.kv for one in full],
            "attention.key_length": self.full_size, "attention.value_length": self.full_size,
            "attention.key_length_swa": self.size, "attention.value_length_swa": self.size,
            "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": [not one for one in full],
            "attention.shared_kv_layers": self.shared, "embedding_length_per_layer_input": self.per_layer,
            "rope.dimension_count": self.full_size, "rope.dimension_count_swa": self.size,
            "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "final_logit_softcapping": 30.0,
        }  # fmt: skip
        if self.experts.count:
            sizes |= {
                "expert_count": self.experts.count, "expert_used_count": self.experts.used,
                "expert_feed_forward_length": self.experts.inner,
            }  # fmt: skip
        return keyed(self.arch, sizes) | byte_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class Hybrid:
    """The sizes of a model with recurrent layers.

    `layers` has a letter per layer: m for Mamba-2, a for attention, p for both in parallel, c for a short convolution,
    e for experts only. `then` is the second half of each layer: f, a gated feed-forward; e, experts; or empty.
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
    gated: bool = True  # whether feed-forwards are gated
    tied: bool = True

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        heads, ssm, experts = self.heads, self.mamba, self.experts
        liquid, falcon = self.arch.startswith("lfm2"), self.arch == "falcon-h1"
        convolved = ssm.width + 2 * ssm.groups * ssm.state
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "untied": int(not self.tied), "liquid": int(liquid),
            "other": int(not liquid), "bare": int(falcon), "named": int(not falcon),
            "Q": heads.count * heads.size, "KV": heads.kv * heads.size, "size": heads.size,
            "inputs": ssm.width + convolved + ssm.heads, "convolved": convolved, "H": ssm.heads, "S": ssm.width,
            "groups": ssm.groups * ssm.normed, "grouped": ssm.width // ssm.groups, "E": experts.count,
            "X": experts.inner, "shared": experts.shared, "oss": 0, "gated": int(self.gated),
            "scored": int(not self.gated),
        }  # fmt: skip
        formats = vars(quant) | {"experts": quant.matrices, "first": quant.head if self.tied else quant.embedding}
        yield from rows("hybrid", formats, sizes)
        for i, kind in enumerate(self.layers):
            yield from rows(f"attention norm, {MIXERS[kind]}{FEEDS[self.then]}", formats, sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read, with a vocabulary of bytes."""
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
            sizes["attention.layer_norm_epsilon"] = 1e-5  # llama.cpp reads it also for norms without a mean
        return keyed(self.arch, sizes) | byte_vocabulary(self.vocabulary)


_GPT_OSS: dict[str, Value] = {
    "attention.sliding_window": 128, "rope.freq_base": 150000.0, "rope.scaling.type": "yarn",
    "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096,
}  # fmt: skip
_GLM: dict[str, Value] = {
    "rope.freq_base": 1e6, "rope.dimension_count": 64, "expert_gating_func": 2, "expert_weights_norm": True,
    "expert_shared_count": 1,
}  # fmt: skip

MIXTURES: dict[str, Shape] = {
    "gpt-oss-20b": Routed("gpt-oss", 24, 2880, 201088, Heads(64, 8, 64), Experts(32, 4, 2880), keys=_GPT_OSS),
    "gpt-oss-120b": Routed("gpt-oss", 36, 2880, 201088, Heads(64, 8, 64), Experts(128, 4, 2880), keys=_GPT_OSS),
    "glm-4.5-air-106b": Routed(
        "glm4moe", 46, 4096, 151552, Heads(96, 8, 128), Experts(128, 8, 1408, 1408), 10944, 1, _GLM
    ),
    "gemma-4-e4b-7.5b": Gemma4(42, 2560, 10240, 8, 2, 2, window=512, per_layer=256, shared=18, values=True),
    "gemma-4-26b-a4b": Gemma4(30, 2816, 2112, 16, 8, 2, experts=Experts(128, 8, 704)),
    "gemma-4-31b": Gemma4(60, 5376, 21504, 32, 16, 4),
}

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
