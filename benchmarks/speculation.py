"""Drafts on and off in turns: tokens a second of greedy text, by context, by how often a drafted token is right.

    python -m benchmarks.speculation rwkv7-2.9b-q4_k_m --device 0 --right 1.0,0.8,0.5 --drafts 7 --depths 0,4096

The first answer is that of an engine that knows nothing yet: what steps take, and how often drafts are right.

The text of a synthetic model means nothing, so drafts are its own answer with mistakes put in: acceptance is synthetic.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.engine.speculation.proposer import Proposer
from rwkv_gpu.engine.speculation.speculator import Speculator
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.models.registry import load_model

from . import verifying


class Known(Proposer):
    """Drafts what will be sampled, where it is lucky."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], right: float) -> None:
        self.answers, self.right = answers, right
        self.random = np.random.default_rng(0)

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        drafts = {}
        for sequence, most in wanted:
            done = len(sequence.ids) - sequence.prompt
            answer = self.answers[tuple(sequence.ids[: sequence.prompt])][done : done + most]
            lucky = self.random.random(len(answer)) < self.right
            drafts[sequence] = [token ^ int(not good) for token, good in zip(answer, lucky, strict=True)]
        self.steps = max(map(len, drafts.values()), default=0)
        return drafts


def generate(engine: Engine, prompts: Sequence[list[int]], count: int) -> tuple[dict[int, list[int]], float]:
    """The answers by number, and seconds a token from when all have begun."""
    answers: dict[int, list[int]] = {
        engine.add(Request(ids, SamplingParams(temperature=0, max_tokens=count))): [] for ids in prompts
    }
    began = 0.0
    skipped = 0
    while engine.busy:
        for update in engine.step():
            answers[update.id].extend(one.token for one in update.sampled)
        if not began and all(answers.values()):
            began, skipped = time.perf_counter() - engine.compile_seconds, sum(map(len, answers.values()))
    seconds = time.perf_counter() - engine.compile_seconds - began
    engine.prefixes.clear()
    return answers, seconds / (sum(map(len, answers.values())) - skipped)


@click.command()
@click.argument("model")
@click.option("--device", "wanted", default="auto")
@click.option("--right", default="1.0,0.8,0.5,0.2")
@click.option("--drafts", default=7)
@click.option("--depths", default="0")
@click.option("--batches", default="1")
@click.option("--ways", default="always,gate", help="Drafts as long as they can be, or as they pay.")
@click.option("-n", "count", default=128)
@click.option("--steps", default="", help="Rows of steps to measure before, as benchmarks.verifying does.")
@click.option("--detail", default="", help="Of these, rows whose dispatches are listed.")
def main(
    model: str,
    wanted: str,
    right: str,
    drafts: int,
    depths: str,
    batches: str,
    ways: str,
    count: int,
    steps: str,
    detail: str,
) -> None:
    """Prints a line for each, of a file or a synthetic MODEL."""
    adapters = list_adapters()
    adapter = choose(adapters, wanted).adapter or next(a for a in adapters if a.backend == "Vulkan")
    most = max(map(int, depths.split(","))) + count + 16
    print(adapter.name)
    with GGUFFile.open(model) if Path(model).exists() else open_synthetic(model) as file:
        loaded = load_model(file)
        context = min(most, loaded.context) if loaded.caches else None
        slots = max(map(int, batches.split(",")))
        runner = GpuRunner(
            Device(adapter), file, loaded, slots=slots, context=context, drafts=drafts, cache_bytes=0,
            tokens=None if context is None else context * slots,
        )  # fmt: skip
    ahead = verifying.decode(runner, count)
    for rows in map(int, filter(None, steps.split(","))):
        detailed = str(rows) in detail.split(",")
        verifying.measure(runner, rows, 0, together=True, seconds=0.25, detail=detailed)
    for depth in map(int, depths.split(",")):
        for batch in map(int, batches.split(",")):
            prompts = [np.random.default_rng(n).integers(3, 250, depth + 8).tolist() for n in range(batch)]
            engine = Engine(runner)
            generate(engine, prompts, count)  # compiles
            found, _ = generate(engine, prompts, count)  # binds the steps that share a submit
            answers = dict(zip(map(tuple, prompts), found.values(), strict=True))
            plain = whole = min(generate(engine, prompts, count)[1] for _ in range(3))
            if not depth and batch == 1:
                plain = min(plain, ahead)  # without the first and last steps of an answer, as `bench` measures
            told = f"{1 / plain:.1f} tok/s without drafts, whole answers {1 / whole:.1f}"
            print(f"{model} depth {depth} batch {batch}: {told}", flush=True)
            for share in map(float, right.split(",")):
                for way in ways.split(","):
                    known: Any = Known(answers, share)
                    speculator = Speculator(drafts, [known], always=way == "always")
                    engine = Engine(runner, speculator=speculator)
                    runs = [generate(engine, prompts, count) for _ in range(4)]
                    first, *later = (seconds for _, seconds in runs)
                    same = sum(a == b for a, b in zip(runs[-1][0].values(), answers.values(), strict=True))
                    print(
                        f"  right {share:.0%}, {way}: {1 / min(later):.1f} tok/s, {plain / min(later):.2f} times; the "
                        f"first answer {plain / first:.2f} times; {engine.accepted} of {engine.drafted} accepted; "
                        f"{same} of {batch} the same",
                        flush=True,
                    )
    runner.close()


if __name__ == "__main__":
    main()
