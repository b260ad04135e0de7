"""Computes the expected results of exported models with Python."""

import numpy as np

from rwkv_gpu.engine.runner import Runner, prefill
from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.ops.batch import Batch

FAMILIES = ("rwkv7", "rwkv6", "mamba2", "lfm2", "qwen3", "qwen35", "llama", "gemma3", "qwen3moe")


def prompt_of(vocabulary: int) -> list[int]:
    """Returns twenty tokens, which need padding in the plan for prompts."""
    return [(7 * n * n + 3) % vocabulary for n in range(1, 21)]


def followed(runner: Runner, prompt: list[int], params: SamplingParams, steps: int) -> tuple[np.ndarray, list[int]]:
    """Returns Python's tokens with these parameters, and the logits after the prompt and after each token."""
    logits, tokens = [], []
    sampler = Sampler(params, runner.model.vocabulary)
    row = prefill(runner, prompt)[-1]
    for step in range(steps):
        logits.append(row)
        tokens.append(sampler.sample(row).token)
        if step + 1 < steps:
            [row] = runner.step(Batch.of([(0, len(prompt) + step, tokens[-1:])]))
    return np.array(logits), tokens
