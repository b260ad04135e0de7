"""The random draw of a token. It depends only on the seed, the number of the draw and the token, so that numpy and all
kernels draw the same token, for any batch and workgroup size.

Gumbel-max: the token with the largest (x - max) / temperature - log(E) has the distribution softmax(x / temperature),
if each E is exponential; E is computed from a hash. `shaders/sampling/draw.wgsl` computes the same.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

COIN = 0xFFFFFFFF  # a coin toss uses this number in place of a token
MAX_INVERSE_TEMPERATURE = 1e30
WORD = 0xFFFFFFFF
ULP = np.float32(2.0**-32)


def draw(x: npt.NDArray[Any], tokens: npt.NDArray[Any], temperature: float, seed: int, number: int) -> int:
    """The index of the token drawn from softmax(x / temperature); `tokens`, ascending, are the ids for the logits x."""
    scaled = (x - x.max()).astype(np.float32) * inverse_temperature(temperature)
    with np.errstate(over="ignore"):
        return int((scaled - np.log(exponentials(seed, number, tokens))).argmax())


def inverse_temperature(temperature: float) -> np.float32:
    """1 / temperature"""
    return np.float32(min(1 / temperature, MAX_INVERSE_TEMPERATURE) if temperature > 0 else MAX_INVERSE_TEMPERATURE)


def toss(seed: int, number: int) -> float:
    """A uniform number in (0, 1) for this draw, independent of the drawn token."""
    return (int(hashes(seed, number, np.array([COIN]))[0]) + 0.5) / 2**32


def exponentials(seed: int, number: int, tokens: npt.NDArray[Any]) -> Floats:
    """E = -log(1 - v), v uniform in (0, 1); small v by its series, as 1 - v would round away"""
    h = hashes(seed, number, tokens)
    v = (h.astype(np.float32) + np.float32(0.5)) * ULP
    few = v * (1 + v * (np.float32(1 / 2) + v * (np.float32(1 / 3) + v * (np.float32(1 / 4) + v * np.float32(1 / 5)))))
    rest = -np.log(((~h).astype(np.float32) + np.float32(0.5)) * ULP)
    e: Floats = np.where(v < np.float32(1 / 16), few, rest)
    return e


def hashes(seed: int, number: int, tokens: npt.NDArray[Any]) -> Words:
    """32 hash bits for each token."""
    low = _stir_one((seed & WORD) + 0x9E3779B9)
    first = _stir_one(number ^ _stir_one((seed >> 32) ^ low))
    second = _stir_one(first + low)
    h: Words = _mix_bits(_mix_bits(tokens.astype(np.uint32) ^ np.uint32(first)) + np.uint32(second))
    return h


def _mix_bits(x: Words) -> Words:
    """A bijection of 32 bits in which each bit depends on all."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _stir_one(x: int) -> int:
    return int(_mix_bits(np.array([x & WORD], np.uint32))[0])
