"""Keys and values in f16, q8 and q4 beside float32: perplexity, and the divergence of the distributions.

    python -m benchmarks.kv_quality tests/golden/tiny-qwen3.gguf tests/golden/tiny-qwen2.gguf

The text is one that the model itself writes with float32, so any model has a text that it predicts. Runs in numpy.

Keys of trained models have some dims that are many times larger than the others, and random weights have none. With
`--outliers 8` keys are stored as if every 32nd dim were 8 times larger.
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
    """A format whose keys have large dims. The reference stores and loads keys, then values."""

    def __init__(self, one: KVFormat, outliers: float) -> None:
        super().__init__(one.name, one.bits, one.dtype)
        object.__setattr__(self, "outliers", outliers)
        object.__setattr__(self, "turns", [0, 0])  # stored, loaded

    def _scales(self, size: int, way: int) -> npt.NDArray[np.float32]:
        """What the dims of a head are multiplied by before they are stored, [N]"""
        self.turns[way] += 1
        scales = np.ones(size, np.float32)
        scales[::32] = self.outliers if self.turns[way] % 2 else 1
        return scales

    def store(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return super().store(x * self._scales(x.shape[-1], 0))

    def load(self, stored: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
        return super().load(stored, size) / self._scales(size, 1)


@contextmanager
def changed(kind: KVType, outliers: float) -> Iterator[None]:
    """Has a format store keys so."""
    plain = KV_FORMATS[kind]
    if outliers != 1:
        KV_FORMATS[kind] = Scaled(plain, outliers)
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
            with changed(kind, outliers), rwkv_gpu.load(path, kv=kind, context=512, device="cpu") as llm:
                found = log_probabilities(llm, ids)
            apart = float((np.exp(exact) * (exact - found)).sum(axis=1).mean())
            print(f"| {name} | {kind} | {perplexity(found, ids):.3f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main()
