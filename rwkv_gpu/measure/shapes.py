"""Shapes of well-known models: the metadata of their files, from which the tensors follow."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from .derived import Sizes, stem_of, taken_by_loader
from .quants import EXACT, LORA, Quant, byte_vocabulary, rwkv_vocabulary, whole

MEAN, FIRST = 1, 2  # values of `pooling_type`
Shapes = dict[str, tuple[int, ...]]  # by name of a tensor without block and `.weight`
Keys = dict[str, Any]  # metadata without the prefix of the architecture


@dataclass(frozen=True)
class Shape:
    """A model without weights. Its tensors are those that the loader of its architecture takes."""

    arch: str
    vocabulary: int
    keys: Keys
    optional: str = ""  # tensors that it has, while other models of the architecture lack them: see `taken_by_loader`
    known: Sizes = field(default_factory=dict)  # shapes that the loader reads from the file, or in more dimensions
    finer: str = ""  # matrices in the format of the head, in all layers or as `sparse` says
    sparse: bool = False  # whether these are finer only in some layers, as in llama.cpp's mixes
    experts: str = ""  # format of the matrices of experts in every file; "" is that of other matrices
    loads: bool = True  # if not, `known` has all tensors, by their full names

    def cut(self, layers: int) -> Self:
        """The first layers of the model, or all if it has no more."""
        layers = min(layers, self.keys["block_count"])
        by_layer = {key: value[:layers] for key, value in self.keys.items() if isinstance(value, list)}
        return replace(self, keys={**self.keys, **by_layer, "block_count": layers})

    def tensors(self, quant: Quant) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """The name, shape and format of each tensor."""
        embedding = {"token_embd": (self.vocabulary, self.keys["embedding_length"])}
        shapes = self.known
        if self.loads:
            shapes = taken_by_loader(self.header(), self.optional, {**embedding, **self.known})
        for name, shape in shapes.items():
            purpose = self._purpose(name, shape, "output.weight" not in shapes)
            yield name, shape, whole(vars(quant).get(purpose, purpose), shape[-1])

    def _purpose(self, name: str, shape: tuple[int, ...], tied: bool) -> str:
        """The field of a `Quant`, or a format that does not depend on it."""
        stem = stem_of(name)
        if len(shape) == 1 or EXACT.fullmatch(stem):
            return "F32"
        if stem == "token_embd":
            return "head" if tied else "embedding"
        if self.experts and stem.endswith("_exps"):
            return self.experts
        if LORA.fullmatch(stem):
            return "lora"
        finer = re.fullmatch(self.finer, stem) and (not self.sparse or self._in_finer_layer(name))
        if finer or stem == "output":
            return "head"
        return OTHERS.get(stem, "matrices")

    def _in_finer_layer(self, name: str) -> bool:
        """Layers in which llama.cpp's mixes use more bits: the first and last eighth, and every third between them."""
        layers, layer = int(self.keys["block_count"]), int(name.split(".")[1])
        eighth = layers // 8
        return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2

    def header(self) -> Keys:
        """The metadata without a vocabulary."""
        own = {key if key.startswith("tokenizer.") else f"{self.arch}.{key}": one for key, one in self.keys.items()}
        return {"general.architecture": self.arch, **own}

    def metadata(self) -> Keys:
        """The metadata that loaders read, with a vocabulary of bytes."""
        vocabulary = rwkv_vocabulary if self.arch.startswith("rwkv") else byte_vocabulary
        return self.header() | (vocabulary(self.vocabulary) if self.vocabulary else {})


NOTHING: Sizes = MappingProxyType({})
OTHERS = {"per_layer_token_embd": "embedding", "per_layer_model_proj": "F16"}


def sizes(layers: int, width: int, inner: int, heads: int, kv: int | list[int], size: int) -> Keys:
    """The keys that nearly all models have."""
    of_heads: Keys = {"attention.key_length": size, "attention.value_length": size} if size else {}
    return of_heads | {
        "block_count": layers, "embedding_length": width, "feed_forward_length": inner,
        "attention.head_count": heads, "attention.head_count_kv": kv,
    }  # fmt: skip


def experts(count: int, used: int, inner: int) -> Keys:
    """The keys of mixtures of experts."""
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": inner}


def shared_experts(count: int, used: int, inner: int, shared: int) -> Keys:
    """The keys of mixtures of experts with one that all rows use."""
    return experts(count, used, inner) | {"expert_shared_feed_forward_length": shared, "expert_weights_norm": True}


def transformer(arch: str, vocabulary: int, main: Keys, optional: str = "", known: Sizes = NOTHING) -> Shape:
    """A transformer like Llama."""
    common = {
        "context_length": 32768, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0,
        "rope.dimension_count": main["attention.key_length"],
    }  # fmt: skip
    fine = "attn_v|attn_qkv|ffn_down|ffn_down_exps"
    return Shape(arch, vocabulary, common | main, optional, known, finer=fine, sparse=True)


def rwkv7(layers: int, width: int, decay: int, iclr: int, value: int, gate: int, vocabulary: int = 65536) -> Shape:
    """An RWKV-7 World model, with the ranks of its LoRAs."""
    keys: Keys = sizes(layers, width, 4 * width, 0, 0, 0) | {
        "context_length": 1 << 20, "wkv.head_size": 64, "attention.layer_norm_epsilon": 1e-5, "token_shift_count": 2,
        "attention.decay_lora_rank": decay, "attention.iclr_lora_rank": iclr,
        "attention.value_residual_mix_lora_rank": value, "attention.gate_lora_rank": gate,
    }  # fmt: skip
    ranks = {"w": decay, "a": iclr, "v": value, "g": gate}
    # The first layer has no value residual; llama.cpp's converter writes copies of `a` in its place.
    copies = {"0": (width,), "1": (iclr, width), "2": (width, iclr)}
    known: Shapes = {f"time_mix_{name}1": (rank, width) for name, rank in ranks.items()}
    known |= {f"blk.0.time_mix_v{n}": shape for n, shape in copies.items()}
    known |= {"time_mix_lerp_fused": (6, 1, 1, width), "channel_mix_lerp_k": (1, 1, width)}
    del keys["attention.head_count_kv"]
    return Shape("rwkv7", vocabulary, keys, known=known)


def rwkv6(layers: int, width: int, mix: int, decay: int, vocabulary: int = 65536) -> Shape:
    """An RWKV-6 World model, with the ranks of its token shift and decay."""
    keys: Keys = sizes(layers, width, width * 7 // 2 // 32 * 32, 0, 0, 0) | {
        "context_length": 1 << 20, "wkv.head_size": 64, "attention.layer_norm_epsilon": 1e-5,
        "rescale_every_n_layers": 6, "time_mix_extra_dim": mix, "time_decay_extra_dim": decay,
    }  # fmt: skip
    lerps = ("time_mix_lerp_x", "channel_mix_lerp_k", "channel_mix_lerp_r")
    known: Shapes = dict.fromkeys(lerps, (1, 1, width))
    known |= {
        "time_mix_lerp_fused": (5, 1, 1, width),
        "time_mix_w2": (5, width, mix),
        "time_mix_decay_w1": (decay, width),
        "time_mix_first": (width // 64, 64),
    }
    del keys["attention.head_count_kv"]
    return Shape("rwkv6", vocabulary, keys, known=known)


def delta_nets(arch: str, vocabulary: int, main: Keys, heads: int, *, key_heads: int = 16, state: int = 128) -> Shape:
    """A model of gated delta nets, with gated attention in every fourth layer; `heads` are those of delta nets."""
    size = main["attention.key_length"]
    keys: Keys = main | {
        "context_length": 262144, "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": size // 4,
        "rope.freq_base": 1e7, "full_attention_interval": 4, "ssm.conv_kernel": 4, "ssm.state_size": state,
        "ssm.group_count": key_heads, "ssm.time_step_rank": heads, "ssm.inner_size": heads * state,
    }  # fmt: skip
    known: Sizes = {}
    if "expert_count" in main:
        width, inner = main["embedding_length"], main["feed_forward_length"]
        known = {"ffn_down_shexp": (width, inner), "ffn_gate_inp_shexp": (width,)}
    if arch != "qwen3next":
        keys["rope.dimension_sections"] = [11, 11, 10, 0]  # for time, height and width: equal positions in text
    mixing = "|".join(str(i) for i in range(main["block_count"]) if i % 4 != 3)
    optional = rf"output|blk\.({mixing})\.attn_qkv\.weight" + ("|ssm_ba" if arch == "qwen3next" else "")
    return Shape(arch, vocabulary, keys, optional, known, finer="attn_v|ffn_down(_exps|_shexp)?")


def latent(
    layers: int, width: int, inner: int, heads: int, vocabulary: int, nope: int, value: int, of_experts: Keys,
    *, shared: int, q_rank: int = 0, rank: int = 512, rotary: int = 64, sigmoid: bool = False,
) -> Shape:  # fmt: skip
    """A model with latent attention, and experts after one dense layer; `shared` experts are used by every row."""
    keys: Keys = sizes(layers, width, inner, heads, 1, rank + rotary) | of_experts | {
        "context_length": 163840, "attention.kv_lora_rank": rank, "attention.value_length": rank,
        "attention.key_length_mla": nope + rotary, "attention.value_length_mla": value,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": rotary, "rope.freq_base": 10000.0,
        "leading_dense_block_count": 1, "expert_shared_count": shared, "expert_weights_norm": sigmoid,
        "expert_gating_func": 2 if sigmoid else 1, "expert_weights_scale": 1.8 if sigmoid else 1.0,
    }  # fmt: skip
    known: Shapes = {"ffn_down_shexp": (width, shared * of_experts["expert_feed_forward_length"])}
    if q_rank:
        keys["attention.q_lora_rank"], known["attn_q_a"] = q_rank, (q_rank, width)
    return Shape("deepseek2", vocabulary, keys, "output|exp_probs_b.bias" if sigmoid else "output", known)


def routed(arch: str, vocabulary: int, main: Keys) -> Shape:
    """A transformer with experts and biases of q, k and v. Experts of gpt-oss are MXFP4 in every file."""
    keys = {"context_length": 131072, "attention.layer_norm_rms_epsilon": 1e-5} | main
    if arch == "gpt-oss":
        return Shape(
            arch, vocabulary, keys, r"output|attn_([qkv]|output)\.bias|ffn_.*\.bias|attn_sinks", experts="MXFP4"
        )
    shared = {"ffn_down_shexp": (main["embedding_length"], main["expert_feed_forward_length"])}
    return Shape(arch, vocabulary, keys, r"output|attn_[qkv]\.bias|exp_probs_b\.bias", shared)


def gemma4(
    layers: int, width: int, inner: int, heads: int, kv: int, full_kv: int,
    *, period: int = 6, window: int = 1024, per_layer: int = 0, shared: int = 0, values: bool = False,
    of_experts: Keys | None = None, vocabulary: int = 262144, size: int = 256, full_size: int = 512,
) -> Shape:  # fmt: skip
    """A Gemma 4. Every `period`-th layer has full attention, and with `values` a matrix V.

    The last `shared` layers use keys of others.
    """
    full = [i % period == period - 1 for i in range(layers)]
    keys: Keys = sizes(layers, width, inner, heads, [full_kv if one else kv for one in full], full_size) | {
        "context_length": 131072, "attention.key_length_swa": size, "attention.value_length_swa": size,
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": window,
        "attention.sliding_window_pattern": [not one for one in full],
        "attention.shared_kv_layers": shared, "embedding_length_per_layer_input": per_layer,
        "rope.dimension_count": full_size, "rope.dimension_count_swa": size,
        "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "final_logit_softcapping": 30.0, **(of_experts or {}),
    }  # fmt: skip
    own = "|".join(str(i) for i in range(layers - shared) if values or not full[i])
    optional = rf"layer_output_scale|ffn_gate_up_exps|ffn_down_exps\.scale|blk\.({own})\.attn_v\.weight"
    return Shape("gemma4", vocabulary, keys, optional, {"rope_freqs": (full_size // 2,)})


def hybrid(arch: str, vocabulary: int, layers: str, main: Keys, optional: str = "") -> Shape:
    """A model with recurrent layers.

    `layers` has a letter per layer: m for Mamba-2, a for attention, p for both in parallel, c for a short convolution,
    e for experts only.
    """
    keys: Keys = main | {
        "context_length": 131072, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
        "rope.scaling.finetuned": False, "shortconv.l_cache": 3,
    }  # fmt: skip
    if arch != "falcon-h1":
        keys["attention.head_count_kv"] = [main["attention.head_count_kv"] * (one == "a") for one in layers]
    if arch in ("nemotron_h_moe", "mamba2"):
        keys["feed_forward_length"] = [main["feed_forward_length"] * (one == "e") for one in layers]
    if arch == "nemotron_h_moe":
        keys["attention.layer_norm_epsilon"] = 1e-5  # llama.cpp reads it also for norms without a mean
    known: Shapes = {}
    width = main["embedding_length"]
    if heads := main.get("ssm.time_step_rank"):
        known = {"ssm_a": (heads, 1), "ssm_d": (heads, 1)}
        if arch != "falcon-h1":
            groups = main["ssm.group_count"]
            known["ssm_norm"] = groups, main["ssm.inner_size"] // groups
    if shared := main.get("expert_shared_feed_forward_length"):
        known |= {"ffn_up_shexp": (shared, width), "ffn_down_shexp": (width, shared)}
    return Shape(arch, vocabulary, keys, rf"ssm_conv1d\.bias|{optional}", known, finer="attn_v")


def mamba(heads: int, size: int, state: int, groups: int = 1) -> Keys:
    """The keys of Mamba-2 mixers."""
    return {
        "ssm.conv_kernel": 4, "ssm.inner_size": heads * size, "ssm.state_size": state, "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }  # fmt: skip


def bert(
    layers: int, width: int, inner: int, heads: int, vocabulary: int, context: int = 512, *, types: int = 2,
    pooling: int = FIRST, eps: float = 1e-12, arch: str = "bert",
) -> Shape:  # fmt: skip
    """A BERT, or a nomic-bert."""
    keys: Keys = {
        "context_length": context, "embedding_length": width, "block_count": layers, "feed_forward_length": inner,
        "attention.head_count": heads, "attention.causal": False, "attention.layer_norm_epsilon": eps,
        "pooling_type": pooling, "tokenizer.ggml.token_type_count": types,
    }  # fmt: skip
    known: Shapes = {"token_types": (types, width)}
    if arch == "nomic-bert":
        return Shape(arch, vocabulary, {**keys, "rope.freq_base": 1000.0}, r".*_norm\.bias|attn_qkv|ffn_gate", known)
    known["position_embd"] = context, width
    return Shape(arch, vocabulary, keys, r".*_norm\.bias|attn_([qkv]|output)\.bias|ffn_.*\.bias", known)


def with_head(shape: Shape) -> Shape:
    """The model with a head that predicts a further token."""
    layers, width = shape.keys["block_count"], shape.keys["embedding_length"]
    first = {"blk.0.attn_norm": (width,), f"blk.{layers}.nextn.eh_proj": (width, 2 * width)}
    keys = {"block_count": layers + 1, "nextn_predict_layers": 1}
    return replace(shape, keys={**shape.keys, **keys}, known={**shape.known, **first})


GEMMA3 = {
    "attention.sliding_window": 1024, "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
}  # fmt: skip
MINISTRAL3 = {
    "rope.freq_base": 1e6, "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0,
    "rope.scaling.original_context_length": 16384, "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.1,
}  # fmt: skip
EMBEDDING_GEMMA = {
    "context_length": 2048, "attention.sliding_window": 512, "rope.freq_base": 1e6, "pooling_type": MEAN,
    "dense_2_feat_in": 768, "dense_2_feat_out": 3072, "dense_3_feat_in": 3072, "dense_3_feat_out": 768,
}  # fmt: skip
GPT_OSS = {
    "attention.sliding_window": 128, "rope.freq_base": 150000.0, "rope.scaling.type": "yarn",
    "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096, "leading_dense_block_count": 0,
}  # fmt: skip
GLM = {
    "rope.freq_base": 1e6, "rope.dimension_count": 64, "expert_gating_func": 2, "expert_weights_norm": True,
    "expert_shared_count": 1, "leading_dense_block_count": 1,
}  # fmt: skip
UNTIED = "output"

SHAPES: dict[str, Shape] = {
    "rwkv7-0.1b": rwkv7(12, 768, 64, 64, 32, 128),
    "rwkv7-0.4b": rwkv7(24, 1024, 64, 64, 32, 128),
    "rwkv7-1.5b": rwkv7(24, 2048, 96, 96, 64, 256),
    "rwkv7-2.9b": rwkv7(32, 2560, 96, 96, 64, 320),
    "rwkv7-7.2b": rwkv7(32, 4096, 128, 128, 96, 480),
    "rwkv7-13.3b": rwkv7(61, 4096, 192, 192, 128, 384),
    "rwkv6-1.6b": rwkv6(24, 2048, 32, 64),
    "rwkv6-3b": rwkv6(32, 2560, 32, 64),
    "rwkv6-7.6b": rwkv6(32, 4096, 64, 128),
    "rwkv6-14b": rwkv6(61, 4096, 64, 128),
    "qwen3.5-9b": delta_nets("qwen35", 248320, sizes(32, 4096, 12288, 16, 4, 256), 32),
    "qwen3.5-27b": delta_nets("qwen35", 248320, sizes(64, 5120, 17408, 24, 4, 256), 48),
    "qwen3.5-35b-a3b": delta_nets("qwen35moe", 248320, sizes(40, 2048, 512, 16, 2, 256) | experts(256, 8, 512), 32),
    "qwen3-next-80b-a3b": delta_nets("qwen3next", 151936, sizes(48, 2048, 512, 16, 2, 256) | experts(512, 10, 512), 32),
    "tinyllama-1.1b": transformer("llama", 32000, sizes(22, 2048, 5632, 32, 4, 64), UNTIED),
    "llama-1.2b": transformer("llama", 128256, sizes(16, 2048, 8192, 32, 8, 64)),
    "llama-8b": transformer("llama", 128256, sizes(32, 4096, 14336, 32, 8, 128), UNTIED),
    "mistral-24b": transformer("llama", 131072, sizes(40, 5120, 32768, 32, 8, 128), UNTIED),
    "qwen3-0.6b": transformer("qwen3", 151936, sizes(28, 1024, 3072, 16, 8, 128)),
    "qwen3-8b": transformer("qwen3", 151936, sizes(36, 4096, 12288, 32, 8, 128), UNTIED),
    "deepseek-v2-lite-16b": latent(27, 2048, 10944, 16, 102400, 128, 128, experts(64, 6, 1408), shared=2),
    "glm-4.7-flash-30b": latent(
        47, 2048, 10240, 20, 154880, 192, 256, experts(64, 4, 1536), shared=1, q_rank=768, sigmoid=True
    ),
    "qwen3-30b-a3b": transformer(
        "qwen3moe", 151936, sizes(48, 2048, 768, 32, 4, 128) | experts(128, 8, 768), UNTIED
    ),
    "gemma3-4b": transformer("gemma3", 262144, sizes(34, 2560, 10240, 8, 4, 256) | GEMMA3),
    "gemma3-12b": transformer("gemma3", 262144, sizes(48, 3840, 15360, 16, 8, 256) | GEMMA3),
    "gemma3-27b": transformer("gemma3", 262144, sizes(62, 5376, 21504, 32, 16, 128) | GEMMA3),
    "phi4-14.7b": transformer(
        "phi3", 100352, sizes(40, 5120, 17920, 40, 10, 128), "output|attn_qkv",
        {"ffn_up": (35840, 5120)},
    ),
    "ministral3-8.5b": transformer("mistral3", 131072, sizes(34, 4096, 14336, 32, 8, 128) | MINISTRAL3, UNTIED),
    "mixtral-8x7b-46.7b": transformer(
        "llama", 32000, sizes(32, 4096, 14336, 32, 8, 128) | experts(8, 2, 14336), UNTIED
    ),
    "embeddinggemma-300m": transformer(
        "gemma-embedding", 262144, sizes(24, 768, 1152, 3, 1, 256) | EMBEDDING_GEMMA,
        known={"dense_2": (3072, 768), "dense_3": (768, 3072)},
    ),
    "all-minilm-l6-v2": bert(6, 384, 1536, 12, 30522, pooling=MEAN),
    "bge-large-en-v1.5": bert(24, 1024, 4096, 16, 30522),
    "bge-m3": bert(24, 1024, 4096, 16, 250002, 8192, types=1, eps=1e-5),
    "nomic-embed-text-v1.5": bert(12, 768, 3072, 12, 30522, 2048, pooling=MEAN, arch="nomic-bert"),
    "gpt-oss-20b": routed("gpt-oss", 201088, sizes(24, 2880, 2880, 64, 8, 64) | experts(32, 4, 2880) | GPT_OSS),
    "gpt-oss-120b": routed("gpt-oss", 201088, sizes(36, 2880, 2880, 64, 8, 64) | experts(128, 4, 2880) | GPT_OSS),
    "glm-4.5-air-106b": routed("glm4moe", 151552, sizes(46, 4096, 10944, 96, 8, 128) | experts(128, 8, 1408) | GLM),
    "gemma-4-e4b-7.5b": gemma4(42, 2560, 10240, 8, 2, 2, window=512, per_layer=256, shared=18, values=True),
    "gemma-4-26b-a4b": gemma4(30, 2816, 2112, 16, 8, 2, of_experts=experts(128, 8, 704)),
    "gemma-4-31b": gemma4(60, 5376, 21504, 32, 16, 4),
    "mamba2-2.7b": hybrid("mamba2", 50288, "m" * 64, sizes(64, 2560, 0, 0, 0, 0) | mamba(80, 64, 128)),
    "granite4-h-tiny-7b": hybrid(
        "granitehybrid", 100352, "".join("a" if i % 10 == 5 else "m" for i in range(40)),
        sizes(40, 1536, 512, 12, 4, 128) | mamba(48, 64, 128) | shared_experts(64, 6, 512, 1024),
    ),
    "falcon-h1-3.1b": hybrid(
        "falcon-h1", 65536, "p" * 32, sizes(32, 2560, 6144, 10, 2, 128) | mamba(32, 128, 256),
        r"output|blk\.\d+\.ffn_norm",
    ),
    "nemotron3-nano-32b": hybrid(
        "nemotron_h_moe", 131072, "mememaemememaemememaemememaemememaememememaememememe",
        sizes(52, 2688, 1856, 32, 2, 128) | mamba(64, 64, 128, 8) | shared_experts(128, 6, 1856, 3712),
        r"output|ffn_gate_inp|exp_probs_b\.bias",
    ),
    "lfm2-1.2b": hybrid(
        "lfm2", 65536, "".join("a" if i in (2, 5, 8, 10, 12, 14) else "c" for i in range(16)),
        sizes(16, 2048, 8192, 32, 8, 64),
    ),
}  # fmt: skip


def drafter(arch: str, layers: int, width: int, inner: int, heads: tuple[int, int, int], read: list[int]) -> Shape:
    """An EAGLE-3 or DFlash head, which uses the embedding and the output matrix of its model.

    `heads` are query heads, KV heads and their size; `read` are layers of the model whose inputs the head reads.
    """
    count, kv, size = heads
    eagle = arch == "eagle3"
    keys: Keys = sizes(layers, width, inner, count, kv, size) | {
        "context_length": 131072, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
        "target_hidden_size": width, "target_layers": read, "block_size": 16, "tokenizer.ggml.mask_token_id": 3,
    }  # fmt: skip
    columns = 2 * width if eagle else width
    of_layer = {
        "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (count * size, columns), "attn_k": (kv * size, columns),
        "attn_v": (kv * size, columns), "attn_output": (width, count * size), "ffn_gate": (inner, width),
        "ffn_up": (inner, width), "ffn_down": (width, inner),
        **({"attn_norm_2": (width,)} if eagle else {"attn_q_norm": (size,), "attn_k_norm": (size,)}),
    }  # fmt: skip
    known: Shapes = {"fc.weight": (width, len(read) * width), "output_norm.weight": (width,)}
    known |= {} if eagle else {"enc.output_norm.weight": (width,)}
    known |= {f"blk.{i}.{name}.weight": shape for i in range(layers) for name, shape in of_layer.items()}
    return Shape(arch, 0, keys, known=known, loads=False)


DRAFTERS = {
    "gpt-oss-20b-eagle3": drafter("eagle3", 1, 2880, 17280, (64, 8, 64), [2, 12, 21]),
    "qwen3-8b-dflash": drafter("dflash", 5, 4096, 12288, (32, 8, 128), [2, 10, 18, 26, 34]),
}
