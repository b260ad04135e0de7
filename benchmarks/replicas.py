"""Many streams against a server of one device and of several, and what a killed process costs.

    python -m benchmarks.replicas rwkv7-2.9b --device 0 --device 0,1 --streams 64 --kill

A model is a file, or the name of a synthetic one. Each `--device` is that of a `rwkv-gpu serve` of its own, one after
the other. With `--kill`, one process of the last server is ended by SIGKILL while all streams run: its streams end with
the code `engine_lost`, the others go on, requests that come meanwhile are answered, and the process comes back.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.serving import PROMPT, Legible
from rwkv_gpu.measure.synthetic import named, noise, write

PATIENCE = 90.0  # seconds for a server to load its model


@dataclass(frozen=True)
class Streamed:
    """What a client saw of a stream."""

    tokens: int
    end: str  # done, engine_lost or cut
    replica: str
    first: float  # seconds to the first token
    gaps: tuple[float, ...]  # seconds from what came to what came next


async def stream(port: int, number: int, tokens: int) -> Streamed:
    """One stream, read to its end."""
    body = {"prompt": f"{PROMPT}{number}", "max_tokens": tokens, "temperature": 1.0, "seed": number, "stream": True}
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = json.dumps(body)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
    )
    writer.write((head + text).encode())
    pieces, times = [], []
    while piece := await reader.read(1 << 16):
        pieces.append(piece)
        times.append(time.perf_counter())
    writer.close()
    data = b"".join(pieces)
    events = [at for at, piece in zip(times, pieces, strict=True) if b'data: {"id"' in piece]
    replica = data.partition(b"x-replica: ")[2][:8].split(b"\r\n")[0].decode()
    end = "engine_lost" if b'"engine_lost"' in data else "done" if b"[DONE]" in data else "cut"
    first = (events or [begin])[0] - begin
    gaps = tuple(late - early for early, late in itertools.pairwise(events))
    return Streamed(max(0, data.count(b'data: {"id"') - 1), end, replica, first, gaps)


async def all_streams(port: int, count: int, tokens: int) -> tuple[list[Streamed], float]:
    """So many at a time, and the seconds they took."""
    begin = time.perf_counter()
    found = await asyncio.gather(*(stream(port, number, tokens) for number in range(count)))
    return found, time.perf_counter() - begin


def cpu_seconds(process: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def round_line(found: list[Streamed], seconds: float, spent: dict[str, float]) -> str:
    """What a round took: from a token to the next, to the first one, and the CPU time of each process for a token."""
    tokens = sum(one.tokens for one in found)
    gaps = [1e3 * gap for one in found for gap in one.gaps]
    firsts = sorted(1e3 * one.first for one in found)
    cpu = ", ".join(f"{name} {1e6 * one / tokens:.0f}" for name, one in spent.items())
    return (
        f"  {tokens / seconds:,.0f} tok/s in {seconds:.2f} s; to the next token {median(gaps):.1f} ms, to the first "
        f"{median(firsts):.0f} ({firsts[-1]:.0f} at most); µs of CPU a token: {cpu}"
    )


def health(port: int) -> dict[str, Any]:
    """What the server says of itself; empty while it does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            found: dict[str, Any] = json.loads(response.read())
    except urllib.error.HTTPError as error:
        found = json.loads(error.read())
    except OSError:
        return {}
    return found


def wait_ready(port: int, server: "subprocess.Popen[bytes]") -> float:
    """Seconds until all replicas serve."""
    begin = time.perf_counter()
    while True:
        found = health(port)
        if {found.get("status"), *(one["status"] for one in found.get("replicas", []))} == {"ok"}:
            return time.perf_counter() - begin
        if server.poll() is not None or time.perf_counter() - begin > PATIENCE:
            raise SystemExit(f"the server did not start: {found}")
        time.sleep(0.05)


@contextmanager
def serving(model: Path, device: str, sequences: int, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """`rwkv-gpu serve`, ready."""
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", str(model), "--device", device]
    command += ["--port", str(port), "--sequences", str(sequences), "--drain", "1"]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as server:
        try:
            print(f"--device {device}: ready in {wait_ready(port, server):.1f} s", flush=True)
            yield server
        except SystemExit:
            log.seek(0)
            print(log.read().decode()[-1000:], file=sys.stderr)
            raise
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()


def replicas(server: int) -> list[int]:
    """The processes that a server has for its devices."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server and b"spawn_main" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended meanwhile
    return sorted(found)


async def with_kill(port: int, server: int, count: int, tokens: int, after: float) -> None:
    """Kills a replica while all streams run, and asks for more at once."""
    running = asyncio.create_task(all_streams(port, count, tokens))
    await asyncio.sleep(after)
    victims = replicas(server)
    os.kill(victims[0], signal.SIGKILL)
    more, _ = await all_streams(port, 8, 8)
    found, _ = await running
    ends = Counter((one.replica, one.end) for one in found)
    print(f"kill -9 of one of {len(victims)} processes under {count} streams, by replica and end: {dict(ends)}")
    print(f"8 requests right after it: {dict(Counter((one.replica, one.end) for one in more))}", flush=True)


@click.command()
@click.argument("model")
@click.option("--device", "devices", multiple=True, required=True)
@click.option("--streams", default=64, show_default=True)
@click.option("--tokens", default=128, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--kill", is_flag=True)
@click.option("--port", default=8123, show_default=True)
def main(model: str, devices: tuple[str, ...], streams: int, tokens: int, rounds: int, kill: bool, port: int) -> None:
    rates: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(model)
        if not path.exists():
            name, shape, quant = named(model)
            path = Path(folder) / f"{name}.gguf"
            write(path, noise(name, Legible(shape), quant))
        for number, device in enumerate(devices):
            with serving(path, device, streams, port) as server:
                took = []
                processes = {"router" if number else "server": server.pid, "client": os.getpid()}
                for one, process in enumerate(replicas(server.pid)):
                    processes[f"replica {one}"] = process
                for _ in range(rounds + 1):  # the first compiles
                    before = {name: cpu_seconds(process) for name, process in processes.items()}
                    found, seconds = asyncio.run(all_streams(port, streams, tokens))
                    spent = {name: cpu_seconds(process) - before[name] for name, process in processes.items()}
                    print(round_line(found, seconds, spent), flush=True)
                    took.append((sum(one.tokens for one in found) / seconds, seconds))
                rates.append(median(rate for rate, _ in took[1:]))
                each = Counter(one.replica for one in found)
                times = f", {rates[-1] / rates[0]:.2f} times the first" if number else ""
                print(f"--device {device}: {rates[-1]:,.0f} tok/s{times}; streams by replica {dict(each)}", flush=True)
                if kill and number + 1 == len(devices):
                    asyncio.run(with_kill(port, server.pid, streams, tokens, took[-1][1] / 2))
                    print(f"all processes serve again after {wait_ready(port, server):.1f} s")


if __name__ == "__main__":
    main()
