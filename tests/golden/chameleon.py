"""Chameleon by its publisher's formulas in float64. llama.cpp differs if norms follow branches (34B)."""

from typing import Any

import numpy as np

HEAD_EPS = 1e-5  # eps of the layer norms of heads


class Forward:
    """The forward pass of a model given as arrays in float32, by name, and the keys of its file."""

    def __init__(self, tensors: dict[str, np.ndarray], keys: dict[str, Any]) -> None:
        self.tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
        self.keys = keys

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the logits of every position."""
        x = self["token_embd.weight"][tokens]
        for i in range(self.keys["block_count"]):
            at = f"blk.{i}"
            for norm, branch in (("attn_norm", self.attention), ("ffn_norm", self.feed_forward)):
                if self.keys.get("swin_norm"):
                    x = x + self.norm(branch(at, x), f"{at}.{norm}")
                else:
                    x = x + branch(at, self.norm(x, f"{at}.{norm}"))
        return self.norm(x, "output_norm") @ self["output.weight"].T

    def attention(self, at: str, x: np.ndarray) -> np.ndarray:
        """Causal attention; heads are normed, then rotated."""
        size, rows = self.keys["rope.dimension_count"], len(x)
        q, k, v = (self.linear(x, f"{at}.attn_{name}").reshape(rows, -1, size) for name in "qkv")
        q, k = (self.turned(self.head_norm(y, f"{at}.attn_{name}_norm")) for y, name in ((q, "q"), (k, "k")))
        k, v = (np.repeat(y, q.shape[1] // y.shape[1], axis=1) for y in (k, v))
        scores = np.einsum("qhn,khn->hqk", q, k) / np.sqrt(size)
        scores = np.where(np.tri(rows, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.linear(np.einsum("hqk,khn->qhn", weights, v).reshape(rows, -1), f"{at}.attn_output")

    def feed_forward(self, at: str, x: np.ndarray) -> np.ndarray:
        """W_down (silu(W_gate x) · W_up x)"""
        gate = self.linear(x, f"{at}.ffn_gate")
        return self.linear(gate / (1 + np.exp(-gate)) * self.linear(x, f"{at}.ffn_up"), f"{at}.ffn_down")

    def turned(self, x: np.ndarray) -> np.ndarray:
        """Rotates pairs of neighbouring numbers."""
        size = x.shape[-1]
        angles = np.arange(len(x))[:, None, None] * self.keys["rope.freq_base"] ** (-np.arange(0, size, 2) / size)
        pairs = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    def head_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """Applies a layer norm to each head, with separate weights."""
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + HEAD_EPS)
        return x * self[f"{name}.weight"] + self[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """Applies the RMS norm of that name."""
        eps = self.keys["attention.layer_norm_rms_epsilon"]
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self[f"{name}.weight"]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """Multiplies by the matrix of that name."""
        return x @ self[f"{name}.weight"].T

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name]
