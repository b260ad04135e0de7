"""The true shapes of well-known models with experts, and of Gemma 4."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..gguf.header import Value
from .hybrid_shapes import Experts, Heads
from .quants import Quant, Shape, Tensors, byte_vocabulary, whole

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
    inner: int = 0  # of the leading dense layers
    leading: int = 0
    keys: Mapping[str, Value] = field(default_factory=dict)

    @property
    def _is_gpt_oss(self) -> bool:
        return self.arch == "gpt-oss"

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        yield from self._matrix("token_embd", (self.vocabulary, self.width), quant.embedding)
        yield "output_norm.weight", (self.width,), "F32"
        yield from self._matrix("output", (self.vocabulary, self.width), quant.head)
        for i in range(self.layers):
            at = f"blk.{i}"
            yield f"{at}.attn_norm.weight", (self.width,), "F32"
            yield from self._attention(f"{at}.attn", quant)
            yield f"{at}.post_attention_norm.weight", (self.width,), "F32"
            if i < self.leading:
                yield from self._feed(f"{at}.ffn", "", (), self.inner, quant.matrices)
            else:
                yield from self._experts(at, quant)

    def _matrix(self, name: str, shape: tuple[int, ...], kind: str) -> Tensors:
        yield f"{name}.weight", shape, whole(kind, shape[-1])

    def _attention(self, at: str, quant: Quant) -> Tensors:
        inner, kv = self.heads.count * self.heads.size, self.heads.kv * self.heads.size
        for name, rows in (("q", inner), ("k", kv), ("v", kv)):
            yield from self._matrix(f"{at}_{name}", (rows, self.width), quant.matrices)
            yield f"{at}_{name}.bias", (rows,), "F32"
        yield from self._matrix(f"{at}_output", (self.width, inner), quant.matrices)
        if self._is_gpt_oss:
            yield f"{at}_output.bias", (self.width,), "F32"
            yield f"{at}_sinks.weight", (self.heads.count,), "F32"

    def _experts(self, at: str, quant: Quant) -> Tensors:
        count = self.experts.count
        yield f"{at}.ffn_gate_inp.weight", (count, self.width), "F32"
        if self._is_gpt_oss:
            yield f"{at}.ffn_gate_inp.bias", (count,), "F32"
            yield from self._feed(f"{at}.ffn", "_exps", (count,), self.experts.inner, "MXFP4")
            for name, rows in (("gate", self.experts.inner), ("up", self.experts.inner), ("down", self.width)):
                yield f"{at}.ffn_{name}_exps.bias", (count, rows), "F32"
            return
        yield f"{at}.exp_probs_b.bias", (count,), "F32"
        yield from self._feed(f"{at}.ffn", "_exps", (count,), self.experts.inner, quant.matrices)
        yield from self._feed(f"{at}.ffn", "_shexp", (), self.experts.shared, quant.matrices)

    def _feed(self, at: str, end: str, each: tuple[int, ...], inner: int, kind: str) -> Tensors:
        for name in ("gate", "up"):
            yield from self._matrix(f"{at}_{name}{end}", (*each, inner, self.width), kind)
        yield from self._matrix(f"{at}_down{end}", (*each, self.width, inner), kind)

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": 131072, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner or self.experts.inner, "attention.head_count": self.heads.count,
            "attention.head_count_kv": self.heads.kv, "attention.key_length": self.heads.size,
            "attention.value_length": self.heads.size, "attention.layer_norm_rms_epsilon": 1e-5,
            "leading_dense_block_count": self.leading, "expert_count": self.experts.count,
            "expert_used_count": self.experts.used, "expert_feed_forward_length": self.experts.inner, **self.keys,
        }  # fmt: skip
        return {**{f"{self.arch}.{key}": value for key, value in sizes.items()}, **byte_vocabulary(self.vocabulary)}


@dataclass(frozen=True)
class Gemma4:
    """The sizes of a Gemma 4 model: every `period`-th layer sees all, and has heads of 512."""

    layers: int
    width: int
    inner: int
    heads: int
    kv: int  # heads of window layers
    full_kv: int  # of the others
    period: int = 6
    window: int = 1024
    per_layer: int = 0  # numbers of the embeddings by layer
    shared: int = 0  # layers that read the keys of others
    experts: Experts = NO_EXPERTS
    values: bool = False  # whether full layers have a matrix of values
    vocabulary: int = 262144
    size: int = 256
    full_size: int = 512
    arch = "gemma4"

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        yield from self._matrix("token_embd", (self.vocabulary, self.width), quant.head)
        yield "output_norm.weight", (self.width,), "F32"
        yield "rope_freqs.weight", (self.full_size // 2,), "F32"
        if self.per_layer:
            inputs = self.layers * self.per_layer
            yield from self._matrix("per_layer_token_embd", (self.vocabulary, inputs), quant.embedding)
            yield from self._matrix("per_layer_model_proj", (inputs, self.width), "F16")
            yield "per_layer_proj_norm.weight", (self.per_layer,), "F32"
        for i in range(self.layers):
            yield from self._layer(f"blk.{i}", i, quant)

    def _matrix(self, name: str, shape: tuple[int, ...], kind: str) -> Tensors:
        yield f"{name}.weight", shape, whole(kind, shape[-1])

    def _is_full(self, i: int) -> bool:
        return i % self.period == self.period - 1

    def _layer(self, at: str, i: int, quant: Quant) -> Tensors:
        d, kind = self.width, quant.matrices
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield f"{at}.{name}.weight", (d,), "F32"
        size, kv = (self.full_size, self.full_kv) if self._is_full(i) else (self.size, self.kv)
        rows = {"q": self.heads * size}
        if i < self.layers - self.shared:
            rows["k"] = kv * size
            yield f"{at}.attn_k_norm.weight", (size,), "F32"
            if self.values or not self._is_full(i):
                rows["v"] = kv * size
        yield f"{at}.attn_q_norm.weight", (size,), "F32"
        for name, count in rows.items():
            yield from self._matrix(f"{at}.attn_{name}", (count, d), kind)
        yield from self._matrix(f"{at}.attn_output", (d, self.heads * size), kind)
        yield from self._matrix(f"{at}.ffn_gate", (self.inner, d), kind)
        yield from self._matrix(f"{at}.ffn_up", (self.inner, d), kind)
        yield from self._matrix(f"{at}.ffn_down", (d, self.inner), kind)
        yield f"{at}.layer_output_scale.weight", (1,), "F32"
        if self.per_layer:
            yield from self._matrix(f"{at}.inp_gate", (self.per_layer, d), kind)
            yield from self._matrix(f"{at}.proj", (d, self.per_layer), kind)
            yield f"{at}.post_norm.weight", (d,), "F32"
        if self.experts.count:
            yield from self._experts(at, kind)

    def _experts(self, at: str, kind: str) -> Tensors:
        d, count, inner = self.width, self.experts.count, self.experts.inner
        for name in ("post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2"):
            yield f"{at}.{name}.weight", (d,), "F32"
        yield f"{at}.ffn_gate_inp.weight", (count, d), "F32"
        yield f"{at}.ffn_gate_inp.scale", (d,), "F32"
        yield from self._matrix(f"{at}.ffn_gate_up_exps", (count, 2 * inner, d), kind)
        yield from self._matrix(f"{at}.ffn_down_exps", (count, d, inner), kind)
        yield f"{at}.ffn_down_exps.scale", (count,), "F32"

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
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
        return {**{f"gemma4.{key}": value for key, value in sizes.items()}, **byte_vocabulary(self.vocabulary)}


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
