"""A talk of many tokens through one sequence: speed and memory as it grows, which for an RNN stay the same.

    python -m benchmarks.long_talk                       # the built-in model, 1,000,000 tokens
    python -m benchmarks.long_talk FILE --tokens 20000 --device cpu

Each turn reads a question and generates an answer, as a chat does. A row says how fast a part of the talk was, and what
memory the process took at its end.
"""

import resource
import sys
import time
from pathlib import Path

import click

import rwkv_gpu

STATUS = Path("/proc/self/status")
QUESTION = "User: Tell me more about the sea, the wind and the birds.\n\nAssistant:"


def resident() -> int:
    """Bytes of main memory that this process takes now."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@click.command()
@click.argument("model", required=False)
@click.option("--device", default="auto")
@click.option("--tokens", default=1_000_000, help="Of the whole talk.")
@click.option("--answer", default=200, help="Tokens of each answer.")
@click.option("--cache-bytes", type=int, help="Memory for stored states; by default 256 MiB, or 64 states.")
@click.option("--rows", default=10, help="Parts of the talk that are reported.")
def main(model: str | None, device: str, tokens: int, answer: int, cache_bytes: int | None, rows: int) -> None:
    """Prints a row for each part of the talk."""
    with rwkv_gpu.load(model, device=device, sequences=1, cache_bytes=cache_bytes) as llm:
        question = llm.tokenize(QUESTION)
        ids: list[int] = []
        print("| tokens so far | read and generated, tok/s | CPU, ms a token | main memory, MiB |\n|--:|--:|--:|--:|")
        began, worked, before = time.perf_counter(), time.process_time(), 0
        while len(ids) < tokens:
            ids += question
            # The sequence goes on from its stored state: only the question is computed.
            ids += llm.generate(ids, max_tokens=answer, temperature=1.0).tokens
            if len(ids) >= tokens * (1 + before * rows // tokens) // rows:
                now = time.perf_counter()
                count, work = len(ids) - before, time.process_time()
                figures = f"{count / (now - began):,.0f} | {1e3 * (work - worked) / count:.2f}"
                print(f"| {len(ids):,} | {figures} | {resident() / (1 << 20):,.0f} |", flush=True)
                began, worked, before = now, work, len(ids)


if __name__ == "__main__":
    main()
