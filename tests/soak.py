"""A soak: thousands of requests of all kinds from many threads, many of them broken off. No resource may be lost.

python -m tests.soak [--requests 10000] [--threads 50] [--device cpu] [--model FILE] [--seed 0]

Prints the requests and how they ended. Exits with 1 if a page, a slot, a state, a file descriptor, a thread or memory
is missing, or if a request ended in an unexpected way.
"""

import asyncio
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click

import rwkv_gpu
from rwkv_gpu import LLM, RwkvGpuError
from rwkv_gpu.text.grammar_pool import PROCESSES
from tests.golden_files import golden
from tests.process import descriptors, resident

GRAMMARS = "rwkv-gpu grammars"  # the thread of a helper process
# Pools, each of which is bounded: when they grow is random.
STARTED_WHEN_NEEDED = (GRAMMARS, "rwkv-gpu-host", "rwkv-gpu-request", "encode-ahead", "uvloop", "asyncio")
PIPES = 2  # pipes to and from a helper process
GROWTH = 64 << 20  # bytes of resident memory that allocators may keep
PREFIXES = ["The sea was calm. " * 3, "Once upon a time, ", "x = 1\ny = 2\n" * 2, "Hi"]

Ask = Callable[[LLM, random.Random], str]


def prompt(rng: random.Random) -> str:
    """Returns a short or long prompt. Many share a prefix."""
    return rng.choice(PREFIXES) + "".join(rng.choices("abc de.\n", k=rng.randrange(60)))


def generated(**settings: Any) -> Ask:
    """Reads a request to the end."""

    def ask(llm: LLM, rng: random.Random) -> str:
        return llm.generate(
            prompt(rng), max_tokens=rng.randrange(1, 20), seed=rng.randrange(99), **settings
        ).finish_reason

    return ask


def broken_off(llm: LLM, rng: random.Random) -> str:
    """Closes a request after a few events."""
    with llm.stream(prompt(rng), temperature=1.0, max_tokens=200) as generation:
        for _ in zip(range(rng.randrange(6)), generation, strict=False):
            pass
    return generation.completion.finish_reason


def dropped(llm: LLM, rng: random.Random) -> str:
    """Drops the reference to a running request."""
    next(llm.stream(prompt(rng), max_tokens=200), None)
    return "abort"


def read_slowly(llm: LLM, rng: random.Random) -> str:
    """Waits before it reads each event."""
    generation = llm.stream(prompt(rng), max_tokens=12)
    for _ in generation:
        time.sleep(rng.random() / 200)
    return generation.completion.finish_reason


def closed_by_another(llm: LLM, rng: random.Random) -> str:
    """Closes a request on another thread, at any moment."""
    generation = llm.stream(prompt(rng), max_tokens=200)
    timer = threading.Timer(rng.random() / 20, generation.close)
    timer.start()
    reason = generation.wait().finish_reason
    timer.join()
    return reason


def in_asyncio(llm: LLM, rng: random.Random) -> str:
    """Runs tasks in asyncio, and cancels some."""

    async def run() -> str:
        task = asyncio.create_task(llm.agenerate(prompt(rng), max_tokens=20))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() / 50)
            task.cancel()
        try:
            return (await task).finish_reason
        except asyncio.CancelledError:
            return "abort"

    return asyncio.run(run())


def chatted(llm: LLM, rng: random.Random) -> str:
    """Runs a chat of two turns."""
    chat = llm.chat(template="chatml", max_tokens=6)
    chat.send(prompt(rng))
    return chat.send("and then?").finish_reason


def measured(llm: LLM, rng: random.Random) -> str:
    """Evaluates a text."""
    llm.perplexity(prompt(rng) + " end") if rng.random() < 0.5 else llm.embed(prompt(rng))
    return "length"


def refused(llm: LLM, rng: random.Random) -> str:
    """Sends a request that every model refuses."""
    wrong: list[dict[str, Any]] = [
        {"prompt": [1, 2, 1 << 30]}, {"prompt": []}, {"prompt": "a", "top_p": 7}, {"prompt": "a", "regex": "("},
        {"prompt": "a", "schema": {"type": "nothing"}}, {"prompt": "a", "logit_bias": {1 << 30: 1}},
    ]  # fmt: skip
    try:
        llm.generate(**rng.choice(wrong))
    except RwkvGpuError:
        return "refused"
    return "not refused"


def failing(llm: LLM, rng: random.Random) -> str:
    """Uses a logits processor that raises after a while."""
    steps = rng.randrange(5)

    def processor(_ids: Any, logits: Any) -> Any:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise ZeroDivisionError("so it goes")
        return logits

    try:
        llm.generate(prompt(rng), max_tokens=20, logits_processors=[processor])
    except RwkvGpuError:
        return "refused"
    return "stop"


ENDED = {"stop", "length"}
KINDS: dict[str, tuple[Ask, set[str]]] = {
    "greedy": (generated(), ENDED),
    "sampled": (generated(temperature=0.9, top_p=0.9, top_k=30), ENDED),
    "penalised": (generated(temperature=1.0, repetition_penalty=1.2, frequency_penalty=0.2), ENDED),
    "on the host": (generated(temperature=1.0, typical_p=0.9, logprobs=3, dry_multiplier=0.8), ENDED),
    "biased": (generated(temperature=1.0, logit_bias={5: -100.0, 7: 2.0}), ENDED),
    "stop strings": (generated(temperature=1.0, stop=["e", "the", "\n\n"]), ENDED),
    "regex": (generated(regex="[a-z ]{3,9}"), ENDED),
    "schema": (generated(schema={"type": "object", "properties": {"a": {"type": "boolean"}}}), ENDED),
    "broken off": (broken_off, ENDED | {"abort"}),
    "dropped": (dropped, {"abort"}),
    "read slowly": (read_slowly, ENDED),
    "closed by another": (closed_by_another, ENDED | {"abort"}),
    "asyncio": (in_asyncio, ENDED | {"abort"}),
    "chat": (chatted, ENDED),
    "measured": (measured, {"length"}),
    "refused": (refused, {"refused"}),
    "failing": (failing, {"refused", "stop"}),
}


@dataclass(frozen=True)
class Standing:
    """The resources in use, of every kind that can run out."""

    pages_and_states: tuple[int, int]  # that are free
    slots: int  # that are free
    requests: int  # requests that the engine and the driver know
    descriptors: int
    threads: int
    helpers: int  # processes of the model that compile grammars
    resident: int

    @classmethod
    def of(cls, llm: LLM) -> "Standing":
        """Measures an idle model, once no data of ended requests are cached."""

        def look(engine: Any) -> tuple[tuple[int, int], int, int]:
            engine.prefixes.clear()
            driver = llm._driver
            known = len(engine._slots.sequences) + len(engine._slots.parked) + len(engine._in_flight)
            return engine._store.free, len(engine._slots.free), known + len(driver._listeners) + len(driver._numbers)

        gc.collect()
        while llm._driver.call(lambda engine: engine.busy):
            time.sleep(0.01)
        names = [thread.name for thread in threading.enumerate()]
        pipes = PIPES * names.count(GRAMMARS)  # threads of this model and all others
        helpers = len(llm._grammar_pool._helpers)
        threads = sum(not name.startswith(STARTED_WHEN_NEEDED) for name in names)
        return cls(*llm._driver.call(look), descriptors() - pipes, threads, helpers, resident())

    def lost(self, before: "Standing") -> list[str]:
        """Returns the resources that are missing since an earlier measurement."""
        lines = [
            f"{name}: {getattr(self, name)}, at the start {getattr(before, name)}"
            for name in ("pages_and_states", "slots", "requests")
            if getattr(self, name) != getattr(before, name)
        ]
        lines += [
            f"{name}: {getattr(self, name)}, at the start {getattr(before, name)}"
            for name in ("descriptors", "threads")
            if getattr(self, name) > getattr(before, name)
        ]
        if self.helpers > PROCESSES:
            lines.append(f"processes: {self.helpers}, of {PROCESSES} at most")
        if self.resident > before.resident + GROWTH:
            lines.append(f"memory: {self.resident:,} bytes, at the start {before.resident:,}")
        return lines


def soak(llm: LLM, requests: int, threads: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Sends requests to a model. Returns their results by kind, and the errors found afterwards."""
    ended: Counter[str] = Counter()
    wrong: list[str] = []

    def one(number: int) -> None:
        rng = random.Random(seed << 32 | number)
        kind = list(KINDS)[number % len(KINDS)]
        ask, known = KINDS[kind]
        try:
            how = ask(llm, rng)
        except Exception as error:  # noqa: BLE001  it is told with its kind
            how = f"{type(error).__name__}: {error}"
        ended[f"{kind}: {how}"] += 1
        if how not in known:
            wrong.append(f"{kind}, number {number}: {how}")

    def all_of(numbers: range) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, numbers))

    all_of(range(4 * threads))  # caches fill, helpers start
    before = Standing.of(llm)
    all_of(range(4 * threads, 4 * threads + requests))
    return ended, wrong + Standing.of(llm).lost(before)


@click.command()
@click.option("--requests", default=10_000)
@click.option("--threads", default=50)
@click.option("--device", default="cpu")
@click.option("--model", default=None, help="A model file; two tiny ones where none is given.")
@click.option("--seed", default=0)
def main(requests: int, threads: int, device: str, model: str | None, seed: int) -> None:
    """Soaks a model, and prints the results."""
    lost = []
    for path in [model] if model else [golden("tiny-rwkv7.gguf"), golden("tiny-llama.gguf")]:
        with rwkv_gpu.load(path, device=device, sequences=8, chunk_size=64) as llm:
            begin = time.monotonic()
            ended, wrong = soak(llm, requests, threads, seed)
            print(f"{path} on {llm.info.device}: {sum(ended.values()):,} requests in {time.monotonic() - begin:.0f} s")
            for how, count in sorted(ended.items()):
                print(f"  {count:6} {how}")
            print("\n".join(wrong) or "  everything is as at the start", flush=True)
            lost += wrong
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
