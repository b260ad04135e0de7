"""What the proofs share: a check of every shader of some families, in parallel, and the verdict."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from .variants import texts

Check = Callable[[str, str], str]  # WGSL and a family -> what is wrong with it; nothing where nothing is
LIMIT_S = 300

few_option = click.option(
    "--few", is_flag=True, help="Only as many shaders as have every kernel with each of its parts."
)


def refused(command: Sequence[str | Path], stdin: str | None = None) -> str:
    """What a program says against its input; nothing where it takes it."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return (
        "" if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip() or f"ended with {done.returncode}")
    )


def covering(shaders: Mapping[str, str]) -> dict[str, str]:
    """Few shaders that have every kernel with every of its parts: those with the most that is new, first."""
    parts = {name: _pairs(name) for name in shaders}
    missing, chosen = set().union(*parts.values()), {}
    while missing:
        name = max(parts, key=lambda name: len(parts[name] & missing))
        chosen[name] = shaders[name]
        missing -= parts[name]
    return chosen


def _pairs(name: str) -> set[tuple[str, str]]:
    """A kernel with each of its parts; `name` is a number and what `link` calls a shader, or two that are merged."""
    kernel, *parts = name.partition(" ")[2].split(".")
    return {(kernel, part) for part in parts} | {(kernel, "")}


def prove(folder: Path, families: Sequence[str], check: Check, few: bool = False, show: int = 10) -> None:
    """Runs the check over all shaders, says how many pass, and ends with 1 if any does not."""
    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for family in families:
            every = texts(folder, family)
            shaders = covering(every) if few else every
            said = dict(zip(shaders, pool.map(check, shaders.values(), itertools.repeat(family)), strict=True))
            bad = {name: words for name, words in said.items() if words}
            failures += len(bad)
            click.echo(f"{family}: {len(shaders) - len(bad)} of {len(shaders)} shaders pass, of {len(every)}")
            for name, words in list(bad.items())[:show]:
                click.echo(f"  {name}\n    " + "\n    ".join(words.splitlines()[:8]))
    sys.exit(1 if failures else 0)
