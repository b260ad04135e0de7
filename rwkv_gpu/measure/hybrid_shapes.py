"""The true shapes of well-known models with recurrent layers."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gguf.header import Value
from .quants import Quant, Shape, Tensors, byte_vocabulary, whole


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
        last = "token_embd_norm" if self.arch.startswith("lfm2") else "output_norm"
        yield "token_embd.weight", (self.vocabulary, self.width), whole(self._first(quant), self.width)
        yield f"{last}.weight", (self.width,), "F32"
        if not self.tied:
            yield "output.weight", (self.vocabulary, self.width), whole(quant.head, self.width)
        for i, kind in enumerate(self.layers):
            at = f"blk.{i}"
            yield f"{at}.attn_norm.weight", (self.width,), "F32"
            if kind in "mp":
                yield from self._mamba(f"{at}.ssm", quant)
            if kind in "ap":
                yield from self._attention(f"{at}.attn", quant)
            if kind == "c":
                yield from self._convolution(f"{at}.shortconv", quant)
            if self.then:
                yield f"{at}.ffn_norm" + ".weight" * (self.arch != "falcon-h1"), (self.width,), "F32"
            if self.then == "f":
                yield from self._feed(f"{at}.ffn", "", (), self.inner, quant)
            if "e" in (kind, self.then):
                yield from self._experts(at, quant)

    def _first(self, quant: Quant) -> str:
        return quant.head if self.tied else quant.embedding

    def _matrix(self, name: str, rows: int, columns: int, kind: str) -> Tensors:
        yield f"{name}.weight", (rows, columns), whole(kind, columns)

    def _attention(self, at: str, quant: Quant) -> Tensors:
        heads = self.heads
        if self.arch.startswith("lfm2"):
            yield f"{at}_q_norm.weight", (heads.size,), "F32"
            yield f"{at}_k_norm.weight", (heads.size,), "F32"
        yield from self._matrix(f"{at}_q", heads.count * heads.size, self.width, quant.matrices)
        yield from self._matrix(f"{at}_k", heads.kv * heads.size, self.width, quant.matrices)
        yield from self._matrix(f"{at}_v", heads.kv * heads.size, self.width, quant.head)
        yield from self._matrix(f"{at}_output", self.width, heads.count * heads.size, quant.matrices)

    def _mamba(self, at: str, quant: Quant) -> Tensors:
        ssm = self.mamba
        convolved = ssm.width + 2 * ssm.groups * ssm.state
        yield from self._matrix(f"{at}_in", ssm.width + convolved + ssm.heads, self.width, quant.matrices)
        yield f"{at}_conv1d.weight", (convolved, 4), "F32"
        yield f"{at}_conv1d.bias", (convolved,), "F32"
        yield f"{at}_dt.bias", (ssm.heads,), "F32"
        yield f"{at}_a", (ssm.heads, 1), "F32"
        yield f"{at}_d", (ssm.heads, 1), "F32"
        if ssm.normed:
            yield f"{at}_norm.weight", (ssm.groups, ssm.width // ssm.groups), "F32"
        yield from self._matrix(f"{at}_out", self.width, ssm.width, quant.matrices)

    def _convolution(self, at: str, quant: Quant) -> Tensors:
        yield f"{at}.conv.weight", (self.width, 3), "F32"
        yield from self._matrix(f"{at}.in_proj", 3 * self.width, self.width, quant.matrices)
        yield from self._matrix(f"{at}.out_proj", self.width, self.width, quant.matrices)

    def _experts(self, at: str, quant: Quant) -> Tensors:
        experts = self.experts
        yield f"{at}.ffn_gate_inp.weight", (experts.count, self.width), "F32"
        if not self.gated:
            yield f"{at}.exp_probs_b.bias", (experts.count,), "F32"
        yield from self._feed(f"{at}.ffn", "_exps", (experts.count,), experts.inner, quant)
        yield from self._feed(f"{at}.ffn", "_shexp", (), experts.shared, quant)

    def _feed(self, at: str, end: str, each: tuple[int, ...], inner: int, quant: Quant) -> Tensors:
        for name in ("gate", "up") if self.gated else ("up",):
            yield f"{at}_{name}{end}.weight", (*each, inner, self.width), whole(quant.matrices, self.width)
        yield f"{at}_down{end}.weight", (*each, self.width, inner), whole(quant.matrices, inner)

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
        return {f"{self.arch}.{key}": value for key, value in sizes.items()} | byte_vocabulary(self.vocabulary)


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
