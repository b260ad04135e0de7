"""RWKV-4 and RWKV-5 in float64 by the formulas of their papers, with the tensor names of BlinkDL's checkpoints."""

import numpy as np
import numpy.typing as npt

from rwkv_gpu.convert.rwkv import RWKV4

Array = npt.NDArray[np.float64]


class Forward:
    """Computes logits with the tensors of a model."""

    def __init__(self, tensors: dict[str, np.ndarray], keys: dict) -> None:
        own = {target: name for name, target in RWKV4.ends}
        for i in range(keys["block_count"]):
            own |= {f"blk.{i}.{target}": name.format(i=i) for name, target, _ in RWKV4.rows}
        self._arrays = {own[name]: array for name, array in tensors.items() if name in own}
        for i in range(keys["block_count"]):
            lerps = tensors[f"blk.{i}.time_mix_lerp_fused.weight"]
            self._arrays |= {f"blocks.{i}.att.time_mix_{letter}": 1 - lerps[n] for n, letter in enumerate("rkv")}
            for letter in "kr":
                self._arrays[f"blocks.{i}.ffn.time_mix_{letter}"] = (
                    1 - self._arrays[f"blocks.{i}.ffn.time_mix_{letter}"]
                )

    def logits(self, ids: npt.NDArray[np.integer]) -> Array:
        return logits(self._arrays, ids)


def logits(arrays: dict[str, np.ndarray], ids: npt.NDArray[np.integer]) -> Array:
    """Returns the logits of all rows. The model is RWKV-5 if it has gates, else RWKV-4."""
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    x = normed(w["emb.weight"][ids], w, "blocks.0.ln0")
    for i in range(1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))):
        at = f"blocks.{i}"
        average = averages_5 if f"{at}.att.gate.weight" in w else averages_4
        x = x + average(normed(x, w, f"{at}.ln1"), w, f"{at}.att") @ w[f"{at}.att.output.weight"].T
        xx = normed(x, w, f"{at}.ln2")
        k, r = (mixed(xx, w, f"{at}.ffn", name) for name in ("key", "receptance"))
        x = x + sigmoid(r) * (np.maximum(k, 0) ** 2 @ w[f"{at}.ffn.value.weight"].T)
    return normed(x, w, "ln_out") @ w["head.weight"].T


def averages_4(xx: Array, w: dict[str, Array], at: str) -> Array:
    """Returns sigmoid(r) · the average of values, weighted by their distance."""
    r, k, v = (mixed(xx, w, at, name) for name in ("receptance", "key", "value"))
    decay, bonus = np.exp(w[f"{at}.time_decay"]), w[f"{at}.time_first"]
    out = np.zeros_like(v)
    for t in range(len(xx)):
        exponents = k[: t + 1] - (t - 1 - np.arange(t + 1))[:, None] * decay
        exponents[t] = k[t] + bonus
        shares = np.exp(exponents - exponents.max(axis=0))
        out[t] = (shares * v[: t + 1]).sum(axis=0) / shares.sum(axis=0)
    return sigmoid(r) * out


def averages_5(xx: Array, w: dict[str, Array], at: str) -> Array:
    """Returns silu(g) · norm(r (S + diag(u) kᵀ v)), where S is a matrix for each head."""
    heads, size = w[f"{at}.time_decay"].shape
    r, k, v = (mixed(xx, w, at, name).reshape(-1, heads, size) for name in ("receptance", "key", "value"))
    decay, bonus = np.exp(-np.exp(w[f"{at}.time_decay"])), w[f"{at}.time_faaaa"]
    s, out = np.zeros((heads, size, size)), np.zeros_like(v)
    for t in range(len(xx)):
        new = k[t, :, :, None] * v[t, :, None, :]
        out[t] = np.einsum("hk,hkv->hv", r[t], s + bonus[:, :, None] * new)
        s = decay[:, :, None] * s + new
    out = out / 8  # head_size_divisor
    out = (out - out.mean(axis=2, keepdims=True)) / np.sqrt(out.var(axis=2, keepdims=True) + 1e-5)
    gate = mixed(xx, w, at, "gate")
    return (out.reshape(len(xx), -1) * w[f"{at}.ln_x.weight"] + w[f"{at}.ln_x.bias"]) * gate * sigmoid(gate)


def mixed(xx: Array, w: dict[str, Array], at: str, name: str) -> Array:
    """Returns the product of a matrix and rows, each mixed with the row before it."""
    mix = w[f"{at}.time_mix_{name[0]}"].reshape(-1)
    before = np.concatenate([np.zeros_like(xx[:1]), xx[:-1]])
    return (xx * mix + before * (1 - mix)) @ w[f"{at}.{name}.weight"].T


def normed(x: Array, w: dict[str, Array], name: str) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
