"""Our server and llama.cpp's beside each other: the same file, the same load, in turns.

    python -m benchmarks.servers MODEL --peer "llama-server --threads 2" [--device cpu] [--streams 1 8] [--tokens 64]
    python -m benchmarks.servers rwkv7-0.4b --peer "llama-server -ngl 99" --device 0 --streams 1 16 64 --wait 15

MODEL is a file, or the name of a synthetic model.
Both are started as their users start them, with as many sequences as streams. Each round asks one of them for so many
streams at a time, then the other. Prints requests and tokens a second, time to first token, and time for each further
token. Debian has llama-server in the package llama.cpp (`debian_packages.sh FOLDER llama.cpp` unpacks it).
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from .serving import model_file

CONTEXT = 1024  # tokens that llama-server reserves for each sequence
LAST_WORDS = 1000  # characters that a server said before it failed
PATIENCE = 120  # seconds until a server must be ready


@dataclass
class Round:
    """What the clients of one round saw, in seconds."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)  # per token after the first, of each stream


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", required=True, help="llama-server, with options of its own where it needs some")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--own", default="", help="options of our server, as --peer has those of the other")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds until ours is ready for all sizes")
    options = parser.parse_args()
    with model_file(options.model) as path:
        compare(str(path.resolve()), options)


def compare(path: str, options: argparse.Namespace) -> None:
    """Starts both servers, and asks them in turns."""
    most = max(options.streams)
    ours = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", path, "--device", options.device]
    ours += ["--sequences", str(most), *shlex.split(options.own)]
    peer = [*shlex.split(options.peer), "-m", path, "-np", str(most), "-c", str(CONTEXT * most)]
    peer += ["-ngl", "0"] if options.device == "cpu" else []
    print("streams                 req/s    tok/s  TTFT p50  p99 ms  ITL p50  p99 ms")
    with serving(ours) as own, serving(peer) as other:
        ports = {"rwkv-gpu": own, "llama-server": other}
        time.sleep(options.wait)
        for streams in options.streams:
            rounds: dict[str, list[Round]] = {name: [] for name in ports}
            for number in range(options.rounds + 1):
                for name, port in ports.items():
                    found = asyncio.run(ask_all(port, streams, options.tokens, number))
                    rounds[name] += [found] if number else []  # the first warms up
            for name, seen in rounds.items():
                print_line(streams, name, seen)


def print_line(streams: int, name: str, rounds: list[Round]) -> None:
    """One line of the table."""
    requests = median(streams / one.seconds for one in rounds)
    tokens = median(one.tokens / one.seconds for one in rounds)
    first = np.percentile([1e3 * seconds for one in rounds for seconds in one.first], (50, 99))
    each = np.percentile([1e3 * seconds for one in rounds for seconds in one.each], (50, 99))
    times = f"{first[0]:9.1f} {first[1]:7.1f} {each[0]:8.2f} {each[1]:7.2f}"
    print(f"{streams:7}  {name:13} {requests:7.2f} {tokens:8.1f} {times}", flush=True)


@contextlib.contextmanager
def serving(command: list[str]) -> Iterator[int]:
    """A server until the block ends; gives its port once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=log)
        try:
            end = time.monotonic() + PATIENCE
            while not is_ready(port):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    said = log.read().decode(errors="replace")
                    sys.exit(f"{shlex.join(command)} does not serve:\n{said[-LAST_WORDS:]}")
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait()


def is_ready(port: int) -> bool:
    """Whether a server says that it is healthy."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def ask_all(port: int, streams: int, tokens: int, number: int) -> Round:
    """So many streams at a time."""
    found = Round()
    began = time.perf_counter()
    await asyncio.gather(*(ask(port, f"Once upon a time, {number}-{n}", tokens, found) for n in range(streams)))
    found.seconds = time.perf_counter() - began
    return found


async def ask(port: int, prompt: str, tokens: int, found: Round) -> None:
    """One stream."""
    body = json.dumps({
        "prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "seed": 1, "stream": True, "cache_prompt": False,
        "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True, "logit_bias": {"0": -100},
        "stream_options": {"include_usage": True},
    })  # fmt: skip
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    began, first, last, count = time.perf_counter(), 0.0, 0.0, 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if any(choice.get("text") for choice in chunk["choices"]):
            last = time.perf_counter()
            first = first or last
        count = (chunk.get("usage") or {}).get("completion_tokens", count)
    writer.close()
    found.tokens += count
    found.first.append(first - began)
    found.each.append((last - first) / max(1, count - 1))


if __name__ == "__main__":
    main()
