"""The keys about a model's shape that all folders of the Hugging Face hub share, by the names of GGUF."""

from typing import Any

from ..errors import UnsupportedModel, printable
from ..gguf.header import Value
from .config import Config

# Keys in GGUF, and in config.json.
SIZES = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token"),
}
NUMBERS = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
}
YARN = {
    "yarn_ext_factor": ("extrapolation_factor",),
    "yarn_attn_factor": ("attention_factor", "attn_factor"),
    "yarn_beta_fast": ("beta_fast",),
    "yarn_beta_slow": ("beta_slow",),
}
# Rotations without further keys. Those of Llama 3 are a tensor.
WITHOUT_KEYS = "default", "llama3", "dynamic"


def common_keys(config: Config) -> dict[str, Value]:
    """The keys for the values that a config.json has, without the name of the architecture."""
    found: dict[str, Value] = {"block_count": config.layers}
    found |= {key: config.size(name) for key, names in SIZES.items() if (name := config.first(names))}
    found |= {key: config.number(name) for key, names in NUMBERS.items() if (name := config.first(names))}
    if config.values.get("is_causal") is False:
        found["attention.causal"] = False
    return found | _rotation(config, config.rotation()) | _local(config)


def _rotation(config: Config, rotation: dict[str, Any]) -> dict[str, Value]:
    """The keys about the rotation of positions."""
    found: dict[str, Value] = {}
    kind = rotation.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": config.number_in(rotation, "factor")}
    elif kind not in WITHOUT_KEYS:
        raise UnsupportedModel(f"{config.path}: positions of the type {printable(str(kind), 30)} are not converted")
    if kind == "yarn":
        original = config.size_in(rotation, "original_max_position_embeddings")
        found["rope.scaling.original_context_length"] = original
        for key, names in YARN.items():
            name = next((name for name in names if name in rotation), None)
            if name is not None:
                found[f"rope.scaling.{key}"] = config.number_in(rotation, name)
    if "rope_theta" in rotation:
        found["rope.freq_base"] = config.number_in(rotation, "rope_theta")
    return found


def _local(config: Config) -> dict[str, Value]:
    """The base of the rotation in layers with a sliding window."""
    rotation = config.rotation("sliding_attention")
    return {"rope.freq_base_swa": config.number_in(rotation, "rope_theta")} if "rope_theta" in rotation else {}
