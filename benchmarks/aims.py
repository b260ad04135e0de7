"""What a bench found, and the aims of the project beside it.

    python -m benchmarks.aims RESULTS.jsonl

RESULTS holds rows of `rwkv-gpu bench -o jsonl`, of the models in AIMS; what is not in it is left open.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rwkv_gpu.measure.report import markdown

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Aim:
    """What is asked of one row, or of two."""

    work: str
    aim: str
    model: str
    test: Callable[[Row], bool]
    value: Callable[[Row], float]
    unit: str
    least: float | None = None
    most: float | None = None
    beside: Callable[[Row], bool] | None = None  # the row to divide by

    def line(self, rows: Iterable[Row]) -> str:
        """Its line of the table."""
        mine = [row for row in rows if row["model"] == self.model]
        found = next((row for row in mine if self.test(row)), None)
        base = next((row for row in mine if self.beside and self.beside(row)), None)
        if found is None or (self.beside and base is None):
            return f"| {self.work} | {self.aim} | not measured | |"
        number = self.value(found) / (self.value(base) if base else 1)
        return f"| {self.work} | {self.aim} | {number:,.3g} {self.unit} | {self.verdict(number)} |"

    def verdict(self, number: float) -> str:
        """Whether it is met, where a number says so."""
        if self.least is None and self.most is None:
            return "see peers"
        met = (self.least is None or number >= self.least) and (self.most is None or number <= self.most)
        return "met" if met else "no"


def decode(batch: int) -> Callable[[Row], bool]:
    return lambda row: row["n_gen"] > 0 and row["batch"] == batch and row["depth"] == 0


def prefill(chunk: int) -> Callable[[Row], bool]:
    return lambda row: row["n_prompt"] > 0 and row["chunk_size"] == chunk and row["depth"] == 0


def rate(row: Row) -> float:
    return row["tokens_per_second"]


def of_stream(row: Row) -> float:
    return 100 * row["bandwidth_share"]


RWKV, RWKV_BIG, LLAMA, MIXTURE = "rwkv7-2.9b-q4_k_m", "rwkv7-7.2b-f16", "llama-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m"
AIMS = [
    Aim("RWKV-7 2.9B Q4_K_M decode", "600 tok/s", RWKV, decode(1), rate, "tok/s", 600),
    Aim("RWKV-7 7.2B F16 decode", "60% of stream", RWKV_BIG, decode(1), of_stream, "%", 60),
    Aim("RWKV-7 2.9B decode, batch 16 / 1", "12 times", RWKV, decode(16), rate, "times", 12, beside=decode(1)),
    Aim("RWKV-7 2.9B prefill, chunk 512", "5,000 tok/s", RWKV, prefill(512), rate, "tok/s", 5000),
    Aim("the same on matrix units", "20,000 tok/s", RWKV, prefill(512), rate, "tok/s", 20000),
    Aim("Llama 8B Q4_K_M decode", "45% of stream", LLAMA, decode(1), of_stream, "%", 45),
    Aim("Qwen3-30B-A3B decode", "above llama.cpp", MIXTURE, decode(1), rate, "tok/s"),
    Aim("Qwen3-30B-A3B decode, batch 16", "above llama.cpp", MIXTURE, decode(16), rate, "tok/s"),
    Aim("dispatches a layer, RWKV-7", "8 at most", RWKV, decode(1), lambda r: r["dispatches_per_layer"], "", most=8),
    Aim("dispatches a layer, dense", "6 at most", LLAMA, decode(1), lambda r: r["dispatches_per_layer"], "", most=6),
    Aim("CPU share of a decode step", "under 10%", RWKV, decode(1), lambda r: 100 * r["cpu_share"], "%", most=10),
]


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def main(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    for model in dict.fromkeys(row["model"] for row in rows):
        print(f"\n{model}\n\n{markdown([row for row in rows if row['model'] == model])}")
    print("\n| work | aim | measured | |\n|---|---|--:|---|")
    for aim in AIMS:
        print(aim.line(rows))


if __name__ == "__main__":
    main()
