"""Embeddings of images in place of those of token ids, and two-dimensional positions, for any model.

These rows are inputs of a step, by name. Models are not aware of them, except models that add such rows after a
layer.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .vocabulary import Attention, Cache, LayerNorm, Weight, Whole

EMBEDDED, TEXT = "media", "text"  # embeddings, zeros for tokens; and 1 for a token, 0 for another row, [T, 1]
ANGLES = "angles"  # cosines and sines of the rotation of each row
# The position after the last that each row sees, in all layers or in those with windows, [T, 1]. A row of an image sees
# all of the image.
ENDS: dict[Whole, str] = {"all": "ends", "windows": "ends.windows"}
NAMES = EMBEDDED, TEXT, ANGLES


class MediaOps:
    """The vocabulary for a step with such inputs; passes other ops on to `ops`."""

    def __init__(self, ops: Any, inputs: Collection[str]) -> None:
        self._ops = ops
        self._inputs = inputs  # names
        self._embeds = True  # until tokens are embedded, which comes first; in later tables, images read row 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def embed(self, weight: Weight, ids: Any, *, norm: LayerNorm | None = None, scale: float = 1.0) -> Any:
        g = self._ops
        if EMBEDDED not in self._inputs or not self._embeds:
            return g.embed(weight, ids, norm=norm, scale=scale)
        self._embeds = False
        y = g.scale_rows(g.embed(weight, ids, scale=scale), g.step_input(TEXT), add=g.step_input(EMBEDDED))
        return y if norm is None else g.layer_norm(y, norm.weight, norm.bias, norm.eps)

    def add_step_input(self, x: Any, name: str) -> Any:
        return self._ops.add(x, self._ops.step_input(name)) if name in self._inputs else x

    def attention(self, q: Any, k: Any, v: Any, cache: Cache, how: Attention, *, chosen: Any = None) -> Any:
        if ANGLES in self._inputs and how.rope is not None:
            q, k, v, how = self._turned(q, k, v, cache, how)
        ends = ENDS["all"] if ENDS["all"] in self._inputs or not how.window else ENDS["windows"]
        if ends in self._inputs:
            how = replace(how, causal=False, ahead=True, ends=ends)
        return self._ops.attention(q, k, v, cache, how, chosen=chosen)

    def _turned(self, q: Any, k: Any, v: Any, cache: Cache, how: Attention) -> tuple[Any, Any, Any, Attention]:
        """Returns q, k and v normed and rotated by the angles of the step, and `how` without both."""
        g, norms, rope = self._ops, how.norms, how.rope
        assert rope is not None, "it turns"
        assert not how.head, "heads are not padded"
        angles = g.step_input(ANGLES)
        if norms and norms.v and v is not None:
            v = g.group_rms_norm(v, None, cache.heads, norms.eps)

        def both(x: Any, heads: int, weight: Weight | None) -> Any:
            x = g.turn(x, angles, heads, rope.pairing) if norms and norms.turned else x
            x = g.group_rms_norm(x, weight, heads, norms.eps) if norms and norms.qk else x
            return x if norms and norms.turned else g.turn(x, angles, heads, rope.pairing)

        q = both(q, how.heads, norms.q if norms else None)
        k = k if k is None else both(k, cache.heads, norms.k if norms else None)
        return q, k, v, replace(how, rope=None, norms=None)


def with_media(g: Any, inputs: Collection[str]) -> Any:
    """The vocabulary for a step with these inputs; `g` itself if there are none."""
    return MediaOps(g, inputs) if inputs else g


def cos_and_sin(angles: npt.NDArray[np.float64], magnitude: float = 1.0) -> npt.NDArray[np.float32]:
    """Cosines, then sines, of the angles of each row. [T, 2 · pairs]"""
    both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * magnitude
    return both.astype(np.float32)
