"""The common part of the proofs: checks every shader of some families in parallel, and prints a verdict.

Verdicts are stored by the digests of the shader and of the compilers, so an interrupted proof continues.
`make offline-tools` removes them.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import click

from .variants import texts

Check = Callable[[str, str], str]  # WGSL and a family -> the error; empty without one
LIMIT_S = 300
MAX_SHOWN = 10  # failures of a family


@dataclass(frozen=True)
class Selection:
    """A selection of the shaders of a family; all of them by default."""

    few: bool = False
    one_each: bool = False
    since: Path | None = None  # the folder with the shaders of another commit

    def of(self, folder: Path, family: str) -> dict[str, str]:
        """Returns the selected shaders by name."""
        every = texts(folder, family)
        if self.since is not None:
            known = {_code(text) for text in texts(self.since, family).values()}
            every = {name: text for name, text in every.items() if _code(text) not in known}
        return smallest(every) if self.one_each else covering(every) if self.few else every


def refused(command: Sequence[str | Path], stdin: str | None = None) -> str:
    """Returns a program's error about its input; empty if it accepts the input."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return (
        "" if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip() or f"ended with {done.returncode}")
    )


def parts_of(shader: str) -> frozenset[tuple[str, str]]:
    """Returns the kernels of a shader, each alone and with each of its parts; several if shaders are merged."""
    found = set()
    for one in shader.split(" & "):
        kernel, *parts = one.split(".")
        found |= {(kernel, part) for part in parts} | {(kernel, "")}
    return frozenset(found)


def cover(parts: Sequence[frozenset[tuple[str, str]]]) -> list[int]:
    """Chooses sets that together have all elements: greedily, the set with the most new elements first."""
    missing, chosen = frozenset[tuple[str, str]]().union(*parts), []
    while missing:
        chosen.append(max(range(len(parts)), key=lambda place: len(parts[place] & missing)))
        missing -= parts[chosen[-1]]
    return chosen


def covering(shaders: Mapping[str, str]) -> dict[str, str]:
    """Chooses enough shaders to have every kernel with each of its parts."""
    names = list(shaders)
    chosen = cover([parts_of(name.partition(" ")[2]) for name in names])  # behind a number
    return {names[place]: shaders[names[place]] for place in chosen}


def smallest(shaders: Mapping[str, str]) -> dict[str, str]:
    """Returns the shortest shader of each kernel, sorted by length. A merged dispatch counts for its first kernel."""
    found: dict[str, str] = {}
    for name in sorted(shaders, key=lambda name: len(shaders[name])):
        found.setdefault(name.partition(" ")[2].partition(".")[0], name)
    return {name: shaders[name] for name in found.values()}


def _code(text: str) -> str:
    """Returns a shader without the line that names it."""
    return text.partition("\n")[2]


def kept_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the results of earlier runs from a file. An incomplete last line is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    whole, _, rest = path.read_text(encoding="utf-8").rpartition("\n")
    if rest:
        path.write_text(whole + "\n" * bool(whole), encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


class Unfinished(str):
    """An error that does not concern the shader, such as a timeout. The next run tries again."""

    __slots__ = ()


class Kept:
    """Verdicts of earlier runs, in a file with one verdict per line."""

    def __init__(self, path: Path, programs: Sequence[Path]) -> None:
        self._programs = "".join(hashlib.sha256(program.read_bytes()).hexdigest() for program in programs)
        self._known = {line["shader"]: line["complaint"] for line in kept_lines(path)}
        self._path = path
        self._lock = Lock()

    def checked(self, check: Check, text: str, family: str) -> str:
        """Returns the error about a shader, from an earlier run or from this one."""
        name = hashlib.sha256("\0".join([self._programs, family, _code(text)]).encode()).hexdigest()[:32]
        if name not in self._known:
            complaint = check(text, family)
            if isinstance(complaint, Unfinished):
                return complaint
            self._known[name] = complaint
            with self._lock, self._path.open("a", encoding="utf-8") as sink:
                sink.write(json.dumps({"shader": name, "complaint": complaint}) + "\n")
        return self._known[name]


def program(name: str) -> Path:
    """Finds a program on the path."""
    found = shutil.which(name)
    if found is None:
        raise click.ClickException(f"there is no {name} on the path; run `make offline-tools`")
    return Path(found)


def prove(
    folder: Path,
    families: Sequence[str],
    check: Check,
    programs: Sequence[Path],
    selection: Selection = Selection(),
    mode: str = "",
) -> None:
    """Checks the selected shaders and prints how many pass. Exits with 1 if one fails.

    Results are stored separately for each mode of a compiler.
    """
    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for family in families:
            shaders = selection.of(folder, family)
            kept = Kept(folder.parent / "verdicts" / f"{'-'.join(filter(None, (family, mode)))}.jsonl", programs)
            found = pool.map(lambda text, family=family, kept=kept: kept.checked(check, text, family), shaders.values())
            bad = {name: words for name, words in zip(shaders, found, strict=True) if words}
            failures += len(bad)
            every = len(texts(folder, family))
            click.echo(f"{family}: {len(shaders) - len(bad)} of {len(shaders)} shaders pass, of {every}")
            for name, words in list(bad.items())[:MAX_SHOWN]:
                click.echo(f"  {name}\n    " + "\n    ".join(words.splitlines()[:8]))
    sys.exit(1 if failures else 0)
