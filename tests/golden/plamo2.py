"""PLaMo 2 in float64, row by row. llama.cpp loads its files, but its first step does not end."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Forward:
    """Computes the logits of all rows of a text; tensors and keys are those of a golden model."""

    def __init__(self, tensors: dict[str, np.ndarray], keys: dict) -> None:
        self._tensors, self._keys = tensors, keys

    def logits(self, ids: npt.NDArray[np.integer]) -> Array:
        x = self._of("token_embd.weight")[ids]
        for i in range(self._keys["block_count"]):
            attends = self._keys["attention.head_count_kv"][i]
            h = self._normed(x, f"blk.{i}.attn_norm.weight")
            y = self._attention(h, i) if attends else self._mamba(h, i)
            x = x + self._normed(y, f"blk.{i}.post_attention_norm")
            h = self._normed(x, f"blk.{i}.ffn_norm.weight")
            gate, up = np.split(h @ self._of(f"blk.{i}.ffn_up.weight").T, 2, axis=1)
            y = (gate * _sigmoid(gate) * up) @ self._of(f"blk.{i}.ffn_down.weight").T
            x = x + self._normed(y, f"blk.{i}.post_ffw_norm")
        return self._normed(x, "output_norm.weight") @ self._of("output.weight").T

    def _mamba(self, h: Array, i: int) -> Array:
        at, heads, count = f"blk.{i}.ssm", self._keys["ssm.time_step_rank"], self._keys["ssm.state_size"]
        z, u = np.split((h @ self._of(f"{at}_in.weight").T).reshape(len(h), heads, -1), 2, axis=2)
        taps = self._of(f"{at}_conv1d.weight")  # [C, 4]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, taps.shape[0])), u.reshape(len(h), -1)])
        u = sum(padded[n : n + len(h)] * taps[:, n] for n in range(taps.shape[1]))
        u = u * _sigmoid(u)
        b, c, dt = np.split(u @ self._of(f"{at}_x.weight").T, [count, 2 * count], axis=1)
        b, c, dt = (self._normed(one, f"{at}_{name}_norm") for one, name in ((b, "b"), (c, "c"), (dt, "dt")))
        dt = np.logaddexp(0, dt @ self._of(f"{at}_dt.weight").T + self._of(f"{at}_dt.bias"))  # [T, H]
        u = u.reshape(z.shape)
        state, y = np.zeros((*z.shape[1:], count)), np.empty_like(u)
        for t in range(len(h)):
            decay = np.exp(dt[t] * self._of(f"{at}_a"))[:, None, None]
            state = state * decay + (dt[t, :, None] * u[t])[:, :, None] * b[t]
            y[t] = state @ c[t] + self._of(f"{at}_d")[:, None] * u[t]
        return (y * z * _sigmoid(z)).reshape(len(h), -1) @ self._of(f"{at}_out.weight").T

    def _attention(self, h: Array, i: int) -> Array:
        at, size = f"blk.{i}.attn", self._keys["attention.key_length"]
        heads, kv_heads = (self._keys[f"attention.head_count{end}"][i] for end in ("", "_kv"))
        whole = (h @ self._of(f"{at}_qkv.weight").T).reshape(len(h), -1, size)
        q, k, v = np.split(whole, [heads, heads + kv_heads], axis=1)
        q, k = (self._turned(self._normed(one, f"{at}_{name}_norm.weight")) for one, name in ((q, "q"), (k, "k")))
        k, v = (np.repeat(one, heads // kv_heads, axis=1) for one in (k, v))
        scores = np.einsum("ihn,jhn->hij", q, k) / np.sqrt(size)
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        y = np.einsum("hij,jhn->ihn", p / p.sum(axis=2, keepdims=True), v)
        return y.reshape(len(h), -1) @ self._of(f"{at}_output.weight").T

    def _turned(self, x: Array) -> Array:
        half = x.shape[2] // 2
        angles = np.arange(len(x))[:, None] * self._keys["rope.freq_base"] ** (-np.arange(half) / half)
        turns = np.exp(1j * angles)[:, None] * (x[..., :half] + 1j * x[..., half:])
        return np.concatenate([turns.real, turns.imag], axis=2)

    def _normed(self, x: Array, name: str) -> Array:
        eps = self._keys["attention.layer_norm_rms_epsilon"]
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * self._of(name)

    def _of(self, name: str) -> Array:
        return self._tensors[name].astype(np.float64)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
