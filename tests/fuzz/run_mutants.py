"""Loads mutants of model files and runs them: each is refused in one line, or answers. Nothing else may happen.

    python -m tests.fuzz.run_mutants [--count 10000] [--first 0] [--device cpu] [--jobs 1] [MODEL ...]

Each batch of mutants has a process of its own, with bounded memory: a crash, a hang or a leak is found and named by the
seed of its mutant, and the rest continues.
"""

import argparse
import contextlib
import faulthandler
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rwkv_gpu
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.models import encoders
from rwkv_gpu.models.registry import MODELS
from tests.fuzz.mutants import MODELS as FILES
from tests.fuzz.mutants import structural

BATCH = 100  # mutants of one process
SECONDS = 60.0  # CPU seconds for one mutant; a GPU compiles its shaders
MEMORY = 6 << 30  # bytes of address space
PROMPT = "hello the world 12"
LONGEST = 300 + len(", ".join(MODELS))  # of a refusal, which may list all architectures


def outcome(path: Path, device: str = "cpu") -> str:
    """Returns 'answers', the name of a refusal, or an error that begins with '!'."""
    started = time.process_time()
    try:
        with rwkv_gpu.load(path, device=device) as llm:
            if llm.info.architecture in encoders.FORMS:
                llm.embed(PROMPT)
            else:
                llm.generate(PROMPT, max_tokens=2)
            result = "answers"
    except RwkvGpuError as error:
        result = type(error).__name__
        if not str(error).isprintable() or len(str(error)) > LONGEST + len(str(path)):
            result = f"! a refusal that is not one short line: {error!r}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        result = f"! {type(error).__name__}: {error}"
    took = time.process_time() - started
    return result if took < SECONDS else f"! took {took:.0f} s"


def run_here(first: int, count: int, device: str, models: Sequence[str] = FILES) -> Iterator[tuple[int, str, str]]:
    """Yields the seed of each mutant, its mutation, and the outcome."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for seed in range(first, first + count):
            what, data = structural(seed, models)
            path.write_bytes(data)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                yield seed, what, outcome(path, device)


def child(first: int, count: int, device: str, models: Sequence[str]) -> None:
    """Prints one line for each mutant."""
    with contextlib.suppress(ImportError):  # Windows has no memory limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.dump_traceback_later(20 * SECONDS, exit=True)
    for seed, what, result in run_here(first, count, device, models):
        faulthandler.dump_traceback_later(20 * SECONDS, exit=True)  # ends the process if a mutant hangs
        print(f"{seed}\t{what}\t{re.sub(r'[^ -~]+', '?', result)}", flush=True)


def run_apart(first: int, count: int, device: str, models: Sequence[str]) -> list[tuple[int, str, str]]:
    """Runs mutants in separate processes. If one dies, the run continues after its mutant."""
    done: list[tuple[int, str, str]] = []
    while len(done) < count:
        seed = first + len(done)
        command = [sys.executable, "-m", "tests.fuzz.run_mutants", "--child", "--first", str(seed)]
        command += ["--count", str(count - len(done)), "--device", device, *models]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        rows = [line.split("\t", 2) for line in ended.stdout.splitlines() if line.count("\t") == 2]
        done += [(int(number), what, result) for number, what, result in rows]
        if len(done) < count:
            lost = first + len(done)
            done.append(
                (
                    lost,
                    structural(lost, models)[0],
                    f"! the process ended with {ended.returncode}: {ended.stderr[-500:]}",
                )
            )
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of golden files; all by default")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first mutant")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.first, options.count, options.device, options.models or FILES)
        return 0
    ends: Counter[str] = Counter()
    starts = range(options.first, options.first + options.count, BATCH)
    with ThreadPoolExecutor(options.jobs) as pool:
        sizes = [min(BATCH, options.first + options.count - start) for start in starts]
        for rows in pool.map(
            run_apart, starts, sizes, [options.device] * len(starts), [options.models or FILES] * len(starts)
        ):
            for seed, what, result in rows:
                ends["!" if result.startswith("!") else result] += 1
                if result.startswith("!"):
                    print(f"mutant {seed} ({what}): {result[2:]}", flush=True)
            print(f"{ends.total():,} of {options.count:,}: {dict(ends)}", file=sys.stderr, flush=True)
    return 1 if ends["!"] else 0


if __name__ == "__main__":
    sys.exit(main())
