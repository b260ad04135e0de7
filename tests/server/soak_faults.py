"""Faults of a soak: a model whose numbers are not finite, one whose device is lost again and again, and forks."""

import itertools
import os
import random
import shutil
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rwkv_gpu
from rwkv_gpu import DeviceLost, Forked
from rwkv_gpu.server.catalogue import ServedModel
from tests.server.serving import LLAMA, Served
from tests.server.serving import load as load_sound
from tests.server.test_bad_numbers import changed, overflow

OVERFLOWING, LOST = "overflowing", "lost"
LOST_AFTER = 400  # steps at most
FORKED_AFTER = 30  # maximum seconds of a child, whose calls should return at once
AS_PROMISED = 7  # the exit code of a child whose calls were refused


def faulty_models(folder: Path) -> tuple[ServedModel, ...]:
    """Writes a model with finite weights and infinite results, and one whose device is lost after some steps."""
    overflowing = changed(folder, overflow)
    lost = shutil.copy(LLAMA, folder / f"{LOST}.gguf")
    return ServedModel(OVERFLOWING, str(overflowing)), ServedModel(LOST, str(lost))


class Losses:
    """Loads models. The devices of one of them are lost after a random number of steps, while submitting or waiting."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.count = 0

    def load(self, path: str, progress: Any) -> rwkv_gpu.LLM:
        """Loads a model in numpy."""
        llm = load_sound(path, progress)
        if Path(path).stem == LOST:
            self._lose(llm._driver._engine._runner, self._rng.randrange(1, LOST_AFTER), self._rng.random() < 0.5)
        return llm

    def _lose(self, runner: Any, steps: int, waiting: bool) -> None:
        submit, numbers = type(runner).submit, itertools.count()

        def lost(*_: object) -> None:
            self.count += 1
            raise DeviceLost("the device of this soak is gone")

        def counted(*given: Any) -> Any:
            number = next(numbers)
            if number < steps:
                return submit(runner, *given)
            return Gone(lost) if waiting and number == steps else lost()

        runner.submit = counted


class Gone:
    """A step whose results never arrive."""

    def __init__(self, wait: Any) -> None:
        self.wait = wait


class Forks:
    """Forks this process at each interval. Each call of a model in the child must raise `Forked` at once."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self.ended: Counter[str] = Counter()

    def once(self) -> None:
        """Forks one child, and returns its result."""
        models = [model.llm for model in self._server.service.catalogue.models if model.llm is not None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # number of forks of a process with threads
            child = os.fork()
        if not child:
            signal.alarm(FORKED_AFTER)
            os._exit(AS_PROMISED if all(map(_refuses, models)) else 1)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        self.ended["forked: refused" if code == AS_PROMISED else f"WRONG: a forked process ended with {code}"] += 1

    @contextmanager
    def each(self, seconds: float) -> Iterator[None]:
        """Forks repeatedly until the block ends, if the system can fork."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(seconds):
                self.once()

        thread = threading.Thread(target=run, name="forks")
        if hasattr(os, "fork"):
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.ident is not None:
                thread.join()


def _refuses(llm: rwkv_gpu.LLM) -> bool:
    """True if a model of the parent process raises `Forked` in a child."""
    calls = (lambda: llm.generate("a", max_tokens=1), lambda: llm.embed("a"), lambda: llm.generate("a", regex="a+"))
    for call in calls:
        try:
            call()
        except Forked:
            continue
        return False
    return True
