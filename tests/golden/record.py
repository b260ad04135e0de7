"""Writes the golden models of this folder, and records llama.cpp's logits or embeddings for them.

    pip install '.[peer]' && python -m tests.golden.record [ARCHITECTURE, NAME OF A SCALING or OTHER MODEL ...]

Weights are random, from a seed, in a mix of formats. llama.cpp rounds activations where weights are quantised.
Therefore it computes a twin of the model with the same weights, dequantised to float32. A runner that decodes weights
in its kernels and computes in float32 must give the same results. The logits of some models come from scripts in this
folder instead: PLaMo 2 from `plamo2.py`, Chameleon 34B from `chameleon.py`, RWKV-4 from `rwkv4.py`, RWKV-7a and
7b from `rwkv7_deep.py`.
Gemma 3n, GPT-2, StarCoder and the encoders were recorded by a build of llama.cpp that computes GELU without a table
(GGML_GELU_FP16 in ggml-cpu/vec.h).
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gguf.planes import dequantise_rows
from tests.gguf.blocks import mild_rows
from tests.golden import chameleon as chameleon_in_float64
from tests.golden import glm5next as glm5next_of_publisher
from tests.golden import plamo2 as plamo2_in_float64
from tests.golden import rwkv4 as rwkv4_in_float64
from tests.golden import rwkv7_deep as rwkv7_in_float64
from tests.golden_files import RECOMBINED

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
UNKNOWN = {BY_NAME["Q2_0"].type: (64, 18)}  # formats whose sizes the gguf package does not know
HERE = Path(__file__).resolve().parent
TOKENS, SHORT_TOKENS, QUIET_TOKENS, GREEDY_TOKENS, LONG_TOKENS, UNMASKED = 48, 24, 16, 64, 1000, 40
LONG_ROWS = [0, *(row + side for row in (16, 32, 64, 128, 256, 512, 768) for side in (-1, 0)), LONG_TOKENS - 1]
TEXTS = (0, TOKENS), (0, 1), (3, 20), (16, TOKENS - 1)  # texts of a record of embeddings: ranges of its tokens
LONG_TEXT, LONG_TEXT_ROWS = 300, [0, 7, 8, 9, 63, 64, 65, 150, 255, 256, 291, 292, 299]
LONG_ENCODERS = ("modern-bert", "jina-bert-v2", "t5encoder")  # also recorded with LONG_TEXT tokens
WIDE = "ple.layer_multipliers", "ple.head_vocab_sizes", "ple.head_offsets"  # keys whose numbers have 64 bits
LONG = ("rwkv7", "llama")  # models of which a thousand tokens are recorded, too
Tensors = dict[str, tuple[np.ndarray, str]]  # float32 values, and the format in which they are stored
Keys = dict[str, int | float | str | bool | list[int] | list[bool] | list[float] | list[str]]


class Source:
    """Random numbers of a realistic size."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape: int, gain: float = 1.0) -> np.ndarray:
        return (gain * self.rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def vector(self, size: int, mean: float = 0.0) -> np.ndarray:
        return (mean + 0.1 * self.rng.standard_normal(size)).astype(np.float32)

    def uniform(self, *shape: int) -> np.ndarray:
        return self.rng.random(shape, np.float32)


def rwkv7(seed: int, width: int = 128, inner: int = 256, rank: int = 32) -> tuple[Tensors, Keys]:
    """RWKV-7 with two layers. Receptance resembles the key: otherwise a first token consists of rounding errors."""
    g, vocabulary = Source(seed), 288
    t: Tensors = {
        "token_embd.weight": (g.matrix(vocabulary, width, gain=8), "Q8_0"),
        "output.weight": (g.matrix(vocabulary, width, gain=2.5), "Q5_1"),
    }
    for name in ("token_embd_norm", "output_norm"):
        t |= {f"{name}.weight": (g.vector(width, 1), "F32"), f"{name}.bias": (g.vector(width), "F32")}
    for i in range(2):
        at = f"blk.{i}"
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            t[f"{at}.{name}.weight"], t[f"{at}.{name}.bias"] = (g.vector(width, 1), "F32"), (g.vector(width), "F32")
        key = g.matrix(width, width)
        t |= {
            f"{at}.time_mix_lerp_fused.weight": (g.uniform(6, 1, 1, width), "F32"),
            f"{at}.time_mix_key.weight": (key, "Q8_0"),
            f"{at}.time_mix_receptance.weight": (key + g.matrix(width, width), "Q8_0"),
            f"{at}.time_mix_value.weight": (g.matrix(width, width), "Q5_0"),
            f"{at}.time_mix_output.weight": (g.matrix(width, width), "Q4_1"),
            f"{at}.channel_mix_lerp_k.weight": (g.uniform(1, 1, width), "F32"),
            f"{at}.channel_mix_key.weight": (g.matrix(inner, width), "Q4_0"),
            f"{at}.channel_mix_value.weight": (g.matrix(width, inner), "F16"),
        }
        for letter in "wagv":
            t[f"{at}.time_mix_{letter}1.weight"] = g.matrix(rank, width), "F16"
            t[f"{at}.time_mix_{letter}2.weight"] = g.matrix(width, rank), "F16"
            if letter != "g":
                t[f"{at}.time_mix_{letter}0.weight"] = 10 * g.vector(width), "F32"
        for name in ("k_k", "k_a", "r_k"):
            t[f"{at}.time_mix_{name}.weight"] = g.uniform(width), "F32"
    keys: Keys = {
        "wkv.head_size": 64, "attention.head_count": 0, "attention.layer_norm_epsilon": 1e-5, "token_shift_count": 2,
    }  # fmt: skip
    keys |= {f"attention.{name}_lora_rank": rank for name in ("decay", "iclr", "value_residual_mix", "gate")}
    return t, keys | {"context_length": 1024, "block_count": 2, "embedding_length": width, "feed_forward_length": inner}


def rwkv4(seed: int, width: int = 64, inner: int = 128) -> tuple[Tensors, Keys]:
    """RWKV-4 with two layers, of which some channels forget at once and others hardly anything."""
    tensors, keys = rwkv7(seed, width, inner)
    g = Source(seed + 1)
    for name in [name for name in tensors if re.search(r"time_mix_(ln|[wagvkr]_?[k012a]\b|lerp)", name)]:
        del tensors[name]
    for i in range(2):
        at = f"blk.{i}"
        tensors |= {
            f"{at}.time_mix_lerp_fused.weight": (g.uniform(3, 1, 1, width), "F32"),
            f"{at}.time_mix_decay.weight": (20 * g.vector(width), "F32"),
            f"{at}.time_mix_first.weight": (10 * g.vector(width), "F32"),
            f"{at}.channel_mix_lerp_k.weight": (g.uniform(width), "F32"),
            f"{at}.channel_mix_lerp_r.weight": (g.uniform(width), "F32"),
            f"{at}.channel_mix_receptance.weight": (g.matrix(width, width), "Q8_0"),
        }
    sizes = ("layer_norm_epsilon", "context_length", "block_count", "embedding_length", "feed_forward_length")
    return tensors, {name: value for name, value in keys.items() if name.endswith(sizes)}


def deep_rwkv7(seed: int, *, attends: bool) -> tuple[Tensors, Keys]:
    """RWKV-7a, with a matrix per token that scales the input of the channel mix; or RWKV-7b, with a small attention."""
    width, inner, rank, size, vocabulary = 64, 96, 8, 32, 288
    tensors, keys = rwkv7(seed, width, inner, rank)
    g = Source(seed + 1)
    for i in range(2):
        at = f"blk.{i}.channel_mix_s"
        tensors |= {
            f"{at}_emb.weight": (g.matrix(vocabulary, rank * rank, gain=8), "Q8_0"),
            f"{at}1.weight": (g.matrix(rank, width), "F16"),
            f"{at}2.weight": (g.matrix(inner, rank), "F16"),
            f"{at}0.weight": (g.vector(inner, 1), "F32"),
        }
        at = f"blk.{i}.dea"
        for letter, count in {"q": size, "k": size, "v": width}.items() if attends else ():
            tensors |= {
                f"{at}_lerp_{letter}.weight": (g.uniform(count), "F32"),
                f"{at}_{letter}_norm.weight": (3 * g.vector(count, 1), "F32"),
                f"{at}_{letter}_norm.bias": (g.vector(count), "F32"),
            }
            if letter == "q":
                tensors[f"{at}_q.weight"] = g.matrix(size, width), "Q8_0"
                continue
            tensors |= {
                f"{at}_{letter}1.weight": (g.matrix(rank, width), "F16"),
                f"{at}_{letter}2.weight": (g.matrix(count, rank), "F16"),
                f"{at}_{letter}_emb.weight": (g.matrix(vocabulary, count, gain=5), "Q8_0"),
            }
    return tensors, keys | {"wkv.head_size": 32}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer, and the formats of its feed-forward."""

    width: int = 256
    inner: int = 512
    head: int = 64
    gates: str = "Q4_K"
    down: str = "Q6_K"


def transformer(
    seed: int,
    sizes: Sizes = Sizes(),
    *,
    norms: bool = False,
    biases: bool = False,
    experts: int = 0,
    layers: int = 2,
    kv: int = 2,
    heads: int = 4,
) -> tuple[Tensors, Keys]:
    """A transformer with several layers, and fewer heads of keys than of queries."""
    g, width, inner, size, vocabulary = Source(seed), sizes.width, sizes.inner, sizes.head, 288
    t: Tensors = {
        "token_embd.weight": (g.matrix(vocabulary, width, gain=8), "Q8_0"),
        "output_norm.weight": (g.vector(width, 1), "F32"),
        "output.weight": (g.matrix(vocabulary, width, gain=2.5), "Q8_0"),
    }
    for i in range(layers):
        at = f"blk.{i}"
        t |= {f"{at}.{name}.weight": (g.vector(width, 1), "F32") for name in ("attn_norm", "ffn_norm")}
        t |= {
            f"{at}.attn_q.weight": (g.matrix(heads * size, width), "Q8_0"),
            f"{at}.attn_k.weight": (g.matrix(kv * size, width), "Q5_1"),
            f"{at}.attn_v.weight": (g.matrix(kv * size, width), "Q8_0"),
            f"{at}.attn_output.weight": (g.matrix(width, heads * size), "Q5_0"),
        }
        if norms:
            t |= {f"{at}.attn_{name}_norm.weight": (g.vector(size, 1), "F32") for name in "qk"}
        if biases:
            lengths = {"q": heads * size, "k": kv * size, "v": kv * size}
            t |= {f"{at}.attn_{name}.bias": (g.vector(length), "F32") for name, length in lengths.items()}
        shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
        kinds = {"gate": sizes.gates, "up": sizes.gates, "down": sizes.down}
        for name, shape in shapes.items():
            many = (experts, *shape) if experts else shape
            key = f"{at}.ffn_{name}_exps.weight" if experts else f"{at}.ffn_{name}.weight"
            blank = kinds[name].endswith("_K")  # K-quants are random blocks: see `blocks`
            t[key] = np.empty(many, np.float32) if blank else g.matrix(*many), kinds[name]
        if experts:
            t[f"{at}.ffn_gate_inp.weight"] = g.matrix(experts, width, gain=2), "F32"
    keys: Keys = {
        "attention.head_count": heads, "attention.head_count_kv": kv, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0, "rope.dimension_count": size, "context_length": 1024,
        "block_count": layers, "embedding_length": width, "feed_forward_length": inner,
    }  # fmt: skip
    if norms:
        keys |= {"attention.key_length": size, "attention.value_length": size}
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": inner}
    return t, keys


def renamed(made: tuple[Tensors, Keys], names: dict[str, str], keys: Keys | None = None) -> tuple[Tensors, Keys]:
    """Renames parts of a model, drops those whose new name is empty, and adds metadata."""
    tensors: Tensors = {}
    for name, value in made[0].items():
        part = name.removesuffix(".weight").rpartition(".")[2]
        if names.get(part, part):
            tensors[name.replace(part, names.get(part, part))] = value
    return tensors, made[1] | (keys or {})


Made = tuple[Tensors, Keys]


def adding_embeddings(seed: int) -> Made:
    """A model whose layers add the embedding again. Only the norms of query heads have weights."""
    heads, g = 4, Source(seed + 1)
    tensors, keys = renamed(transformer(seed, SMALL), {"attn_norm": "", "ffn_norm": "", "output_norm": ""})
    for i, amount in enumerate((0.6, -0.3)):
        tensors[f"blk.{i}.attn_q_norm.weight"] = g.vector(heads, 1).reshape(heads, 1) * 3, "F32"
        tensors[f"blk.{i}.layer_output_scale.weight"] = np.array([amount], np.float32), "F32"
        tensors[f"blk.{i}.attn_output.scale"] = np.array([0.8], np.float32), "F32"
        tensors[f"blk.{i}.ffn_down.scale"] = np.array([1.4], np.float32), "F32"
    return tensors, keys | {"logit_scale": 0.7}


def layer_normed(made: Made, *, bias: bool = True) -> Made:
    """Replaces RMS norms by layer norms."""
    g, (tensors, keys) = Source(101), made
    shifts = {name.replace("norm.weight", "norm.bias"): name for name in tensors if name.endswith("norm.weight")}
    if bias:
        tensors |= {shift: (g.vector(tensors[name][0].size), "F32") for shift, name in shifts.items()}
    return tensors, keys | {"attention.layer_norm_epsilon": keys.pop("attention.layer_norm_rms_epsilon")}


def biased(made: Made, *parts: str) -> Made:
    """Adds biases to these matrices."""
    g, (tensors, keys) = Source(102), made
    names = [name for name in tensors if name.removesuffix(".weight").rpartition(".")[2] in parts]
    return tensors | {f"{name[:-6]}bias": (g.vector(tensors[name][0].shape[0]), "F32") for name in names}, keys


def fused(made: Made) -> Made:
    """Stacks q, k and v as rows of one matrix, and their biases likewise."""
    tensors, keys = made
    for i in range(int(keys["block_count"])):
        for end in ("weight", "bias"):
            names = [f"blk.{i}.attn_{name}.{end}" for name in "qkv"]
            if names[0] in tensors:
                parts = [tensors.pop(name) for name in names]
                tensors[f"blk.{i}.attn_qkv.{end}"] = np.concatenate([part for part, _ in parts]), parts[0][1]
    return tensors, keys


def routed(made: Made, *, shared: int = 0, selected: bool = False, leading: int = 0, keys: Keys | None = None) -> Made:
    """Adds a shared expert, a bias for choosing experts, and leading dense layers."""
    g, (tensors, old) = Source(103), made
    width, inner, experts = (int(old[key]) for key in ("embedding_length", "feed_forward_length", "expert_count"))
    for i in range(int(old["block_count"])):
        at = f"blk.{i}"
        if i < leading:
            for name in ("gate", "up", "down"):
                values, kind = tensors.pop(f"{at}.ffn_{name}_exps.weight")
                tensors[f"{at}.ffn_{name}.weight"] = np.concatenate([values[0], values[1]], int(name == "down")), kind
            del tensors[f"{at}.ffn_gate_inp.weight"]
            continue
        for name in ("gate", "up", "down") if shared else ():
            shape = (width, shared) if name == "down" else (shared, width)
            tensors[f"{at}.ffn_{name}_shexp.weight"] = g.matrix(*shape), "Q8_0"
        if selected:
            tensors[f"{at}.exp_probs_b.bias"] = g.vector(experts), "F32"
    dense: Keys = {"leading_dense_block_count": leading, "feed_forward_length": 2 * inner} if leading else {}
    sizes: Keys = {"expert_shared_feed_forward_length": shared} if shared else {}
    return tensors, old | dense | sizes | (keys or {})


def with_image_matrices(made: Made) -> Made:
    """Adds a second copy of each layer's matrices, which images use."""
    g, (tensors, keys) = Source(117), made
    names = {
        "attn_qkv": "attn_qkv",
        "attn_output": "attn_output",
        "ffn_gate": "gate",
        "ffn_down": "down",
        "ffn_up": "up",
    }
    return tensors | {
        f"blk.{i}.vis_{own}.weight": (g.matrix(*tensors[f"blk.{i}.{name}.weight"][0].shape), "Q4_0")
        for i in range(int(keys["block_count"]))
        for name, own in names.items()
    }, keys


def whole_norms(made: Made) -> Made:
    """Adds norms of q and k over all heads."""
    g, (tensors, keys) = Source(104), made
    names = [(name, t) for name, (t, _) in tensors.items() if name.endswith(("attn_q.weight", "attn_k.weight"))]
    return tensors | {f"{name[:-7]}_norm.weight": (g.vector(t.shape[0], 1), "F32") for name, t in names}, keys


def sections(made: Made) -> Made:
    """Rotates sections of a head by different positions, which are equal in text."""
    return made[0], made[1] | {"rope.dimension_sections": [3, 3, 2, 0]}


def head_layer_norms(made: Made) -> Made:
    """Adds layer norms of each head, with separate weights."""
    g, (tensors, keys) = Source(110), made
    size = int(keys["rope.dimension_count"])
    names = [(name, t) for name, (t, _) in tensors.items() if name.endswith(("attn_q.weight", "attn_k.weight"))]
    norms = {f"{name[:-7]}_norm.weight": g.vector(t.shape[0], 1).reshape(-1, size) for name, t in names}
    return tensors | {name: (norm, "F32") for name, norm in norms.items()}, keys


def head_norms_biased(made: Made) -> Made:
    """Adds biases to the norms of heads."""
    g, (tensors, keys) = Source(176), made
    norms = {name: t for name, (t, _) in tensors.items() if name.endswith(("q_norm.weight", "k_norm.weight"))}
    biases = {f"{name[:-6]}bias": (g.vector(t.size).reshape(t.shape), "F32") for name, t in norms.items()}
    return tensors | biases, keys


def with_images(plain: Tensors) -> Tensors:
    """Adds tokens of images. llama.cpp overwrites the logits of these ids."""
    rows = {name: plain[name][0] for name in ("token_embd.weight", "output.weight")}
    gap = [IMAGES.start] * (IMAGES.stop - IMAGES.start)
    return plain | {name: (np.insert(values, gap, 0, axis=0), "F32") for name, values in rows.items()}


def norm_biased(made: Made) -> Made:
    """Adds biases to the norms before branches and before the head."""
    g, (tensors, keys) = Source(113), made
    norms = [name for name in tensors if name.endswith("norm.weight")]
    return tensors | {f"{name[:-6]}bias": (g.vector(tensors[name][0].size), "F32") for name in norms}, keys


def with_factors(made: Made) -> Made:
    """Adds frequency factors for short and for long contexts."""
    pairs = int(made[1]["rope.dimension_count"]) // 2
    factors = {"short": np.linspace(1, 2, pairs), "long": np.linspace(1, 8, pairs)}
    own: Tensors = {f"rope_factors_{name}.weight": (f.astype(np.float32), "F32") for name, f in factors.items()}
    keys: Keys = {"rope.scaling.attn_factor": 1.2, "rope.scaling.original_context_length": 4096}
    return made[0] | own, made[1] | keys


def headless(made: Made) -> Made:
    """Uses the embedding as the head, and makes it smaller: otherwise logits are three times larger."""
    tensors, keys = renamed(made, {"output": ""})
    embedding, kind = tensors["token_embd.weight"]
    return tensors | {"token_embd.weight": (0.3 * embedding, kind)}, keys


def placed(seed: int, kv: int) -> Made:
    """A small GPT-2: learned positions, layer norms, and biases everywhere."""
    plain = headless(renamed(transformer(seed, SMALL, biases=True, kv=kv), GATELESS))
    tensors, keys = fused(biased(layer_normed(plain), *OUTPUTS, "ffn_up"))
    return tensors | {"position_embd.weight": (Source(seed + 1).matrix(1024, 64, gain=8), "Q4_0")}, keys


def bloom(seed: int) -> Made:
    """A small BLOOM: layer norms, also of embeddings, and biases everywhere."""
    plain = headless(renamed(transformer(seed, SMALL, biases=True, kv=4), GATELESS))
    plain[0]["token_embd_norm.weight"] = Source(seed + 1).vector(64, 1), "F32"
    return fused(biased(layer_normed(plain), *OUTPUTS, "ffn_up"))


def normed_inside(made: Made) -> Made:
    """Adds norms of the input of each branch's last matrix."""
    g, (tensors, keys) = Source(112), made
    names = {"attn_output": "attn_sub_norm", "ffn_down": "ffn_sub_norm"}
    norms: Tensors = {}
    for name, (values, _) in tensors.items():
        part = name.removesuffix(".weight").rpartition(".")[2]
        if part in names:
            norms[name.replace(part, names[part])] = g.vector(values.shape[-1], 1), "F32"
    return tensors | norms, keys


def scaled(made: Made) -> Made:
    """Adds scales to the matrices of layers and to each expert's. The router has none."""
    g, (tensors, keys) = Source(111), made
    scales: Tensors = {}
    for name, (values, _) in tensors.items():
        part = name.removesuffix(".weight").rpartition(".")[2]
        if values.ndim > 1 and part not in ("token_embd", "output", "ffn_gate_inp") and not part.endswith("norm"):
            count = values.shape[0] if values.ndim > 2 else 1
            scales[f"{name.removesuffix('weight')}scale"] = (0.5 + g.uniform(count), "F32")
    return tensors | scales, keys


SMALL = Sizes(64, 96, 16, "Q8_0", "Q8_0")
FEW_EXPERTS = Sizes(64, 32, 16, "Q8_0", "Q8_0")
HALF: Keys = {"rope.dimension_count": 8}  # numbers of a head that rotate
OUTPUTS = "attn_output", "ffn_down"
MEAN, FIRST, LAST, RANK = 1, 2, 3, 4  # the metadata value for pooling
PLACES = 64  # rows of positions
IMAGES = slice(4, 8196)  # ids of image tokens in chameleon; golden files do not have them
TYPES = "tokenizer.ggml.token_type_count"


def without_suffix(made: Made) -> Made:
    """Renames the biases for choosing experts: their names have no suffix."""
    return {name.replace("exp_probs_b.bias", "exp_probs_b"): value for name, value in made[0].items()}, made[1]


def feed_fused(made: Made, suffix: str = "") -> Made:
    """Stacks gate and up as rows of one matrix. A suffix names those of shared experts."""
    tensors, keys = made
    for i in range(int(keys["block_count"])):
        (gate, kind), (up, _) = (tensors.pop(f"blk.{i}.ffn_{name}{suffix}.weight") for name in ("gate", "up"))
        tensors[f"blk.{i}.ffn_up{suffix}.weight"] = np.concatenate([gate, up]), kind
    return tensors, keys


def gated_share(made: Made) -> Made:
    """Adds a gate to the shared expert."""
    g, (tensors, keys) = Source(105), made
    width = int(keys["embedding_length"])
    gates = {f"blk.{i}.ffn_gate_inp_shexp.weight": (g.vector(width), "F32") for i in range(int(keys["block_count"]))}
    return tensors | gates, keys


def gated_attention(made: Made) -> Made:
    """Adds gates to the output of attention."""
    g, (tensors, keys) = Source(106), made
    shapes = {name: t.shape for name, (t, _) in tensors.items() if name.endswith("attn_q.weight")}
    gates = {name.replace("attn_q", "attn_gate"): (g.matrix(*shape), "Q8_0") for name, shape in shapes.items()}
    return tensors | gates, keys


def gated_heads(made: Made) -> Made:
    """Adds a gate to each head."""
    g, (tensors, keys) = Source(109), made
    heads, width = int(keys["attention.head_count"]), int(keys["embedding_length"])
    names = [f"blk.{i}.attn_gate.weight" for i in range(int(keys["block_count"]))]
    return tensors | {name: (g.matrix(heads, width), "F16") for name in names}, keys


def normed_after(made: Made) -> Made:
    """Adds norms after each branch."""
    g, (tensors, keys) = Source(107), made
    width, layers = int(keys["embedding_length"]), range(int(keys["block_count"]))
    names = [f"blk.{i}.{name}.weight" for i in layers for name in ("post_attention_norm", "post_ffw_norm")]
    return tensors | {name: (g.vector(width, 1), "F32") for name in names}, keys


def feed_normed_as_attention(made: Made) -> Made:
    """Makes both branches read the same norm."""
    return renamed(made, {"ffn_norm": ""})


def with_sinks(made: Made) -> Made:
    """Adds attention sinks: a score for each head, without a value."""
    g, (tensors, keys) = Source(108), made
    layers, heads = range(int(keys["block_count"])), int(keys["attention.head_count"])
    return tensors | {f"blk.{i}.attn_sinks.weight": (g.vector(heads, 1), "F32") for i in layers}, keys


def without_weight(made: Made, *parts: str) -> Made:
    """Removes the suffix `.weight` from the names of these parts."""
    return {
        name.removesuffix(".weight") if name.removesuffix(".weight").endswith(parts) else name: value
        for name, value in made[0].items()
    }, made[1]


def latent(seed: int, layers: int = 2) -> Made:
    """Two or more layers of latent attention with three heads. All layers except the first have experts."""
    g, width, heads, nope, rotary, value, rank, low = Source(seed), 64, 3, 16, 8, 24, 32, 40
    tensors, keys = routed(
        transformer(seed, FEW_EXPERTS, experts=4, layers=layers),
        shared=32,
        leading=1,
        keys={"expert_weights_norm": True},
    )
    for i in range(layers):
        at = f"blk.{i}.attn"
        for name in ("q", "k", "v", "output"):
            del tensors[f"{at}_{name}.weight"]
        tensors |= {
            f"{at}_q_a.weight": (g.matrix(low, width), "F16"),
            f"{at}_q_a_norm.weight": (g.vector(low, 1), "F32"),
            f"{at}_q_b.weight": (g.matrix(heads * (nope + rotary), low, gain=2), "F16"),
            f"{at}_kv_a_mqa.weight": (g.matrix(rank + rotary, width), "Q8_0"),
            f"{at}_kv_a_norm.weight": (g.vector(rank, 1), "F32"),
            f"{at}_k_b.weight": (g.matrix(heads, rank, nope, gain=2), "F16"),
            f"{at}_v_b.weight": (g.matrix(heads, value, rank), "Q8_0"),
            f"{at}_output.weight": (g.matrix(width, heads * value), "F16"),
        }
    sizes: Keys = {
        "attention.head_count": heads, "attention.head_count_kv": 1, "attention.q_lora_rank": low,
        "attention.kv_lora_rank": rank, "attention.key_length": rank + rotary, "attention.value_length": rank,
        "attention.key_length_mla": nope + rotary, "attention.value_length_mla": value,
        "rope.dimension_count": rotary, "expert_shared_count": 1,
    }  # fmt: skip
    return tensors, keys | sizes


def indexed(seed: int, layers: int, owners: tuple[int, ...], keys: Keys) -> Made:
    """Adds indexers, which select 12 keys, to some layers."""
    (tensors, made), g = latent(seed, layers), Source(seed + 1)
    width, low, heads, size = 64, 40, 8, 64
    for i in owners:
        at = f"blk.{i}.indexer"
        tensors |= {
            f"{at}.attn_q_b.weight": (g.matrix(heads * size, low), "F16"),
            f"{at}.attn_k.weight": (g.matrix(size, width), "Q8_0"),
            f"{at}.k_norm.weight": (g.vector(size, 1), "F32"),
            f"{at}.k_norm.bias": (g.vector(size), "F32"),
            f"{at}.proj.weight": (g.matrix(heads, width), "F32"),
        }
    sizes: Keys = {"head_count": heads, "key_length": size, "top_k": 12}
    return tensors, made | {f"attention.indexer.{key}": value for key, value in sizes.items()} | keys


def dots3(seed: int, layers: int = 3) -> Made:
    """Layers with an indexer around one with a window, which has more heads and larger latents. All have gates."""
    tensors, keys = indexed(seed, layers, (0, 2), SIGMOID | WINDOWS)
    g, width, heads, nope, rotary, value, rank, low = Source(seed + 2), 64, [3, 5, 3], 24, 8, 16, 40, 40
    for i, count in enumerate(heads):
        at = f"blk.{i}.attn"
        tensors |= {
            f"{at}_k_norm.weight": (g.vector(rotary, 1), "F32"),
            f"{at}_gate.weight": (g.matrix(count, width), "F16"),
        }
        if i:
            tensors[f"blk.{i}.exp_probs_b.bias"] = g.vector(4), "F32"
    tensors |= {
        "blk.1.attn_q_b.weight": (g.matrix(5 * (nope + rotary), low, gain=2), "F16"),
        "blk.1.attn_kv_a_mqa.weight": (g.matrix(rank + rotary, width), "Q8_0"),
        "blk.1.attn_kv_a_norm.weight": (g.vector(rank, 1), "F32"),
        "blk.1.attn_k_b.weight": (g.matrix(5, rank, nope, gain=2), "F16"),
        "blk.1.attn_v_b.weight": (g.matrix(5, value, rank), "F16"),
        "blk.1.attn_output.weight": (g.matrix(width, 5 * value), "F16"),
    }
    own: Keys = {
        "attention.head_count": heads, "attention.sliding_window_pattern": [False, True, False],
        "attention.indexer.types": [True, False, True], "attention.kv_lora_rank_swa": rank,
        "attention.key_length_swa": rank + rotary, "attention.value_length_swa": rank,
        "attention.key_length_mla_swa": nope + rotary, "attention.value_length_mla_swa": value,
        "rope.freq_base": 8e7, "rope.freq_base_swa": 1000.0,
    }  # fmt: skip
    return tensors, keys | own


def deepseek4(seed: int) -> Made:
    """A small DeepSeek-V4: layers with a window alone, with overlapping blocks and an indexer, and with long blocks."""
    ratios, width, heads, size, low, groups, out_low, index_heads, index_size = (
        [0, 4, 128, 4],
        64,
        4,
        32,
        40,
        2,
        24,
        8,
        64,
    )
    tensors, keys = routed(transformer(seed, FEW_EXPERTS, experts=4, layers=4), shared=32)
    g, streams, vocabulary = Source(seed + 1), 4, len(tensors["token_embd.weight"][0])

    def compressor(at: str, numbers: int, ratio: int) -> Tensors:
        whole = (2 if ratio == 4 else 1) * numbers
        return {
            f"{at}_kv.weight": (g.matrix(whole, width), "F16"),
            f"{at}_gate.weight": (g.matrix(whole, width, gain=2), "F16"),
            f"{at}_ape.weight": (10 * g.vector(ratio * whole).reshape(ratio, whole), "F32"),
            f"{at}_norm.weight": (g.vector(numbers, 1), "F32"),
        }

    rows = (2 + streams) * streams
    for at, scales, count in [
        ("output_hc", 1, streams),
        *((f"blk.{i}.hc_{name}", 3, rows) for i in range(4) for name in ("attn", "ffn")),
    ]:
        tensors |= {
            f"{at}_fn.weight": (g.matrix(count, streams * width), "F32"),
            f"{at}_base.weight": (5 * g.vector(count), "F32"),
            f"{at}_scale.weight": (g.vector(scales, 1), "F32"),
        }
    for i, ratio in enumerate(ratios):
        at = f"blk.{i}.attn"
        for name in ("q", "k", "v", "output"):
            del tensors[f"{at}_{name}.weight"]
        tensors |= {
            f"{at}_q_a.weight": (g.matrix(low, width), "F16"),
            f"{at}_q_a_norm.weight": (g.vector(low, 1), "F32"),
            f"{at}_q_b.weight": (g.matrix(heads * size, low), "F16"),
            f"{at}_kv.weight": (g.matrix(size, width), "Q8_0"),
            f"{at}_kv_a_norm.weight": (g.vector(size, 2), "F32"),
            f"{at}_output_a.weight": (g.matrix(groups * out_low, heads // groups * size), "Q8_0"),
            f"{at}_output_b.weight": (g.matrix(width, groups * out_low), "F16"),
            f"{at}_sinks.weight": (g.vector(heads, 1), "F32"),
        }
        if ratio:
            tensors |= compressor(f"{at}_compressor", size, ratio)
        if ratio == 4:
            tensors |= compressor(f"blk.{i}.indexer_compressor", index_size, ratio) | {
                f"blk.{i}.indexer.attn_q_b.weight": (g.matrix(index_heads * index_size, low), "F16"),
                f"blk.{i}.indexer.proj.weight": (g.matrix(index_heads, width), "F32"),
            }
        if i:
            tensors[f"blk.{i}.exp_probs_b.bias"] = g.vector(4), "F32"
        else:
            chosen = g.rng.permuted(np.tile(np.arange(4, dtype=np.int32), (vocabulary, 1)), axis=1)[:, :2]
            tensors[f"blk.{i}.ffn_gate_tid2eid.weight"] = np.ascontiguousarray(chosen), "I32"
    own: Keys = {
        "attention.head_count": heads, "attention.head_count_kv": 1, "attention.key_length": size,
        "attention.value_length": size, "attention.q_lora_rank": low, "attention.sliding_window": 8,
        "attention.output_group_count": groups, "attention.output_lora_rank": out_low,
        "attention.compress_ratios": ratios, "attention.compress_rope_freq_base": 2000.0, "hash_layer_count": 1,
        "attention.indexer.head_count": index_heads, "attention.indexer.key_length": index_size,
        "attention.indexer.top_k": 3, "hyper_connection.count": streams, "hyper_connection.epsilon": 0.001,
        "hyper_connection.sinkhorn_iterations": 5, "swiglu_clamp_exp": [0.4] * 4, "swiglu_clamp_shexp": [0.5] * 4,
        "rope.dimension_count": 8, "embedding_length_out": streams * width,
    }  # fmt: skip
    return tensors, keys | YARN | SIGMOID | own | {"expert_gating_func": 4}


def hyper(seed: int) -> Made:
    """A small Hy4: four residual streams, sinks, gates for each number, clamped experts, indexers in two of three
    layers.
    """
    owners: Keys = {"attention.indexer.types": [True, False, True]}
    (tensors, keys), g = indexed(seed, 3, (0, 2), SIGMOID | owners), Source(seed + 2)
    width, heads, value, streams = 64, 3, 24, 4
    names = [("output_hc", 1), *((f"blk.{i}.hc_{name}", 2) for i in range(3) for name in ("attn", "ffn"))]
    for at, kinds in names:
        tensors |= {
            f"{at}_fn.weight": (g.matrix(kinds * streams, streams * width), "F32"),
            f"{at}_base.weight": (5 * g.vector(kinds * streams), "F32"),
            f"{at}_scale.weight": (g.vector(kinds, 1), "F32"),
        }
    for i in range(3):
        tensors |= {
            f"blk.{i}.attn_sinks.weight": (g.vector(heads, 1), "F32"),
            f"blk.{i}.attn_gate.weight": (g.matrix(heads * value, width), "F16"),
        }
        if i:
            tensors[f"blk.{i}.exp_probs_b.bias"] = g.vector(4), "F32"
    own: Keys = {
        "hyper_connection.count": streams, "hyper_connection.epsilon": 0.01, "hyper_connection.magnitude": 2.0,
        "swiglu_clamp_exp": [0.4] * 3,
    }  # fmt: skip
    return tensors, keys | own


def glm5next(seed: int, layers: int = 4) -> Made:
    """A small GLM-5.3-Flash: KDA in layers 0 and 2; in others, latent attention to 3 blocks of 4 positions."""
    (tensors, keys), (delta, more) = indexed(seed, layers, (1, 3), SIGMOID), kimi_k3(seed)
    g, width, heads, nope, rank, low, size, streams, block = Source(seed + 3), 64, 3, 24, 32, 40, 64, 4, 4
    for i in range(layers):
        at = f"blk.{i}"
        if i % 2:
            tensors |= {
                f"{at}.attn_q_b.weight": (g.matrix(heads * nope, low, gain=2), "F16"),
                f"{at}.attn_kv_a_mqa.weight": (g.matrix(rank, width), "Q8_0"),
                f"{at}.attn_k_b.weight": (g.matrix(heads, rank, nope, gain=2), "F16"),
                f"{at}.indexer_compressor_gate.weight": (g.matrix(size, width, gain=2), "F16"),
                f"{at}.indexer_compressor_ape.weight": (10 * g.vector(block * size).reshape(block, size), "F32"),
            }
        else:
            for name in [one for one in tensors if one.startswith(f"{at}.attn_") and "norm.w" not in one]:
                del tensors[name]
            del tensors[f"{at}.attn_q_a_norm.weight"], tensors[f"{at}.attn_kv_a_norm.weight"]
            kda = {
                n: one for n, one in delta.items() if n.startswith(("blk.0.attn_", "blk.0.ssm_")) and "score" not in n
            }
            tensors |= {n.replace("blk.0", at): one for n, one in kda.items() if n not in ("blk.0.ssm_g.weight",)}
            inner = heads * 32
            tensors |= {
                f"{at}.ssm_g_a.weight": (g.matrix(32, width), "Q8_0"),
                f"{at}.ssm_g_b.weight": (g.matrix(inner, 32), "Q8_0"),
            }
        for name in ("attn", "ffn"):
            tensors |= {
                f"{at}.hc_{name}_fn.weight": (g.matrix((2 + streams) * streams, streams * width), "F32"),
                f"{at}.hc_{name}_base.weight": (5 * g.vector((2 + streams) * streams), "F32"),
                f"{at}.hc_{name}_scale.weight": (g.vector(3, 1), "F32"),
            }
        if i:
            tensors[f"{at}.exp_probs_b.bias"] = g.vector(4), "F32"
    own: Keys = {
        "attention.head_count_kv": [i % 2 for i in range(layers)], "attention.indexer.kpool": block,
        "attention.key_length": rank, "attention.key_length_mla": nope, "rope.dimension_count": 0,
        "attention.layer_norm_epsilon": 1e-6, "hyper_connection.count": streams, "hyper_connection.epsilon": 0.001,
        "hyper_connection.sinkhorn_iterations": 5, "swiglu_clamp_exp": [0.4] * layers,
        "swiglu_clamp_shexp": [0.4] * layers,
    }  # fmt: skip
    of_delta = {name: value for name, value in more.items() if name.startswith(("ssm.", "kda."))}
    return tensors, keys | of_delta | own


def switched(made: Made, tokens: list[int], substitutes: list[int], rank: int = 8) -> Made:
    """Adds adapters of all matrices, which tokens choose."""
    (tensors, keys), g, slots = made, Source(188), len(tokens) + 1
    for i in range(int(keys["block_count"])):
        at = f"blk.{i}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            rows, columns = tensors[f"{at}.{name}.weight"][0].shape
            a, b = g.matrix(slots, rank, columns), g.matrix(slots, rows, rank)
            a[0], b[0] = 0, 0
            tensors |= {f"{at}.{name}.lora_a": (a, "F16"), f"{at}.{name}.lora_b": (b, "F16")}
    own: Keys = {
        "adapters.count": len(tokens), "adapters.lora_rank": rank, "adapters.token_ids_activate": tokens,
        "adapters.token_ids_substitute": substitutes, "adapters.router_gain": 15.0, "expert_used_count": 0,
    }  # fmt: skip
    return fused((tensors, keys | own))


def unmasking(made: Made, *, shifted: bool) -> Made:
    """Turns the model into a diffusion model, whose mask is an unused token."""
    keys: Keys = {"tokenizer.ggml.mask_token_id": 280, "attention.causal": False}
    return made[0], made[1] | keys | ({} if shifted else {"diffusion.shift_logits": False})


def older_latent(seed: int, q_rank: int = 40) -> Made:
    """Two dense layers of latent attention with three heads. One matrix produces both keys and values."""
    g, width, heads, nope, rotary, value, rank = Source(seed), 64, 3, 16, 8, 24, 32
    tensors, keys = transformer(seed, SMALL)
    embedding, kind = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = 0.3 * embedding, kind  # otherwise logits are three times as large as elsewhere
    for i in range(2):
        at = f"blk.{i}.attn"
        for name in ("q", "k", "v", "output"):
            del tensors[f"{at}_{name}.weight"]
        rows = heads * (nope + rotary)
        if q_rank:
            tensors |= {
                f"{at}_q_a.weight": (g.matrix(q_rank, width), "F16"),
                f"{at}_q_a_norm.weight": (g.vector(q_rank, 1), "F32"),
                f"{at}_q_b.weight": (g.matrix(rows, q_rank), "F16"),
            }
        else:
            tensors[f"{at}_q.weight"] = g.matrix(rows, width), "F16"
        tensors |= {
            f"{at}_kv_a_mqa.weight": (g.matrix(rank + rotary, width), "Q8_0"),
            f"{at}_kv_a_norm.weight": (g.vector(rank, 1), "F32"),
            f"{at}_kv_b.weight": (g.matrix(heads * (nope + value), rank, gain=2), "F16"),  # because it is transposed
            f"{at}_output.weight": (g.matrix(width, heads * value), "F16"),
        }
    sizes: Keys = {
        "attention.head_count": heads, "attention.head_count_kv": heads, "attention.kv_lora_rank": rank,
        "attention.key_length": nope + rotary, "attention.value_length": value, "rope.dimension_count": rotary,
    }  # fmt: skip
    return tensors, keys | sizes | ({"attention.q_lora_rank": q_rank} if q_rank else {})


def openelm(seed: int) -> Made:
    """Two layers with different numbers of heads and different widths of their feed-forwards."""
    tensors, keys = transformer(seed, SMALL, norms=True)
    narrow, _ = transformer(seed + 1, Sizes(64, 64, 16, "Q8_0", "Q8_0"), norms=True, kv=1)
    tensors |= {name: value for name, value in narrow.items() if name.startswith("blk.1.")}
    embedding, kind = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = 0.3 * embedding, kind  # otherwise logits are three times as large as elsewhere
    made = renamed((tensors, keys), {"output": ""})
    lists: Keys = {"feed_forward_length": [96, 64], "attention.head_count": [4, 4], "attention.head_count_kv": [2, 1]}
    return fused((made[0], made[1] | lists))


def step35(seed: int) -> Made:
    """Five layers. Those with a window have more heads; the first is dense; some gates have limits."""

    def made(seed: int, heads: int) -> Made:
        plain = transformer(seed, FEW_EXPERTS, experts=4, norms=True, layers=5, heads=heads)
        return gated_heads(routed(plain, shared=32, selected=True, leading=1, keys=SIGMOID | WINDOWS))

    (tensors, keys), (more, _), windows = made(seed, 4), made(seed + 1, 6), [False, True, True, False, True]
    for i, window in enumerate(windows):
        if window:
            tensors |= {name: value for name, value in more.items() if name.startswith(f"blk.{i}.")}
    own: Keys = {
        "attention.head_count": [6 if window else 4 for window in windows], "attention.head_count_kv": [2] * 5,
        "attention.sliding_window_pattern": windows, "rope.freq_base": 5e6, "rope.freq_base_swa": 1000.0,
        "swiglu_clamp_exp": [0.0, 0.3, 0.0, 0.5, 0.2], "swiglu_clamp_shexp": [0.4, 0.0, 0.0, 0.3, 0.5],
    }  # fmt: skip
    return tensors, keys | own


def gemma3n(seed: int, layers: int = 11) -> Made:
    """Narrow layers; the first ten have sparse activations. Sizes that llama.cpp fixes are as large as there."""
    g, width, low, rank, streams = Source(seed), 32, 256, 64, 4
    plain = normed_after(
        transformer(seed, Sizes(width, 128, 16, "Q4_0", "Q4_0"), norms=True, layers=layers, kv=1, heads=2)
    )
    tensors, keys = renamed(plain, {"output": ""})
    embedding, kind = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = 0.3 * embedding, kind  # else logits are capped
    tensors |= {
        "altup_proj.weight": (g.matrix(streams - 1, width, width), "F16"),
        "altup_unembd_proj.weight": (g.matrix(streams - 1, width, width), "F16"),
        "per_layer_token_embd.weight": (g.matrix(288, low * layers, gain=16), "Q1_0"),
        "per_layer_model_proj.weight": (g.matrix(low * layers, width), "Q4_0"),
        "per_layer_proj_norm.weight": (g.vector(low, 1), "F32"),
    }
    for i in range(layers):
        at = f"blk.{i}"
        tensors |= {
            f"{at}.inp_gate.weight": (g.matrix(low, width), "Q4_0"),
            f"{at}.proj.weight": (g.matrix(width, low), "Q4_0"),
            f"{at}.laurel_l.weight": (g.matrix(rank, width), "Q4_0"),
            f"{at}.laurel_r.weight": (g.matrix(width, rank), "Q4_0"),
            f"{at}.altup_router.weight": (width * g.matrix(streams, width), "F32"),
            f"{at}.altup_predict_coef.weight": (0.1 * g.matrix(streams * streams, streams), "F32"),
            f"{at}.altup_correct_coef.weight": (0.3 * g.matrix(streams, streams), "F32"),
            f"{at}.altup_correct_scale.weight": (g.vector(width, 1), "F32"),
        }
        names = "post_norm", "laurel_post_norm", "altup_router_norm"
        tensors |= {f"{at}.{name}.weight": (g.vector(width, 1), "F32") for name in names}
    windows = [i % 5 != 4 for i in range(layers)]
    own: Keys = {
        "attention.sliding_window": 16, "attention.sliding_window_pattern": windows, "rope.freq_base": 1e6,
        "embedding_length_per_layer_input": low,
    }  # fmt: skip
    return tensors, keys | own


def mimo2(seed: int) -> Made:
    """Five layers whose keys are wider than their values. The first is dense; two have windows and sinks."""
    key, value, windows = 24, 16, [False, True, True, False, True]
    plain = transformer(seed, FEW_EXPERTS, experts=4, layers=5)
    sunk, keys = with_sinks(routed(plain, selected=True, leading=1, keys={"expert_gating_func": 2} | WINDOWS))
    g, width, kv_heads = Source(seed + 1), 64, [2 if window else 1 for window in windows]
    tensors = {name: sunk[name] for name in sunk if "sinks" not in name or windows[int(name.split(".")[1])]}
    for i, kv in enumerate(kv_heads):
        rows = {"q": 4 * key, "k": kv * key, "v": kv * value}
        tensors |= {f"blk.{i}.attn_{name}.weight": (g.matrix(count, width), "Q8_0") for name, count in rows.items()}
    own: Keys = {
        "attention.key_length": key, "attention.value_length": value, "attention.head_count_kv": kv_heads,
        "attention.sliding_window_pattern": windows, "attention.value_scale": 0.7, "rope.freq_base": 5e6,
        "rope.dimension_count": 8,
    }  # fmt: skip
    return fused((tensors, keys | own))


def deci(seed: int) -> Made:
    """Five layers: complete, with one matrix for attention, without attention, empty, and narrow."""
    tensors, keys = transformer(seed, SMALL, layers=5)
    narrow, _ = transformer(seed + 1, Sizes(64, 64, 16, "Q8_0", "Q8_0"), layers=5, kv=1)
    tensors |= {name: value for name, value in narrow.items() if name.startswith("blk.4.")}
    left_out = "blk.1.attn_q", "blk.1.attn_k", "blk.1.attn_v", "blk.2.attn", "blk.3."
    lists: Keys = {
        "attention.head_count": [4, 4, 0, 0, 4],
        "attention.head_count_kv": [2, 0, 0, 0, 1],
        "feed_forward_length": [96, 96, 96, 0, 64],
        "attention.key_length": 16,
        "attention.value_length": 16,
    }
    return {name: value for name, value in tensors.items() if not name.startswith(left_out)}, keys | lists


def plamo2(seed: int) -> Made:
    """Three layers: Mamba, attention, Mamba. Norms of heads have separate weights."""
    g = Source(seed)
    tensors, keys = fused(feed_fused(normed_after(transformer(seed, SMALL, layers=3))))
    width, heads, size, state, rank = 64, 4, 16, 32, 64
    inner = heads * size
    for i in (0, 2):
        for name in ("qkv", "output"):
            del tensors[f"blk.{i}.attn_{name}.weight"]
        at = f"blk.{i}.ssm"
        tensors |= {
            f"{at}_in.weight": (g.matrix(2 * inner, width), "Q8_0"),
            f"{at}_conv1d.weight": (g.matrix(inner, 4), "F32"),
            f"{at}_x.weight": (g.matrix(2 * state + rank, inner), "Q8_0"),
            f"{at}_dt.weight": (g.matrix(heads, rank), "Q8_0"),
            f"{at}_dt.bias": (g.vector(heads), "F32"),
            f"{at}_a": (-g.uniform(heads) - 0.5, "F32"),
            f"{at}_d": (g.uniform(heads), "F32"),
            f"{at}_out.weight": (g.matrix(width, inner), "Q8_0"),
        }
        sizes = {"dt": rank, "b": state, "c": state}
        tensors |= {f"{at}_{name}_norm": (g.vector(length, 1), "F32") for name, length in sizes.items()}
    for name, count in (("q", 4), ("k", 2)):
        tensors[f"blk.1.attn_{name}_norm.weight"] = g.vector(count * 16, 1).reshape(count, 16), "F32"
    more: Keys = {
        "attention.head_count": [0, 4, 0], "attention.head_count_kv": [0, 2, 0], "attention.key_length": 16,
        "attention.value_length": 16, "ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state,
        "ssm.time_step_rank": heads, "ssm.group_count": 0,
    }  # fmt: skip
    return without_weight((tensors, keys | more), "post_attention_norm", "post_ffw_norm")


def jamba(seed: int) -> Made:
    """Three layers: Mamba with norms, attention, Mamba. The last two have experts."""
    tensors, keys = transformer(seed, FEW_EXPERTS, experts=4, layers=3)
    del tensors["blk.0.ffn_gate_inp.weight"]
    for name in ("gate", "up", "down"):
        values, kind = tensors.pop(f"blk.0.ffn_{name}_exps.weight")
        tensors[f"blk.0.ffn_{name}.weight"] = values[0], kind
    g, width, inner, state, rank = Source(seed), 64, 128, 16, 32
    for i in (0, 2):
        for name in ("q", "k", "v", "output"):
            del tensors[f"blk.{i}.attn_{name}.weight"]
        at = f"blk.{i}.ssm"
        tensors |= {
            f"{at}_in.weight": (g.matrix(2 * inner, width), "Q8_0"),
            f"{at}_conv1d.weight": (g.matrix(inner, 4), "F32"),
            f"{at}_conv1d.bias": (g.vector(inner), "F32"),
            f"{at}_x.weight": (g.matrix(rank + 2 * state, inner), "Q8_0"),
            f"{at}_dt.weight": (g.matrix(inner, rank), "F32"),
            f"{at}_dt.bias": (g.vector(inner), "F32"),
            f"{at}_a": (-g.uniform(inner, state) - 0.5, "F32"),
            f"{at}_d": (g.uniform(inner), "F32"),
            f"{at}_out.weight": (g.matrix(width, inner), "Q8_0"),
        }
        lengths = {"dt": rank, "b": state, "c": state}
        tensors |= {f"{at}_{name}_norm.weight": (g.vector(length, 1), "F32") for name, length in lengths.items()}
    more: Keys = {
        "attention.head_count_kv": [0, 2, 0], "ssm.conv_kernel": 4, "ssm.inner_size": inner,
        "ssm.state_size": state, "ssm.time_step_rank": rank,
    }  # fmt: skip
    del keys["expert_feed_forward_length"]  # experts are as wide as the other layers' feed-forward
    return tensors, keys | more


def ling(seed: int) -> Made:
    """A small Ling 3: KDA with bounded decays, latent attention with a gate for each head, experts in layer 2."""
    tensors, keys = latent(seed)
    g, width, heads, size = Source(seed + 1), 64, 3, 32
    tensors = {name: value for name, value in tensors.items() if not name.startswith("blk.0.attn_") or "norm.w" in name}
    del tensors["blk.0.attn_q_a_norm.weight"], tensors["blk.0.attn_kv_a_norm.weight"]
    inner, at = heads * size, "blk.0"
    for name in "qkv":
        tensors[f"{at}.attn_{name}.weight"] = g.matrix(inner, width), "Q8_0"
        tensors[f"{at}.ssm_conv1d_{name}.weight"] = g.matrix(1, inner, 1, 4), "F32"
    tensors |= {
        f"{at}.ssm_f_a.weight": (g.matrix(inner, width), "Q8_0"),
        f"{at}.ssm_g_a.weight": (g.matrix(inner, width), "Q8_0"),
        f"{at}.ssm_beta.weight": (g.matrix(heads, width), "F32"),
        f"{at}.ssm_a": (g.uniform(heads, 1) + 0.5, "F32"),
        f"{at}.ssm_dt.bias": (10 * g.vector(inner), "F32"),
        f"{at}.ssm_norm.weight": (g.vector(size, 1), "F32"),
        f"{at}.attn_output.weight": (g.matrix(width, inner), "Q8_0"),
        "blk.1.attn_gate.weight": (g.matrix(heads, width), "F16"),
        "blk.1.exp_probs_b.bias": (g.vector(4), "F32"),
    }
    sizes: Keys = {
        "attention.head_count_kv": [0, 1], "ssm.conv_kernel": 4, "kda.head_dim": size, "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
    }  # fmt: skip
    return tensors, keys | SIGMOID | sizes


def kimi_k3(seed: int) -> Made:
    """A small Kimi K3: three layers, the first with KDA; a new residual stream in layers 1 and 3; latent experts."""
    (tensors, keys), (delta, more) = latent(seed, 3), ling(seed)
    g, width, heads, size, value, low = Source(seed + 2), 64, 3, 32, 24, 48
    tensors = {name: one for name, one in tensors.items() if not name.startswith("blk.0.attn_")}
    tensors |= {name: one for name, one in delta.items() if name.startswith(("blk.0.attn_", "blk.0.ssm_"))}
    inner, at = heads * size, "blk.0"
    del tensors[f"{at}.ssm_g_a.weight"]
    tensors |= {
        f"{at}.ssm_f_a.weight": (g.matrix(size, width), "Q8_0"),
        f"{at}.ssm_f_b.weight": (g.matrix(inner, size), "Q8_0"),
        f"{at}.ssm_g.weight": (g.matrix(inner, width), "Q8_0"),
        f"{at}.ssm_a": (-g.uniform(heads) - 0.5, "F32"),
        "output_res_score.weight": (3 * g.vector(width), "F32"),
    }
    for i in range(3):
        at = f"blk.{i}"
        for name in ("attn", "ffn"):
            tensors[f"{at}.{name}_res_score.weight"] = 3 * g.vector(width), "F32"
        if i:
            tensors |= {
                f"{at}.attn_gate.weight": (g.matrix(heads * value, width), "F16"),
                f"{at}.exp_probs_b.bias": (g.vector(4), "F32"),
                f"{at}.ffn_routed_down.weight": (g.matrix(low, width), "F16"),
                f"{at}.ffn_routed_up.weight": (g.matrix(width, low), "F16"),
                f"{at}.ffn_routed_norm.weight": (g.vector(low, 1), "F32"),
                f"{at}.ffn_gate_exps.weight": (g.matrix(4, 32, low), "F16"),
                f"{at}.ffn_up_exps.weight": (g.matrix(4, 32, low), "F16"),
                f"{at}.ffn_down_exps.weight": (g.matrix(4, low, 32), "Q8_0"),
            }
    own: Keys = {
        "attention.head_count_kv": [0, 1, 1], "expert_latent_length": low, "attn_res.block_size": 2,
        "activation.situ_beta": 1.5, "activation.situ_linear_beta": 2.5, "expert_feed_forward_length": 32,
    }  # fmt: skip
    of_delta = {name: value for name, value in more.items() if name.startswith(("ssm.", "kda.gate", "kda.head"))}
    return tensors, keys | of_delta | SIGMOID | own


def lightning(seed: int) -> Made:
    """A small MiniMax-01: two layers of lightning attention, one layer of attention, and experts in all."""
    tensors, keys = renamed(transformer(seed, FEW_EXPERTS, experts=4, layers=3), {}, HALF)
    g, width, inner = Source(seed + 1), 64, 64
    for i in (0, 2):
        for name in ("q", "k", "v"):
            del tensors[f"blk.{i}.attn_{name}.weight"]
        tensors |= {
            f"blk.{i}.attn_qkv.weight": (g.matrix(3 * inner, width), "Q8_0"),
            f"blk.{i}.attn_gate.weight": (g.matrix(inner, width), "Q8_0"),
            f"blk.{i}.attn_norm_2.weight": (g.vector(inner, 1), "F32"),
        }
    sizes: Keys = {
        "attention.recurrent_layers": [True, False, True], "residual_scale": 1.5, "attention.key_length": 16,
        "attention.value_length": 16,
    }  # fmt: skip
    return tensors, keys | sizes


def qwen4(seed: int) -> Made:
    """A small Qwen4: two delta nets, attention to blocks of keys, four streams, and n-grams in the second layer."""
    streams, width, rank, size, key_heads, heads, table = 4, 64, 24, 16, 2, 4, (16, (101, 103, 97, 89))
    tensors, keys = gated_share(
        routed(transformer(seed, FEW_EXPERTS, experts=4, norms=True, layers=3), shared=32, keys=HALF)
    )
    g, channels, inner = Source(seed + 1), (2 * key_heads + heads) * size, heads * size
    tensors = {
        name: one for name, one in tensors.items() if "_norm.weight" not in name or "attn_q" in name or "attn_k" in name
    }
    for i in range(3):
        at = f"blk.{i}"
        for name in ("attn", "ffn"):
            tensors |= mixer(g, f"{at}.hc_{name}", streams, width, rank)
            tensors[f"{at}.hc_{name}_inject.weight"] = g.matrix(streams, streams * width, gain=3), "Q8_0"
        if i == 2:
            tensors[f"{at}.attn_q.weight"] = g.matrix(2 * 4 * size, width), "Q8_0"
            continue
        for name in ("q", "k", "v", "output", "q_norm", "k_norm"):
            del tensors[f"{at}.attn_{name}.weight"]
        tensors |= {
            f"{at}.attn_qkv.weight": (g.matrix(channels, width), "Q8_0"),
            f"{at}.attn_gate.weight": (g.matrix(inner, width), "Q8_0"),
            f"{at}.ssm_conv1d.weight": (g.matrix(channels, 4), "F32"),
            f"{at}.ssm_dt.bias": (g.vector(heads), "F32"),
            f"{at}.ssm_a": (-g.uniform(heads) - 0.2, "F32"),
            f"{at}.ssm_beta.weight": (g.matrix(heads, width), "F16"),
            f"{at}.ssm_alpha.weight": (g.matrix(heads, width), "F16"),
            f"{at}.ssm_norm.weight": (g.vector(size, 1), "F32"),
            f"{at}.ssm_out.weight": (g.matrix(width, inner), "Q8_0"),
        }
    tensors |= mixer(g, "output_hc", streams, width, rank) | ngrams(g, "blk.1", streams, width, table)
    own: Keys = {
        "full_attention_interval": 3, "ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": size,
        "ssm.time_step_rank": heads, "ssm.group_count": key_heads, "rope.dimension_sections": [2, 1, 1, 0],
        "hyper_connection.count": streams, "hyper_connection.low_rank": rank, "attention.compress_ratios": [0, 0, 4],
        "ple.layers": [1], "ple.ngram_size": 3, "ple.heads_per_ngram": 2, "ple.conv_kernel": 3,
        "ple.eos_token_id": CONTROLS[1], "embedding_length_per_layer_input": table[0],
        "ple.layer_multipliers": [23_456_789_012_347, 9_876_543_210_989, 12_345_678_901_237],
        "ple.head_vocab_sizes": list(table[1]), "ple.head_offsets": [0, *np.cumsum(table[1])[:-1].tolist()],
    }  # fmt: skip
    return block_indexed((tensors, keys | own), (2,), 4, {"top_k": 12})


def mixer(g: Source, at: str, streams: int, width: int, rank: int) -> Tensors:
    """The matrices that mix residual streams."""
    return {
        f"{at}_norm.weight": (g.vector(streams * width, 1), "F32"),
        f"{at}_down.weight": (g.matrix(rank, streams * width, gain=3), "Q8_0"),
        f"{at}_up.weight": (g.matrix(streams * width, rank, gain=2), "F16"),
    }


def ngrams(g: Source, at: str, streams: int, width: int, table: tuple[int, tuple[int, ...]]) -> Tensors:
    """A table of n-grams, with more rows than are used, and the matrices that read it."""
    size, counts = table
    names = [f"{at}.ple_norm_{name}.weight" for name in ("key", "query", "conv")]
    return {name: (g.vector(streams * width, 1), "F32") for name in names} | {
        "per_layer_token_embd.weight": (g.matrix(sum(counts) + 10, size, gain=4), "F16"),
        f"{at}.ple_key.weight": (g.matrix(streams * width, size * len(counts)), "Q8_0"),
        f"{at}.ple_value.weight": (g.matrix(width, size * len(counts), gain=2), "Q8_0"),
        f"{at}.ple_conv1d.weight": (g.matrix(streams * width, 3), "F16"),
    }


def block_indexed(made: Made, layers: tuple[int, ...], heads: int, keys: Keys) -> Made:
    """Adds indexers, which choose blocks of keys, to some layers."""
    (tensors, old), g, size = made, Source(104), 32
    width = int(old["embedding_length"])
    for i in layers:
        at = f"blk.{i}.indexer"
        tensors |= {
            f"{at}.q_proj.weight": (g.matrix(heads * size, width), "F32"),
            f"{at}.k_proj.weight": (g.matrix(size, width), "F32"),
            f"{at}.q_norm.weight": (g.vector(size, 1), "F32"),
            f"{at}.k_norm.weight": (g.vector(size, 1), "F32"),
        }
    sizes: Keys = {"head_count": heads, "key_length": size}
    return tensors, old | {f"attention.indexer.{key}": value for key, value in (sizes | keys).items()}


def minimax_m3(seed: int, *, leading: int, blocks: int) -> Made:
    """Two layers, the first of which may be dense. llama.cpp rounds keys of dense layers unless all see everything."""
    made = routed(
        transformer(seed, FEW_EXPERTS, experts=4, norms=True),
        shared=32,
        selected=True,
        leading=leading,
        keys=SIGMOID | HALF,
    )
    keys: Keys = {"top_k": blocks, "block_size": 8, "local_blocks": 1}
    return block_indexed(made, tuple(range(leading, 2)), 2, keys)


def arctic(seed: int) -> Made:
    """Two layers whose experts read the input of attention, with a dense feed-forward of the model's width."""
    (tensors, keys), (dense, _) = (
        transformer(seed, FEW_EXPERTS, experts=4),
        transformer(seed + 1, Sizes(64, 64, 16, "Q8_0", "Q8_0")),
    )
    tensors |= {name: value for name, value in dense.items() if ".ffn_" in name}
    g = Source(seed + 2)
    tensors |= {f"blk.{i}.ffn_norm_exps.weight": (g.vector(64, 1), "F32") for i in range(2)}
    del keys["expert_feed_forward_length"]
    return tensors, keys


def grok(seed: int) -> Made:
    """Two layers, of which the second has a dense feed-forward in addition to its experts."""
    names = {"post_attention_norm": "attn_output_norm"}
    tensors, keys = renamed(normed_after(transformer(seed, FEW_EXPERTS, experts=4)), names)
    dense, _ = transformer(seed + 1, SMALL)
    tensors |= {name: value for name, value in dense.items() if name.startswith("blk.1.ffn_") and "norm" not in name}
    own: Keys = {
        "feed_forward_length": 96, "attention.output_scale": 0.2, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 6.0, "embedding_scale": 3.0, "logit_scale": 0.9,
    }  # fmt: skip
    return tensors, keys | own


def grove(seed: int) -> Made:
    """A small Grove MoE: two experts share a smaller one.

    The smaller experts have scale 0: llama.cpp differs from the publisher in their input and their weights.
    """
    tensors, keys = transformer(seed, FEW_EXPERTS, experts=4, norms=True)
    g, width, inner = Source(seed + 1), 64, 32
    shapes = {"gate": (2, inner, width), "up": (2, inner, width), "down": (2, width, inner)}
    tensors |= {
        f"blk.{i}.ffn_{name}_chexps.weight": (g.matrix(*shape), "Q8_0")
        for i in range(2)
        for name, shape in shapes.items()
    }
    own: Keys = {"experts_per_group": 2, "expert_group_scale": 0.0, "expert_chunk_feed_forward_length": inner}
    return tensors, keys | own


def puzzle(seed: int) -> Made:
    """A small Nemotron 3 Puzzle: Mamba-2, experts, attention, and a layer of more and wider experts."""
    g, (tensors, keys) = Source(seed), transformer(seed, SMALL, layers=4)
    width, heads, state, experts, shared = 64, 4, 16, 4, 32
    convolved = width + 2 * state
    tensors = {name: value for name, value in tensors.items() if name[0] != "b" or name.startswith("blk.2.attn_")}
    tensors |= {
        "blk.0.ssm_in.weight": (g.matrix(width + convolved + heads, width), "Q8_0"),
        "blk.0.ssm_conv1d.weight": (g.matrix(convolved, 4), "F32"),
        "blk.0.ssm_conv1d.bias": (g.vector(convolved), "F32"),
        "blk.0.ssm_dt.bias": (g.vector(heads), "F32"),
        "blk.0.ssm_a": (-g.uniform(heads, 1) - 0.5, "F32"),
        "blk.0.ssm_d": (g.uniform(heads, 1), "F32"),
        "blk.0.ssm_norm.weight": (g.vector(width, 1).reshape(1, width), "F32"),
        "blk.0.ssm_out.weight": (g.matrix(width, width), "Q8_0"),
    }
    inner = [0, 32, 0, 64]
    for i in (0, 1, 3):
        tensors[f"blk.{i}.attn_norm.weight"] = g.vector(width, 1), "F32"
    for i in (1, 3):
        at = f"blk.{i}.ffn"
        tensors |= {
            f"{at}_gate_inp.weight": (g.matrix(experts, width, gain=2), "F32"),
            f"blk.{i}.exp_probs_b.bias": (g.vector(experts), "F32"),
            f"{at}_up_exps.weight": (g.matrix(experts, inner[i], width), "Q8_0"),
            f"{at}_down_exps.weight": (g.matrix(experts, width, inner[i]), "Q8_0"),
            f"{at}_up_shexp.weight": (g.matrix(shared, width), "Q8_0"),
            f"{at}_down_shexp.weight": (g.matrix(width, shared), "Q8_0"),
        }
    sizes: Keys = {
        "feed_forward_length": inner, "expert_feed_forward_length": inner, "expert_used_count": [0, 1, 0, 3],
        "attention.head_count_kv": [0, 0, 2, 0], "attention.key_length": 16, "attention.value_length": 16,
        "expert_count": experts, "expert_shared_count": 1, "expert_shared_feed_forward_length": shared,
        "expert_weights_norm": True, "expert_weights_scale": 1.5, "ssm.conv_kernel": 4, "ssm.inner_size": width,
        "ssm.state_size": state, "ssm.time_step_rank": heads, "ssm.group_count": 1,
        "attention.layer_norm_epsilon": 1e-6,
    }  # fmt: skip
    return tensors, keys | sizes


def halved(made: Made) -> Made:
    """States twice the true width of the feed-forward in the file."""
    return made[0], made[1] | {"feed_forward_length": 2 * int(made[1]["feed_forward_length"])}


def around(made: Made, pooling: int = MEAN) -> Made:
    """Turns a model into an encoder: attention is bidirectional, and the vectors of a text are pooled to one."""
    return made[0], made[1] | {"attention.causal": False, "pooling_type": pooling}


def without_head(made: Made, pooling: int = MEAN) -> Made:
    """Removes the head, so that the model computes embeddings only."""
    return around(renamed(made, {"output": ""}), pooling)


def post_normed(made: Made, pooling: int = MEAN, *, types: int = 2) -> Made:
    """Follows BERT: token types, and layer norms of embeddings and of the sum after each branch, but none before."""
    names = {"attn_norm": "attn_output_norm", "ffn_norm": "layer_output_norm", "output_norm": ""}
    tensors, keys = without_head(renamed(made, names), pooling)
    g, width = Source(114), int(keys["embedding_length"])
    tensors["token_embd_norm.weight"] = g.vector(width, 1), "F32"
    if types:
        tensors["token_types.weight"] = 5 * g.matrix(types, width), "F32"
    return layer_normed((tensors, keys | {TYPES: types or 1}))


def bert(seed: int, sizes: Sizes, heads: int, *, layers: int = 2, types: int = 2, pooling: int = MEAN) -> Made:
    """A small BERT: learned positions, and a bias for every matrix."""
    plain = renamed(transformer(seed, sizes, biases=True, kv=heads, heads=heads, layers=layers), GATELESS)
    tensors, keys = biased(post_normed(plain, pooling, types=types), *OUTPUTS, "ffn_up")
    positions = 5 * Source(seed + 1).matrix(PLACES, sizes.width)
    own: Keys = {"context_length": PLACES, "attention.layer_norm_epsilon": 1e-12}
    return tensors | {"position_embd.weight": (positions, "F32")}, keys | own


def t5_encoder(seed: int, *, width: int = 64, gated: bool = False, buckets: int = 32) -> Made:
    """A T5 encoder: two layers share a table of biases by relative position, and the third has one of its own."""
    heads, layers, size = 4, 3, 8
    plain = transformer(seed, Sizes(width, 64, size, "Q8_0", "Q8_0"), kv=heads, heads=heads, layers=layers)
    names = {"attn_output": "attn_o", "output_norm": "enc.output_norm"} | ({} if gated else GATELESS)
    tensors, keys = without_head(renamed(plain, names))
    tensors = {name.replace("blk.", "enc.blk.", 1): value for name, value in tensors.items()}
    g = Source(seed + 1)
    for i in (0, layers - 1):
        tensors[f"enc.blk.{i}.attn_rel_b.weight"] = 2 * g.rng.standard_normal((buckets, heads), np.float32), "F16"
    own: Keys = {"attention.key_length": size, "attention.value_length": size}
    keys = {name: value for name, value in keys.items() if not name.startswith("rope.") and name != "attention.causal"}
    return tensors, keys | own | {"attention.relative_buckets_count": buckets}


def t5(seed: int, *, gated: bool = False, tied: bool = False, layers: int = 2) -> Made:
    """A T5: an encoder of three layers, and a decoder whose first two layers share a table of biases."""
    tensors, keys = t5_encoder(seed, width=32, gated=gated)
    of_decoder, crossing = (t5_encoder(seed + other, width=32, gated=gated)[0] for other in (5, 10))
    for i in range(layers):
        for name in [name for name in of_decoder if name.startswith(f"enc.blk.{i}.")]:
            tensors[f"dec{name[3:]}"] = of_decoder[name]
            if ".attn_" in name and "rel_b" not in name:
                tensors[f"dec{name[3:].replace('attn', 'cross_attn')}"] = crossing[name]
    tensors["dec.output_norm.weight"] = of_decoder["enc.output_norm.weight"]
    if not tied:
        tensors["output.weight"] = Source(seed + 2).matrix(*tensors["token_embd.weight"][0].shape, gain=2.5), "Q8_0"
    keys = {name: value for name, value in keys.items() if name != "pooling_type"}
    return tensors, keys | {"decoder_block_count": layers, "decoder_start_token_id": 3}


def in_stacks(made: Made, high: int, low: int) -> Made:
    """Makes the layers two stacks that run in turns, with gated attention and norms without weights."""
    g, (tensors, keys) = Source(181), made
    layers, width = int(keys["block_count"]), int(keys["embedding_length"])
    tensors = {name: value for name, value in tensors.items() if "norm" not in name}
    for i in range(layers):
        shape = tensors[f"blk.{i}.attn_q.weight"][0].shape
        tensors[f"blk.{i}.attn_gate.weight"] = g.matrix(*shape), "Q8_0"
    tensors["hrm.z_l_init"] = 10 * g.vector(width), "F32"
    cycles: Keys = {"hrm.layers_per_stack": layers // 2, "hrm.h_cycles": high, "hrm.l_cycles": low}
    return tensors, keys | cycles | {"block_count": layers // 2 * high * (low + 1), "embedding_scale": 0.5}


def sent_to_experts(made: Made, experts: int = 4) -> Made:
    """Replaces the feed-forward of every second layer, beginning with the second, by experts without gates."""
    g, (tensors, keys) = Source(115), made
    width, inner = int(keys["embedding_length"]), int(keys["feed_forward_length"])
    for i in range(1, int(keys["block_count"]), 2):
        tensors = {name: value for name, value in tensors.items() if not name.startswith(f"blk.{i}.ffn_")}
        tensors |= {
            f"blk.{i}.ffn_gate_inp.weight": (g.matrix(experts, width, gain=2), "F32"),
            f"blk.{i}.ffn_up_exps.weight": (g.matrix(experts, inner, width), "Q8_0"),
            f"blk.{i}.ffn_down_exps.weight": (g.matrix(experts, width, inner), "Q8_0"),
        }
    return tensors, keys | {"moe_every_n_layers": 2, "expert_count": experts, "expert_used_count": 2}


def normed_twice(made: Made) -> Made:
    """Adds layer norms of q and of k over all heads, and a second norm after attention, all with biases."""
    g, (tensors, keys) = Source(116), made
    width = int(keys["embedding_length"])
    for i in range(int(keys["block_count"])):
        for name in ("attn_q_norm", "attn_k_norm", "attn_norm_2"):
            tensors[f"blk.{i}.{name}.weight"] = g.vector(width, 1), "F32"
            tensors[f"blk.{i}.{name}.bias"] = g.vector(width), "F32"
    return tensors, keys


def modern(seed: int, layers: int, *, pooling: int, first_norm: bool = False) -> Made:
    """A small ModernBERT: norms before branches except the first. Every third layer sees the whole text."""
    plain = renamed(transformer(seed, Sizes(64, 64, 16, "Q8_0", "Q8_0"), kv=4, layers=layers), {}, WINDOWS)
    tensors, keys = layer_normed(without_head(plain, pooling), bias=False)
    tensors["token_embd_norm.weight"] = Source(seed + 1).vector(64, 1), "F32"
    if not first_norm:
        del tensors["blk.0.attn_norm.weight"]
    return feed_fused(fused((tensors, keys)))


def embedding_gemma(seed: int, layers: int, *, period: int = 0, dense: int = 0) -> Made:
    """A small EmbeddingGemma: as Gemma 3, optionally with two matrices after the last norm."""
    sizes = Sizes(32, 64, 16, "Q8_0", "Q8_0")
    plain = normed_after(transformer(seed, sizes, norms=True, layers=layers, kv=1, heads=2))
    own: Keys = {"rope.freq_base": 1e6} | ({"attention.sliding_window_pattern": period} if period else {})
    tensors, keys = around(renamed(headless(plain), {}, WINDOWS | own))
    del keys["attention.causal"]  # it is never causal
    if dense:
        g, sizes_of_dense = Source(seed + 1), {"dense_2_feat_in": 32, "dense_2_feat_out": dense}
        tensors["dense_2.weight"] = g.matrix(dense, 32), "Q8_0"
        tensors["dense_3.weight"] = g.matrix(32, dense), "Q8_0"
        keys |= sizes_of_dense | {"dense_3_feat_in": dense, "dense_3_feat_out": 32}
    return tensors, keys


def ranking(made: Made, *biased: str, inner: int = 0, norm: bool = False, labels: int = 1) -> Made:
    """Adds a classifier: a matrix of this many rows, a norm, and a matrix with a row for each label, where present."""
    g, (tensors, keys) = Source(117), made
    width = int(keys["embedding_length"])
    matrices = {"cls": (inner, width)} if inner else {}
    matrices |= {"cls.output": (labels, inner or width)} if labels else {}
    for name, shape in matrices.items():
        tensors[f"{name}.weight"] = 2 * g.matrix(*shape), "F16"
        if name in biased:
            tensors[f"{name}.bias"] = g.vector(shape[0]), "F32"
    if norm:
        tensors["cls.norm.weight"] = g.vector(inner, 1), "F32"
    names: Keys = {"classifier.output_labels": [f"label {n}" for n in range(labels)]} if labels > 1 else {}
    return tensors, keys | {"pooling_type": RANK} | names


YARN: Keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 256}
WARM: Keys = {
    "attention.temperature_scale": 0.5,
    "attention.temperature_length": 8,
    "rope.scaling.yarn_log_multiplier": 0.1,
}
SIGMOID: Keys = {
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "expert_shared_count": 1,
}
GRANITE: Keys = {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 2.0, "attention.scale": 0.2}
WINDOWS: Keys = {"attention.sliding_window": 16}
GATELESS = {"ffn_gate": ""}
CONTROLS = [int(np.random.default_rng(5).integers(3, 260, TOKENS)[at]) for at in (8, 20, 40)]  # three recorded tokens
MODELS = {
    "rwkv7": lambda: rwkv7(1),
    "rwkv4": lambda: rwkv4(175),
    "llama": lambda: transformer(2),
    "qwen3": lambda: transformer(3, norms=True),
    "qwen3moe": lambda: transformer(4, norms=True, experts=4),
    "qwen2": lambda: transformer(5, biases=True),
    "ernie4_5": lambda: transformer(6),
    "exaone": lambda: transformer(21, SMALL),
    "exaone4": lambda: renamed(
        transformer(22, SMALL, norms=True), {"attn_norm": "post_attention_norm", "ffn_norm": "post_ffw_norm"}
    ),
    "gemma": lambda: renamed(transformer(23, SMALL), {"output": ""}),
    "hunyuan-dense": lambda: transformer(24, SMALL, norms=True),
    "internlm2": lambda: transformer(25, SMALL),
    "minicpm": lambda: renamed(
        transformer(26, SMALL), {}, {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 2.0}
    ),
    "seed_oss": lambda: renamed(transformer(27, SMALL, biases=True), {"ffn_norm": "post_attention_norm"}),
    "cohere2": lambda: layer_normed(
        renamed(transformer(28, SMALL, layers=5), {"ffn_norm": "", "output": ""}, WINDOWS | {"logit_scale": 0.5}),
        bias=False,
    ),
    "command-r": lambda: layer_normed(
        renamed(transformer(29, SMALL), {"ffn_norm": "", "output": ""}, {"logit_scale": 0.5}), bias=False
    ),
    "phi2": lambda: biased(
        layer_normed(renamed(transformer(30, SMALL, biases=True), GATELESS | {"ffn_norm": ""}, HALF)),
        *OUTPUTS,
        "ffn_up",
        "output",
    ),
    "gptneox": lambda: fused(
        biased(
            layer_normed(
                renamed(transformer(31, SMALL, biases=True), GATELESS, HALF | {"use_parallel_residual": True})
            ),
            *OUTPUTS,
            "ffn_up",
        )
    ),
    "starcoder2": lambda: biased(
        layer_normed(renamed(transformer(32, SMALL, biases=True), GATELESS)), *OUTPUTS, "ffn_up"
    ),
    "stablelm": lambda: layer_normed(renamed(transformer(33, SMALL), {}, HALF)),
    "nemotron": lambda: layer_normed(renamed(transformer(34, SMALL), GATELESS, HALF)),
    "arcee": lambda: renamed(transformer(35, SMALL), GATELESS),
    "falcon": lambda: fused(layer_normed(renamed(transformer(36, SMALL), GATELESS | {"ffn_norm": ""}))),
    "qwen2vl": lambda: sections(transformer(37, SMALL, biases=True)),
    "qwen3vl": lambda: sections(transformer(38, SMALL, norms=True)),
    "orion": lambda: layer_normed(transformer(39, SMALL)),
    "xverse": lambda: transformer(40, SMALL),
    "jais2": lambda: biased(layer_normed(renamed(transformer(41, SMALL, biases=True), GATELESS)), *OUTPUTS, "ffn_up"),
    "maincoder": lambda: transformer(42, SMALL, norms=True),
    "pangu-embedded": lambda: biased(transformer(43, SMALL, biases=True), "attn_output"),
    "chatglm": lambda: fused(feed_fused(renamed(transformer(56, SMALL, biases=True), {}, HALF))),
    "codeshell": lambda: fused(
        biased(layer_normed(renamed(transformer(57, SMALL, biases=True), GATELESS)), *OUTPUTS, "ffn_up")
    ),
    "deepseek": lambda: routed(
        transformer(58, FEW_EXPERTS, experts=4, layers=3), shared=64, leading=1, keys={"expert_shared_count": 2}
    ),
    "hy_v3": lambda: without_suffix(
        routed(
            transformer(59, FEW_EXPERTS, experts=4, norms=True, layers=3),
            shared=32,
            selected=True,
            leading=1,
            keys=SIGMOID,
        )
    ),
    "graniteswitch": lambda: switched(
        renamed(transformer(187, SMALL), {"output": ""}, GRANITE), CONTROLS, [30, 31, 32]
    ),
    "granitemoe": lambda: routed(transformer(44, FEW_EXPERTS, experts=4), shared=64, keys=GRANITE),
    "qwen2moe": lambda: gated_share(routed(transformer(45, FEW_EXPERTS, experts=4, biases=True), shared=64)),
    "qwen3vlmoe": lambda: sections(transformer(46, FEW_EXPERTS, experts=4, norms=True)),
    "ernie4_5-moe": lambda: routed(
        transformer(47, FEW_EXPERTS, experts=4, layers=3),
        shared=32,
        selected=True,
        leading=1,
        keys={"expert_shared_count": 1, "interleave_moe_layer_step": 1},
    ),
    "minimax-m2": lambda: routed(
        whole_norms(transformer(48, FEW_EXPERTS, experts=4)), selected=True, keys={"expert_gating_func": 2} | HALF
    ),
    "minimax-m3": lambda: minimax_m3(187, leading=0, blocks=3),
    "qwen4exp": lambda: qwen4(191),
    "bailingmoe2": lambda: fused(
        routed(
            transformer(49, FEW_EXPERTS, experts=8, norms=True, layers=3),
            shared=32,
            selected=True,
            leading=1,
            keys=SIGMOID | {"expert_group_count": 4, "expert_group_used_count": 2} | HALF,
        )
    ),
    "hunyuan-moe": lambda: routed(transformer(60, FEW_EXPERTS, experts=4, norms=True), shared=32),
    "dots1": lambda: routed(
        transformer(51, FEW_EXPERTS, experts=4, norms=True, layers=3, kv=4),
        shared=64,
        selected=True,
        leading=1,
        keys=SIGMOID | {"expert_shared_count": 2},
    ),
    "olmoe": lambda: whole_norms(transformer(52, FEW_EXPERTS, experts=4, kv=4)),
    "bailingmoe": lambda: routed(
        transformer(53, FEW_EXPERTS, experts=4), shared=64, keys={"expert_shared_count": 2, "expert_weights_norm": True}
    ),
    "exaone-moe": lambda: routed(
        transformer(54, FEW_EXPERTS, experts=4, norms=True, layers=5),
        shared=32,
        selected=True,
        leading=1,
        keys=SIGMOID | WINDOWS,
    ),
    "afmoe": lambda: gated_attention(
        normed_after(
            routed(
                transformer(55, FEW_EXPERTS, experts=4, norms=True, layers=5),
                shared=32,
                selected=True,
                leading=1,
                keys=SIGMOID | WINDOWS,
            )
        )
    ),
    "baichuan": lambda: transformer(61, Sizes(32, 32, 8, "Q8_0", "Q8_0"), layers=32),  # only this size rotates
    "hunyuan_vl": lambda: renamed(
        sections(transformer(62, SMALL, norms=True)), {}, {"rope.scaling.alpha": 1000.0, "rope.scaling.type": "none"}
    ),
    "chameleon": lambda: head_norms_biased(head_layer_norms(transformer(176, SMALL))),
    "cogvlm": lambda: with_image_matrices(fused(transformer(175, SMALL, kv=4))),
    "openelm": lambda: openelm(63),
    "paddleocr": lambda: sections(transformer(65, SMALL)),
    "plamo": lambda: feed_normed_as_attention(transformer(66, SMALL)),
    "plamo3": lambda: without_weight(
        renamed(
            fused(feed_fused(normed_after(transformer(67, SMALL, norms=True, layers=9)))),
            {},
            WINDOWS | {"rope.freq_base_swa": 1000.0},
        ),
        "post_attention_norm",
        "post_ffw_norm",
    ),
    "qwen": lambda: halved(fused(transformer(68, SMALL, biases=True, kv=4))),
    "plamo2": lambda: plamo2(78),
    "jamba": lambda: jamba(79),
    "bailingmoe3": lambda: ling(80),
    "kimi-k3": lambda: kimi_k3(183),
    "glm5next": lambda: glm5next(196),
    "minimax-01": lambda: lightning(81),
    "deci": lambda: deci(74),
    "granite_swa": lambda: renamed(
        with_sinks(transformer(69, SMALL, layers=4)),
        {},
        GRANITE
        | WINDOWS
        | {
            "attention.sliding_window_pattern": [False, True, True, False],
            "attention.rope_pattern": [True, True, False, False],
        },
    ),
    "cohere2moe": lambda: layer_normed(
        feed_normed_as_attention(
            routed(
                transformer(70, FEW_EXPERTS, experts=4, layers=5),
                shared=32,
                leading=1,
                keys=SIGMOID | WINDOWS | {"logit_scale": 0.5},
            )
        ),
        bias=False,
    ),
    "deepseek2-ocr": lambda: routed(
        transformer(71, FEW_EXPERTS, experts=4, layers=3, kv=4), shared=64, leading=1, keys={"expert_shared_count": 2}
    ),
    "spark2_5": lambda: gated_heads(
        renamed(
            fused(transformer(76, SMALL, layers=3)),
            {},
            WINDOWS
            | {
                "attention.sliding_window_pattern": [True, False, True],
                "rope.dimension_count_swa": 8,
                "rope.freq_base_swa": 1000.0,
            },
        )
    ),
    "laguna": lambda: gated_heads(
        routed(
            transformer(77, FEW_EXPERTS, experts=4, norms=True, layers=5),
            shared=32,
            selected=True,
            leading=1,
            keys=SIGMOID | WINDOWS | YARN | HALF | {"rope.dimension_count_swa": 16, "rope.freq_base_swa": 1000.0},
        )
    ),
    "mellum": lambda: renamed(
        transformer(72, FEW_EXPERTS, experts=4, norms=True, layers=4),
        {},
        WINDOWS | YARN,
    ),
    "bitnet": lambda: scaled(
        renamed(normed_inside(transformer(89, Sizes(64, 96, 16, "Q8_0", "Q8_0"))), {"output": ""})
    ),
    "maple": lambda: renamed(
        transformer(81, FEW_EXPERTS, experts=4, norms=True, layers=4),
        {},
        WINDOWS | {"attention.sliding_window_pattern": [True, True, True, False], "swiglu_clamp_exp": 0.4},
    ),
    "mimo2": lambda: mimo2(83),
    "apertus": lambda: renamed(
        transformer(103, SMALL, norms=True),
        GATELESS,
        {
            "xielu.alpha_p": [0.5, 0.9],
            "xielu.alpha_n": [0.7, -0.4],
            "xielu.beta": [0.5, 0.3],
            "xielu.eps": [-1e-6, -1e-6],
        },
    ),
    "olmo": lambda: renamed(
        layer_normed(transformer(111, SMALL, kv=4), bias=False),
        {"attn_norm": "", "ffn_norm": "", "output_norm": ""},
        {"attention.clamp_kqv": 0.8},
    ),
    "dbrx": lambda: renamed(
        layer_normed(fused(transformer(113, FEW_EXPERTS, experts=4)), bias=False),
        {"ffn_norm": "attn_output_norm"},
        {"attention.clamp_kqv": 0.8},
    ),
    "smallthinker": lambda: renamed(
        transformer(115, FEW_EXPERTS, experts=4),
        {},
        {"attention.sliding_window": 4096, "expert_gating_func": 2},  # llama.cpp supports no other length
    ),
    "arctic": lambda: arctic(119),
    "grok": lambda: grok(121),
    "bloom": lambda: bloom(123),
    "jais": lambda: renamed(
        fused(
            biased(layer_normed(transformer(125, SMALL, biases=True, kv=4)), *OUTPUTS, "ffn_gate", "ffn_up"),
        ),
        {},
        {"attention.max_alibi_bias": 8.0},
    ),
    "mpt": lambda: renamed(
        headless(layer_normed(fused(transformer(127, Sizes(96, 96, 16, "Q8_0", "Q8_0"), heads=6)), bias=False)),
        GATELESS,
        {"attention.max_alibi_bias": 6.0, "attention.clamp_kqv": 0.8},
    ),
    "refact": lambda: transformer(129, SMALL, kv=1),
    "grovemoe": lambda: grove(131),
    "hrm_text": lambda: in_stacks(transformer(180, Sizes(32, 64, 16, "Q8_0", "Q8_0"), layers=4, kv=1, heads=2), 2, 2),
    "nanbeige": lambda: renamed(transformer(127, SMALL), {}, {"num_loops": 2}),
    "talkie": lambda: adding_embeddings(129),
    "gpt2": lambda: placed(97, kv=4),
    "starcoder": lambda: placed(99, kv=1),
    "phimoe": lambda: with_factors(
        norm_biased(biased(transformer(95, FEW_EXPERTS, experts=4, biases=True), "attn_output", "output"))
    ),
    "gemma3n": lambda: gemma3n(91),
    "step35": lambda: step35(79),
    "minicpm3": lambda: with_factors(older_latent(105)),
    "plm": lambda: renamed(older_latent(107, q_rank=0), GATELESS | {"output": ""}),
    "mistral4": lambda: renamed(latent(73), {}, YARN | WARM),
    "dream": lambda: unmasking(transformer(161, SMALL, biases=True), shifted=True),
    "llada": lambda: unmasking(transformer(162, SMALL, kv=4), shifted=False),
    "llada-moe": lambda: unmasking(transformer(163, FEW_EXPERTS, experts=4, norms=True), shifted=False),
    "rnd1": lambda: unmasking(transformer(164, FEW_EXPERTS, experts=4, norms=True), shifted=True),
    "deepseek32": lambda: indexed(151, 2, (0, 1), YARN | SIGMOID | {"rope.scaling.yarn_log_multiplier": 0.1}),
    "dots3note": lambda: dots3(185),
    "deepseek4": lambda: deepseek4(194),
    "hy_v4": lambda: hyper(191),
    "glm-dsa": lambda: indexed(153, 3, (0, 2), {"attention.indexer.types": [True, False, True]}),
}

# Models that make embeddings, and models of the same architectures with a prefix in their names.
ENCODERS = {
    "bert": lambda: bert(141, Sizes(64, 96, 32, "Q8_0", "Q8_0"), 2, layers=3, pooling=FIRST),
    "nomic-bert": lambda: fused(post_normed(transformer(143, Sizes(64, 96, 32, "Q8_0", "Q8_0"), kv=2, heads=2))),
    "nomic-bert-moe": lambda: sent_to_experts(
        fused(
            biased(
                post_normed(renamed(transformer(144, SMALL, biases=True, kv=4, layers=3), GATELESS), types=1),
                *OUTPUTS,
                "ffn_up",
            )
        )
    ),
    "jina-bert-v2": lambda: biased(
        post_normed(transformer(145, Sizes(96, 96, 16, "Q8_0", "Q8_0"), biases=True, kv=6, heads=6)), *OUTPUTS
    ),
    "jina-bert-v3": lambda: biased(
        post_normed(renamed(transformer(147, SMALL, biases=True, kv=4), GATELESS), types=1), *OUTPUTS, "ffn_up"
    ),
    "modern-bert": lambda: modern(148, 4, pooling=FIRST),
    "neo-bert": lambda: renamed(
        feed_fused(fused(without_head(transformer(150, SMALL, kv=4), FIRST))), {"output_norm": "enc.output_norm"}
    ),
    "eurobert": lambda: without_head(transformer(151, Sizes(96, 64, 24, "Q8_0", "Q8_0")), LAST),
    "gemma-embedding": lambda: embedding_gemma(152, 7),
    "llama-embed": lambda: without_head(transformer(154, SMALL)),
    "t5encoder": lambda: t5_encoder(157),
}
OTHER_ENCODERS = {
    "fused-bert": lambda: fused(bert(142, SMALL, 4, types=0)),
    "normed-jina-bert-v2": lambda: feed_fused(
        normed_twice(biased(post_normed(transformer(146, SMALL, biases=True, kv=4), FIRST), *OUTPUTS))
    ),
    "silu-modern-bert": lambda: renamed(
        modern(149, 3, pooling=MEAN, first_norm=True),
        {},
        {"hidden_activation": "silu", "rope.freq_base_swa": 1000.0, "attention.sliding_window_pattern": 2},
    ),
    "dense-gemma-embedding": lambda: embedding_gemma(153, 3, period=2, dense=64),
    "around-llama": lambda: around(transformer(155, SMALL)),
    "around-qwen2": lambda: around(transformer(156, SMALL, biases=True), LAST),
}

# Models that rank texts.
RANKERS = {
    "ranking-bert": lambda: ranking(bert(161, SMALL, 4), "cls", "cls.output", inner=64),
    "ranking-jina-bert-v2": lambda: ranking(
        biased(post_normed(transformer(162, SMALL, biases=True, kv=4)), *OUTPUTS), "cls", inner=1, labels=0
    ),
    "ranking-modern-bert": lambda: ranking(modern(163, 3, pooling=MEAN), "cls.output", inner=64, norm=True),
    "ranking-qwen3": lambda: ranking(transformer(164, SMALL, norms=True, layers=1), labels=2),
}

EMBEDDING = ENCODERS | OTHER_ENCODERS | RANKERS

# Models with the formats that no other model has, one per matrix; without "output" the embedding is the head.
MIXED_FORMATS = {
    "token_embd": "Q2_K", "attn_q": "IQ4_XS", "attn_k": "BF16", "attn_v": "Q3_K", "attn_output": "Q5_K",
    "ffn_gate": "IQ4_NL", "ffn_up": "MXFP4", "ffn_down": "TQ2_0",
}  # fmt: skip
CODEBOOK_FORMATS = {
    "token_embd": "IQ2_S", "attn_q": "IQ2_XXS", "attn_k": "IQ2_XS", "attn_v": "IQ3_XXS", "attn_output": "IQ3_S",
    "ffn_gate": "IQ1_S", "ffn_up": "IQ1_M", "ffn_down": "TQ1_0", "output": "NVFP4", "blk.1.ffn_gate": "Q1_0",
    "blk.1.ffn_up": "Q2_0",
}  # fmt: skip


def mixed(seed: int, formats: dict[str, str]) -> tuple[Tensors, Keys]:
    """One layer of a Llama, 256 wide; two if formats of the second are given."""
    values, keys = transformer(seed, Sizes(256, 256, 64, "Q8_0", "Q8_0"))
    layers = 1 + any(name.startswith("blk.1.") for name in formats)
    left_out = ("blk.1.",) * (layers == 1) + ("output.weight",) * ("output" not in formats)
    kept = {name: tensor for name, tensor in values.items() if not name.startswith(left_out)}
    for name, (array, _) in kept.items():
        short = name.removeprefix("blk.0.").removesuffix(".weight")
        if short in formats:
            kept[name] = array, formats[short]
    embedding, kind = kept["token_embd.weight"]
    kept["token_embd.weight"] = 0.08 * embedding, kind  # otherwise logits are ten times as large as elsewhere
    return kept, keys | {"block_count": layers}


# Models whose norms read such small rows that eps matters: errors of about 1e-3 if a file has 2e-6, and so on.
ROWS = {"token_embd": 1e-3, "attn_output": 1e-3, "ffn_down": 2e-3, "ffn_down_exps": 2e-3}
HEADS = {"attn_q": 2e-3, "attn_k": 2e-3}
STATES = {
    "token_embd": 2e-3, "token_embd_norm": 2e-3, "time_mix_output": 1e-3, "time_mix_value": 0.05,
    "channel_mix_value": 2e-3,
}  # fmt: skip


def quiet(model: tuple[Tensors, Keys], gains: dict[str, float]) -> tuple[Tensors, Keys]:
    """Scales some tensors of the model down. Their names lack `blk.0.` and `.weight`."""
    values, keys = model
    for name, (array, kind) in values.items():
        short = name.removeprefix("blk.0.").removeprefix("blk.1.").rsplit(".", 1)[0]
        values[name] = (array * gains.get(short, 1)).astype(np.float32), kind
    if "attention.layer_norm_rms_epsilon" in keys:
        keys["attention.layer_norm_rms_epsilon"] = 2e-6  # a value that no program uses as a constant
    return values, keys


QUIET = {
    "quiet-rwkv7": lambda: quiet(rwkv7(11, 64, 96, 8), STATES),
    "quiet-llama": lambda: quiet(transformer(12, SMALL), ROWS),
    "quiet-qwen3": lambda: quiet(transformer(13, SMALL, norms=True), ROWS | HEADS),
    "quiet-qwen3moe": lambda: quiet(transformer(14, FEW_EXPERTS, norms=True, experts=4), ROWS | HEADS),
}

OTHERS = QUIET | {
    "swin-chameleon": lambda: renamed(MODELS["chameleon"](), {}, {"swin_norm": True}),
    "tiny-embedded-rwkv7": lambda: deep_rwkv7(171, attends=False),
    "tiny-deep-rwkv7": lambda: deep_rwkv7(173, attends=True),
    "mixed-llama": lambda: mixed(15, MIXED_FORMATS),
    "codebooks-llama": lambda: mixed(16, CODEBOOK_FORMATS),
    "puzzle-nemotron_h_moe": lambda: puzzle(75),
    "scaled-hy_v3": lambda: scaled(
        without_suffix(
            routed(
                transformer(87, Sizes(64, 64, 16, "NVFP4", "NVFP4"), experts=4, norms=True),
                shared=64,
                selected=True,
                leading=1,
                keys=SIGMOID,
            )
        )
    ),
    "experts-granite_swa": lambda: renamed(
        with_sinks(feed_fused(routed(transformer(101, FEW_EXPERTS, experts=4, layers=4), shared=32), "_shexp")),
        {},
        GRANITE | WINDOWS | {"attention.sliding_window_pattern": [False, True, True, False]},
    ),
    "plain-smallthinker": lambda: renamed(
        transformer(117, FEW_EXPERTS, experts=4, layers=1), {}, {"expert_gating_func": 1}
    ),
    "leading-minimax-m3": lambda: minimax_m3(189, leading=1, blocks=128),
    "headed-stablelm": lambda: head_layer_norms(layer_normed(renamed(transformer(85, SMALL), {"ffn_norm": ""}))),
    "biased-llama": lambda: biased(transformer(17, SMALL, biases=True), *OUTPUTS, "ffn_gate", "ffn_up"),
}

# Models that are computed in float64.
FORWARDS: dict[str, Any] = {
    "glm5next": glm5next_of_publisher.Forward,
    "plamo2": plamo2_in_float64.Forward,
    "rwkv4": rwkv4_in_float64.Forward,
    "swin-chameleon": chameleon_in_float64.Forward,
    **dict.fromkeys(("tiny-embedded-rwkv7", "tiny-deep-rwkv7"), rwkv7_in_float64.Forward),
}

# Models with scaled positions: only their logits are stored, as their files differ in keys only.
SCALED: dict[str, tuple[str, Keys]] = {
    "linear-llama": ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "yarn-llama": ("llama", YARN),
    "yarn-qwen3": ("qwen3", YARN | {"rope.scaling.attn_factor": 0.9}),
}


def blocks(values: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """Returns the values in a format, as bytes of rows. For formats that gguf cannot write, returns random blocks."""
    fmt = BY_NAME[kind]
    rows, width = int(np.prod(values.shape[:-1])), values.shape[-1]
    if kind in ("Q4_K", "Q6_K"):
        return mild_rows(fmt, rows, width, seed, size=0.1 / {"Q4_K": 15 * 32, "Q6_K": 32 * 64}[kind])
    if kind.endswith("_K") or kind.startswith("IQ") or kind in ("MXFP4", "NVFP4", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"):
        size = 0.01 * values.std() / dequantise_rows(fmt, mild_rows(fmt, rows, width, seed, size=0.01)).std()
        return mild_rows(fmt, rows, width, seed, size=float(size))
    return gguf.quants.quantize(values.reshape(rows, width), Type[kind]).view(np.uint8).reshape(rows, -1)


def write(path: Path, arch: str, keys: Keys, tensors: Tensors) -> None:
    """Writes a GGUF file of tensors in bytes or float32, with a vocabulary of bytes."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        if key in WIDE:
            writer.add_key_value(f"{arch}.{key}", value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)
            continue
        add: Any = {
            float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool,
            list: writer.add_array,
        }[type(value)]  # fmt: skip
        add(key if key.startswith(("xielu.", "tokenizer.", "diffusion.")) else f"{arch}.{key}", value)
    vocabulary(writer, arch, len(tensors["token_embd.weight"][0]))
    for name, (data, kind) in tensors.items():
        with mock.patch.dict(gguf.GGML_QUANT_SIZES, UNKNOWN):
            writer.add_tensor(
                name, data, raw_dtype=None if data.dtype in (np.float32, np.int32) else BY_NAME[kind].type
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabulary(writer: gguf.GGUFWriter, arch: str, count: int) -> None:
    """Returns a vocabulary of this size: the bytes, some letters and words, and unused tokens."""
    words = ["a", "b", "c", "the", " the", " a", "ing", "er", "\n\n", "hello", " world", "user"]
    if arch in ("rwkv4", "rwkv7"):
        tokens = ["<s>", *(f"\\x{n:02x}" for n in range(256)), *(repr(word)[1:-1] for word in words)]
        writer.add_tokenizer_model("rwkv")
        writer.add_token_list(tokens + [f"[PAD{n}]" for n in range(len(tokens), count)])
        writer.add_token_types([3] + [1] * (len(tokens) - 1) + [5] * (count - len(tokens)))
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
        return
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *(w.replace(" ", "▁") for w in words)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens + [f"<pad{n}>" for n in range(len(tokens), count)])
    writer.add_token_scores([-float(n) for n in range(count)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words) + [5] * (count - len(tokens)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def twins(values: Tensors) -> tuple[Tensors, Tensors]:
    """Returns the tensors as stored in the file, and the same in float32."""
    kept, plain = {}, {}
    for seed, (tensor, (array, kind)) in enumerate(values.items()):
        if kind in ("F32", "I32"):
            kept[tensor] = plain[tensor] = array, kind
            continue
        raw = blocks(array, kind, seed)
        decoded = dequantise_rows(BY_NAME[kind], raw).reshape(array.shape)
        kept[tensor] = raw.reshape(*array.shape[:-1], -1), kind
        plain[tensor] = np.ascontiguousarray(decoded, np.float32), "F32"
    return kept, plain


def record(name: str) -> None:
    """Writes a model and records llama.cpp's logits of its twin in float32. Scaled positions reuse a model."""
    ends = [one for one in MODELS if f"-{name}".endswith(f"-{one}")]
    arch, scaling = SCALED.get(name, (max(ends, key=len, default=name.rpartition("-")[2]), {}))
    values, keys = OTHERS[name]() if name in OTHERS else MODELS[arch]()
    keys |= scaling
    kept, plain = twins(values)
    stem = f"scaled-{name}" if name in SCALED else name if name in OTHERS else f"tiny-{name}"
    if name not in SCALED:
        write(HERE / f"{stem}.gguf", arch, keys, kept)
    count = QUIET_TOKENS if name in QUIET else SHORT_TOKENS if arch in RECOMBINED else TOKENS
    tokens = np.random.default_rng(5).integers(3, 260, count)
    if name in FORWARDS:
        logits = FORWARDS[name]({tensor: array for tensor, (array, _) in plain.items()}, keys).logits(tokens)
        np.savez_compressed(HERE / f"{stem}.npz", tokens=tokens, exact_logits=logits.astype(np.float32))
        return
    import llama_cpp

    twin = HERE / f"{name}.f32.gguf"
    images = IMAGES if arch == "chameleon" else slice(0, 0)
    write(twin, arch, keys, with_images(plain) if arch == "chameleon" else plain)
    model = llama_cpp.Llama(
        str(twin), n_ctx=1024, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=1,
        flash_attn=name == "minimax-m3",  # otherwise it does not choose blocks
    )  # fmt: skip
    ids = np.where(tokens < images.start, tokens, tokens + images.stop - images.start)
    answers = {"tokens": tokens, "exact_logits": np.delete(said(model, ids), images, axis=1)}
    if name == "qwen4exp":
        answers["exact_logits"] = in_turns(twin, keys, plain, tokens)
    if "tokenizer.ggml.mask_token_id" in keys:
        answers["exact_unmasked"] = unmasked(model, tokens, keys)
    if name in MODELS and arch not in (*RECOMBINED, "qwen4exp"):
        answers |= greedy(model)
    np.savez_compressed(HERE / f"{stem}.npz", **answers)
    if name in (*LONG, "deepseek4"):
        tokens = np.random.default_rng(6).integers(3, 260, LONG_TOKENS)
        logits = said(model, tokens)[LONG_ROWS]
        np.savez_compressed(HERE / f"{stem}.long.npz", tokens=tokens, rows=np.array(LONG_ROWS), exact_logits=logits)
    twin.unlink()
    print(f"{stem}.npz: logits of deviation {answers['exact_logits'].std():.2f}")


def record_encoder(name: str) -> None:
    """Writes an encoder, and records llama.cpp's embeddings of every token and of texts.

    The texts are parts of the tokens: their first tokens, and those after the last of these.
    """
    values, keys = EMBEDDING[name]()
    kept, plain = twins(values)
    arch = name if name in ENCODERS else name.partition("-")[2]
    stem = f"tiny-{name}" if name in ENCODERS else name
    write(HERE / f"{stem}.gguf", arch, keys, kept)
    twin = HERE / f"{name}.f32.gguf"
    write(twin, arch, keys, plain)
    tokens = np.random.default_rng(7).integers(3, 260, TOKENS)
    texts = [tokens[first:last] for first, last in TEXTS]
    labels = keys.get("classifier.output_labels", [0])
    assert isinstance(labels, list)
    answers = {
        "tokens": tokens,
        "texts": np.array(TEXTS),
        "exact_embeddings": embedded(twin, [tokens], pooled=False),
        "exact_pooled": embedded(twin, texts, pooled=True, labels=len(labels) if name in RANKERS else 0),
    }
    np.savez_compressed(HERE / f"{stem}.npz", **answers)
    if name in LONG_ENCODERS:
        tokens = np.random.default_rng(8).integers(3, 260, LONG_TEXT)
        found = embedded(twin, [tokens], pooled=False)[LONG_TEXT_ROWS]
        rows = np.array(LONG_TEXT_ROWS)
        np.savez_compressed(HERE / f"{stem}.long.npz", tokens=tokens, rows=rows, exact_embeddings=found)
    twin.unlink()
    print(f"{stem}.npz: embeddings of deviation {answers['exact_embeddings'].std():.2f}")


def embedded(path: Path, texts: list[np.ndarray], *, pooled: bool, labels: int = 0) -> np.ndarray:
    """Returns llama.cpp's embeddings of each token of the texts, or of each text if the file has pooling.

    A text has a vector, or a number for each label. Each text is computed in a step of its own.
    """
    import llama_cpp
    from llama_cpp import llama_cpp as lib

    kind = lib.LLAMA_POOLING_TYPE_UNSPECIFIED if pooled else lib.LLAMA_POOLING_TYPE_NONE
    model = llama_cpp.Llama(
        str(path), n_ctx=512, n_batch=512, n_ubatch=512, embedding=True, pooling_type=kind, verbose=False, type_k=0,
        type_v=0, n_threads=1,
    )  # fmt: skip
    found = []
    for text in texts:
        batch = model._batch
        batch.reset()
        batch.add_sequence(text.tolist(), 0, True)
        model._ctx.kv_cache_clear()
        model._ctx.decode(batch)
        rows = 1 if pooled else len(text)
        data = lib.llama_get_embeddings_seq(model.ctx, 0) if pooled else lib.llama_get_embeddings(model.ctx)
        found.append(np.ctypeslib.as_array(data, (rows * (labels or model.n_embd()),)).reshape(rows, -1).copy())
    return np.concatenate(found)


def said(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Returns the logits of every position."""
    model.reset()
    model.eval(tokens.tolist())
    return np.array(model.scores[: len(tokens)], np.float32)


def in_turns(path: Path, keys: Keys, plain: Tensors, tokens: np.ndarray) -> np.ndarray:
    """Returns the logits of every position of a Qwen4 that sees whole blocks, as its publisher computes them.

    llama.cpp adds positions of further blocks where the last block is not complete, so that all rows see as many.
    Therefore the rows with each length of the last block have a budget of their own. No later layer mixes rows.
    """
    import llama_cpp

    block, budget = 4, int(str(keys["attention.indexer.top_k"]))
    logits = np.zeros((len(tokens), len(plain["token_embd.weight"][0])), np.float32)
    for rest in range(block):
        write(path, "qwen4exp", keys | {"attention.indexer.top_k": budget + rest - (block - 1)}, plain)
        model = llama_cpp.Llama(str(path), n_ctx=1024, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=1)
        rows = (np.arange(len(tokens)) + 1) % block == rest
        logits[rows] = said(model, tokens)[rows]
    return logits


def unmasked(model: Any, tokens: np.ndarray, keys: Keys) -> np.ndarray:
    """Returns the answer of a diffusion model: 40 masks in blocks of 32.

    Each block takes 16 steps, which decide the most certain tokens. As in llama.cpp's example, a step takes the
    likeliest token for each mask, with its probability as the certainty.
    """
    mask, count = int(str(keys["tokenizer.ggml.mask_token_id"])), len(tokens)
    canvas = np.concatenate([tokens, np.full(UNMASKED, mask)])
    for start in range(count, count + UNMASKED, 32):
        block = range(start, min(start + 32, count + UNMASKED))
        steps = min(16, len(block))
        for step in range(steps):
            logits = said(model, canvas).astype(np.float64)
            logits[:, mask] = -np.inf
            open_ = [at for at in block if canvas[at] == mask]
            rows = logits[np.array(open_) - (0 if keys.get("diffusion.shift_logits") is False else 1)]
            certain = -np.log(np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1))
            number = len(block) // steps + (step < len(block) % steps)
            for i in np.argsort(-certain, kind="stable")[:number]:
                canvas[open_[i]] = rows[i].argmax()
    return canvas[count:]


def greedy(model: Any) -> dict[str, np.ndarray]:
    """Returns the greedy continuation, and each token's lead over the second most likely one."""
    tokens, margins = [], []
    for _ in range(GREEDY_TOKENS):
        second, first = np.partition(np.array(model.scores[model.n_tokens - 1], np.float32), -2)[-2:]
        tokens.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        margins.append(first - second)
        model.eval(tokens[-1:])
    return {"exact_greedy": np.array(tokens), "exact_margin": np.array(margins, np.float32)}


if __name__ == "__main__":
    for each in sys.argv[1:] or (*MODELS, *SCALED, *OTHERS, *EMBEDDING):
        if each in EMBEDDING:
            record_encoder(each)
        else:
            record(each)
