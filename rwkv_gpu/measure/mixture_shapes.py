"""The true shapes of well-known models with experts, and of Gemma 4."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..gguf.header import Value
from .hybrid_shapes import Experts, Heads
from .quants import EXPERTS, Quant, Shape, Tensors, byte_vocabulary, keyed, rows

ROUTED_TOP = """
token_embd              V,D          embedding
output_norm             D
output                  V,D          head
"""
ROUTED_ATTENTION = """
attn_norm               D
attn_q                  Q,D          matrices+
attn_{k,v}              KV,D         matrices+
attn_output             D,Q          matrices
attn_output.bias        oss*D
attn_sinks              oss*heads
post_attention_norm     D
"""
DENSE = """
ffn_{gate,up}           I,D          matrices
ffn_down                D,I          matrices
"""
GEMMA4_TOP = """
token_embd              V,D          head
output_norm             D
rope_freqs              F
per_layer_token_embd    V,L*P        embedding
per_layer_model_proj    L*P,D        F16
per_layer_proj_norm     P
"""
GEMMA4_LAYER = """
{attn_norm,post_attention_norm,ffn_norm,post_ffw_norm} D
attn_k_norm             own*size
attn_q_norm             size
attn_q                  heads*size,D matrices
attn_k                  own*kv*size,D  matrices
attn_v                  values*kv*size,D  matrices
attn_output             D,heads*size matrices
ffn_{gate,up}           I,D          matrices
ffn_down                D,I          matrices
layer_output_scale      1
inp_gate                P,D          matrices
proj                    D,P          matrices
post_norm               deep*D
{post_ffw_norm_1,post_ffw_norm_2,pre_ffw_norm_2} routed*D
ffn_gate_inp            E,D
ffn_gate_inp.scale      routed*D
ffn_gate_up_exps        E,2*X,D      matrices
ffn_down_exps           E,D,X        matrices
ffn_down_exps.scale     E
"""

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

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        heads, experts, oss = self.heads, self.experts, self.arch == "gpt-oss"
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "Q": heads.count * heads.size,
            "KV": heads.kv * heads.size, "heads": heads.count, "E": experts.count, "X": experts.inner,
            "shared": experts.shared, "oss": int(oss), "scored": int(not oss), "gated": 1,
        }  # fmt: skip
        formats = vars(quant) | {"experts": "MXFP4" if oss else quant.matrices}
        yield from rows(ROUTED_TOP, formats, sizes)
        for i in range(self.layers):
            yield from rows(ROUTED_ATTENTION + (DENSE if i < self.leading else EXPERTS), formats, sizes, f"blk.{i}.")

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
        return keyed(self.arch, sizes) | byte_vocabulary(self.vocabulary)


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
        sizes = {
            "V": self.vocabulary, "D": self.width, "I": self.inner, "L": self.layers, "P": self.per_layer,
            "F": self.full_size // 2, "heads": self.heads, "E": self.experts.count, "X": self.experts.inner,
            "deep": int(self.per_layer > 0), "routed": int(self.experts.count > 0),
        }  # fmt: skip
        yield from rows(GEMMA4_TOP, vars(quant), sizes)
        for i in range(self.layers):
            full, own = self._is_full(i), i < self.layers - self.shared
            size, kv = (self.full_size, self.full_kv) if full else (self.size, self.kv)
            values = own and (self.values or not full)
            of_layer = {"size": size, "kv": kv, "own": int(own), "values": int(values)}
            yield from rows(GEMMA4_LAYER, vars(quant), sizes | of_layer, f"blk.{i}.")

    def _is_full(self, i: int) -> bool:
        return i % self.period == self.period - 1

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
