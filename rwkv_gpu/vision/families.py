"""The types of projectors: how each reads its tensors, prepares images, and places them in a text."""

from dataclasses import replace

from ..ops.vocabulary import HeadRows, LayerNorm, Rms
from .tower_file import Family, TowerFile
from .towers import JoinedProjector, MergedProjector, PooledProjector, Projector

BREAK = "v.token_embd.img_break"


def _gemma3(source: TowerFile) -> Projector:
    tensors, width, name = source.tensors, source.width, "mm.input_projection.weight"
    rows = HeadRows(1, width, 0, width, transposed=True)
    out = tensors.dimension(name, 1)
    norm = Rms(tensors.take("mm.soft_emb_norm.weight", width), source.eps)
    return PooledProjector(source.block, norm, tensors.slice_heads("mm.input_projection", name, rows, out))


def _qwen(source: TowerFile) -> Projector:
    return JoinedProjector(source.block, source.mlp("mm.0", "mm.2", source.width * source.block))


def _internvl(source: TowerFile) -> Projector:
    width, at = source.width * source.block, "mm.model.mlp"
    norm = LayerNorm(source.tensors.take(f"{at}.0.weight", width), source.tensors.find(f"{at}.0.bias", width), 1e-5)
    return JoinedProjector(source.block, source.mlp(f"{at}.1", f"{at}.3", width), norm)


def _pixtral(source: TowerFile) -> Projector:
    tensors, width, merger = source.tensors, source.width, "mm.patch_merger.weight"
    norm = Rms(tensors.take("mm.input_norm.weight", width), source.eps) if merger in tensors else None
    matrix = tensors.take(merger, width, width * source.block) if merger in tensors else None
    tensors.skip(BREAK)
    return MergedProjector(source.block, source.mlp("mm.1", "mm.2", width), norm, matrix)


QWEN = Family(
    _qwen, "bicubic", "<|vision_start|>", "<|vision_end|>", frames=2, tokens=(8, 4096), merge=2,
    plane="halves", pairing="neox", grid_positions=True,
)  # fmt: skip
FAMILIES: dict[str, Family] = {
    "gemma3": Family(
        _gemma3, "bilinear", "<start_of_image>", "<end_of_image>", merge=4,
        merge_key="clip.vision.projector.scale_factor", whole=True, swaps=True,
    ),
    "qwen2vl_merger": replace(QWEN, swaps=True),
    "qwen2.5vl_merger": replace(QWEN, norm="rms", windows=True, swaps=True),
    "qwen3vl_merger": QWEN,
    "internvl": Family(
        _internvl, "bicubic", "<img>", "</img>", merge=2, merge_key="clip.vision.projector.scale_factor", tiles=(1, 12),
    ),
    "pixtral": Family(
        _pixtral, "bicubic", end="[IMG_END]", norm="rms", tokens=(8, 1024), plane="alternate",
    ),
}  # fmt: skip
