"""Writes tiny folders of the Hugging Face hub with random numbers, in the forms that publishers use.

Each has a config.json, tensors in one file or in shards, and a tokenizer. Numbers are whole multiples of 1/64: exact
in 16 bits.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.hub_tokenizers import Tokenizer, write_tokenizer
from tests.gguf.test_safetensors import whole

WIDTH, INNER, TOKENS, LAYERS = 64, 96, 272, 2
Shapes = dict[str, tuple[int, ...]]
SIZES: dict[str, Any] = {
    "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "vocab_size": TOKENS,
}  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """A folder: its name on the hub, config.json, tensors, and further files."""

    name: str
    config: dict[str, Any]
    shapes: Callable[[dict[str, Any]], Shapes]
    tokenizer: Tokenizer
    kind: str = "F16"
    shards: int = 1
    prefix: str = ""  # prefix of every tensor's name
    files: dict[str, Any] = field(default_factory=dict)  # texts, or values for JSON


def attention(at: str, config: dict[str, Any], *, biases: bool = False, norms: bool = False) -> Shapes:
    """Returns the four projections of attention."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or WIDTH // heads
    rows = {"q": heads * size, "k": groups * size, "v": groups * size}
    shapes: Shapes = {f"{at}.{name}_proj.weight": (count, WIDTH) for name, count in rows.items()}
    shapes |= {f"{at}.{name}_proj.bias": (count,) for name, count in rows.items() if biases}
    shapes |= {f"{at}.{name}_norm.weight": (size,) for name in "qk" if norms}
    return shapes | {f"{at}.o_proj.weight": (WIDTH, heads * size)}


def feed_forward(at: str, inner: int = INNER) -> Shapes:
    """Returns the three projections of a feed-forward."""
    ends = {f"{at}.{name}_proj.weight": (inner, WIDTH) for name in ("gate", "up")}
    return ends | {f"{at}.down_proj.weight": (WIDTH, inner)}


def vectors(at: str, *names: str, size: int = WIDTH) -> Shapes:
    """Returns the weights of norms."""
    return {f"{at}.{name}.weight": (size,) for name in names}


def dense(*, head: bool = True, biases: bool = False, norms: bool = False, more: tuple[str, ...] = ()) -> Any:
    """Returns a transformer whose layers have the same form."""

    def shapes(config: dict[str, Any]) -> Shapes:
        found: Shapes = {"model.embed_tokens.weight": (TOKENS, WIDTH), "model.norm.weight": (WIDTH,)}
        found |= {"lm_head.weight": (TOKENS, WIDTH)} if head else {}
        for i in range(LAYERS):
            at = f"model.layers.{i}"
            found |= attention(f"{at}.self_attn", config, biases=biases, norms=norms) | feed_forward(f"{at}.mlp")
            found |= vectors(at, "input_layernorm", "post_attention_layernorm", *more)
        return found

    return shapes


def qwen35(*, experts: str = "") -> Any:
    """Returns Qwen3.5: a delta net, attention, and a drafting layer. Experts are `fused` in a tensor, or `separate`."""

    def mlp(at: str, config: dict[str, Any]) -> Shapes:
        if not experts:
            return feed_forward(at)
        count, inner = config["num_experts"], config["moe_intermediate_size"]
        found = {f"{at}.gate.weight": (count, WIDTH), f"{at}.shared_expert_gate.weight": (1, WIDTH)}
        found |= feed_forward(f"{at}.shared_expert", config["shared_expert_intermediate_size"])
        if experts == "separate":
            return found | {k: v for n in range(count) for k, v in feed_forward(f"{at}.experts.{n}", inner).items()}
        fused: Shapes = {f"{at}.experts.gate_up_proj": (count, 2 * inner, WIDTH)}
        return found | fused | {f"{at}.experts.down_proj": (count, WIDTH, inner)}

    def shapes(config: dict[str, Any]) -> Shapes:
        config = config["text_config"]
        start, keys, values, size = "model.language_model", 2, 4, 16
        found: Shapes = {f"{start}.embed_tokens.weight": (TOKENS, WIDTH), f"{start}.norm.weight": (WIDTH,)}
        found |= {"lm_head.weight": (TOKENS, WIDTH), "model.visual.patch_embed.proj.weight": (8, 3, 2, 2)}
        at, channels = f"{start}.layers.0.linear_attn", (2 * keys + values) * size
        found |= {
            f"{at}.A_log": (values,), f"{at}.dt_bias": (values,), f"{at}.conv1d.weight": (channels, 1, 4),
            f"{at}.in_proj_qkv.weight": (channels, WIDTH), f"{at}.in_proj_z.weight": (values * size, WIDTH),
            f"{at}.in_proj_a.weight": (values, WIDTH), f"{at}.in_proj_b.weight": (values, WIDTH),
            f"{at}.out_proj.weight": (WIDTH, values * size), f"{at}.norm.weight": (size,),
        }  # fmt: skip
        for at in (f"{start}.layers.0", f"{start}.layers.1", "mtp.layers.0"):
            found |= mlp(f"{at}.mlp", config) | vectors(at, "input_layernorm", "post_attention_layernorm")
        for at in (f"{start}.layers.1", "mtp.layers.0"):
            found |= attention(f"{at}.self_attn", config, norms=True)
            gated = config["num_attention_heads"] * config["head_dim"]
            found[f"{at}.self_attn.q_proj.weight"] = (2 * gated, WIDTH)
        return (
            found
            | vectors("mtp", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
            | {"mtp.fc.weight": (WIDTH, 2 * WIDTH)}
        )

    return shapes


def lfm2(config: dict[str, Any]) -> Shapes:
    """Returns LFM2: a short convolution, and attention."""
    found: Shapes = {"model.embed_tokens.weight": (TOKENS, WIDTH), "model.embedding_norm.weight": (WIDTH,)}
    at = "model.layers.0.conv"
    found |= {f"{at}.conv.weight": (WIDTH, 1, 3), f"{at}.in_proj.weight": (3 * WIDTH, WIDTH)}
    found |= {f"{at}.out_proj.weight": (WIDTH, WIDTH)}
    rows = attention("model.layers.1.self_attn", config)
    found |= {name.replace("o_proj", "out_proj"): shape for name, shape in rows.items()}
    found |= vectors("model.layers.1.self_attn", "q_layernorm", "k_layernorm", size=16)
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        found |= vectors(at, "operator_norm", "ffn_norm")
        found |= {f"{at}.feed_forward.{name}.weight": (INNER, WIDTH) for name in ("w1", "w3")}
        found |= {f"{at}.feed_forward.w2.weight": (WIDTH, INNER)}
    return found


def mamba2(config: dict[str, Any]) -> Shapes:
    """Returns Mamba-2: two layers with two groups."""
    inner, heads, groups, state = 2 * WIDTH, 8, 2, 16
    found: Shapes = {"backbone.embeddings.weight": (TOKENS, WIDTH), "backbone.norm_f.weight": (WIDTH,)}
    found |= {"lm_head.weight": (TOKENS, WIDTH)} if config.get("tie_word_embeddings") is False else {}
    for i in range(LAYERS):
        at, channels = f"backbone.layers.{i}.mixer", inner + 2 * groups * state
        found |= {f"{at}.{name}": (heads,) for name in ("A_log", "D", "dt_bias")}
        found |= {f"{at}.conv1d.weight": (channels, 1, 4), f"{at}.conv1d.bias": (channels,)}
        found |= {f"{at}.in_proj.weight": (inner + channels + heads, WIDTH), f"{at}.norm.weight": (inner,)}
        found |= {f"{at}.out_proj.weight": (WIDTH, inner), f"backbone.layers.{i}.norm.weight": (WIDTH,)}
    return found


def bert(*, prefix: str = "", labels: int = 0, weight: str = "weight", bias: str = "bias") -> Any:
    """Returns BERT: an encoder with its training head, or a classifier."""

    def shapes(_: dict[str, Any]) -> Shapes:
        at = f"{prefix}embeddings"
        found: Shapes = {
            f"{at}.word_embeddings.weight": (TOKENS, WIDTH),
            f"{at}.position_embeddings.weight": (256, WIDTH),
        }
        found |= {f"{at}.token_type_embeddings.weight": (2, WIDTH)}
        norms = [f"{at}.LayerNorm"]
        products = {f"{prefix}pooler.dense": (WIDTH, WIDTH)} | ({"classifier": (labels, WIDTH)} if labels else {})
        for i in range(LAYERS):
            at = f"{prefix}encoder.layer.{i}"
            products |= {f"{at}.attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
            products |= {f"{at}.attention.output.dense": (WIDTH, WIDTH), f"{at}.output.dense": (WIDTH, INNER)}
            products |= {f"{at}.intermediate.dense": (INNER, WIDTH)}
            norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        found |= {f"{name}.weight": shape for name, shape in products.items()}
        found |= {f"{name}.bias": shape[:1] for name, shape in products.items()}
        return found | {f"{name}.{end}": (WIDTH,) for name in norms for end in (weight, bias)}

    return shapes


def numbers(shapes: Shapes) -> dict[str, np.ndarray]:
    """Returns random numbers for each tensor, the same in every run."""
    rng = np.random.default_rng(7)
    return {name: (rng.integers(-64, 64, shape) / 64).astype(np.float32) for name, shape in sorted(shapes.items())}


def write_folder(parent: Path, one: Folder) -> Path:
    """Writes the folder under its name."""
    folder = parent / one.name
    folder.mkdir()
    arrays = {one.prefix + name: array for name, array in numbers(one.shapes(one.config)).items()}
    names = sorted(arrays)
    if one.shards == 1:
        (folder / "model.safetensors").write_bytes(whole({name: (one.kind, arrays[name]) for name in names}))
    else:
        places = {name: f"model-{i % one.shards + 1:05}-of-{one.shards:05}.safetensors" for i, name in enumerate(names)}
        for shard in sorted(set(places.values())):
            data = whole({name: (one.kind, arrays[name]) for name in names if places[name] == shard})
            (folder / shard).write_bytes(data)
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(one.config))
    write_tokenizer(folder, one.tokenizer)
    for name, content in one.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder
