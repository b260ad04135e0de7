"""What serving over HTTP loses beside the library: `python -m benchmarks.serving MODEL --device auto`.

MODEL is a file, or the name of a synthetic model such as rwkv7-2.9b. The same loaded model answers in turns through
the library (asyncio, in this process) and over HTTP (clients in another process). Prints tokens a second of all streams
together, time to first token, and time from a token to the next one.

All streams begin at once, unless `--steady` has each ask again soon after its answer ends, for so many seconds. Then
answers have lengths from 1 token to twice `--tokens`, and requests arrive spread; the first of a stream is not timed.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.measure.quants import Quant, Shape, Tensors
from rwkv_gpu.measure.synthetic import named, noise, write
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.run import Runner, listen

from . import engine_process
from .pretend import pretend
from .timeline import BEGAN, Steps, TimedService

PROMPT = "Once upon a time, number "
MOST_WARM_UP = 6  # rounds
MOST_PAUSE = 0.03  # seconds; without pauses, requests of a steady load would come right after a step's end
END = b"0\r\n\r\n"  # of a response in chunks


@dataclass
class Times:
    """What the clients of one round saw, in seconds."""

    tokens: int = 0
    before: int = 0  # tokens of a stream that wakes the device, and is not timed
    began: float = 0.0  # by `time.perf_counter`
    wall: float = 0.0
    first: list[float] = field(default_factory=list)
    next: list[float] = field(default_factory=list)

    def add(self, began: float, arrived: list[float]) -> None:
        """An answer."""
        self.tokens += len(arrived)
        self.first.append(arrived[0] - began)
        self.next += np.diff(arrived).tolist()


@dataclass(frozen=True)
class Load:
    """What clients ask for: so many streams at a time, of one answer each or of one after the other."""

    streams: int
    tokens: int  # of an answer; about so many in a steady load
    seconds: float = 0.0  # of a steady load

    def answers(self, stream: int) -> Iterator[tuple[int, float]]:
        """Of each answer of a stream until the time is over: its tokens, and the seconds of the pause before it."""
        if not self.seconds:
            yield self.tokens, 0.0
            return
        rng, end = random.Random(stream), time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            yield rng.randint(1, 2 * self.tokens), rng.random() * MOST_PAUSE


@dataclass(frozen=True)
class Legible:
    """A synthetic model whose tokens all have text, so that each is an event for clients."""

    shape: Shape

    @property
    def arch(self) -> str:
        return self.shape.arch

    def tensors(self, quant: Quant) -> Tensors:
        return self.shape.tensors(quant)

    def metadata(self) -> Mapping[str, Any]:
        given = dict(self.shape.metadata())
        tokens = given["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        texts = [*tokens[:257], *(f" w{n}" for n in range(257, len(tokens)))]
        return {**given, "tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": [3, *[1] * (len(tokens) - 1)]}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--device", default="auto", help="or pretend: steps that take a GPU's time, and no CPU")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steady", type=float, default=0.0, metavar="SECONDS", help="a steady load for so long a round"
    )
    parser.add_argument("--own-process", action="store_true", help="the engine in a process of its own: HTTP alone")
    parser.add_argument("--timeline", action="store_true", help="where the time to a first token goes")
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        times = asyncio.run(over_http(options.client, Load(options.streams[0], options.tokens, options.steady)))
        print(json.dumps(vars(times)))
        return
    with model_file(options.model) as path:
        measure(path, options)


@contextlib.contextmanager
def model_file(model: str) -> Iterator[Path]:
    """The file, or one of the synthetic model of that name; the built-in model where none is named."""
    path = Path(model or builtin_model())
    if path.exists():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        name, shape, quant = named(model)
        path = Path(folder) / f"{name}.gguf"
        write(path, noise(name, Legible(shape), quant))
        yield path


def measure(path: Path, options: argparse.Namespace) -> None:
    """All rounds with one loaded model."""
    own = options.own_process
    with serving(path, options.device, max(options.streams), own_process=own) as (service, steps, port):
        info = steps.llm.info
        print(f"{info.name} on {info.device}, {options.tokens} tokens of each stream, {options.rounds} rounds")
        print("streams              tok/s  TTFT p50  p99 ms  ITL p50  p99 ms  CPU µs/token")
        for streams in options.streams:
            compare(service, steps, port, streams, options)


@contextlib.contextmanager
def serving(
    path: Path, device: str, sequences: int, *, own_process: bool = False
) -> Iterator[tuple[TimedService, Steps, int]]:
    """A server of the model in this process, and its port."""

    def load(file: str, progress: Any) -> rwkv_gpu.LLM:
        if own_process:
            return engine_process.load(file, device, sequences)
        if device == "pretend":
            return pretend(rwkv_gpu.load(file, device="cpu", sequences=sequences, progress=progress))
        return rwkv_gpu.load(file, device=device, sequences=sequences, progress=progress)

    ready = threading.Event()
    config = ServerConfig(port=0, sequences=sequences, drain=1)
    service = TimedService(config, Catalogue([ServedModel("m", str(path))], load, own_process=True))
    runner = Runner(service)
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=runner.run, args=(listener, ready.set))
    thread.start()
    ready.wait()
    llm = service.catalogue.models[0].llm
    assert llm is not None
    try:
        yield service, Steps(llm), listener.getsockname()[1]
    finally:
        runner.signal()
        thread.join()


def compare(service: TimedService, steps: Steps, port: int, streams: int, options: argparse.Namespace) -> None:
    """Two lines of the table, from rounds in turns. Rounds that warm up go on until none records a plan."""
    rounds: dict[str, list[tuple[Times, float]]] = {"HTTP": []} if options.own_process else {"library": [], "HTTP": []}
    warm, load = 0, Load(streams, options.tokens, options.steady)
    while len(rounds["HTTP"]) < warm + options.rounds:
        recorded = 0.0
        for name, found in rounds.items():
            before = time.process_time()
            steps.clear()
            times = run_clients(port, load) if name == "HTTP" else asyncio.run(in_library(steps.llm, load))
            found.append((times, time.process_time() - before))
            recorded += steps.recorded
            if options.timeline:
                print(f"{'':9}{name:8} {steps.report(times.began)}", flush=True)
        begins = warm == 0 and not load.seconds  # a steady load does not time its first answers
        if begins or (recorded and warm < MOST_WARM_UP and len(rounds["HTTP"]) == warm + 1):
            warm += 1
            service.marks.clear()
    for name, found in rounds.items():
        kept = found[warm:]
        rate = median(times.tokens / times.wall for times, _ in kept)
        cpu = median(seconds / (times.tokens + times.before) for times, seconds in kept)
        first = 1e3 * np.concatenate([times.first for times, _ in kept])
        gaps = 1e3 * np.concatenate([times.next for times, _ in kept])
        of_first, of_next = (np.percentile(one, (50, 99)) for one in (first, gaps))
        print(
            f"{streams:7}  {name:8} {rate:8.0f} {of_first[0]:9.2f} {of_first[1]:7.2f} {of_next[0]:8.2f}"
            f" {of_next[1]:7.2f} {1e6 * cpu:13.1f}",
            flush=True,
        )
    if options.timeline:
        print(f"{'':9}ms after a request began, p50 (p99): {service.report()}", flush=True)


Ask = Callable[[int, int, Times], Awaitable[None]]  # one answer: the number of its stream, and its tokens


async def in_library(llm: rwkv_gpu.LLM, load: Load) -> Times:
    """So many streams at a time by `astream`."""

    async def one(n: int, tokens: int, times: Times) -> None:
        began = time.perf_counter()
        events = llm.astream(f"{PROMPT}{n}", max_tokens=tokens, temperature=1.0, seed=n)
        arrived = [time.perf_counter() async for event in events if event.text]
        times.add(began, arrived)

    return await timed(one, load)


async def timed(one: Ask, load: Load) -> Times:
    """All streams, after one that wakes the device."""
    before, times, apart = Times(), Times(), Times()
    await one(load.streams, load.tokens, before)

    async def stream(n: int) -> None:
        for number, (tokens, pause) in enumerate(load.answers(n)):
            await asyncio.sleep(pause)
            await one(n, tokens, apart if load.seconds and not number else times)

    times.began = time.perf_counter()
    await asyncio.gather(*(stream(n) for n in range(load.streams)))
    times.wall = time.perf_counter() - times.began
    times.tokens += apart.tokens
    times.before = before.tokens
    return times


def run_clients(port: int, load: Load) -> Times:
    """The same by another process, over HTTP."""
    command = [sys.executable, "-m", "benchmarks.serving", "--client", str(port), "--steady", str(load.seconds)]
    command += ["--streams", str(load.streams), "--tokens", str(load.tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Times(**json.loads(done.stdout))


async def over_http(port: int, load: Load) -> Times:
    """So many streams at a time, by connections that are open before, as clients keep them."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(load.streams + 1)]

    async def one(n: int, tokens: int, times: Times) -> None:
        reader, writer = connections[n]
        body = json.dumps(
            {"prompt": f"{PROMPT}{n}", "max_tokens": tokens, "temperature": 1.0, "seed": n, "stream": True}
        )
        began, arrived = time.perf_counter(), []
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        head += f"{BEGAN.decode()}: {began}\r\n"
        writer.write(f"{head}\r\n{body}".encode())
        data = b""
        while not data.endswith(END):
            data = await reader.read(1 << 16)
            assert data, "the server closed the connection"
            arrived += [time.perf_counter()] * data.count(b'data: {"id"')
        times.add(began, arrived[:-1])  # the last says why it ended

    try:
        return await timed(one, load)
    finally:
        for _, writer in connections:
            writer.close()


if __name__ == "__main__":
    main()
