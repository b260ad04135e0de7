"""Runs the tests of changes: pytest collects once, and each change runs in a fork of that process.

In the fork, a changed function replaces the original. A change of code that runs at import needs a new process, which
is slower.
"""

import contextlib
import gc
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import coverage
import pytest

from tests.mutation.changes import Change

MEMORY = 12 << 30  # address space of a fork: an endless loop might allocate without end
PATIENCE, CPU_PATIENCE = 20.0, 5.0  # seconds that a test may take in addition to a multiple of its usual time
FAILED = re.compile("(FAILED|ERROR) ")  # lines of a summary by pytest
TIMES = 5


class Coverage:
    """Records the lines of some folders that each test runs, itself or through shared fixtures."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._coverage = coverage.Coverage(data_file=None, source=[*folders], config_file=False)
        self._coverage.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
        self._context = ""

    def run(self, items: Mapping[int, pytest.Item]) -> tuple[dict[int, float], dict[str, dict[int, set[int]]]]:
        """Returns the seconds of each test that passes, and the tests by file and line."""
        seconds = {}
        self._coverage.start()
        for (number, item), following in zip(items.items(), [*list(items.values())[1:], None], strict=True):
            self._enter(f"test {number}")
            begin = time.perf_counter()
            if passes(item, following):
                seconds[number] = time.perf_counter() - begin
        self._coverage.stop()
        users: dict[str, set[int]] = {}
        for number, item in items.items():
            users[f"test {number}"] = {number}
            for definitions in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
                for definition in definitions:
                    users.setdefault(fixture_name(definition), set()).add(number)
        data = self._coverage.get_data()
        return seconds, {
            file: {
                line: set().union(*(users.get(context, ()) for context in contexts))
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }

    def _enter(self, context: str) -> None:
        self._context = context
        self._coverage.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Iterator[None]:
        before = self._context
        if fixturedef.scope != "function":
            self._enter(fixture_name(fixturedef))
        try:
            return (yield)
        finally:
            if before:
                self._enter(before)


def fixture_name(definition: pytest.FixtureDef) -> str:
    """Returns the unique name of a fixture."""
    return f"fixture {definition.baseid} {definition.argname}"


def near(change: Change, tests: Path) -> bool:
    """True if a test file concerns a change's module: it imports the module, or has a similar name."""
    package, module = change.path.parent.name, change.path.stem
    imported = rf"\b{package}\.{module}\b|\b{package} import .*\b{module}\b"
    return f"test_{module}" in tests.stem or re.search(imported, tests.read_text()) is not None


def runs_without_gpu(item: pytest.Item) -> bool:
    """True if a test needs no GPU, or `make test` runs it on one."""
    return "quick" in item.keywords or "gpu" not in item.keywords


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Runs one test as pytest does. Returns True if it passes."""
    before = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return item.session.testsfailed == before


class Forks:
    """A pytest plugin that runs tests only in forks."""

    def __init__(self, folders: list[str], on_gpu: tuple[str, ...], changes: dict[str, list[Change]]) -> None:
        self.folders, self.changes = folders, changes  # changes by their names
        self.on_gpu = on_gpu  # names of the tests on a GPU that run, or how they begin
        self.killers: dict[Path, Counter[int]] = {}  # tests that caught changes, by file
        self.sound: set[int] = set()  # tests that pass without changes
        self.recorded: set[Path] = set()  # files of tests
        self.seconds: dict[int, float] = {}  # seconds of each recorded test that passes
        self.lines: dict[str, dict[int, set[int]]] = {}  # recorded tests by file and line

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Selects the tests of `make test-all` that need no GPU, and those on a GPU that were named."""
        items[:] = [
            item
            for item in items
            if "slow" not in item.keywords and (item.nodeid.startswith(self.on_gpu) or runs_without_gpu(item))
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Prints the result of each change, by the tests of its module, then by all tests, and the number detected."""
        self.items = session.items
        session.config.pluginmanager.unregister(name="terminalreporter")
        gc.unfreeze()
        self.functions: dict[tuple[str, str], list[FunctionType]] = {}
        for function in gc.get_objects():
            if type(function) is FunctionType:
                key = (function.__code__.co_filename, function.__code__.co_qualname)
                self.functions.setdefault(key, []).append(function)
        gc.freeze()
        left = {name: self._survivors(changes, near) for name, changes in self.changes.items()}
        for name, some in left.items():
            print(f"\n{name}: {len(some)} of {len(self.changes[name])} pass the tests of their modules", flush=True)
        for name, some in left.items():
            survivors, count = self._survivors(some, lambda *_: True), len(self.changes[name])
            caught = count - len(survivors)
            print(f"\n{name}: {caught} of {count} were caught ({caught / max(1, count):.0%})", *survivors, "", sep="\n")
        return True

    def _survivors(self, changes: list[Change], eligible: Callable[[Change, Path], bool]) -> list[Change]:
        """Returns the changes that no test of some files detects."""
        survivors = []
        for number, change in enumerate(changes, 1):
            begin = time.monotonic()
            self._record({item.path for item in self.items if eligible(change, item.path)})
            verdict = self._verdict(change)
            print(f"{number} {change}: {verdict} ({time.monotonic() - begin:.1f} s)", flush=True)
            if verdict.startswith("survives"):
                survivors.append(change)
        return survivors

    def _record(self, files: set[Path]) -> None:
        """Records the lines that the tests of some files run, unless they are known."""
        items = {number: item for number, item in enumerate(self.items) if item.path in files - self.recorded}
        if not items:
            return
        begin = time.monotonic()
        recorder = Coverage([str(Path(folder).resolve()) for folder in self.folders])

        def record() -> object:
            self.items[0].config.pluginmanager.register(recorder)
            return recorder.run(items)

        _, (seconds, found) = in_fork(record)
        self.recorded |= files
        self.seconds |= seconds
        for file, lines in found.items():
            for line, tests in lines.items():
                self.lines.setdefault(file, {}).setdefault(line, set()).update(tests)
        failing = [item.nodeid for number, item in items.items() if number not in seconds]
        names = ", ".join(sorted({item.path.name for item in items.values()}))
        print(f"{names}: {len(items)} tests in {time.monotonic() - begin:.0f} s", *failing, flush=True)

    def _verdict(self, change: Change) -> str:
        """Returns the result of a change: the test that detects it."""
        file = change.path.resolve()
        before = file.read_bytes()
        tests = self._tests(change, str(file))
        file.write_bytes(change.applied(before))
        try:
            code = code_of(change, file)
            functions = self.functions.get((str(file), code.co_qualname), []) if code else []
            loaded = any(getattr(module, "__file__", None) == str(file) for module in list(sys.modules.values()))
            fits = code and functions and all(f.__code__.co_freevars == code.co_freevars for f in functions)
            if not tests and change.scope and self.recorded < {item.path for item in self.items}:
                return "survives: no test of its module runs it"
            if not tests or (loaded and not fits):
                run = control = self._imported
                tests = tests or self._tests(change, str(file), whole=True)
                if not tests:
                    return "survives: no test runs it"
            else:
                run = partial(self._killer, functions=functions, code=code)
                control = partial(self._killer, functions=[], code=None)
            killer = run(tests)
        finally:
            file.write_bytes(before)
        if killer is None:
            return f"survives {len(tests)} tests"
        if killer < 0:
            return "caught by its time, or by the end of its process"
        if killer not in self.sound:
            if control([killer]) is not None:
                del self.seconds[killer]
                print(f"fails without a change: {self.items[killer].nodeid}", flush=True)
                return self._verdict(change)
            self.sound.add(killer)
        self.killers.setdefault(change.path, Counter())[killer] += 1
        return f"caught by {self.items[killer].nodeid}"

    def _tests(self, change: Change, file: str, whole: bool = False) -> list[int]:
        """Returns the tests that run a change's lines, or its whole file; those that detected earlier changes first.

        A test of a table that exists since the import runs no line of its file.
        """
        lines = self.lines.get(file, {})
        if change.scope and not whole:
            tests = set().union(*(lines.get(line, ()) for line in range(change.line, change.last + 1)))
        else:
            tests = {number for number, item in enumerate(self.items) if near(change, item.path)}.union(*lines.values())
        caught = self.killers.get(change.path, Counter())
        return sorted(tests & self.seconds.keys(), key=lambda test: (-caught[test], self.seconds[test]))

    def _killer(self, tests: list[int], functions: list[FunctionType], code: CodeType | None) -> int | None:
        """Returns the first test that fails with the changed functions; -1 after a timeout or the end of the fork."""

        def run() -> int | None:
            for function in functions:
                assert code is not None
                function.__code__ = code
            for number, following in zip(tests, [*tests[1:], None], strict=True):
                seconds = TIMES * self.seconds[number]
                signal.setitimer(signal.ITIMER_REAL, seconds + PATIENCE)
                signal.setitimer(signal.ITIMER_PROF, seconds + CPU_PATIENCE)
                if not passes(self.items[number], None if following is None else self.items[following]):
                    return number
            return None

        status, killer = in_fork(run)
        return killer if status == 0 else -1

    def _imported(self, tests: list[int]) -> int | None:
        """Returns the first test that fails in a new process, for a change that affects imports; -1 after a timeout."""
        names = {self.items[number].nodeid: number for number in tests}
        Path("tests_to_run").write_text("\n".join(names))
        limit = TIMES * sum(self.seconds[number] for number in tests) + 3 * PATIENCE
        command = [sys.executable, "-m", "pytest", *ARGUMENTS, "-x", "@tests_to_run"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return -1
        if done.returncode == 0:
            return None
        failed = (line.split(" ", 1)[1].partition(" - ")[0] for line in done.stdout.splitlines() if FAILED.match(line))
        return next((names[name] for name in failed if name in names), -1)


def in_fork(work: Callable[[], object]) -> tuple[int, object]:
    """Returns the exit status of a fork, and its result. Processes that it started end with it."""
    answer = Path("answer")
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(quiet, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            answer.write_bytes(pickle.dumps(work()))
            os._exit(0)
        finally:
            os._exit(1)
    try:
        _, status = os.waitpid(child, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    return status, pickle.loads(answer.read_bytes()) if status == 0 else None


def code_of(change: Change, file: Path) -> CodeType | None:
    """Returns the compiled function of a changed file; None if the change is outside of functions."""
    code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    for name in change.scope:
        inner = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name]
        holding = [one for one in inner if one.co_firstlineno <= change.line]
        if not holding:
            return None
        code = holding[-1]
    return code if change.scope else None


ARGUMENTS = [
    "-p",
    "no:cacheprovider",
    "--timeout=0",
    "--hypothesis-profile=mutation",
]


def main() -> None:
    folders, tests, on_gpu, changes = pickle.loads(Path(sys.argv[1]).read_bytes())
    sys.exit(pytest.main([*ARGUMENTS, *tests], plugins=[Forks(folders, on_gpu, changes)]))


if __name__ == "__main__":
    main()
