"""The families of folders that are converted, by the name in `architectures` of config.json."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gguf
import numpy as np

from ..errors import BadFile, UnsupportedModel
from ..gguf.header import Value
from .checkpoint import Checkpoint, read_json
from .config import Config
from .encoders import BERT, pooling
from .folder import Family, Tensors
from .planned import Change, Indices, Planned
from .qwen35 import QWEN35, QWEN35MOE

EPS = 1e-6
CODE_LLAMA, SMALL_CODE = 32016, 49152  # numbers of tokens
CODE_LLAMA_TOKENS = {"prefix": 32007, "suffix": 32008, "middle": 32009, "eot": 32010}


def _heads(config: Config) -> int:
    return config.size("num_attention_heads")


def _head_size(config: Config) -> int:
    return config.size("hidden_size") // _heads(config)


# In a file, Llama's rotations pair a number with its neighbour. In a checkpoint, they pair it with the number half a
# head away.


def in_pairs(config: Config, heads: int) -> Indices:
    """The order of rows that makes the two rows of each rotated pair adjacent."""
    size = config.head_size
    if size % 2:
        raise config.wrong("head_dim", size, "an even number")
    rows = np.arange(config.total("num_attention_heads", heads * size))
    return rows.reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)


def _paired(config: Config) -> dict[str, Change]:
    queries, keys = _heads(config), config.size("num_key_value_heads", _heads(config))
    return {r"\.q_proj\.": Change(in_pairs(config, queries)), r"\.k_proj\.": Change(in_pairs(config, keys))}


def _llama_keys(config: Config, _: Tensors) -> dict[str, Value]:
    return {"vocab_size": config.size("vocab_size"), "rope.dimension_count": config.head_size}


def _llama3_factors(config: Config) -> list[Planned]:
    """The divisor of each RoPE frequency: the full factor for slow ones, 1 for fast ones, and a ramp in between."""
    rotation = config.rotation()
    if rotation.get("rope_type") != "llama3":
        return []

    def value(key: str, default: float) -> float:
        return config.number_in(rotation, key, default)

    size, context = config.head_size, value("original_max_position_embeddings", 8192)
    low, high, factor = value("low_freq_factor", 1), value("high_freq_factor", 4), value("factor", 8)
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    turns = context * (1 / np.float32(value("rope_theta", 10000)) ** exponents) / np.float32(2 * np.pi)
    smooth = np.clip((turns - low) / max(high - low, EPS), 0, 1)
    factors = np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)
    return [Planned("rope_freqs.weight", factors.shape, constant=factors)]


def _refuse_llama3(config: Config) -> list[Planned]:
    if config.rotation().get("rope_type") == "llama3":
        raise UnsupportedModel(f"{config.path}: positions of the type llama3 are not converted for this family")
    return []


def _llama_tokens(config: Config) -> dict[str, Value]:
    """Tokenizer keys that only some models have. These models are recognised by their number of tokens."""
    path, found = config.folder / "tokenizer_config.json", dict[str, Value]()
    prefix = read_json(path).get("add_prefix_space") if path.is_file() else None
    if isinstance(prefix, bool):
        found["tokenizer.ggml.add_space_prefix"] = prefix
    if config.size("vocab_size") == CODE_LLAMA:
        found |= {f"tokenizer.ggml.{kind}_token_id": number for kind, number in CODE_LLAMA_TOKENS.items()}
    if config.size("vocab_size") == SMALL_CODE:
        found["tokenizer.ggml.add_bos_token"] = False
    return found


ROTATED: dict[str, Any] = {"rope_theta": 10000.0, "rms_norm_eps": EPS, "num_key_value_heads": _heads}
LLAMA = Family(
    gguf.MODEL_ARCH.LLAMA,
    ROTATED | {"max_position_embeddings": 2048, "head_dim": _head_size},
    changes=_paired,
    keys=_llama_keys,
    tokens=_llama_tokens,
    computed=_llama3_factors,
)
MISTRAL = replace(LLAMA, defaults=ROTATED | {"max_position_embeddings": 131072, "num_key_value_heads": 8})
SMOLLM3 = replace(
    LLAMA,
    architecture=gguf.MODEL_ARCH.SMOLLM3,
    defaults=ROTATED | {"rope_theta": 2e6, "max_position_embeddings": 32768, "num_key_value_heads": 4},
)
QWEN2 = Family(
    gguf.MODEL_ARCH.QWEN2, ROTATED | {"max_position_embeddings": 32768}, keys=pooling, computed=_refuse_llama3
)
QWEN3 = Family(
    gguf.MODEL_ARCH.QWEN3,
    ROTATED | {"max_position_embeddings": 32768, "head_dim": 128},
    keys=pooling,
    computed=_refuse_llama3,
)


def _gemma3_keys(config: Config, _: Tensors) -> dict[str, Value]:
    keys: dict[str, Value] = {}
    if config.has("final_logit_softcapping"):
        keys["final_logit_softcapping"] = config.number("final_logit_softcapping")
    if config.has("attn_logit_softcapping"):
        raise UnsupportedModel(f"{config.path}: attn_logit_softcapping is not converted for this family")
    if config.values.get("sliding_window_pattern") != 1:
        keys["attention.sliding_window"] = config.size("sliding_window")
    return keys


GEMMA3 = Family(
    gguf.MODEL_ARCH.GEMMA3,
    {
        "vocab_size": 262208, "max_position_embeddings": 131072, "num_attention_heads": 8, "head_dim": 256,
        "num_key_value_heads": 4, "rms_norm_eps": EPS, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
        "sliding_window": 4096, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    },
    changes=lambda _: {r"norm\.weight$": Change(compute=lambda x: x + np.float32(1))},
    keys=_gemma3_keys,
    tokens=lambda _: {"tokenizer.ggml.add_space_prefix": False},
    computed=_refuse_llama3,
)  # fmt: skip


def _lfm2_types(config: Config) -> list[str] | None:
    """The type of each layer in older files, which list the layers with attention."""
    listed = config.values.get("full_attn_idxs")
    if not isinstance(listed, list):
        return None
    return ["full_attention" if i in listed else "conv" for i in range(config.layers)]


def _lfm2_keys(config: Config, _: Tensors) -> dict[str, Value]:
    inner = config.size("block_ff_dim" if config.has("block_ff_dim") else "intermediate_size")
    if config.values.get("block_auto_adjust_ff_dim"):
        inner = int(config.number("block_ffn_dim_multiplier", 1) * int(2 * inner / 3))
        multiple = config.size("block_multiple_of")
        inner = config.total("block_ffn_dim_multiplier", -(-inner // multiple) * multiple)
    shared = config.size("num_key_value_heads")
    types = config.names("layer_types", config.layers)
    return {
        "attention.head_count_kv": [0 if kind == "conv" else shared for kind in types],
        "feed_forward_length": inner,
        "vocab_size": config.size("vocab_size"),
        "shortconv.l_cache": config.size("conv_L_cache"),
    }


def _without_middle(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:]) if len(shape) == 3 and shape[1] == 1 else shape


LFM2 = Family(
    gguf.MODEL_ARCH.LFM2,
    {
        "max_position_embeddings": 128000, "norm_eps": 1e-5, "num_key_value_heads": 8, "conv_L_cache": 3,
        "rope_theta": lambda config: config.values.get("theta", 1e6), "intermediate_size": 12288,
        "block_multiple_of": 256, "block_auto_adjust_ff_dim": True, "layer_types": _lfm2_types,
    },
    changes=lambda _: {r"\.conv\.conv\.": Change(shape=_without_middle)},
    keys=_lfm2_keys,
    computed=_refuse_llama3,
    pre={"llama-bpe": "lfm2", "smaug-bpe": "lfm2"},
)  # fmt: skip


def _mamba2_sizes(config: Config) -> tuple[int, int, int]:
    """The inner width, the size of a head, and the number of groups."""
    width, head = config.size(config.first(("hidden_size", "d_model"))), config.size("head_dim", 64)
    inner = config.size(config.first(("intermediate_size", "d_inner")), config.size("expand", 2) * width)
    config.total("hidden_size", inner)
    groups = config.size("n_groups", 1)
    if inner % head or inner % groups:
        raise BadFile(f"{config.path}: an inner width of {inner} is not a whole number of heads and groups")
    return inner, head, groups


def _mamba2_keys(config: Config, _: Tensors) -> dict[str, Value]:
    inner, head, groups = _mamba2_sizes(config)
    return {
        "context_length": 1 << 20,  # any
        "embedding_length": config.size(config.first(("hidden_size", "d_model"))),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config.layers,
        "ssm.conv_kernel": config.size(config.first(("conv_kernel", "d_conv")), 4),
        "ssm.inner_size": inner,
        "ssm.state_size": config.size(config.first(("state_size", "d_state")), 128),
        "ssm.time_step_rank": inner // head,
        "ssm.group_count": groups,
        "attention.layer_norm_rms_epsilon": config.number(config.first(("layer_norm_epsilon", "rms_norm_eps")), 1e-5),
    }


def _mamba2_changes(config: Config) -> dict[str, Change]:
    inner, _, groups = _mamba2_sizes(config)
    return {
        r"\.A_log$": Change(compute=lambda x: -np.exp(x), shape=lambda shape: (*shape, 1)),
        r"\.D$": Change(shape=lambda shape: (*shape, 1)),
        r"\.conv1d\.weight$": Change(shape=_without_middle),
        r"\.mixer\.norm\.weight$": Change(shape=lambda _: (groups, inner // groups)),
    }


def _mamba2_vocabulary(config: Config) -> int:
    multiple = config.size("pad_vocab_size_multiple", 16)
    return config.total("vocab_size", -(-config.size("vocab_size") // multiple) * multiple)


MAMBA2 = Family(
    gguf.MODEL_ARCH.MAMBA2,
    {"num_hidden_layers": lambda config: config.values.get("n_layer")},
    renames=lambda _: ((r"^model\.(?=backbone|lm_head)", ""), (r"\.dt_bias$", ".dt_proj.bias")),
    changes=_mamba2_changes,
    keys=_mamba2_keys,
    has_common_keys=False,
    vocabulary=_mamba2_vocabulary,
    pre={"gpt-2": "olmo"},
)

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "SmolLM3ForCausalLM": SMOLLM3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2Model": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3Model": QWEN3,
    "Qwen3_5ForConditionalGeneration": QWEN35,
    "Qwen3_5ForCausalLM": QWEN35,
    "Qwen3_5MoeForConditionalGeneration": QWEN35MOE,
    "Qwen3_5MoeForCausalLM": QWEN35MOE,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Lfm2ForCausalLM": LFM2,
    "LFM2ForCausalLM": LFM2,
    "Mamba2ForCausalLM": MAMBA2,
    "BertModel": BERT,
    "BertForMaskedLM": BERT,
    "BertForSequenceClassification": BERT,
}


def family_of(checkpoint: Checkpoint) -> Family | None:
    """The family of a folder."""
    return FAMILIES.get(architecture_of(checkpoint.config))


def architecture_of(config: Mapping[str, Any]) -> str:
    """The name of the architecture; for a multimodal model, that of its text model."""
    inner = config.get("text_config")
    for one in (inner if isinstance(inner, dict) else {}, config):
        names = one.get("architectures")
        if isinstance(names, list) and names and isinstance(names[0], str):
            return names[0]
    return ""
