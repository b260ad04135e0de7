"""Clients of a server or of the library: streams that begin at once, or a steady load.

    python -m benchmarks.clients PORT --streams 64 --tokens 128     prints measured times as JSON

`benchmarks.serving` runs them in a separate process, so that their work does not slow the server.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np

import rwkv_gpu

PROMPT = "Once upon a time, number "
MAX_PAUSE = 0.03  # seconds; without pauses, requests of a steady load would come right after a step's end
LAST_CHUNK = b"0\r\n"  # of a response


@dataclass
class Times:
    """Times that the clients of one round measured, in seconds."""

    tokens: int = 0
    wall: float = 0.0
    first: list[float] = field(default_factory=list)
    next: list[float] = field(default_factory=list)

    def add(self, began: float, arrived: list[float], tokens: int = 0) -> None:
        """Adds an answer with the arrival time of each piece. Without a token count, a piece counts as a token."""
        self.tokens += tokens or len(arrived)
        self.first.append(arrived[0] - began)
        self.next += np.diff(arrived).tolist()


@dataclass(frozen=True)
class Load:
    """A load on a server: parallel streams with one answer each, or with one answer after the other."""

    streams: int
    tokens: int  # tokens per answer; under a steady load the average
    seconds: float = 0.0  # of a steady load

    def answers(self, stream: int) -> Iterator[tuple[int, float]]:
        """Returns the number of tokens of each answer in a stream, and the pause before it in seconds."""
        if not self.seconds:
            yield self.tokens, 0.0
            return
        rng, end = random.Random(stream), time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            yield rng.randint(1, 2 * self.tokens), rng.random() * MAX_PAUSE


Ask = Callable[[int, int, Times], Awaitable[None]]  # requests one answer: the number of its stream, and its tokens


async def timed(ask: Ask, load: Load) -> Times:
    """Runs all streams, after one that wakes the device."""
    times, ignored = Times(), Times()
    await ask(load.streams, load.tokens, ignored)

    async def stream(n: int) -> None:
        for number, (tokens, pause) in enumerate(load.answers(n)):
            await asyncio.sleep(pause)
            await ask(n, tokens, ignored if load.seconds and not number else times)

    began, before = time.perf_counter(), ignored.tokens
    await asyncio.gather(*(stream(n) for n in range(load.streams)))
    times.wall = time.perf_counter() - began
    times.tokens += ignored.tokens - before
    return times


async def in_library(llm: rwkv_gpu.LLM, load: Load) -> Times:
    """Runs the streams with `astream`."""

    async def ask(n: int, tokens: int, times: Times) -> None:
        began = time.perf_counter()
        events = llm.astream(f"{PROMPT}{n}", max_tokens=tokens, temperature=1.0, seed=n)
        times.add(began, [time.perf_counter() async for event in events if event.text])

    return await timed(ask, load)


async def over_http(port: int, load: Load, alike: bool) -> Times:
    """Runs the streams over HTTP. Connections are open before the clock starts, as clients keep them."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(load.streams + 1)]

    async def ask(n: int, tokens: int, times: Times) -> None:
        reader, writer = connections[n]
        body = json.dumps(request(n, tokens, alike))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        began, arrived, count = time.perf_counter(), [], 0
        writer.write(f"{head}content-type: application/json\r\n\r\n{body}".encode())
        while (line := await reader.readline()) != LAST_CHUNK:
            assert line, "the server closed the connection"
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                arrived += [time.perf_counter()] * any(choice.get("text") for choice in chunk["choices"])
                count = (chunk.get("usage") or {}).get("completion_tokens", count)
        await reader.readline()
        times.add(began, arrived, count)

    try:
        return await timed(ask, load)
    finally:
        for _, writer in connections:
            writer.close()


def request(n: int, tokens: int, alike: bool) -> dict[str, Any]:
    """Returns the body of a request. When servers are compared, no end token ends it and no prompt is reused."""
    body = {"prompt": f"{PROMPT}{n}", "max_tokens": tokens, "temperature": 1.0, "seed": n, "stream": True}
    if not alike:
        return body
    return body | {
        "cache_prompt": False, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True, "logit_bias": {"0": -100},
        "stream_options": {"include_usage": True},
    }  # fmt: skip


@click.command()
@click.argument("port", type=int)
@click.option("--streams", default=1)
@click.option("--tokens", default=128)
@click.option("--steady", default=0.0)
@click.option("--alike", is_flag=True, help="Answers of the same length by any server.")
def main(port: int, streams: int, tokens: int, steady: float, alike: bool) -> None:
    print(json.dumps(vars(asyncio.run(over_http(port, Load(streams, tokens, steady), alike)))))


if __name__ == "__main__":
    main()
