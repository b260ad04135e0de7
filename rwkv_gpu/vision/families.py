"""The types of projectors: how each reads its tensors, prepares images, and places them in a prompt."""

from dataclasses import replace
from operator import itemgetter

import numpy as np

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..models.tensors import EPS
from ..models.transformer import FeedForward, Output
from ..ops.vocabulary import Attention, Blocks, Cache, HeadRows, LayerNorm, Rms
from .chunk_stem import check
from .family import Family, Frame
from .tiles import any_shape, best_shape, closest_shape, longest_side, rows_of_tiles, slices, unbordered
from .tower_file import QUERIES, TowerFile
from .towers import (
    WINDOWS,
    ChainProjector,
    GatedProjector,
    JoinedProjector,
    LinearProjector,
    NormedProjector,
    PairProjector,
    PooledProjector,
    Projector,
    Resampler,
    ScaledProjector,
)

SCALE = "clip.vision.projector.scale_factor"
BREAK, LINE, END = "v.token_embd.img_break", "v.image_newline", "v.view_seperator"  # rows between or after lines
HEAD = 128  # numbers of a head of a resampler; no file says it
VERSIONS = 3, 4, 5, 6, 100045  # of MiniCPM-V 2.6, 4 and 4.5 and MiniCPM-o 2.6 and 4.5, which differ in their sizes only


def _layer_norm(source: TowerFile, name: str, width: int, eps: float = 1e-5) -> LayerNorm:
    return LayerNorm(source.tensors.take(f"{name}.weight", width), source.tensors.find(f"{name}.bias", width), eps)


def _gemma3(source: TowerFile) -> Projector:
    tensors, width, name = source.tensors, source.width, "mm.input_projection.weight"
    rows = HeadRows(1, width, 0, width, transposed=True)
    out = tensors.dimension(name, 1)
    norm = Rms(tensors.take("mm.soft_emb_norm.weight", width), source.eps)
    return PooledProjector(source.block, norm, tensors.slice_heads("mm.input_projection", name, rows, out))


def _gemma4(source: TowerFile) -> Projector:
    name, find = "mm.input_projection.weight", source.tensors.find
    matrix = source.tensors.take(name, source.tensors.dimension(name, 0), source.width)
    shift, scale = (find(f"v.std_{which}", source.width) for which in ("bias", "scale"))
    return ScaledProjector(source.block, shift, scale, source.eps, matrix)


def _qwen(source: TowerFile) -> Projector:
    return JoinedProjector(source.block, source.mlp("mm.0", "mm.2", source.width * source.block))


def _internvl(source: TowerFile) -> Projector:
    width, at = source.width * source.block, "mm.model.mlp"
    return JoinedProjector(source.block, source.mlp(f"{at}.1", f"{at}.3", width), _layer_norm(source, f"{at}.0", width))


def _llava(source: TowerFile) -> Projector:
    source.tensors.skip("v.image_newline")
    return JoinedProjector(1, source.mlp("mm.0", "mm.2", source.width))


def _lfm2(source: TowerFile) -> Projector:
    width, at = source.width * source.block, "mm.input_norm"
    norm = _layer_norm(source, at, width) if f"{at}.weight" in source.tensors else None
    return JoinedProjector(source.block, source.mlp("mm.1", "mm.2", width), norm)


def _kimi(source: TowerFile) -> Projector:
    mlp = source.mlp("mm.1", "mm.2", source.width * source.block, then=source.activation())
    return JoinedProjector(source.block, mlp, each=_layer_norm(source, "mm.input_norm", source.width))


def _glm(source: TowerFile) -> Projector:
    tensors, name = source.tensors, "mm.patch_merger"
    out = tensors.dimension(f"{name}.weight", 0)
    merger = tensors.take(f"{name}.weight", out, source.width * source.block), tensors.find(f"{name}.bias", out)
    norm = _layer_norm(source, "mm.post_norm", out)
    inner = tensors.dimension("mm.up.weight", 0)
    gates = tensors.take("mm.gate.weight", inner, out), tensors.take("mm.up.weight", inner, out)
    biases = tuple(tensors.find(f"mm.{name}.bias", inner) for name in ("gate", "up"))
    down = Output(tensors.take("mm.down.weight", out, inner), tensors.find("mm.down.bias", out))
    feed = FeedForward(None, gates, source.activation(), down, biases)
    return GatedProjector(source.block, *merger, tensors.take("mm.model.fc.weight", out, out), norm, feed)


def _chain(source: TowerFile, names: tuple[str, ...], *, blocks: Blocks = "joined") -> Projector:
    tensors, columns = source.tensors, source.width * source.block
    sizes = [columns, *(tensors.dimension(name, 0) for name in names)]
    matrices = tuple(map(tensors.take, names, sizes[1:], sizes))
    return ChainProjector(source.block, matrices, blocks, source.activation())


def _muse(source: TowerFile) -> Projector:
    return _chain(source, ("mm.0.weight", "mm.1.weight", "mm.2.weight"), blocks="by_column")


def _llama4(source: TowerFile) -> Projector:
    return _chain(source, ("mm.model.mlp.1.weight", "mm.model.mlp.2.weight", "mm.model.fc.weight"))


def _deepseek(source: TowerFile) -> Projector:
    tensors, width, name = source.tensors, source.width, "mm.model.fc"
    out = tensors.dimension(f"{name}.weight", 0)
    for row in (LINE, END):
        check(tensors, source.file, row, out)
    whole = f"{name}.weight", (out, 2 * width)
    clip, sam = (
        tensors.compute(f"{name}.{part}", (out, width), itemgetter((slice(None), slice(first, first + width))), whole)
        for part, first in (("clip", 0), ("sam", width))
    )
    return PairProjector(clip, sam, tensors.find(f"{name}.bias", out))


def _deepseek_frame(file: GGUFFile) -> Frame:
    line, last = (file.values(file.tensors[name]).reshape(-1) for name in (LINE, END))
    return Frame(line, last=last, after_all=True)


def _hunyuan(source: TowerFile) -> Projector:
    tensors, name = source.tensors, "mm.model.fc"
    mlp = source.mlp("mm.0", "mm.2", source.width * source.block)
    out, inner = (tensors.dimension(f"{name}.weight", axis) for axis in (0, 1))
    if inner != mlp.down.shape[0]:
        raise tensors.bad(f"tensor '{name}.weight'", f"{inner} columns", f"{mlp.down.shape[0]}")
    for row, size in ((LINE, inner), ("mm.image_begin", out), ("mm.image_end", out)):
        check(tensors, source.file, row, size)
    tensors.skip(END)
    return NormedProjector(
        source.block, mlp, each=Rms(tensors.take("mm.pre_norm.weight", source.width), source.eps), blocks="by_column",
        matrix=tensors.take(f"{name}.weight", out, inner), bias=tensors.find(f"{name}.bias", out),
        after=Rms(tensors.take("mm.post_norm.weight", out), source.eps),
    )  # fmt: skip


def _hunyuan_frame(file: GGUFFile) -> Frame:
    """The rows of an image's ends and of line ends, after the last matrix and norm."""
    names = "mm.model.fc.weight", LINE, "mm.image_begin", "mm.image_end", "mm.post_norm.weight"
    matrix, line, first, last, weight = (file.values(file.tensors[name]) for name in names)
    eps, bias = file.float("clip.vision.attention.layer_norm_epsilon", *EPS), file.tensors.get("mm.model.fc.bias")
    line = matrix @ line.reshape(-1) + (0 if bias is None else file.values(bias))
    rows = np.stack([first.reshape(-1), line, last.reshape(-1)])
    rows = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + np.float32(eps)) * weight
    return Frame(rows[1], rows[0], rows[2], after_all=True)


def _pixtral_frame(file: GGUFFile) -> Frame | None:
    return Frame(file.values(file.tensors[BREAK]).reshape(-1)) if BREAK in file.tensors else None


def _idefics3(source: TowerFile) -> Projector:
    name, width = "mm.model.fc.weight", source.width * source.block
    return LinearProjector(source.block, source.tensors.take(name, source.tensors.dimension(name, 0), width))


def _pixtral(source: TowerFile) -> Projector:
    tensors, width, merger = source.tensors, source.width, "mm.patch_merger.weight"
    norm = Rms(tensors.take("mm.input_norm.weight", width), source.eps) if merger in tensors else None
    matrix = tensors.take(merger, width, width * source.block) if merger in tensors else None
    tensors.skip(BREAK)
    mlp = source.mlp("mm.1", "mm.2", width)
    return JoinedProjector(source.block, mlp, each=norm, blocks="by_column", merger=matrix)


def _minicpm(source: TowerFile) -> Projector:
    tensors, at, version = source.tensors, "resampler", source.file.int("clip.minicpmv_version", default=2)
    if version not in VERSIONS:
        raise UnsupportedModel(f"{source.file.path}: version {version} of MiniCPM-V is not supported; 2.6 to 4.5 are")
    count, width = (tensors.dimension(QUERIES, axis) for axis in range(2))
    if width % HEAD:
        raise tensors.bad(f"tensor '{QUERIES}'", f"{width} numbers", f"a multiple of {HEAD}")
    tensors.skip(f"{at}.pos_embed_k")
    names = [f"{at}.attn.{name}" for name in ("q", "k", "v", "out")]
    *qkv, out = (tensors.take(f"{name}.weight", width, width) for name in names)
    *biases, out_bias = (tensors.find(f"{name}.bias", width) for name in names)
    q, kv, post = (_layer_norm(source, f"{at}.ln_{name}", width, source.eps) for name in ("q", "kv", "post"))
    return Resampler(
        tensors.take(QUERIES, count, width),
        tensors.take(f"{at}.kv.weight", width, source.width),
        (q, kv, post),
        tuple(qkv),
        tuple(biases),
        Output(out, out_bias),
        tensors.take(f"{at}.proj.weight", width, width),
        Attention(width // HEAD, None, HEAD**-0.5, causal=False, bounds=WINDOWS),
        queries=count,
        caches=(Cache(f"{at}.kv", width // HEAD, HEAD),),
    )


QWEN = Family(
    _qwen, "bicubic", "<|vision_start|>", "<|vision_end|>", frames=2, tokens=(8, 4096), merge=2,
    plane="halves", pairing="neox", grid_positions=True,
)  # fmt: skip
QWEN25 = replace(QWEN, norm="rms", windows=True, swaps=True)
FAMILIES: dict[str, Family] = {
    "gemma3": Family(
        _gemma3, "bilinear", "<start_of_image>", "<end_of_image>", merge=4,
        merge_key=SCALE, whole="all", swaps=True,
    ),
    "gemma4v": Family(
        _gemma4, "bicubic", "<|image>", "<image|>", norm="rms", tokens=(70, 1120), merge=3, merge_key=SCALE,
        plane="apart", pairing="neox", head_norms=True, axes=True, centred=True, whole="windows",
        causal_widths=(1536, 2560),
    ),
    "qwen2vl_merger": replace(QWEN, swaps=True),
    "qwen2.5vl_merger": QWEN25,
    "qwen2.5o": QWEN25,
    "qwen3vl_merger": QWEN,
    "internvl": Family(
        _internvl, "bicubic", "<img>", "</img>", merge=2, merge_key=SCALE,
        cut=best_shape, tiles=(1, 12),
    ),
    "mlp": Family(
        _llava, "bicubic", cut=any_shape, border=(122, 116, 104), unused=1, drops_first=True, swaps=True,
    ),
    "lfm2": Family(
        _lfm2, "bilinear", "<|image_start|>", "<|image_end|>", tokens=(64, 256), merge_key=SCALE, between="smooth",
        cut=closest_shape, tile_side=512, tile="<|img_row_{row}_col_{column}|>", overview=("<|img_thumbnail|>", ""),
    ),
    "idefics3": Family(
        _idefics3, "lanczos", merge_key=SCALE, swaps=True, cut=longest_side,
        tile="<fake_token_around_image><row_{row}_col_{column}>", row_end="\n",
        overview=("\n\n<fake_token_around_image><global-img>", "<fake_token_around_image>"),
    ),
    "kimivl": Family(
        _kimi, "bicubic", "<|media_start|>", "<|media_end|>", tokens=(8, 1024), merge=2, merge_key=SCALE,
        between="smooth", plane="swapped",
    ),
    "paddleocr": Family(
        _kimi, "bicubic", "<|IMAGE_START|>", "<|IMAGE_END|>", states_pixels=True, merge=2, between="smooth",
        plane="halves", pairing="neox", grid_positions=True,
    ),
    "glm4v": Family(
        _glm, "bicubic", "<|begin_of_image|>", "<|end_of_image|>", norm="rms", frames=2, tokens=(8, 4096), merge=2,
        between="cubic", plane="halves", pairing="neox", grid_positions=True,
    ),
    "deepseekocr": Family(
        _deepseek, "bicubic", end="\n", frame=_deepseek_frame, sam=True, patch=16, side=1024, eps=1e-5, merge=4,
        cut=rows_of_tiles, tiles=(2, 9), tile_side=640, border=(127, 127, 127), between="cubic", quick=True,
    ),
    "hunyuanvl": Family(
        _hunyuan, "lanczos", "<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>", _hunyuan_frame,
        states_pixels=True, merge=2, cut=unbordered, between="widened", grid_positions=True, numbered=True,
    ),
    "llama4": Family(
        _llama4, "bicubic", "<|image_start|>", "<|image_end|>", merge_key=SCALE, cut=best_shape, tile_sides=3,
        between_tiles="<|tile_x_separator|>", row_end="<|tile_y_separator|>", ends_rows=True,
        overview=("<|image|>", ""), overview_alone=True, plane="swapped",
    ),
    "muse-glimmer": Family(
        _muse, "lanczos", "<|image_start|>", "<|image_end|>", tokens=(1, 4096), closest=True, merge=2, cut=unbordered,
        windows=True, period=4, between="linear", plane="swapped", erf=True,
    ),
    "resampler": Family(
        _minicpm, "bicubic", cut=slices, between="nearest", swaps=True, tile="<slice>", tile_end="</slice>",
        row_end="\n", overview=("<image>", "</image>"), overview_first=True, overview_alone=True,
    ),
    "pixtral": Family(
        _pixtral, "bicubic", end="[IMG_END]", frame=_pixtral_frame, norm="rms", tokens=(8, 1024), plane="alternate",
    ),
}  # fmt: skip
