"""Answers the lines of a batch on several devices: one process each, with lines assigned to any free process."""

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from threading import Lock
from typing import Any, Protocol

from rwkv_gpu.errors import DeviceLost, RwkvGpuError

from .batch_files import Line

Pipe = Connection
Note = Callable[[str], None]
CONTEXT = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork


class Work(Protocol):
    """The main function of a process: it must be picklable, and call `answer_lines`."""

    def __call__(self, pipe: Pipe, device: str, /) -> None: ...


@dataclass(eq=False)
class Worker:
    """A process and its lines."""

    device: str
    process: Any
    pipe: Pipe
    lines: dict[str, str] = field(default_factory=dict)  # by id


@dataclass(eq=False)
class Workers:
    """The processes. If one is lost, its lines go to others."""

    alive: list[Worker]
    most: int  # maximum lines per process at a time
    note: Note

    @classmethod
    @contextlib.contextmanager
    def start(cls, devices: Sequence[str], work: Work, most: int, note: Note) -> Iterator["Workers"]:
        """Starts a process for each device; they end with the `with` block."""
        workers = []
        for device in devices:
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=run, args=(work, theirs, device), name=f"device {device}", daemon=True)
            process.start()
            theirs.close()
            workers.append(Worker(device, process, ours))
        try:
            yield cls([*workers], most, note)
        finally:
            for worker in workers:
                worker.pipe.close()
                worker.process.kill()
                worker.process.join()

    def results(self, left: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Line]]:
        """Yields the id and result of each line, as they are ready."""
        waiting, missing = deque(left), len(left)
        while missing:
            for worker in [*self.alive]:
                self._fill(worker, waiting)
            if not self.alive:
                raise DeviceLost("all devices were lost; run the command again to continue")
            by_pipe = {worker.pipe: worker for worker in self.alive}
            for pipe in wait([*by_pipe]):
                worker = by_pipe[pipe]  # type: ignore[index]
                try:
                    name, result = worker.pipe.recv()
                except (EOFError, OSError):
                    self._lost(worker, waiting)
                    continue
                if isinstance(result, BaseException):
                    raise result
                del worker.lines[name]
                missing -= 1
                yield name, result

    def _fill(self, worker: Worker, waiting: "deque[tuple[str, str]]") -> None:
        while waiting and len(worker.lines) < self.most:
            name, text = waiting.popleft()
            worker.lines[name] = text
            try:
                worker.pipe.send((name, text))
            except OSError:
                self._lost(worker, waiting)
                return

    def _lost(self, worker: Worker, waiting: "deque[tuple[str, str]]") -> None:
        self.alive.remove(worker)
        waiting.extendleft(worker.lines.items())
        self.note(f"device {worker.device} was lost; the other devices answer its lines")


def run(work: Work, pipe: Pipe, device: str) -> None:
    """Runs the process of a device. An error that prevents its work is sent to the command, which reports it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all processes; the command ends this one
    try:
        work(pipe, device)
    except RwkvGpuError as error:
        pipe.send((None, error))


def answer_lines(pipe: Pipe, answer: Callable[[str], Line], at_a_time: int) -> None:
    """Answers lines until the command closes the pipe or ends."""
    lock = Lock()

    def one(name: str, text: str) -> None:
        try:
            result: Any = answer(text)
        except RwkvGpuError as error:
            result = error
        with lock, contextlib.suppress(OSError):
            pipe.send((name, result))

    with ThreadPoolExecutor(at_a_time) as pool:
        while True:
            try:
                pool.submit(one, *pipe.recv())
            except (EOFError, OSError):
                return
