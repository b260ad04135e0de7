"""Sampling on the device: µs for a row, by setting, size of the vocabulary, rows and shape of the distribution.

    python -m benchmarks.sampling [--device NAME] [--vocabulary 65536,151936] [--rows 1,16]

Logits fall with the logarithm of their rank, as a language model's do (zipf), or are normal, of deviation 3 (flat).
Times are the GPU's own, medians over the replays.
"""

import click
import numpy as np

from rwkv_gpu.engine.device_sampling import draw_row
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.profile import profile_plan
from rwkv_gpu.gpu.weights import Weights
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.sampler_state import GpuSamplerState
from rwkv_gpu.ops.sampling import DRAW, draw_words
from rwkv_gpu.ops.self_test import tuning_for

SETTINGS = {
    "greedy": {"temperature": 0},
    "plain": {},
    "min-p": {"min_p": 0.05},
    "top-k 40": {"top_k": 40},
    "top-p 0.95": {"top_p": 0.95},
    "top-p 0.5": {"top_p": 0.5},
    "top-k 40, top-p, min-p": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "top-k 2000, top-p": {"top_k": 2000, "top_p": 0.95},
    "greedy, 300 biases": {"temperature": 0, "logit_bias": dict.fromkeys(range(300), -100.0)},
    "greedy, penalties": {"temperature": 0, "repetition_penalty": 1.1},
}


def logits(shape: str, rows: int, vocabulary: int) -> np.ndarray:
    """Float32, [rows, V]"""
    rng = np.random.default_rng(0)
    if shape == "flat":
        return rng.standard_normal((rows, vocabulary), np.float32) * 3
    ranks = np.stack([rng.permutation(vocabulary) for _ in range(rows)])
    return (15 - 1.5 * np.log(ranks + 1)).astype(np.float32)


@click.command()
@click.option("--device", "wanted", default="auto")
@click.option("--vocabulary", default="65536,151936")
@click.option("--rows", default="1,16")
@click.option("--replays", default=20)
def main(wanted: str, vocabulary: str, rows: str, replays: int) -> None:
    """Prints a table for each vocabulary and count of rows."""
    with Device(choose(list_adapters(), wanted).adapter) as device:
        print(device.adapter)
        for size in map(int, vocabulary.split(",")):
            for count in map(int, rows.split(",")):
                compare(device, size, count, replays)


def compare(device: Device, vocabulary: int, rows: int, replays: int) -> None:
    """One table: settings by shapes."""
    sampler_state, scratch, tuning = GpuSamplerState(device, rows, vocabulary), Scratch(device), tuning_for(device)
    plans: dict[str, Plan] = {}
    for how in ("plain", "any"):
        recorder = Recorder(device, Weights(device), rows, scratch, tuning, sampler_state=sampler_state)
        given = recorder.input("logits", np.float32, (rows, vocabulary))
        plans[how] = recorder.finish({"chosen": recorder.sample(given, how=how)})
    print(f"\n{vocabulary:,} tokens, {rows} rows{'zipf':>12} µs{'flat':>12} µs")
    for name, settings in SETTINGS.items():
        params = SamplingParams(**settings)
        draws = np.array([draw_row(params, 7, slot) for slot in range(rows)], DRAW)
        for slot in range(rows):
            sampler_state.bias(slot, params.logit_bias)
        line = f"{name:28}"
        for shape in ("zipf", "flat"):
            profile = profile_plan(
                plans[SamplingInputs.of(draws).how],
                rows,
                {"logits": logits(shape, rows, vocabulary), "draws": draw_words(draws)},
                replays,
            )
            line += f"{profile.seconds * 1e6:14.1f}"
        print(line)


if __name__ == "__main__":
    main()
