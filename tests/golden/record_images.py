"""Writes the golden projectors in `vision`, and records once how llama.cpp's libmtmd encodes images with them.

    MTMD=oracle.py python -m tests.golden.record_images [FAMILY ...]

`oracle.py` calls a build of libmtmd without a table for GELU and with convolutions in float32 (GGML_GELU_FP16 in
ggml-cpu/vec.h, `ggml_conv_2d` in ggml.c), with a class `Eyes` for a model and a projector. Other lines of that
build follow the publishers: Llama 4's rows go from left to right (the last ggml_permute in models/llama4.cpp), and
Hunyuan's fourth position of a text is that of its token (llama-graph.cpp). DeepSeek-OCR's first position is that of the
class embedding also in tiles, for which the others are interpolated (models/deepseekocr.cpp). The
language models are tiny ones of this folder; libmtmd gets twins with float32 weights.
"""

import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rwkv_gpu.gguf.file import GGUFFile

HERE = Path(__file__).resolve().parent
Tensors = dict[str, np.ndarray]
Keys = dict[str, Any]
SIZES = (40, 24), (23, 64), (7, 5), (90, 62), (64, 8)  # width and height of the images that are recorded
SCALES = {"qwen25vl": 4, "lfm2": 16}  # scales of these sizes, if windows or tiles have a given size
ABOVE = (600, 503), (1501, 30)  # sizes above the limits of most towers, and narrow
LARGE = {  # further sizes, of which pixels alone are recorded
    "muse": [(600, 300), (700, 720), (1500, 9)],
    "deepseekocr": [(650, 648), (900, 2000), (2000, 30)],
    **dict.fromkeys(("qwen3vl", "qwen35", "qwen2vl", "glm4v", "mistral3", "kimivl", "gemma4v"), ABOVE),
    **dict.fromkeys(("paddleocr", "hunyuanvl"), ((120, 93), (601, 7))),
    "qwen25vl": [(2001, 1703)],
    "lfm2": [(3001, 2000), (2500, 310)],
}
LINE_END = r"Ċ|\\x0a|(<0xE2><0x96><0x81>)?<0x0A>"  # as tokens
CONTROL = 3  # type of a token that is text only if a template uses it
TEXT = "user a b <__media__> hello the <__media__> world c"


class Source:
    """Random numbers of a realistic size."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape: int, gain: float = 1.0) -> np.ndarray:
        """Returns values that float16 holds exactly."""
        width = int(np.prod(shape[1:]))
        return (gain * self.rng.standard_normal(shape) / np.sqrt(width)).astype(np.float16).astype(np.float32)

    def vector(self, size: int, mean: float = 0.0) -> np.ndarray:
        return (mean + 0.1 * self.rng.standard_normal(size)).astype(np.float32)


# Tokens around tiles.
WORDS = {
    "lfm2": ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    "idefics3": ("\n", "\n\n", "<fake_token_around_image>", "<global-img>"),
    "resampler": ("<image>", "</image>", "<slice>", "</slice>"),
}


def sizes_of(name: str) -> list[tuple[int, int]]:
    """Returns the sizes of the images of a golden projector."""
    if name == "deepseekocr":  # whose tiles have 640 pixels on a side
        return [(40, 24), (24, 40), (650, 330)]
    scale = SCALES.get(name, 1)
    return [(scale * width, scale * height) for width, height in SIZES]


def image(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Returns a picture of smooth shades and some noise, [height, width, 3]."""
    rng = np.random.default_rng(seed + 1000 * width + height)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(-0.4, 0.4, (3, 3))]
    shades = np.stack(waves, axis=-1) * 90 + 128 + rng.normal(0, 20, (height, width, 3))
    return np.clip(shades, 0, 255).astype(np.uint8)


def kept(count: int) -> np.ndarray:
    """Returns the rows of an image that are recorded: some from its first to its last."""
    return np.linspace(0, count - 1, min(count, 16)).round().astype(int)


def layers(
    g: Source, width: int, inner: int, count: int, *, biases: bool, fused: bool = False, gated: bool = False
) -> Tensors:
    """Returns the layers of a tower."""
    t: Tensors = {}
    for i in range(count):
        at = f"v.blk.{i}"
        parts = {"attn_qkv": 3 * width} if fused else {f"attn_{name}": width for name in "qkv"}
        shapes = {**{name: (rows, width) for name, rows in parts.items()}, "attn_out": (width, width)}
        shapes |= {"ffn_up": (inner, width), "ffn_down": (width, inner)}
        if gated or not biases:
            shapes["ffn_gate"] = inner, width
        for name, shape in shapes.items():
            t[f"{at}.{name}.weight"] = g.matrix(*shape)
            if biases:
                t[f"{at}.{name}.bias"] = g.vector(shape[0])
        for name in ("ln1", "ln2"):
            t[f"{at}.{name}.weight"] = g.vector(width, 1)
            if biases:
                t[f"{at}.{name}.bias"] = g.vector(width)
    return t


def stem(g: Source, width: int, patch: int, places: int, *, gain: float, frames: int = 1) -> Tensors:
    """Returns what surrounds the layers of most towers."""
    names = [f"v.patch_embd.weight{number}" for number in ("", ".1")[:frames]]
    return {name: g.matrix(width, 3, patch, patch) for name in names} | {
        "v.patch_embd.bias": g.vector(width), "v.position_embd.weight": 0.3 * g.matrix(places, width, gain=gain),
        "v.post_ln.weight": g.vector(width, 1), "v.post_ln.bias": g.vector(width),
    }  # fmt: skip


def mlp(g: Source, up: str, down: str, read: int, inner: int, out: int, *, gain: float = 1) -> Tensors:
    """Returns two matrices with biases."""
    return {
        f"{up}.weight": g.matrix(inner, read), f"{up}.bias": g.vector(inner),
        f"{down}.weight": g.matrix(out, inner, gain=gain), f"{down}.bias": g.vector(out),
    }  # fmt: skip


def keys(kind: str, width: int, inner: int, count: int, heads: int, side: int, patch: int, out: int) -> Keys:
    """Returns the metadata that every projector has."""
    return {
        "clip.has_vision_encoder": True, "clip.projector_type": kind, "clip.vision.embedding_length": width,
        "clip.vision.feed_forward_length": inner, "clip.vision.block_count": count,
        "clip.vision.attention.head_count": heads, "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_size": side, "clip.vision.patch_size": patch, "clip.vision.projection_dim": out,
        "clip.vision.image_mean": [0.5, 0.45, 0.4], "clip.vision.image_std": [0.5, 0.25, 0.3],
    }  # fmt: skip


def gemma3(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(1), 36, 52, 48, 4
    t = layers(g, width, inner, 2, biases=True)
    t |= {
        **stem(g, width, patch, (side // patch) ** 2, gain=6),
        "mm.soft_emb_norm.weight": g.vector(width, 1), "mm.input_projection.weight": g.matrix(width, out, gain=3),
    }  # fmt: skip
    return t, keys("gemma3", width, inner, 2, 3, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.projector.scale_factor": 3,
    }  # fmt: skip


def qwen3vl(out: int, deep: int = 1) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(2), 32, 48, 48, 4
    t = layers(g, width, inner, 3, biases=True, fused=True)
    t |= {
        **stem(g, width, patch, 36, gain=6, frames=2),
        **mlp(g, "mm.0", "mm.2", 4 * width, 4 * width, out, gain=3),
    }  # fmt: skip
    flags = [i < deep for i in range(3)]
    for i in range(deep):
        at = f"v.deepstack.{i}"
        t |= {f"{at}.norm.weight": g.vector(4 * width, 1), f"{at}.norm.bias": g.vector(4 * width)}
        t |= {f"{at}.fc1.weight": g.matrix(2 * width, 4 * width), f"{at}.fc1.bias": g.vector(2 * width)}
        t |= {f"{at}.fc2.weight": g.matrix(out, 2 * width, gain=3), f"{at}.fc2.bias": g.vector(out)}
    return t, keys("qwen3vl_merger", width, inner, 3, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.spatial_merge_size": 2, "clip.vision.is_deepstack_layers": flags,
    }  # fmt: skip


def qwen2vl(out: int, *, windows: bool) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(5), 8, 12, 560, 14 if windows else 4
    t = layers(g, width, inner, 3, biases=True, gated=windows)
    t = {name: array for name, array in t.items() if not windows or not name.endswith(("ln1.bias", "ln2.bias"))}
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch),
        "v.patch_embd.weight.1": g.matrix(width, 3, patch, patch), "v.post_ln.weight": g.vector(width, 1),
        **mlp(g, "mm.0", "mm.2", 4 * width, 4 * width, out, gain=3),
    }  # fmt: skip
    if windows:
        more: Keys = {"clip.use_silu": True, "clip.vision.n_wa_pattern": 2}
        return t, keys("qwen2.5vl_merger", width, inner, 3, 2, side, patch, out) | more
    return t | {"v.post_ln.bias": g.vector(width)}, keys("qwen2vl_merger", width, inner, 3, 2, side, patch, out)


def pixtral(out: int, merge: int = 2) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(3), 32, 48, 64, 4
    t = layers(g, width, inner, 2, biases=False)
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch), "v.pre_ln.weight": g.vector(width, 1),
        "v.token_embd.img_break": g.vector(out), "mm.1.weight": g.matrix(out, width, gain=3),
        "mm.2.weight": g.matrix(out, out), "mm.1.bias": g.vector(out), "mm.2.bias": g.vector(out),
    }  # fmt: skip
    more: Keys = {"clip.use_silu": True}
    if merge > 1:
        t["mm.input_norm.weight"] = g.vector(width, 1)
        t["mm.patch_merger.weight"] = g.matrix(width, merge**2 * width)
        more["clip.vision.spatial_merge_size"] = merge
    return t, keys("pixtral", width, inner, 2, 2, side, patch, out) | more


def kimivl(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(10), 16, 24, 32, 4
    t = layers(g, width, inner, 2, biases=True)
    t |= {
        **stem(g, width, patch, 64, gain=4),
        "mm.input_norm.weight": g.vector(width, 1), "mm.input_norm.bias": g.vector(width),
        **mlp(g, "mm.1", "mm.2", 4 * width, 4 * width, out, gain=3),
    }  # fmt: skip
    return t, keys("kimivl", width, inner, 2, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.projector.scale_factor": 2,
    }  # fmt: skip


def paddleocr(out: int) -> tuple[Tensors, Keys]:
    t, more = kimivl(out)
    more |= {"clip.projector_type": "paddleocr", "clip.vision.image_min_pixels": 8 * 64}
    return t, more | {"clip.vision.image_max_pixels": 96 * 64}


def muse(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(14), 16, 24, 24, 4
    t = layers(g, width, inner, 6, biases=True)
    t |= {
        **stem(g, width, patch, (side // patch) ** 2, gain=4),
        "v.pre_ln.weight": g.vector(width, 1), "v.pre_ln.bias": g.vector(width),
        "mm.0.weight": g.matrix(24, 4 * width), "mm.1.weight": g.matrix(20, 24, gain=2),
        "mm.2.weight": g.matrix(out, 20, gain=3),
    }  # fmt: skip
    del t["v.patch_embd.bias"]
    return t, keys("muse-glimmer", width, inner, 6, 2, side, patch, out) | {"clip.vision.spatial_merge_size": 2}


def llama4(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(16), 16, 24, 24, 4
    t = layers(g, width, inner, 2, biases=True)
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3 * patch**2), "v.class_embd": g.vector(width, 1),
        "v.position_embd.weight": 0.3 * g.matrix((side // patch) ** 2 + 1, width, gain=4),
        "mm.model.mlp.1.weight": g.matrix(24, 4 * width), "mm.model.mlp.2.weight": g.matrix(20, 24, gain=2),
        "mm.model.fc.weight": g.matrix(out, 20, gain=3),
    }  # fmt: skip
    for name in ("pre_ln", "post_ln"):
        t |= {f"v.{name}.weight": g.vector(width, 1), f"v.{name}.bias": g.vector(width)}
    return t, keys("llama4", width, inner, 2, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.projector.scale_factor": 2,
    }  # fmt: skip


def deepseekocr(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, channels, window = Source(17), 8, 12, 6, 14
    t: Tensors = {
        "v.class_embd": g.vector(width, 1), "v.position_embd.weight": 0.3 * g.matrix(257, width, gain=4),
        "v.pre_ln.weight": g.vector(width, 1), "v.pre_ln.bias": g.vector(width),
        "mm.model.fc.weight": g.matrix(out, 2 * width, gain=3), "mm.model.fc.bias": g.vector(out),
        "v.image_newline": g.vector(out), "v.view_seperator": g.matrix(1, out),
        "v.sam.patch_embd.weight": g.matrix(width, 3, 16, 16), "v.sam.patch_embd.bias": g.vector(width),
        "v.sam.pos_embd.weight": g.matrix(1, 64, 64, width, gain=60),
        "v.sam.neck.0.weight": g.matrix(channels, width, 1, 1, gain=2),
        "v.sam.neck.2.weight": g.matrix(channels, channels, 3, 3, gain=2),
        "v.sam.net_2.weight": g.matrix(7, channels, 3, 3, gain=2),
        "v.sam.net_3.weight": g.matrix(width, 7, 3, 3, gain=2),
    }  # fmt: skip
    for number in (1, 3):
        t |= {f"v.sam.neck.{number}.{part}": g.vector(channels, part == "weight") for part in ("weight", "bias")}
    t |= layers(g, width, inner, 2, biases=True, fused=True)
    for i in range(3):
        at, count = f"v.sam.blk.{i}", 127 if i == 2 else 2 * window - 1
        t |= {f"{at}.attn.pos_{which}.weight": g.matrix(count, width) for which in "hw"}
        shapes = {"attn.qkv": (3 * width, width), "attn.out": (width, width)}
        shapes |= {"mlp.lin1": (inner, width), "mlp.lin2": (width, inner)}
        for name, shape in shapes.items():
            t |= {f"{at}.{name}.weight": g.matrix(*shape, gain=2), f"{at}.{name}.bias": g.vector(shape[0])}
        for name in ("pre_ln", "post_ln"):
            t |= {f"{at}.{name}.weight": g.vector(width, 1), f"{at}.{name}.bias": g.vector(width)}
    return t, keys("deepseekocr", width, inner, 2, 1, 1024, 16, out) | {
        "clip.use_gelu": True, "clip.vision.window_size": window, "clip.vision.sam.block_count": 3,
        "clip.vision.sam.embedding_length": width, "clip.vision.sam.head_count": 1,
        "clip.vision.preproc_min_tiles": 2, "clip.vision.preproc_max_tiles": 9,
    }  # fmt: skip


def hunyuanvl(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(15), 16, 24, 32, 4
    t = layers(g, width, inner, 2, biases=True)
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch), "v.patch_embd.bias": g.vector(width),
        "v.position_embd.weight": 0.3 * g.matrix(64, width, gain=4),
        "mm.pre_norm.weight": g.vector(width, 1), "mm.post_norm.weight": g.vector(out, 1),
        "mm.0.weight": g.matrix(20, width, 2, 2), "mm.0.bias": g.vector(20),
        "mm.2.weight": g.matrix(24, 20, 1, 1, gain=2), "mm.2.bias": g.vector(24),
        "mm.model.fc.weight": g.matrix(out, 24), "mm.model.fc.bias": g.vector(out),
        "mm.image_begin": g.vector(out), "mm.image_end": g.vector(out), "v.image_newline": g.vector(24),
    }  # fmt: skip
    return t, keys("hunyuanvl", width, inner, 2, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.spatial_merge_size": 2,
        "clip.vision.image_min_pixels": 8 * 64, "clip.vision.image_max_pixels": 96 * 64,
    }  # fmt: skip


def glm4v(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(11), 16, 24, 32, 4
    t = layers(g, width, inner, 2, biases=False)
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch),
        "v.patch_embd.weight.1": g.matrix(width, 3, patch, patch), "v.patch_embd.bias": g.vector(width),
        "v.position_embd.weight": 0.3 * g.matrix(64, width, gain=4), "v.norm_embd.weight": g.vector(width, 1),
        "v.post_ln.weight": g.vector(width, 1),
        "mm.patch_merger.weight": g.matrix(out, width, 2, 2), "mm.patch_merger.bias": g.vector(out),
        "mm.model.fc.weight": g.matrix(out, out, gain=2), "mm.post_norm.weight": g.vector(out, 1),
        "mm.post_norm.bias": g.vector(out), "mm.gate.weight": g.matrix(48, out), "mm.up.weight": g.matrix(48, out),
        "mm.down.weight": g.matrix(out, 48, gain=4),
    }  # fmt: skip
    return t, keys("glm4v", width, inner, 2, 2, side, patch, out) | {
        "clip.use_silu": True, "clip.vision.spatial_merge_size": 2,
    }  # fmt: skip


def minicpmv(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(13), 8, 12, 24, 4
    t = layers(g, width, inner, 2, biases=True)
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch), "v.patch_embd.bias": g.vector(width),
        "v.position_embd.weight": (0.3 * g.matrix(4900, width, gain=4)).astype(np.float16),
        "v.post_ln.weight": g.vector(width, 1), "v.post_ln.bias": g.vector(width),
        "resampler.pos_embed_k": g.vector(4), "resampler.query": g.matrix(40, out, gain=9),
        "resampler.kv.weight": g.matrix(out, width), "resampler.proj.weight": g.matrix(out, out),
    }  # fmt: skip
    for name in ("q", "k", "v", "out"):
        t |= {f"resampler.attn.{name}.weight": g.matrix(out, out), f"resampler.attn.{name}.bias": g.vector(out)}
    for name in ("q", "kv", "post"):
        t |= {f"resampler.ln_{name}.weight": g.vector(out, 1), f"resampler.ln_{name}.bias": g.vector(out)}
    return t, keys("resampler", width, inner, 2, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.minicpmv_version": np.int32(6), "clip.minicpmv_query_num": 40,
    }  # fmt: skip


def lfm2(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(6), 8, 12, 256, 16
    t = layers(g, width, inner, 1, biases=True)
    t |= {
        **stem(g, width, patch, 64, gain=3),
        "mm.input_norm.weight": g.vector(4 * width, 1), "mm.input_norm.bias": g.vector(4 * width),
        **mlp(g, "mm.1", "mm.2", 4 * width, 2 * width, out, gain=3),
    }  # fmt: skip
    return t, keys("lfm2", width, inner, 1, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.projector.scale_factor": 2,
    }  # fmt: skip


def idefics3(out: int, *, longest: bool) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(7), 16, 24, 24, 4
    t = layers(g, width, inner, 2, biases=True)
    t |= {
        **stem(g, width, patch, (side // patch) ** 2, gain=4),
        "mm.model.fc.weight": g.matrix(out, 9 * width, gain=3),
    }  # fmt: skip
    return t, keys("idefics3", width, inner, 2, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.projector.scale_factor": 3,
    } | ({"clip.vision.preproc_image_size": 48} if longest else {})  # fmt: skip


def gemma4v(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(9), 16, 24, 48, 4
    t = layers(g, width, inner, 2, biases=False)
    for i in range(2):
        at = f"v.blk.{i}"
        t |= {f"{at}.attn_{name}_norm.weight": g.vector(8, 1) for name in "qk"}
        t |= {f"{at}.{name}_post_norm.weight": g.vector(width, 1) for name in ("attn", "ffn")}
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch),
        "v.position_embd.weight": g.matrix(2, 80, width, gain=9), "v.std_bias": g.vector(width),
        "v.std_scale": g.vector(width, 1), "mm.input_projection.weight": g.matrix(out, width, gain=3),
    }  # fmt: skip
    for name in ("v.blk.0.attn_q", "v.blk.0.ffn_gate", "v.blk.1.attn_out", "v.blk.1.ffn_down"):
        bounds = {"input_min": -1.0, "input_max": 1.2, "output_min": -0.9, "output_max": 0.8}
        t |= {f"{name}.{key}": np.array([bound], np.float32) for key, bound in bounds.items()}
    return t, keys("gemma4v", width, inner, 2, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.projector.scale_factor": 3,
        "clip.vision.image_mean": [0.0, 0.0, 0.0], "clip.vision.image_std": [1.0, 1.0, 1.0],
    }  # fmt: skip


def llava(out: int, *, clip: bool) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(8), 16, 24, 24, 4
    t = layers(g, width, inner, 3, biases=True)
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch),
        "v.position_embd.weight": 0.3 * g.matrix((side // patch) ** 2 + clip, width, gain=4),
        "mm.0.weight": g.matrix(out, width, gain=3), "mm.0.bias": g.vector(out),
        "mm.2.weight": g.matrix(out, out), "mm.2.bias": g.vector(out),
    }  # fmt: skip
    more = keys("mlp", width, inner, 3, 2, side, patch, out)
    if not clip:
        t |= {"v.patch_embd.bias": g.vector(width), "v.image_newline": g.vector(out)}
        shapes = [24, 48, 48, 24, 48, 48, 72, 24, 24, 72]
        return t, more | {"clip.use_gelu": True, "clip.vision.image_grid_pinpoints": shapes}
    t |= {"v.class_embd": g.vector(width), "v.pre_ln.weight": g.vector(width, 1), "v.pre_ln.bias": g.vector(width)}
    return t, more


def internvl(out: int) -> tuple[Tensors, Keys]:
    g, width, inner, side, patch = Source(4), 32, 48, 24, 4
    t = layers(g, width, inner, 2, biases=True)
    for i in range(2):
        t |= {f"v.blk.{i}.ls1.weight": g.vector(width, 0.8), f"v.blk.{i}.ls2.weight": g.vector(width, 0.8)}
    t |= {
        "v.patch_embd.weight": g.matrix(width, 3, patch, patch), "v.patch_embd.bias": g.vector(width),
        "v.class_embd": 0.3 * g.vector(width, 1),
        "v.position_embd.weight": 0.3 * g.matrix((side // patch) ** 2 + 1, width, gain=6),
        "mm.model.mlp.0.weight": g.vector(4 * width, 1), "mm.model.mlp.0.bias": g.vector(4 * width),
        **mlp(g, "mm.model.mlp.1", "mm.model.mlp.3", 4 * width, 2 * width, out, gain=3),
    }  # fmt: skip
    return t, keys("internvl", width, inner, 2, 2, side, patch, out) | {
        "clip.use_gelu": True, "clip.vision.projector.scale_factor": 2, "clip.vision.preproc_min_tiles": 1,
        "clip.vision.preproc_max_tiles": 3,
    }  # fmt: skip


# For each golden projector: its language model, and keys that the model's twin needs.
MODELS: dict[str, tuple[str, Callable[[int], tuple[Tensors, Keys]], Keys]] = {
    "lfm2": ("tiny-lfm2", lfm2, {}),
    "idefics3": ("tiny-lfm2", lambda out: idefics3(out, longest=True), {}),
    "idefics3old": ("tiny-lfm2", lambda out: idefics3(out, longest=False), {}),
    "gemma3": ("tiny-gemma3", gemma3, {}),
    "qwen3vl": ("tiny-qwen3vl", qwen3vl, {"qwen3vl.n_deepstack_layers": 1}),
    "qwen35": ("tiny-qwen35", lambda out: qwen3vl(out, deep=0), {}),
    "qwen2vl": ("tiny-qwen2vl", lambda out: qwen2vl(out, windows=False), {}),
    "qwen25vl": ("tiny-qwen2vl", lambda out: qwen2vl(out, windows=True), {}),
    "mistral3": ("tiny-mistral3", pixtral, {}),
    "internvl": ("tiny-qwen2", internvl, {}),
    "kimivl": ("tiny-deepseek2-lite", kimivl, {}),
    "paddleocr": ("tiny-paddleocr", paddleocr, {}),
    "glm4v": ("vision/sectioned-glm4", glm4v, {}),
    "llama4": ("tiny-llama4", llama4, {}),
    "deepseekocr": ("tiny-deepseek2-ocr", deepseekocr, {}),
    "muse": ("tiny-muse-glimmer", muse, {}),
    "hunyuanvl": ("vision/sectioned-hunyuan_vl", hunyuanvl, {}),
    "minicpmv": ("tiny-rwkv7", minicpmv, {}),
    "gemma4v": ("tiny-gemma4", gemma4v, {}),
    "llava": ("quiet-llama", lambda out: llava(out, clip=True), {}),
    "llavanext": ("quiet-llama", lambda out: llava(out, clip=False), {}),
}


def write(path: Path, arch: str, values: Keys, tensors: Tensors, *, half: bool = False) -> None:
    """Writes a GGUF file; with `half`, matrices are float16."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        add: Any = {
            float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool,
            list: writer.add_array, np.int32: writer.add_int32,
        }[type(value)]  # fmt: skip
        add(key, value)
    for name, array in tensors.items():
        matrix = half and array.ndim > 1 and not name.startswith(("v.position", "a.mel"))
        writer.add_tensor(name, array.astype(np.float16) if matrix else np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def metadata_of(file: GGUFFile) -> Keys:
    """Returns the metadata of a file as plain values, without the architecture."""
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in file.metadata.items()}
    del plain["general.architecture"]
    return plain


def twin(source: Path, path: Path, more: Keys, words: tuple[str, ...]) -> list[str]:
    """Writes the same language model with float32 weights, further keys and last tokens. Returns its tokens."""
    with GGUFFile.open(source) as file:
        values = metadata_of(file)
        tokens: list[str] = values["tokenizer.ggml.tokens"]
        for number, word in enumerate(words, len(tokens) - len(words)):
            if word not in tokens:
                tokens[number], values["tokenizer.ggml.token_type"][number] = word, CONTROL
        tensors = {name: file.values(tensor) for name, tensor in file.tensors.items()}
        write(path, file.str("general.architecture"), values | more, tensors)
    return tokens


def loaded(path: str) -> Any:
    """Returns the module in a file."""
    spec = importlib.util.spec_from_file_location("oracle", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_sectioned_glm4(path: Path) -> None:
    """Writes a GLM-4 with positions of a plane, whose vocabulary is that of the tiny one."""
    g, sizes = Source(12), {96: 32, 224: 48, 448: 96, 359: 359}
    with GGUFFile.open(HERE / "tiny-glm4.gguf") as file:
        values = metadata_of(file)
        tensors = {
            name: g.vector(32, 1)
            if len(one.shape) == 1
            else g.matrix(*(16 if "attn_k" in name or "attn_v" in name else sizes[one.shape[0]], sizes[one.shape[1]]))
            for name, one in file.tensors.items()
            if not name.startswith("blk.1.")
        }
    values |= {
        "glm4.embedding_length": 32, "glm4.block_count": 1, "glm4.feed_forward_length": 48,
        "glm4.attention.head_count": 2, "glm4.attention.key_length": 16, "glm4.attention.value_length": 16,
        "glm4.rope.dimension_count": 8, "glm4.rope.dimension_sections": [1, 1, 2, 0],
    }  # fmt: skip
    write(path, "glm4", values, tensors, half=True)


def write_sectioned_hunyuan(path: Path) -> None:
    """Writes a Hunyuan VL whose rotations use all four positions."""
    with GGUFFile.open(HERE / "tiny-hunyuan_vl.gguf") as file:
        values = metadata_of(file) | {"hunyuan_vl.rope.dimension_sections": [2, 2, 2, 2], "hunyuan_vl.block_count": 1}
        tensors = {name: file.values(one) for name, one in file.tensors.items() if not name.startswith("blk.1.")}
    write(path, "hunyuan_vl", values, tensors, half=True)


def record(name: str) -> None:
    """Writes the projector, and records libmtmd's embeddings of images."""
    oracle = loaded(os.environ["MTMD"])
    model, make, more = MODELS[name]
    if name == "glm4v":
        write_sectioned_glm4(HERE / f"{model}.gguf")
    if name == "hunyuanvl":
        write_sectioned_hunyuan(HERE / f"{model}.gguf")
    with GGUFFile.open(HERE / f"{model}.gguf") as file:
        width = file.int(f"{file.str('general.architecture')}.embedding_length")
    tensors, metadata = make(width)
    write(HERE / "vision" / f"{name}.gguf", "clip", metadata, tensors, half=True)
    with tempfile.TemporaryDirectory() as folder:
        text, projector = Path(folder) / "text.gguf", Path(folder) / "mmproj.gguf"
        words = twin(HERE / f"{model}.gguf", text, more, WORDS.get(metadata["clip.projector_type"], ()))
        write(projector, "clip", metadata, tensors)
        eyes = oracle.Eyes(text, projector)
        found: dict[str, np.ndarray] = {}
        sizes, layouts = sizes_of(name), []
        for number, size in enumerate([*sizes, *LARGE.get(name, ())]):
            chunk = eyes.parts(eyes.chunks("<__media__>", [image(*size)], special=False))
            tiles = [part for kind, part in chunk if kind == "image"]
            texts = ["".join(words[token] for token in part) if kind == "text" else "" for kind, part in chunk]
            pixels = np.concatenate([eyes.pixels(tile).reshape(-1, 3) for tile in tiles])
            found[f"pixels{number}"] = np.frombuffer(hashlib.sha256(pixels.tobytes()).digest(), np.uint8)
            found[f"shape{number}"] = np.array(pixels.shape)
            if number >= len(sizes):
                continue
            pairs = zip(texts, chunk, strict=True)
            layouts.append([re.sub(LINE_END, "\n", text) or len(eyes.embed(part)) for text, (_, part) in pairs])
            rows = np.concatenate([eyes.embed(tile) for tile in tiles])
            found[f"count{number}"], found[f"rows{number}"] = np.array(len(rows)), rows[kept(len(rows))]
        found["layouts"] = np.array(json.dumps(layouts))
        two = eyes.chunks(TEXT, [image(*sizes[0]), image(*sizes[1])])
        ids = [
            part if kind == "text" else [-1] * oracle.m.mtmd_input_chunk_get_n_tokens(part)
            for kind, part in eyes.parts(two)
        ]
        found["tokens"] = np.concatenate([np.array(part, np.int64) for part in ids])
        found["logits"], past = eyes.logits(two)
        found["positions"] = np.array(past)
    np.savez_compressed(HERE / "vision" / f"{name}.npz", **found)
    print(f"{name}: {len(found['tokens'])} tokens, {past} positions, logits of deviation {found['logits'].std():.2f}")


if __name__ == "__main__":
    for which in sys.argv[1:] or MODELS:
        record(which)
