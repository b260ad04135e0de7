"""What HTTP costs the CPU for each streamed token: `python -m benchmarks.server`.

The built-in model answers in numpy, in this process. Clients are another process, so that theirs is not counted. The
time is the CPU time of the event loop's thread: parsing, JSON, sockets.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from typing import Any

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.run import Runner, listen
from rwkv_gpu.server.service import Service

SHORT = 10  # tokens of the short answers
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}


def main() -> None:
    """Prints a table: streams, tokens, CPU µs a token of the event loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=120, help="of each long answer")
    parser.add_argument("--kind", choices=PATHS, default="text")
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        asyncio.run(ask_all(options.client, options.kind, options.streams[0], options.tokens))
        return
    most = max(options.streams)
    ready = threading.Event()
    config = ServerConfig(port=0, sequences=most, drain=1)
    runner = Runner(Service(config, Catalogue([ServedModel("builtin", str(builtin_model()))], load(most))))
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=runner.run, args=(listener, ready.set))
    thread.start()
    ready.wait()
    try:
        print(f"{'streams':>8} {'tokens':>8} {'loop µs/token':>14} {'loop µs/request':>16} {'process µs/token':>17}")
        for streams in options.streams:
            measure(runner, listener.getsockname()[1], options.kind, streams, options.tokens)
    finally:
        runner.signal()
        thread.join()


def load(sequences: int) -> Any:
    """How the server loads the model."""
    return lambda path, progress: rwkv_gpu.load(path, device="cpu", sequences=sequences, progress=progress)


def measure(runner: Runner, port: int, kind: str, streams: int, tokens: int) -> None:
    """One line of the table: short answers and long ones tell what a token costs, and what a request."""
    run_clients(port, kind, streams, SHORT)
    (few, of_few, _), (many, of_many, process) = (cost(runner, port, kind, streams, count) for count in (SHORT, tokens))
    token = (of_many - of_few) / max(1, many - few)
    request = (of_few - few * token) / streams
    print(f"{streams:8} {many:8} {1e6 * token:14.1f} {1e6 * request:16.1f} {1e6 * process / many:17.1f}")


def cost(runner: Runner, port: int, kind: str, streams: int, tokens: int) -> tuple[int, float, float]:
    """Tokens that were streamed, CPU seconds of the event loop, and of the process."""
    before, process = loop_seconds(runner), time.process_time()
    count = run_clients(port, kind, streams, tokens)
    return count, loop_seconds(runner) - before, time.process_time() - process


def loop_seconds(runner: Runner) -> float:
    """CPU seconds of the thread of the event loop so far."""

    async def now() -> float:
        return time.thread_time()

    assert runner._loop is not None
    return asyncio.run_coroutine_threadsafe(now(), runner._loop).result()


def run_clients(port: int, kind: str, streams: int, tokens: int) -> int:
    """Has another process ask; gives how many tokens were streamed."""
    command = [sys.executable, "-m", "benchmarks.server", "--client", str(port), "--kind", kind]
    command += ["--streams", str(streams), "--tokens", str(tokens)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def ask_all(port: int, kind: str, streams: int, tokens: int) -> None:
    """The clients: so many streams at a time."""
    print(sum(await asyncio.gather(*(ask(port, kind, n, tokens) for n in range(streams)))))


async def ask(port: int, kind: str, n: int, tokens: int) -> int:
    """One stream; gives its tokens."""
    prompt: dict[str, Any] = {"prompt": f"The sea {n}"}
    if kind == "chat":
        prompt = {"messages": [{"role": "user", "content": f"Tell me about {n}"}]}
    body = json.dumps(
        {**prompt, "max_tokens": tokens, "stream": True, "temperature": 1, "regex": None, "logit_bias": {}}
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATHS[kind]} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write((head + body).encode())
    content = await reader.read()
    writer.close()
    return content.count(b"data: ") - 3  # the first chunk, the last one, and [DONE]


if __name__ == "__main__":
    main()
