"""A two-layer model for tests of the whole path, from ops to kernels."""

from typing import Any

import numpy as np

VOCABULARY, WIDTH, INNER, LAYERS = 60, 36, 70, 2


def toy_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Random parameters: matrices in float16 and float32, odd sizes."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(dtype)

    arrays = {"embed.weight": normal(VOCABULARY, WIDTH, dtype=np.float16) * 6, "head.weight": normal(VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        arrays |= {
            f"blk.{i}.norm.weight": normal(WIDTH) + 1,
            f"blk.{i}.norm.bias": normal(WIDTH),
            f"blk.{i}.up.weight": normal(INNER, WIDTH, dtype=np.float16) * 2,
            f"blk.{i}.up.bias": normal(INNER),
            f"blk.{i}.gate.weight": normal(INNER, WIDTH) * 2,
            f"blk.{i}.down.weight": normal(WIDTH, INNER, dtype=np.float16) * 2,
        }
    return arrays


def toy(g: Any, w: dict[str, Any], ids: Any) -> dict[str, Any]:
    """x + down(tanh(up(norm(x))) · silu(gate(norm(x)))), twice; then a head."""
    x = g.embed(w["embed.weight"], ids)  # [T, D]
    for i in range(LAYERS):
        with g.layer(i):
            h = g.layer_norm(x, w[f"blk.{i}.norm.weight"], w[f"blk.{i}.norm.bias"], 1e-5)
            up = g.linear(h, w[f"blk.{i}.up.weight"], bias=w[f"blk.{i}.up.bias"], then="tanh")
            gate = g.linear(h, w[f"blk.{i}.gate.weight"], then="silu")
            x = g.linear(g.mul(up, gate), w[f"blk.{i}.down.weight"], add=x)
            x = g.add(x, g.activate(g.rms_norm(x, w[f"blk.{i}.norm.weight"], 1e-6), "relu2"))
    logits = g.linear(x, w["head.weight"])
    return {"logits": logits, "p": g.softmax(logits), "best": g.argmax(logits)}
