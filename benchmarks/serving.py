"""What serving over HTTP loses beside the library: `python -m benchmarks.serving MODEL --device auto`.

MODEL is a file, or the name of a synthetic model such as rwkv7-2.9b. The same loaded model answers in turns through
the library (asyncio, in this process) and over HTTP (clients in another process). Prints tokens a second of all streams
together, time to first token, and time from a token to the next one.
"""

import argparse
import asyncio
import contextlib
import json
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
        """A stream."""
        self.tokens += len(arrived)
        self.first.append(arrived[0] - began)
        self.next += np.diff(arrived).tolist()


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
    parser.add_argument("--own-process", action="store_true", help="the engine in a process of its own: HTTP alone")
    parser.add_argument("--timeline", action="store_true", help="where the time to a first token goes")
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        times = asyncio.run(over_http(options.client, options.streams[0], options.tokens))
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
    service = TimedService(config, Catalogue([ServedModel("m", str(path))], load))
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
    warm = 0
    while len(rounds["HTTP"]) < warm + options.rounds:
        recorded = 0.0
        for name, found in rounds.items():
            before = time.process_time()
            steps.clear()
            if name == "HTTP":
                times = run_clients(port, streams, options.tokens)
            else:
                times = asyncio.run(in_library(steps.llm, streams, options.tokens))
            found.append((times, time.process_time() - before))
            recorded += steps.recorded
            if options.timeline:
                print(f"{'':9}{name:8} {steps.report(times.began)}", flush=True)
        if warm == 0 or (recorded and warm < MOST_WARM_UP and len(rounds["HTTP"]) == warm + 1):
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


async def in_library(llm: rwkv_gpu.LLM, streams: int, tokens: int) -> Times:
    """So many streams at a time by `astream`."""

    async def one(n: int, times: Times) -> None:
        began = time.perf_counter()
        events = llm.astream(f"{PROMPT}{n}", max_tokens=tokens, temperature=1.0, seed=n)
        arrived = [time.perf_counter() async for event in events if event.text]
        times.add(began, arrived)

    return await timed(one, streams)


async def timed(one: Callable[[int, Times], Awaitable[None]], streams: int) -> Times:
    """So many streams that begin together, after one that wakes the device."""
    before, times = Times(), Times()
    await one(streams, before)
    times.before = before.tokens
    times.began = time.perf_counter()
    await asyncio.gather(*(one(n, times) for n in range(streams)))
    times.wall = time.perf_counter() - times.began
    return times


def run_clients(port: int, streams: int, tokens: int) -> Times:
    """The same by another process, over HTTP."""
    command = [sys.executable, "-m", "benchmarks.serving", "--client", str(port)]
    command += ["--streams", str(streams), "--tokens", str(tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Times(**json.loads(done.stdout))


async def over_http(port: int, streams: int, tokens: int) -> Times:
    """So many streams at a time, by connections that are open before, as clients keep them."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(streams + 1)]

    async def one(n: int, times: Times) -> None:
        reader, writer = connections[n]
        body = json.dumps(
            {"prompt": f"{PROMPT}{n}", "max_tokens": tokens, "temperature": 1.0, "seed": n, "stream": True}
        )
        began, arrived = time.perf_counter(), []
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        head += f"{BEGAN.decode()}: {began}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n{body}".encode())
        while data := await reader.read(1 << 16):
            arrived += [time.perf_counter()] * data.count(b'data: {"id"')
        writer.close()
        times.add(began, arrived[:-1])  # the last says why it ended

    return await timed(one, streams)


if __name__ == "__main__":
    main()
