"""RWKV-7b in float64, row by row, by its publisher's demo, because llama.cpp does not support its tensors."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
HEAD_EPS = 64e-5


class Forward:
    """Computes the logits of all rows of a text; tensors and keys are those of a golden model."""

    def __init__(self, tensors: dict[str, np.ndarray], keys: dict) -> None:
        self._tensors, self._keys = tensors, keys
        self._eps, self._size = keys["attention.layer_norm_epsilon"], keys["wkv.head_size"]

    def logits(self, ids: npt.NDArray[np.integer]) -> Array:
        x, first = self._normed(self._of("token_embd.weight")[ids], "token_embd_norm"), None
        for i in range(self._keys["block_count"]):
            at = f"blk.{i}"
            seen = self._attended(x, ids, f"{at}.dea") if f"{at}.dea_q.weight" in self._tensors else 0.0
            mixed, first = self._time(self._normed(x, f"{at}.attn_norm"), first, at)
            x = x + mixed + seen
            x = x + self._channel(self._normed(x, f"{at}.attn_norm_2"), ids, f"{at}.channel_mix")
        return self._normed(x, "output_norm") @ self._of("output.weight").T

    def _attended(self, x: Array, ids: npt.NDArray[np.integer], at: str) -> Array:
        def product(y: Array, *names: str) -> Array:
            for name in names:
                y = y @ self._of(f"{at}_{name}.weight").T
            return y

        q, k, v = product(x, "q"), product(x, "k1", "k2"), np.tanh(product(x, "v1", "v2"))
        k, v = k * self._of(f"{at}_k_emb.weight")[ids], v * self._of(f"{at}_v_emb.weight")[ids]
        mixed = (
            y + (_before(y) - y) * self._of(f"{at}_lerp_{name}.weight")
            for y, name in zip((q, k, v), "qkv", strict=True)
        )
        q, k, v = (self._normed(y, f"{at}_{name}_norm") for y, name in zip(mixed, "qkv", strict=True))
        scores = 64 * np.tanh(q @ k.T / 1024)
        scores[np.triu(np.ones(scores.shape, bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True) @ v

    def _time(self, x: Array, first: Array | None, at: str) -> tuple[Array, Array]:
        def w(name: str) -> Array:
            return self._of(f"{at}.time_mix_{name}.weight")

        mixes = w("lerp_fused").reshape(6, -1)
        xr, xw, xk, xv, xa, xg = (x + (_before(x) - x) * mix for mix in mixes)
        r, k, v = xr @ w("receptance").T, xk @ w("key").T, xv @ w("value").T
        decay = np.exp(-np.exp(-0.5) * _sigmoid(w("w0") + np.tanh(xw @ w("w1").T) @ w("w2").T))
        a = _sigmoid(w("a0") + xa @ w("a1").T @ w("a2").T)
        gate = _sigmoid(xg @ w("g1").T) @ w("g2").T
        kk = (k * w("k_k")).reshape(len(x), -1, self._size)
        kk = kk / np.maximum(np.sqrt((kk**2).sum(axis=2, keepdims=True)), 1e-12)
        k = k * (1 + (a - 1) * w("k_a"))
        if first is None:
            first = v
        else:
            v = v + (first - v) * _sigmoid(w("v0") + xv @ w("v1").T @ w("v2").T)
        r_, w_, k_, v_, a_ = (y.reshape(kk.shape) for y in (r, decay, k, v, a))
        state, y = np.zeros((kk.shape[1], self._size, self._size)), np.empty_like(kk)
        for t in range(len(x)):
            removed = np.einsum("hvk,hk->hv", state, -kk[t])[:, :, None] * (kk[t] * a_[t])[:, None, :]
            state = state * w_[t][:, None, :] + removed + v_[t][:, :, None] * k_[t][:, None, :]
            y[t] = np.einsum("hvk,hk->hv", state, r_[t])
        y = (y - y.mean(axis=2, keepdims=True)) / np.sqrt(y.var(axis=2, keepdims=True) + HEAD_EPS)
        y = y.reshape(x.shape) * w("ln") + self._of(f"{at}.time_mix_ln.bias")
        bonus = (r_ * k_ * w("r_k").reshape(kk.shape[1:])).sum(axis=2, keepdims=True) * v_
        return ((y + bonus.reshape(x.shape)) * gate) @ w("output").T, first

    def _channel(self, x: Array, ids: npt.NDArray[np.integer], at: str) -> Array:
        k = x + (_before(x) - x) * self._of(f"{at}_lerp_k.weight").reshape(-1)
        k = np.maximum(k @ self._of(f"{at}_key.weight").T, 0) ** 2
        if f"{at}_s_emb.weight" in self._tensors:
            low = x @ self._of(f"{at}_s1.weight").T
            table = self._of(f"{at}_s_emb.weight")[ids].reshape(len(x), low.shape[1], -1)
            low = np.einsum("ti,tij->tj", low, table)
            k = k * (low @ self._of(f"{at}_s2.weight").T + self._of(f"{at}_s0.weight"))
        return k @ self._of(f"{at}_value.weight").T

    def _normed(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + self._eps)
        return y * self._of(f"{name}.weight") + self._of(f"{name}.bias")

    def _of(self, name: str) -> Array:
        return self._tensors[name].astype(np.float64)


def _before(x: Array) -> Array:
    return np.concatenate([np.zeros_like(x[:1]), x[:-1]])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
