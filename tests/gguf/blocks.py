"""Rows in any format for tests: random bytes whose scales are finite numbers, moderate or extreme."""

import numpy as np

from rwkv_gpu.gguf.formats import Format

# The places of floats in the blocks of a format, and how these are written. All other bits are arbitrary.
SCALES: dict[str, tuple[str, tuple[int, ...]]] = {
    "F32": ("f32", (0,)),
    "F16": ("f16", (0,)),
    "BF16": ("bf16", (0,)),
    "Q4_0": ("f16", (0,)),
    "Q4_1": ("f16", (0, 2)),
    "Q5_0": ("f16", (0,)),
    "Q5_1": ("f16", (0, 2)),
    "Q8_0": ("f16", (0,)),
    "Q2_K": ("f16", (80, 82)),
    "Q3_K": ("f16", (108,)),
    "Q4_K": ("f16", (0, 2)),
    "Q5_K": ("f16", (0, 2)),
    "Q6_K": ("f16", (208,)),
    "IQ4_NL": ("f16", (0,)),
    "IQ4_XS": ("f16", (0,)),
    "MXFP4": ("e8m0", (0,)),
    "NVFP4": ("ue4m3", (0, 1, 2, 3)),
    "TQ1_0": ("f16", (52,)),
    "TQ2_0": ("f16", (64,)),
    "Q1_0": ("f16", (0,)),
    "Q2_0": ("f16", (0,)),
    "IQ1_S": ("f16", (0,)),
    "IQ1_M": ("f16", (48,)),  # by nibbles, see NIBBLES
    "IQ2_XXS": ("f16", (0,)),
    "IQ2_XS": ("f16", (0,)),
    "IQ2_S": ("f16", (0,)),
    "IQ3_XXS": ("f16", (0,)),
    "IQ3_S": ("f16", (0,)),
}

NIBBLES = {"IQ1_M": (49, 51, 53, 55)}  # bytes whose high nibbles are a number, the lowest bits first

# Bits of finite numbers: zeros, the least subnormal, the largest subnormal, the least normal, ones, the largest.
EXTREMES = {
    "f16": np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF], "<u2"),
    "bf16": np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x8080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F], "<u2"),
    "f32": np.array([0, 1 << 31, 1, 0x7FFFFF, 0x800000, 0x80800000, 0x3F800000, 0x7F7FFFFF, 0xFF7FFFFF], "<u4"),
    "ue4m3": np.array([0, 1, 7, 8, 0x38, 0x7E, 0x7F, 0x80, 0xFF], "u1"),  # 0x7F stands for 0
    "e8m0": np.array([0, 1, 2, 127, 128, 251], "u1"),  # 252 times the largest quant, 12, exceeds the range of floats
}


def random_bytes(fmt: Format, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Returns completely random bytes. [rows, bytes of a row]"""
    return np.random.default_rng([seed, rows, width]).integers(0, 256, (rows, fmt.row_bytes(width)), np.uint8)


def finite_rows(fmt: Format, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Returns random bytes with finite scales. [rows, bytes of a row]"""
    raw = random_bytes(fmt, rows, width, seed)
    kind, _ = SCALES[fmt.name]
    every = np.arange(1 << 16).astype("<u2")
    patterns = {
        "f16": every[np.isfinite(every.view("<f2"))],
        "bf16": every[every & 0x7F80 != 0x7F80],
        "f32": np.random.default_rng(seed).standard_normal(4096).astype("<f4").view("<u4"),
        "ue4m3": np.arange(256).astype("u1"),
        "e8m0": np.arange(252).astype("u1"),
    }
    return with_scales(fmt, raw, patterns[kind])


def mild_rows(fmt: Format, rows: int, width: int, seed: int = 0, size: float = 0.02) -> np.ndarray:
    """Returns random bytes with scales near `size`, of both signs, as in a model. [rows, bytes of a row]"""
    scales = (np.random.default_rng(seed).standard_normal(997) * size).astype(np.float32)
    patterns = {
        "f16": scales.astype("<f2").view("<u2"),
        "bf16": (scales.view("<u4") >> 16).astype("<u2"),
        "f32": scales.view("<u4"),
        "ue4m3": np.arange(0x04, 0x18).astype("u1"),
        "e8m0": np.arange(118, 123).astype("u1"),
    }
    return with_scales(fmt, random_bytes(fmt, rows, width, seed), patterns[SCALES[fmt.name][0]])


def extreme_rows(fmt: Format, fill: int | None, rows: int, width: int) -> np.ndarray:
    """Returns rows with extreme scales; every other byte is `fill`, or random. [rows, bytes of a row]"""
    raw = random_bytes(fmt, rows, width)
    if fill is not None:
        raw[:] = fill
    return with_scales(fmt, raw, EXTREMES[SCALES[fmt.name][0]])


def with_scales(fmt: Format, raw: np.ndarray, patterns: np.ndarray) -> np.ndarray:
    """Returns the rows with a random one of the patterns at each scale."""
    rng = np.random.default_rng(len(patterns))
    blocks = raw.reshape(-1, fmt.nbytes)
    for offset in SCALES[fmt.name][1]:
        chosen = rng.choice(patterns, (len(blocks), 1))
        if fmt.name in NIBBLES:
            for n, at in enumerate(NIBBLES[fmt.name]):
                blocks[:, at] = blocks[:, at] & 15 | (chosen[:, 0] >> 4 * n & 15) << 4
            continue
        blocks[:, offset : offset + patterns.itemsize] = chosen.view(np.uint8)
    return raw
