"""How positions rotate, as a file's metadata says: plain, scaled linearly, by YaRN, or by factors of its own."""

import math

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Pairing, Rope, Yarn
from .tensors import Tensors

FACTORS = "rope_freqs.weight"
SCALINGS = ("none", "linear", "yarn")


def read_rope(file: GGUFFile, arch: str, tensors: Tensors, pairing: Pairing, head_size: int, context: int) -> Rope:
    """The rotation of every layer; `context` is what the model was trained on."""
    at = f"{arch}.rope"
    dims = file.int(f"{at}.dimension_count", low=2, high=head_size, default=head_size)
    if dims % 2:
        raise tensors.bad(f"metadata key '{at}.dimension_count'", str(dims), "an even number")
    scaling = file.str(f"{at}.scaling.type", default="linear")
    if scaling not in SCALINGS:
        raise UnsupportedModel(f"{file.path}: rope scaling '{scaling}' is not supported; known: {', '.join(SCALINGS)}")
    older = file.float(f"{at}.scale_linear", low=0, default=0.0)
    factor = file.float(f"{at}.scaling.factor", low=0, default=older)
    scale = 1 / factor if factor and scaling != "none" else 1.0
    magnitude = file.float(f"{at}.scaling.attn_factor", low=0, default=1.0)
    yarn = None
    if scaling == "yarn":
        yarn = Yarn(
            context=file.int(f"{at}.scaling.original_context_length", low=1, default=context),
            fast=file.float(f"{at}.scaling.yarn_beta_fast", low=0, default=32.0),
            slow=file.float(f"{at}.scaling.yarn_beta_slow", low=0, default=1.0),
        )
        magnitude *= 1 + 0.1 * math.log(1 / scale)
    return Rope(
        pairing,
        dims,
        base=file.float(f"{at}.freq_base", low=1, default=10000.0),
        scale=scale,
        yarn=yarn,
        factors=tensors.take(FACTORS, dims // 2) if FACTORS in tensors else None,
        magnitude=magnitude,
    )
