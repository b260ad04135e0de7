"""Writes tiny checkpoints with random numbers, under the tensor names of each program."""

import re

import numpy as np

WIDTH, HEAD, INNER, LAYERS, TOKENS, RANK = 32, 16, 64, 2, 65536, 8
MIX_RANK, DECAY_RANK = 32, 64  # defaults of llama.cpp for RWKV-6


def rwkv7() -> dict[str, np.ndarray]:
    """Returns a checkpoint in BlinkDL's format of RWKV-7 (x070). Values are multiples of 1/64: exact in 16 bits."""
    d, shapes = WIDTH, _around()
    for i in range(LAYERS):
        att = f"blocks.{i}.att"
        shapes |= {f"{att}.x_{letter}": (1, 1, d) for letter in "rwkvag"}
        for letter in "wavg":
            shapes |= {f"{att}.{letter}1": (d, RANK), f"{att}.{letter}2": (RANK, d)}
            shapes |= {f"{att}.{letter}0": (1, 1, d)} if letter != "g" else {}
        shapes |= {f"{att}.k_k": (1, 1, d), f"{att}.k_a": (1, 1, d), f"{att}.r_k": (d // HEAD, HEAD)}
        shapes |= {f"blocks.{i}.ffn.x_k": (1, 1, d)}
    return _random(shapes)


def rwkv7b() -> dict[str, np.ndarray]:
    """Returns a checkpoint in BlinkDL's format of RWKV-7b: RWKV-7 with DeepEmbed and DEA."""
    shapes, size, rank = {name: array.shape for name, array in rwkv7().items()}, 16, 4
    for i in range(LAYERS):
        ffn, qkv = f"blocks.{i}.ffn", f"blocks.{i}.qkv"
        shapes |= {f"{ffn}.s_emb.weight": (TOKENS, rank**2), f"{ffn}.s_emb_x.weight": (rank**2, WIDTH)}
        shapes |= {f"{ffn}.s1": (WIDTH, rank), f"{ffn}.s2": (rank, INNER), f"{ffn}.s0": (1, 1, INNER)}
        shapes |= {f"{qkv}.qq.weight": (size, WIDTH), f"{qkv}.x_q": (1, 1, size)}
        shapes |= {f"{qkv}.lnq.{end}": (size,) for end in ("weight", "bias")}
        for letter, out in (("k", size), ("v", WIDTH)):
            shapes |= {f"{qkv}.{letter}1": (WIDTH, RANK), f"{qkv}.{letter}2": (RANK, out)}
            shapes |= {f"{qkv}.{letter}_emb.weight": (TOKENS, out), f"{qkv}.{letter}_emb_x.weight": (out, WIDTH)}
            shapes |= {f"{qkv}.x_{letter}": (1, 1, out)} | {f"{qkv}.ln{letter}.{e}": (out,) for e in ("weight", "bias")}
    return _random(shapes)


def rwkv7a() -> dict[str, np.ndarray]:
    """Returns the same without DEA."""
    return {name: array for name, array in rwkv7b().items() if ".qkv." not in name}


def rwkv6() -> dict[str, np.ndarray]:
    """Returns a checkpoint in BlinkDL's format of RWKV-6 (x060)."""
    d, shapes = WIDTH, _around()
    for i in range(LAYERS):
        att, ffn = f"blocks.{i}.att", f"blocks.{i}.ffn"
        shapes |= {f"{att}.time_maa_{letter}": (1, 1, d) for letter in "xwkvrg"}
        shapes |= {f"{att}.time_maa_w1": (d, 5 * MIX_RANK), f"{att}.time_maa_w2": (5, MIX_RANK, d)}
        shapes |= {f"{att}.time_decay": (1, 1, d), f"{att}.time_decay_w1": (d, DECAY_RANK)}
        shapes |= {f"{att}.time_decay_w2": (DECAY_RANK, d), f"{att}.time_faaaa": (d // HEAD, HEAD)}
        shapes |= {f"{att}.gate.weight": (d, d), f"{ffn}.receptance.weight": (d, d)}
        shapes |= {f"{ffn}.time_maa_k": (1, 1, d), f"{ffn}.time_maa_r": (1, 1, d)}
    return _random(shapes)


def rwkv5() -> dict[str, np.ndarray]:
    """Returns a checkpoint in BlinkDL's format of RWKV-5.2."""
    d, shapes = WIDTH, _around()
    for i in range(LAYERS):
        shapes |= _with_receptance(i, "kvrg")
        shapes |= {f"blocks.{i}.att.{name}": (d // HEAD, HEAD) for name in ("time_decay", "time_faaaa")}
        shapes |= {f"blocks.{i}.att.gate.weight": (d, d)}
    return _random(shapes)


def rwkv4() -> dict[str, np.ndarray]:
    """Returns a checkpoint in BlinkDL's format of RWKV-4."""
    shapes = {name: shape for name, shape in _around().items() if "ln_x" not in name}
    for i in range(LAYERS):
        shapes |= _with_receptance(i, "kvr")
        shapes |= {f"blocks.{i}.att.{name}": (WIDTH,) for name in ("time_decay", "time_first")}
    return _random(shapes)


def _with_receptance(i: int, letters: str) -> dict[str, tuple[int, ...]]:
    """Returns the tensors of a layer that RWKV-4 and RWKV-5 share."""
    mixes = [*(f"att.time_mix_{letter}" for letter in letters), "ffn.time_mix_k", "ffn.time_mix_r"]
    shapes: dict[str, tuple[int, ...]] = {f"blocks.{i}.{name}": (1, 1, WIDTH) for name in mixes}
    return shapes | {f"blocks.{i}.ffn.receptance.weight": (WIDTH, WIDTH)}


def fla7() -> dict[str, np.ndarray]:
    """Returns the model of `rwkv7` in flash-linear-attention's format. Its low-rank matrices are transposed."""
    names = {
        r"^emb\.weight": "model.embeddings.weight", r"^head\.": "lm_head.", r"^ln_out\.": "model.norm.",
        r"^blocks\.0\.ln0": "model.layers.0.pre_norm", r"^blocks": "model.layers", r"\.ln1\.": ".attn_norm.",
        r"\.ln2\.": ".ffn_norm.", r"\.att\.": ".attn.", r"\.ln_x\.": ".g_norm.", r"\.output\.": ".o_proj.",
        r"attn\.receptance": "attn.r_proj", r"attn\.key": "attn.k_proj", r"attn\.value": "attn.v_proj",
        r"\.([wavg])1$": r".\1_lora.lora.0.weight", r"\.([wavg])2$": r".\1_lora.lora.2.weight",
        r"\.([wav])0$": r".\1_lora.lora.2.bias",
    }  # fmt: skip
    found = {}
    for name, array in rwkv7().items():
        new = name
        for pattern, target in names.items():
            new = re.sub(pattern, target, new)
        found[new] = array.T if "lora.0.weight" in new or "lora.2.weight" in new else array
        found[new] = found[new].reshape(-1) if new.endswith(".bias") else found[new]
    return {name: array for name, array in found.items() if not name.startswith("model.layers.0.attn.v_lora")}


def _around() -> dict[str, tuple[int, ...]]:
    """Returns the tensors that both layouts share."""
    d = WIDTH
    shapes: dict[str, tuple[int, ...]] = {"emb.weight": (TOKENS, d), "head.weight": (TOKENS, d)}
    norms = ["blocks.0.ln0", "ln_out"]
    for i in range(LAYERS):
        norms += [f"blocks.{i}.ln1", f"blocks.{i}.ln2", f"blocks.{i}.att.ln_x"]
        shapes |= {f"blocks.{i}.att.{n}.weight": (d, d) for n in ("receptance", "key", "value", "output")}
        shapes |= {f"blocks.{i}.ffn.key.weight": (INNER, d), f"blocks.{i}.ffn.value.weight": (d, INNER)}
    return shapes | {f"{norm}.{end}": (d,) for norm in norms for end in ("weight", "bias")}


def _random(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: (rng.integers(-64, 64, shape) / 64).astype(np.float32) for name, shape in sorted(shapes.items())}
