"""Keys and values in f16, q8 and q4 beside float32: perplexity, and the divergence of the distributions.

    python -m benchmarks.kv_quality tests/golden/tiny-qwen3.gguf tests/golden/tiny-qwen2.gguf

The text is one that the model itself writes with float32, so any model has a text that it predicts. Runs in numpy.
"""

import click
import numpy as np
import numpy.typing as npt

import rwkv_gpu
from rwkv_gpu.ops.kv_format import KVType

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


@click.command()
@click.argument("files", nargs=-1, required=True)
def main(files: tuple[str, ...]) -> None:
    """Prints a row for each file and format."""
    print("| model | KV | perplexity | divergence (KL), nats |\n|---|---|--:|--:|")
    for path in files:
        with rwkv_gpu.load(path, kv="f32", context=512, device="cpu") as llm:
            ids = [5, *llm.generate([5], max_tokens=TOKENS, temperature=1.0, seed=1).tokens]
            exact, name = log_probabilities(llm, ids), llm.info.name
        print(f"| {name} | f32 | {perplexity(exact, ids):.3f} | |")
        for kind in KINDS:
            with rwkv_gpu.load(path, kv=kind, context=512, device="cpu") as llm:
                found = log_probabilities(llm, ids)
            apart = float((np.exp(exact) * (exact - found)).sum(axis=1).mean())
            print(f"| {name} | {kind} | {perplexity(found, ids):.3f} | {apart:.1e} |")


if __name__ == "__main__":
    main()
