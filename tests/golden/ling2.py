"""Computes the draft head of Ling 2 in float64. llama.cpp loads the head, but cannot compute it.

python -m tests.golden.ling2

The head reads rows of the model after the last norm. For later tokens, its own rows after its last norm replace them.
"""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.golden.heads import HERE, write_headed

TOKENS, DRAFTED = 24, 3
Array = npt.NDArray[np.float64]


class Head:
    """The head of a file. It keeps all rows that it has read, as its attention looks back at them."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, arch = file, "bailingmoe2"
        self.keys = {key.removeprefix(f"{arch}."): value for key, value in file.metadata.items()}
        self.block = self.keys["block_count"] - 1
        self.read: Array = np.empty((0, self.keys["embedding_length"]))

    def feed(self, tokens: npt.ArrayLike, rows: Array) -> tuple[Array, Array]:
        """Reads tokens, each with the row of the token before it. Returns the head's logits and rows."""
        token = self._normed(self._of("token_embd.weight")[tokens], self._at("nextn.enorm.weight"))
        row = self._normed(rows, self._at("nextn.hnorm.weight"))
        count = len(token)
        self.read = np.concatenate([self.read, np.concatenate([token, row], 1) @ self._at("nextn.eh_proj.weight").T])
        x = self.read + self._attention(self._normed(self.read, self._at("attn_norm.weight")))
        x = x + self._experts(self._normed(x, self._at("ffn_norm.weight")))
        y = self._normed(x, self._at("layer_output_norm.weight"))[-count:]
        return y @ self._of("output.weight").T, y

    def _attention(self, h: Array) -> Array:
        heads, kv, size = (self.keys[f"attention.{key}"] for key in ("head_count", "head_count_kv", "key_length"))
        whole = (h @ self._at("attn_qkv.weight").T).reshape(len(h), -1, size)
        q, k, v = np.split(whole, [heads, heads + kv], axis=1)
        q, k = (self._turned(self._normed(x, self._at(f"attn_{n}_norm.weight"))) for x, n in ((q, "q"), (k, "k")))
        k, v = (np.repeat(x, heads // kv, axis=1) for x in (k, v))
        scores = np.einsum("ihn,jhn->hij", q, k) / np.sqrt(size)
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        y = np.einsum("hij,jhn->ihn", p / p.sum(axis=2, keepdims=True), v)
        return y.reshape(len(h), -1) @ self._at("attn_output.weight").T

    def _turned(self, x: Array) -> Array:
        half = self.keys["rope.dimension_count"] // 2
        angles = np.arange(len(x))[:, None] * self.keys["rope.freq_base"] ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b, rest = np.split(x, [half, 2 * half], axis=2)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=2)

    def _experts(self, h: Array) -> Array:
        groups, of_groups = self.keys["expert_group_count"], self.keys["expert_group_used_count"]
        scores = _sigmoid(h @ self._at("ffn_gate_inp.weight").T)
        gates, ups, downs = (self._at(f"ffn_{name}_exps.weight") for name in ("gate", "up", "down"))
        y = np.empty_like(h)
        for t, row in enumerate(h):
            chosen_by = (scores[t] + self._at("exp_probs_b.bias")).reshape(groups, -1)
            worst = np.argsort(-np.sort(chosen_by)[:, -2:].sum(axis=1))[of_groups:]
            chosen_by[worst] = -np.inf
            best = np.argsort(-chosen_by.ravel())[: self.keys["expert_used_count"]]
            shares = scores[t, best] / scores[t, best].sum() * self.keys["expert_weights_scale"]
            y[t] = sum(share * _feed(row, gates[e], ups[e], downs[e]) for share, e in zip(shares, best, strict=True))
        return y + _feed(h, *(self._at(f"ffn_{name}_shexp.weight") for name in ("gate", "up", "down")))

    def _normed(self, x: Array, weight: Array) -> Array:
        eps = self.keys["attention.layer_norm_rms_epsilon"]
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight

    def _at(self, name: str) -> Array:
        return self._of(f"blk.{self.block}.{name}")

    def _of(self, name: str) -> Array:
        return self.file.values(self.file.tensors[name]).astype(np.float64)


def _feed(x: Array, gate: Array, up: Array, down: Array) -> Array:
    gated = x @ gate.T
    return (gated * _sigmoid(gated) * (x @ up.T)) @ down.T


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def record() -> None:
    """Writes a head's logits at every position, and the tokens that it drafts after the last."""
    tokens = np.random.default_rng(9).integers(3, 260, TOKENS)
    with tempfile.TemporaryDirectory() as place:
        path = write_headed(Path(place) / "model.gguf", "bailingmoe2")
        with GGUFFile.open(path) as file:
            runner = HostRunner(file, load_model(file), slots=2, context=64, kv="f32")
            rows = runner.hidden(Batch.of([(0, 0, tokens)], every=True))
            logits = runner.step(Batch.of([(1, 0, tokens)]))
            head = Head(file)
            said, _ = head.feed(tokens, np.concatenate([np.zeros((1, rows.shape[1])), rows[:-1]]))
            token, row, drafted, drafts = int(logits[-1].argmax()), rows[-1:], [], []
            for _ in range(DRAFTED):
                found, row = head.feed([token], row)
                token = int(found[0].argmax())
                drafted.append(token)
                drafts.append(found[0])
    np.savez_compressed(
        HERE / "head-bailingmoe2.npz", tokens=tokens, exact_logits=logits[-1:], exact_head=said.astype(np.float32),
        drafted=np.array(drafted), exact_drafts=np.array(drafts, np.float32),
    )  # fmt: skip
    print(f"head-bailingmoe2.npz: deviation {said.std():.2f}, drafts {drafted}")


if __name__ == "__main__":
    record()
