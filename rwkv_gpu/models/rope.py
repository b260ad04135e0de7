"""How positions rotate, by a file's metadata: plain RoPE, linear scaling, YaRN, or factors in the file.

Each number must be in a range in which the angles of all positions are finite. Those of published models are.
"""

import math
from dataclasses import replace

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.cursor import shown
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Pairing, Rope, Weight, Yarn
from .tensors import FACTORS, LONGEST_CONTEXT, Tensors

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
SCALINGS = ("none", "linear", "yarn", "longrope")

BASE = 2.0, 1e12  # range of bases: 10,000 in most models, 5e10 in a Llama 3 for 4 million positions
SCALE = 2.0**-10, 2.0**20  # range of scales of positions; 2 to 64 in models
MAGNITUDE = 1e-2, 1e2
TURNS = 1e-3, 1e5  # range of YaRN's beta_slow and beta_fast: 1 and 32 in most models
DIVISOR = 2.0**-10, 1e38  # range of divisors of a frequency: 1 to 32 in Llama 3; 1e30 for pairs that do not rotate


def read_rope(
    file: GGUFFile, arch: str, tensors: Tensors, pairing: Pairing, head_size: int, context: int, inside: str = ""
) -> Rope:
    """Reads the rotation of every layer; `context` is the trained length, `inside` the prefix of names of divisors."""
    at = f"{arch}.rope"
    dims = read_dims(file, tensors, f"{at}.dimension_count", head_size)
    scaling = file.str(f"{at}.scaling.type", default="linear")
    if scaling not in SCALINGS:
        raise UnsupportedModel(
            f"{file.path}: rope scaling {shown(scaling)} is not supported; known: {', '.join(SCALINGS)}"
        )
    older = f"{at}.scaling.factor" not in file.metadata
    factor = _scale_factor(file, f"{at}.scale_linear" if older else f"{at}.scaling.factor")
    scale = 1 / factor if scaling != "none" else 1.0
    magnitude = file.float(f"{at}.scaling.attn_factor", *MAGNITUDE, default=1.0)
    original = file.int(f"{at}.scaling.original_context_length", low=1, high=LONGEST_CONTEXT, default=context)
    yarn = None
    if scaling == "yarn":
        fast = file.float(f"{at}.scaling.yarn_beta_fast", *TURNS, default=32.0)
        yarn = Yarn(
            context=original,
            fast=fast,
            slow=file.float(f"{at}.scaling.yarn_beta_slow", TURNS[0], fast, default=min(1.0, fast)),
        )
        growth = max(0.0, 0.1 * math.log(1 / scale))
        multiplier = file.float(f"{at}.scaling.yarn_log_multiplier", 0.0, 1e2, default=0.0)
        magnitude *= (1 + growth) / (1 + multiplier * growth)
    plain, longer, short = (
        read_factors(file, tensors, inside + name, dims // 2) if inside + name in tensors else None
        for name in (FACTORS, LONG, SHORT)
    )
    return Rope(
        pairing,
        dims,
        base=file.float(f"{at}.freq_base", *BASE, default=10000.0),
        scale=scale,
        yarn=yarn,
        factors=short or plain,
        long_factors=longer,
        short=original,
        magnitude=magnitude,
    )


def unscaled(rope: Rope) -> Rope:
    """The same RoPE without its scaling for long contexts."""
    return replace(rope, scale=1.0, yarn=None, factors=None, magnitude=1.0)


def read_dims(file: GGUFFile, tensors: Tensors, key: str, head_size: int) -> int:
    """The number of dimensions of a head that rotate; all if the file has no such key. DeepSeek-OCR has 0 for all."""
    if key == "deepseek2-ocr.rope.dimension_count" and file.int(key, default=0) == 0:
        return head_size
    dims = file.int(key, low=2, high=head_size, default=head_size)
    if dims % 2:
        raise tensors.bad(f"metadata key '{key}'", str(dims), "an even number")
    return dims


def _scale_factor(file: GGUFFile, key: str) -> float:
    """The divisor of positions; some files write 0 for 1."""
    return 1.0 if file.float(key, default=0.0) == 0 else file.float(key, *SCALE)


def read_factors(file: GGUFFile, tensors: Tensors, name: str, pairs: int) -> Weight:
    """The divisors of the frequencies. Refuses zero and NaN, which would make every answer NaN."""
    weight = tensors.take(name, pairs)
    values = file.values(file.tensors[name])
    wrong = ~((values >= DIVISOR[0]) & (values <= DIVISOR[1]))
    if wrong.any():
        expected = f"numbers from {DIVISOR[0]} to {DIVISOR[1]}"
        raise tensors.bad(f"tensor '{name}'", str(values[wrong][0]), expected)
    return weight
