"""Runs all fuzz targets, or the named ones, for ten minutes in total.

    python -m tests.fuzz [header tokenizer ... writers multipart stream response store] [--seconds 600] [--seed N]

Prints the smallest input that violates a guarantee, and ends with 1. A target has a process of its own:
if one crashes, the others continue, and its current input is printed.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.targets import TARGETS


def run_apart(name: str, seconds: float, seed: int) -> bool:
    """Runs a target in its own process. Returns True if every input passed its checks."""
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder) / "last"
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", name, "--seconds", str(seconds)]
        code = subprocess.run([*command, "--seed", str(seed), "--last", str(last)]).returncode
        if code:
            print(
                f"{name}: the process ended with {code}, at this input:\n{last.read_text() if last.exists() else '?'}"
            )
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all by default")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--last", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.last:
        count = fuzz(TARGETS[options.targets[0]], options.seconds, options.seed, options.last)
        print(f"{options.targets[0]}: {count:,} inputs, seed {options.seed}", flush=True)
        return 0
    names = options.targets or list(TARGETS)
    good = [run_apart(name, options.seconds / len(names), options.seed) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
