"""What serving over HTTP loses beside the library: `python -m benchmarks.serving MODEL --device auto`.

MODEL is a file, or the name of a synthetic model such as rwkv7-2.9b. The same loaded model answers in turns through
the library (asyncio, in this process) and over HTTP (clients in another process). Prints tokens a second of all streams
together, time to first token, and time from a token to the next one.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import rwkv_gpu
from rwkv_gpu.measure.quants import Quant, Shape, Tensors
from rwkv_gpu.measure.synthetic import named, noise, write
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.run import Runner, listen
from rwkv_gpu.server.service import Service

PROMPT = "Once upon a time, number "


@dataclass
class Times:
    """What the clients of one round saw, in seconds."""

    tokens: int = 0
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
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        times = asyncio.run(over_http(options.client, options.streams[0], options.tokens))
        print(json.dumps(vars(times)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.model)
        if not path.exists():
            name, shape, quant = named(options.model)
            path = Path(folder) / f"{name}.gguf"
            write(path, noise(name, Legible(shape), quant))
        measure(path, options)


def measure(path: Path, options: argparse.Namespace) -> None:
    """All rounds with one loaded model."""
    most = max(options.streams)

    def load(file: str, progress: Any) -> rwkv_gpu.LLM:
        return rwkv_gpu.load(file, device=options.device, sequences=most, progress=progress)

    ready = threading.Event()
    runner = Runner(
        Service(ServerConfig(port=0, sequences=most, drain=1), Catalogue([ServedModel("m", str(path))], load))
    )
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=runner.run, args=(listener, ready.set))
    thread.start()
    ready.wait()
    llm = runner.service.catalogue.models[0].llm
    assert llm is not None
    try:
        print(f"{llm.info.name} on {llm.info.device}, {options.tokens} tokens of each stream, {options.rounds} rounds")
        print("streams              tok/s  TTFT p50  p99 ms  ITL p50  p99 ms  CPU µs/token")
        for streams in options.streams:
            compare(llm, listener.getsockname()[1], streams, options)
    finally:
        runner.signal()
        thread.join()


def compare(llm: rwkv_gpu.LLM, port: int, streams: int, options: argparse.Namespace) -> None:
    """Two lines of the table, from rounds in turns; the first round of each warms up."""
    rounds: dict[str, list[tuple[Times, float]]] = {"library": [], "HTTP": []}
    for _ in range(options.rounds + 1):
        for name, found in rounds.items():
            before = time.process_time()
            if name == "HTTP":
                times = run_clients(port, streams, options.tokens)
            else:
                times = asyncio.run(in_library(llm, streams, options.tokens))
            found.append((times, time.process_time() - before))
    for name, found in rounds.items():
        kept = found[1:]
        rate = median(times.tokens / times.wall for times, _ in kept)
        cpu = median(seconds / times.tokens for times, seconds in kept)
        first = 1e3 * np.concatenate([times.first for times, _ in kept])
        gaps = 1e3 * np.concatenate([times.next for times, _ in kept])
        of_first, of_next = (np.percentile(one, (50, 99)) for one in (first, gaps))
        print(
            f"{streams:7}  {name:8} {rate:8.0f} {of_first[0]:9.2f} {of_first[1]:7.2f} {of_next[0]:8.2f}"
            f" {of_next[1]:7.2f} {1e6 * cpu:13.1f}",
            flush=True,
        )


async def in_library(llm: rwkv_gpu.LLM, streams: int, tokens: int) -> Times:
    """So many streams at a time by `astream`."""
    times = Times()
    start = time.perf_counter()

    async def one(n: int) -> None:
        began = time.perf_counter()
        events = llm.astream(f"{PROMPT}{n}", max_tokens=tokens, temperature=1.0, seed=n)
        arrived = [time.perf_counter() async for event in events if event.text]
        times.add(began, arrived)

    await asyncio.gather(*map(one, range(streams)))
    times.wall = time.perf_counter() - start
    return times


def run_clients(port: int, streams: int, tokens: int) -> Times:
    """The same by another process, over HTTP."""
    command = [sys.executable, "-m", "benchmarks.serving", "--client", str(port)]
    command += ["--streams", str(streams), "--tokens", str(tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Times(**json.loads(done.stdout))


async def over_http(port: int, streams: int, tokens: int) -> Times:
    """So many streams at a time."""
    times = Times()
    start = time.perf_counter()

    async def one(n: int) -> None:
        body = json.dumps(
            {"prompt": f"{PROMPT}{n}", "max_tokens": tokens, "temperature": 1.0, "seed": n, "stream": True}
        )
        began, arrived = time.perf_counter(), []
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n{body}".encode())
        while data := await reader.read(1 << 16):
            arrived += [time.perf_counter()] * data.count(b'data: {"id"')
        writer.close()
        times.add(began, arrived[:-1])  # the last says why it ended

    await asyncio.gather(*map(one, range(streams)))
    times.wall = time.perf_counter() - start
    return times


if __name__ == "__main__":
    main()
