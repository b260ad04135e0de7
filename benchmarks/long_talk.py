"""A talk of many tokens through one sequence: speed and memory as it grows, which for an RNN stay the same.

    python -m benchmarks.long_talk                       # the built-in model, 1,000,000 tokens
    python -m benchmarks.long_talk FILE --tokens 20000 --device cpu --read 1800 --answer 64

Each turn reads a question and generates an answer, as a chat does. A row has the median speed of the turns of a part of
the talk, and what memory the process took at its end.
"""

import resource
import statistics
import sys
import time
from pathlib import Path

import click

import rwkv_gpu
from rwkv_gpu.llm.completion import Stats

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
@click.option("--read", default=0, help="Tokens that each turn reads; by default one question.")
@click.option("--answer", default=200, help="Tokens of each answer.")
@click.option("--cache-bytes", type=int, help="Memory for stored states; by default 256 MiB, or 64 states.")
@click.option("--rows", default=10, help="Parts of the talk that are reported.")
def main(
    model: str | None, device: str, tokens: int, read: int, answer: int, cache_bytes: int | None, rows: int
) -> None:
    """Prints a row for each part of the talk."""
    with rwkv_gpu.load(model, device=device, sequences=1, cache_bytes=cache_bytes) as llm:
        question = llm.tokenize(QUESTION)
        question *= max(1, read // len(question))
        ids: list[int] = []
        heads = "tokens so far", "reading, tok/s", "generating, tok/s", "CPU, ms a token", "main memory, MiB"
        print(f"| {' | '.join(heads)} |\n|--:|--:|--:|--:|--:|", flush=True)
        worked, before = time.process_time(), 0
        turns: list[Stats] = []
        while len(ids) < tokens:
            ids += question
            # The sequence goes on from its stored state: only the question is computed.
            found = llm.generate(ids, max_tokens=answer, temperature=1.0)
            ids += found.tokens
            turns.append(found.stats)
            if len(ids) >= tokens * (1 + before * rows // tokens) // rows:
                work, count = time.process_time(), len(ids) - before
                rates = (
                    statistics.median(one.prompt_rate for one in turns),
                    statistics.median(one.decode_rate for one in turns),
                )
                told = " | ".join(f"{rate:,.0f}" for rate in rates)
                figures = f"{told} | {1e3 * (work - worked) / count:.2f} | {resident() / (1 << 20):,.0f}"
                print(f"| {len(ids):,} | {figures} |", flush=True)
                worked, before, turns = work, len(ids), []


if __name__ == "__main__":
    main()
