"""Measures a served model: tokens per second of parallel streams, time to first token, and time between tokens.

    python -m benchmarks.serving MODEL [--device auto] [--streams 1,64] [--steady SECONDS]
    python -m benchmarks.serving MODEL --peer "llama-server -ngl 99" --device 0 --streams 1,16,64 --wait 15

MODEL is a file, or the name of a synthetic model such as rwkv7-2.9b. The same loaded model answers in turns through the
library (asyncio, in this process) and over HTTP (clients in another process). With `--peer`, our server and
llama-server answer in turns. Each is started by its usual command, with as many sequences as streams. Debian has
llama-server in the package llama.cpp (`debian_packages.sh FOLDER llama.cpp` unpacks it).

All streams begin at once. With `--steady SECONDS`, each stream sends its next request soon after an answer ends, until
that time has passed. Answers then have lengths from 1 token to twice `--tokens`, and the first answer of a stream is
not timed.
"""

import asyncio
import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import click
import numpy as np

import rwkv_gpu
from rwkv_gpu.cli.options import numbers
from rwkv_gpu.measure.shapes import Keys, Shape
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.run import Runner, listen
from rwkv_gpu.server.service import Service

from .clients import Load, Times, in_library
from .opening import as_file

CONTEXT = 1024  # tokens that llama-server reserves for each sequence
PATIENCE = 120  # seconds until a server must be ready
LAST_WORDS = 1000  # characters of a failed server's log that are printed


class Legible(Shape):
    """A synthetic model whose tokens all have text, so that each is an event for clients."""

    def metadata(self) -> Keys:
        given = super().metadata()
        tokens = given["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        texts = [*tokens[:257], *(f" w{n}" for n in range(257, len(tokens)))]
        return {**given, "tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": [3, *[1] * (len(tokens) - 1)]}


@contextlib.contextmanager
def served(path: str, device: str, sequences: int) -> Iterator[tuple[rwkv_gpu.LLM, int]]:
    """Starts a server in this process. Yields its model and its port."""

    def load(file: str, progress: Any) -> rwkv_gpu.LLM:
        return rwkv_gpu.load(file, device=device, sequences=sequences, progress=progress)

    ready = threading.Event()
    config = ServerConfig(port=0, sequences=sequences, drain=1)
    service = Service(config, Catalogue([ServedModel("m", path)], load, own_process=True))
    runner = Runner(service)
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=runner.run, args=(listener, ready.set))
    thread.start()
    ready.wait()
    llm = service.catalogue.models[0].llm
    assert llm is not None
    try:
        yield llm, listener.getsockname()[1]
    finally:
        runner.signal()
        thread.join()


@contextlib.contextmanager
def server_process(command: list[str]) -> Iterator[int]:
    """Starts a server as a process. Returns its port when it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=log)
        try:
            end = time.monotonic() + PATIENCE
            while not is_ready(port):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    words = log.read().decode(errors="replace")[-LAST_WORDS:]
                    raise click.ClickException(f"{shlex.join(command)} does not serve:\n{words}")
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait()


def is_ready(port: int) -> bool:
    """True if a server reports that it is healthy."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def by_clients(port: int, load: Load, alike: bool = False) -> Times:
    """Runs the streams in another process."""
    command = [sys.executable, "-m", "benchmarks.clients", str(port), "--steady", str(load.seconds)]
    command += ["--streams", str(load.streams), "--tokens", str(load.tokens), *["--alike"] * alike]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Times(**json.loads(done.stdout))


def report(load: Load, name: str, rounds: list[Times]) -> None:
    """Prints one line of the table."""
    rate = median(times.tokens / times.wall for times in rounds)
    first, after = (
        np.percentile(1e3 * np.concatenate(each), (50, 99))
        for each in ([times.first for times in rounds], [times.next for times in rounds])
    )
    cells = f"{rate:8.0f} {first[0]:9.2f} {first[1]:7.2f} {after[0]:8.2f} {after[1]:7.2f}"
    print(f"{load.streams:7}  {name:12} {cells}", flush=True)


@click.command()
@click.argument("model")
@click.option("--device", default="auto")
@click.option("--streams", type=numbers, default="1,64")
@click.option("--tokens", default=128)
@click.option("--rounds", default=3)
@click.option("--steady", default=0.0, metavar="SECONDS", help="A steady load for so long a round.")
@click.option("--peer", help="llama-server, with its options.")
@click.option("--own", default="", help="Options of our server; needs --peer.")
@click.option("--wait", default=0.0, help="Seconds to wait until our server has warmed up; needs --peer.")
def main(
    model: str,
    device: str,
    streams: list[int],
    tokens: int,
    rounds: int,
    steady: float,
    peer: str | None,
    own: str,
    wait: float,
) -> None:
    """Prints a table with a line for each number of streams and each way to send requests to MODEL."""
    asks: dict[str, Callable[[Load], Times]] = {}
    with ExitStack() as stack:
        path, most = stack.enter_context(as_file(model, lambda shape: Legible(**vars(shape)))), max(streams)
        if peer is None:
            llm, port = stack.enter_context(served(path, device, most))
            asks["library"] = lambda load: asyncio.run(in_library(llm, load))
            asks["HTTP"] = lambda load: by_clients(port, load)
        else:
            ours = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", path, "--device", device]
            ours += ["--sequences", str(most), *shlex.split(own)]
            theirs = [*shlex.split(peer), "-m", path, "-np", str(most), "-c", str(CONTEXT * most)]
            theirs += ["-ngl", "0"] if device == "cpu" else []
            for name, command in {"rwkv-gpu": ours, "llama-server": theirs}.items():
                at = stack.enter_context(server_process(command))
                asks[name] = lambda load, at=at: by_clients(at, load, alike=True)  # type: ignore[misc]
            time.sleep(wait)
        print("streams                 tok/s  TTFT p50  p99 ms  ITL p50  p99 ms")
        for load in (Load(count, tokens, steady) for count in streams):
            found: dict[str, list[Times]] = {name: [] for name in asks}
            for number in range(rounds + 1):  # the first warms up
                for name, ask in asks.items():
                    times = ask(load)
                    found[name] += [times] if number else []
            for name, each in found.items():
                report(load, name, each)


if __name__ == "__main__":
    main()
