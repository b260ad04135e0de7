"""Keys and values in f16, q8 and q4 beside float32: perplexity, and the divergence of the distributions.

    python -m benchmarks.kv_quality tests/golden/tiny-qwen3.gguf tests/golden/tiny-qwen2.gguf

The text is one that the model itself writes with float32, so any model has a text that it predicts. Runs in numpy.

Keys of trained models have some dims that are many times larger than the others, and random weights have none. With
`--outliers 8` keys are stored as if every 32nd dim were 8 times larger. Each format is measured twice then: as it is,
and with keys rotated by a Hadamard matrix before they are stored, which spreads large dims over the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import rwkv_gpu
from rwkv_gpu.ops.kv_format import KV_FORMATS, KVFormat, KVType

TOKENS = 400
KINDS: tuple[KVType, ...] = ("f16", "q8", "q4")


def log_probabilities(llm: "rwkv_gpu.LLM", ids: list[int]) -> npt.NDArray[np.float64]:
    """Of every token at every place. [T, V]"""
    logits = llm.logits(ids).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def perplexity(found: npt.NDArray[np.float64], ids: list[int]) -> float:
    """exp of the mean negative log likelihood of all tokens but the first."""
    return float(np.exp(-found[np.arange(len(ids) - 1), ids[1:]].mean()))


class Scaled(KVFormat):
    """A format whose keys have large dims, and may be rotated. The reference stores and loads keys, then values."""

    def __init__(self, one: KVFormat, outliers: float, rotated: bool) -> None:
        super().__init__(one.name, one.bits, one.dtype)
        object.__setattr__(self, "changes", (outliers, rotated))
        object.__setattr__(self, "turns", [0, 0])  # stored, loaded

    def _change(self, size: int, way: int) -> npt.NDArray[np.float32] | None:
        """What a key is multiplied by before it is stored, [N, N]; None for a value."""
        self.turns[way] += 1
        if not self.turns[way] % 2:
            return None
        outliers, rotated = self.changes
        scales = np.ones(size, np.float32)
        scales[::32] = outliers
        return np.diag(scales) @ hadamard(size) if rotated else np.diag(scales)

    def store(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        change = self._change(x.shape[-1], 0)
        return super().store(x if change is None else x @ change)

    def load(self, stored: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
        change = self._change(size, 1)
        x = super().load(stored, size)
        return x if change is None else x @ np.linalg.inv(change).astype(np.float32)


def hadamard(size: int) -> npt.NDArray[np.float32]:
    """A rotation whose numbers all have one size; for a power of two."""
    h = np.ones((1, 1), np.float32)
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return (h / np.sqrt(size)).astype(np.float32)


@contextmanager
def changed(kind: KVType, outliers: float, rotated: bool) -> Iterator[None]:
    """Has a format store keys so."""
    plain = KV_FORMATS[kind]
    if outliers != 1:
        KV_FORMATS[kind] = Scaled(plain, outliers, rotated)
    try:
        yield
    finally:
        KV_FORMATS[kind] = plain


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--outliers", default=1.0, help="How many times larger every 32nd dim of the keys is.")
@click.option("--tokens", default=TOKENS)
def main(files: tuple[str, ...], outliers: float, tokens: int) -> None:
    """Prints a row for each file and format."""
    print("| model | KV | perplexity | divergence (KL), nats |\n|---|---|--:|--:|")
    for path in files:
        with rwkv_gpu.load(path, kv="f32", context=512, device="cpu") as llm:
            ids = [5, *llm.generate([5], max_tokens=tokens, temperature=1.0, seed=1).tokens]
            exact, name = log_probabilities(llm, ids), llm.info.name
        print(f"| {name} | f32 | {perplexity(exact, ids):.3f} | |")
        for kind in KINDS:
            for rotated in (False, True)[: 2 if outliers != 1 else 1]:
                with changed(kind, outliers, rotated), rwkv_gpu.load(path, kv=kind, context=512, device="cpu") as llm:
                    found = log_probabilities(llm, ids)
                apart = float((np.exp(exact) * (exact - found)).sum(axis=1).mean())
                how = f"{kind}, rotated" if rotated else kind
                print(f"| {name} | {how} | {perplexity(found, ids):.3f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main()
