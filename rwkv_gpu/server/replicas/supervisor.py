"""Starts the process of each replica, and restarts it when it ends."""

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ..run import Runner
from .router import Replica

LOG = logging.getLogger("rwkv_gpu.server")
CONTEXT = multiprocessing.get_context("spawn")  # a GPU cannot be used after a fork
PAUSES = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each restart
STEADY = 60.0  # seconds after which a replica counts as stable


class Target(Protocol):
    """The main function of a replica's process; it must be picklable, and call `serve_replica`."""

    def __call__(self, pipe: "Connection[Any, Any]", device: str, /) -> None: ...


class Supervisor:
    """The processes of replicas, each watched by a thread. `on_change` is called on these threads."""

    def __init__(
        self, replicas: Sequence[Replica], target: Target, *, on_lost: Callable[[Replica], None],
        on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        self._replicas = replicas
        self._target = target
        self._on_lost = on_lost
        self._on_change = on_change
        self._pipes: dict[int, Connection[Any, Any]] = {}
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(replica,), name=f"replica-{replica.number}", daemon=True)
            for replica in replicas
        ]
        self.failed: BaseException | None = None  # why a replica could not be started at all
        self.processes: dict[int, Any] = {}  # by number of the replica

    def start(self) -> None:
        """Starts all processes."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Lets all replicas drain and end; the second call ends them at once."""
        self._ending.set()
        for pipe in [*self._pipes.values()]:
            try:
                pipe.send("end")
            except OSError:
                continue  # the process has ended

    @property
    def is_ending(self) -> bool:
        """True if no process is restarted any more."""
        return self._ending.is_set()

    @property
    def is_running(self) -> bool:
        """True if a process runs, or may be restarted."""
        return any(thread.is_alive() for thread in self._threads)

    def _keep(self, replica: Replica) -> None:
        attempt, was_ready = 0, False
        while not self._ending.wait(PAUSES[min(attempt, len(PAUSES) - 1)]):
            began = time.monotonic()
            failed = self._run(replica)
            was_ready |= replica.is_ready
            self._on_lost(replica)
            if not self._ending.is_set():
                LOG.error("replica lost", extra={"fields": {"replica": replica.number, "device": replica.device}})
                if failed is not None and not was_ready:
                    self.failed = failed
                    self.end()
            attempt = 0 if time.monotonic() - began > STEADY else attempt + 1
        self._on_change()

    def _run(self, replica: Replica) -> BaseException | None:
        """Runs a replica's process until it ends; returns why it could not serve."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=self._target, args=(theirs, replica.device), name=f"replica {replica.device}")
        self._pipes[replica.number] = ours
        process.start()
        self.processes[replica.number] = process
        theirs.close()
        if self._ending.is_set():
            self.end()
        failed: BaseException | None = None
        try:
            while True:
                what, value = ours.recv()
                if what == "listens":
                    replica.port = value
                elif what == "ready":
                    replica.is_ready = True
                    LOG.info("replica ready", extra={"fields": {"replica": replica.number, "device": replica.device}})
                    self._on_change()
                else:
                    failed = value
        except (EOFError, OSError):
            process.join()
        finally:
            ours.close()
        return failed


def serve_replica(pipe: "Connection[Any, Any]", runner: Runner, listener: Any) -> None:
    """Serves in the process of a replica, until its supervisor ends it or has ended."""

    def obey() -> None:
        try:
            while True:
                pipe.recv()
                runner.signal()
        except (EOFError, OSError):
            runner.signal()

    threading.Thread(target=obey, name="supervisor", daemon=True).start()
    pipe.send(("listens", listener.getsockname()[1]))
    try:
        runner.run(listener, lambda: pipe.send(("ready", None)))
    except Exception as error:  # noqa: BLE001  raised by the supervisor
        pipe.send(("failed", error))
