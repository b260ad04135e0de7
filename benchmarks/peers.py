"""The same file on the same machine by us and by llama.cpp, in turns: one table.

    python -m benchmarks.peers MODEL.gguf --peer PYTHON [--device 0] [-p 512 -n 64 -d 0 -b 1,16 --chunk-size 512 -r 5]

PYTHON is any interpreter that can import llama_cpp: a build for CPU, Vulkan or CUDA. `benchmarks/build_peer.sh` makes
one; then PEER_PATH is its folder. A synthetic NAME in place of a file is written to a temporary one first.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import click

from rwkv_gpu.cli.bench import runner_for
from rwkv_gpu.cli.options import device_option, numbers
from rwkv_gpu.engine.runner import GpuRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.measure.bench import on_gpu, on_host, warm_up
from rwkv_gpu.measure.synthetic import named, noise, write
from rwkv_gpu.measure.workload import Workload, workloads


class Peer:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, model: str, threads: int) -> None:
        environment = dict(os.environ)
        if "PEER_PATH" in environment:
            environment["PYTHONPATH"] = environment["PEER_PATH"]
        script = str(Path(__file__).with_name("peer_llama.py"))
        self._process = subprocess.Popen(
            [python, script, model, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.system = self._answer()["system"]

    def run(self, work: Workload) -> float:
        """Seconds of one pass."""
        assert self._process.stdin is not None
        ids = [[int(i) for i in row] for row in work.ids()]
        self._process.stdin.write(json.dumps({"work": dataclasses.asdict(work), "ids": ids}) + "\n")
        self._process.stdin.flush()
        return self._answer()["seconds"]

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException(f"the peer ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(runner, peer: Peer, work: Workload, repeats: int) -> tuple[list[float], list[float]]:
    """Tokens a second of both, in turns, after one pass of each that warms up."""
    runner.chunk_size = max(work.chunk, work.batch)
    steps, once = work.steps(), on_gpu if isinstance(runner, GpuRunner) else on_host
    if isinstance(runner, GpuRunner):
        warm_up(runner, work, steps)
    peer.run(work)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(work.total / once(runner, work, steps).seconds)
        theirs.append(work.total / peer.run(work))
    return ours, theirs


def shown(rates: list[float]) -> str:
    spread = statistics.stdev(rates) if len(rates) > 1 else 0.0
    return f"{statistics.mean(rates):.1f} ± {spread:.1f}"


@click.command()
@click.argument("model")
@click.option("--peer", "python", required=True, help="A Python that can import llama_cpp.")
@click.option("-p", "--prompt", type=numbers, default="512")
@click.option("-n", "--tokens", type=numbers, default="64")
@click.option("-d", "--depth", type=numbers, default="0")
@click.option("-b", "--batch", type=numbers, default="1")
@click.option("--chunk-size", type=numbers, default="512")
@click.option("-r", "--repeats", default=5)
@click.option("--threads", default=0, help="Of llama.cpp's CPU backend; 0 is its own choice.")
@device_option
def main(
    model: str,
    python: str,
    prompt: list[int],
    tokens: list[int],
    depth: list[int],
    batch: list[int],
    chunk_size: list[int],
    repeats: int,
    threads: int,
    device: str,
) -> None:
    works = workloads(prompt, tokens, depth, batch, chunk_size)
    with tempfile.TemporaryDirectory() as folder:
        if not Path(model).exists():
            path = Path(folder) / f"{model}.gguf"
            write(path, noise(*named(model)))
            model = str(path)
        with GGUFFile.open(model) as file, runner_for(file, works, device) as runner:
            peer = Peer(python, model, threads)
            place = runner.device.adapter if isinstance(runner, GpuRunner) else "numpy"
            click.echo(f"{Path(model).stem}: rwkv-gpu on {place}; llama.cpp with {peer.system.strip()}")
            click.echo("| test | chunk | batch | rwkv-gpu, tok/s | llama.cpp, tok/s | times |")
            click.echo("|---|--:|--:|--:|--:|--:|")
            for work in works:
                ours, theirs = compare(runner, peer, work, repeats)
                times = statistics.mean(ours) / statistics.mean(theirs)
                chunk = work.chunk if work.kind == "pp" else ""
                click.echo(f"| {work.name} | {chunk} | {work.batch} | {shown(ours)} | {shown(theirs)} | {times:.2f} |")
            peer.close()


if __name__ == "__main__":
    main()
