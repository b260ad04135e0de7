"""Converts Qwen3.5 models: gated delta nets, attention in every fourth layer, and heads that draft tokens.

In a checkpoint, the value heads that share a key are adjacent. In a GGUF file, they alternate between the keys.
"""

import re
from collections.abc import Sequence

import gguf
import numpy as np

from ..gguf.header import Value
from .config import Config
from .folder import Family, Rename, Tensors
from .planned import AS_STORED, Change, Indices, Shape

SECTIONS = 11, 11, 10  # pairs that rotate by time, height and width
# Names in a file; not every version of gguf has them for this family.
DRAFTS = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}


def _renames(config: Config) -> Sequence[Rename]:
    """Heads that draft tokens become layers after the last one."""
    layers = config.layers
    drafts = [(rf"^mtp\.{name}\.", f"blk.{layers}.nextn.{target}.") for name, target in DRAFTS.items()]
    return [
        (r"^model\.mtp\.", "mtp."),
        (r"^mtp\.layers\.(\d{1,3})\.", lambda found: f"model.layers.{layers + int(found[1])}."),
        *drafts,
        (r"\.dt_bias$", ".dt_proj.bias"),
    ]


def _blocks(config: Config, tensors: Tensors) -> int:
    """The number of layers, with those that draft tokens if the folder has any."""
    numbers = (re.match(r"model\.layers\.(\d{1,4})\.", name) for name in tensors)
    return max([config.layers, *(int(found[1]) + 1 for found in numbers if found)])


def _keys(config: Config, tensors: Tensors) -> dict[str, Value]:
    blocks, layers = _blocks(config, tensors), config.layers
    value_heads = config.size("linear_num_value_heads")
    keys: dict[str, Value] = {
        "block_count": blocks,
        "ssm.conv_kernel": config.size("linear_conv_kernel_dim"),
        "ssm.state_size": config.size("linear_key_head_dim"),
        "ssm.group_count": config.size("linear_num_key_heads"),
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": config.total("linear_num_value_heads", config.size("linear_value_head_dim") * value_heads),
        "full_attention_interval": config.size("full_attention_interval", 4),
        "rope.dimension_sections": _sections(config),
    }
    share = config.number_in(config.rotation(), "partial_rotary_factor", 0.25)
    keys["rope.dimension_count"] = config.total("head_dim", int(config.head_size * share))
    if config.has("layer_types"):
        recurrent = [kind == "linear_attention" for kind in config.names("layer_types", layers)]
        keys["attention.recurrent_layers"] = [*recurrent, *[False] * (blocks - layers)]
    if blocks > layers:
        keys["nextn_predict_layers"] = blocks - layers
    for key, name in (("", "moe_intermediate_size"), ("_shared", "shared_expert_intermediate_size")):
        if config.has(name):
            keys[f"expert{key}_feed_forward_length"] = config.size(name)
    return keys


def _sections(config: Config) -> list[int]:
    found = config.rotations.get("mrope_section", SECTIONS)
    if not isinstance(found, list | tuple) or not all(type(one) is int and 0 <= one < 1024 for one in found):
        raise config.wrong("mrope_section", found, "a list of whole numbers")
    return [*found, 0, 0, 0, 0][:4]


def _changes(config: Config) -> dict[str, Change]:
    keys, values = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    if values % keys:
        raise config.wrong("linear_num_value_heads", values, f"a multiple of {keys}")
    size, before = config.size("linear_value_head_dim"), 2 * keys * config.size("linear_key_head_dim")
    config.total("linear_num_value_heads", before + values * size)
    heads = rows = mixed = None
    if keys != values:
        heads, rows = _in_turns(keys, values, 1), _in_turns(keys, values, size)
        mixed = np.concatenate([np.arange(before), before + rows])
    return {
        r"\.linear_attn\.in_proj_qkv\.": Change(mixed),
        r"\.linear_attn\.in_proj_z\.": Change(rows),
        r"\.linear_attn\.in_proj_[ab]\.": Change(heads),
        r"\.linear_attn\.A_log$": Change(heads, compute=lambda x: -np.exp(x)),
        r"\.linear_attn\.dt_proj\.": Change(heads),
        r"\.linear_attn\.conv1d\.": Change(mixed, shape=_without_ones),
        r"\.linear_attn\.out_proj\.": Change(columns=rows),
        r"\.linear_attn\.norm\.weight$": AS_STORED,
        r"norm\.weight$": Change(compute=lambda x: x + np.float32(1)),
    }


def _in_turns(keys: int, values: int, size: int) -> Indices:
    """The order of rows in which value heads alternate between the keys that they share."""
    return np.arange(values * size).reshape(keys, values // keys, size).swapaxes(0, 1).reshape(-1)


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size > 1)


QWEN35 = Family(gguf.MODEL_ARCH.QWEN35, renames=_renames, changes=_changes, keys=_keys, blocks=_blocks)
QWEN35MOE = Family(gguf.MODEL_ARCH.QWEN35MOE, renames=_renames, changes=_changes, keys=_keys, blocks=_blocks)
