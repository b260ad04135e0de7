"""An engine in a process of its own, as far as a measurement needs it: requests go there and updates come back.

The server's process keeps HTTP, templates, tokenising and text. So the engine has an interpreter lock to itself.
"""

import dataclasses
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rwkv_gpu
from rwkv_gpu.engine.engine import Activity, Engine
from rwkv_gpu.engine.request import Request, Update
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.driver import Driver, Listener
from rwkv_gpu.llm.model_file import ModelFile
from rwkv_gpu.text.tokenizer import load_tokenizer

from .pretend import pretend

IDLE = Activity(0, 0, 0, 0, 0, 0)


class SendingDriver(Driver):
    """Sends the updates of each step together."""

    connection: Connection

    def __init__(self, engine: Any, connection: Connection) -> None:
        self.connection = connection
        self.updates: list[tuple[int, Update]] = []
        super().__init__(engine)

    def _pass_on(self) -> None:
        super()._pass_on()
        if self.updates:
            updates, self.updates = self.updates, []
            self.connection.send(updates)


class Sender:
    """Listens to one request for the other process."""

    def __init__(self, driver: SendingDriver, key: int) -> None:
        self._driver, self._key = driver, key

    def on_update(self, update: Update) -> None:
        self._driver.updates.append((self._key, update))

    def overflows(self) -> bool:
        return False

    def fail(self, error: BaseException) -> None:
        raise error


def serve(path: str, device: str, sequences: int, connection: Connection) -> None:
    """The engine's process, until the connection is closed."""
    given = "cpu" if device == "pretend" else device
    llm = rwkv_gpu.load(path, device=given, sequences=sequences)
    if device == "pretend":
        pretend(llm)
    llm.begin_work(Engine.warm_up).result()
    driver = SendingDriver(llm._driver._engine, connection)
    connection.send(llm.info)
    senders: dict[int, Sender] = {}
    while True:
        try:
            key, what = connection.recv()
        except EOFError:
            break
        if isinstance(what, tuple):
            ids, fields = what
            senders[key] = Sender(driver, key)
            driver.submit(Request(ids, SamplingParams(**fields)), senders[key])
        else:
            driver.cancel(senders.pop(key), what)
    driver.close()


class RemoteDriver:
    """The driver of an engine in another process."""

    here = True
    activity = IDLE

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._listeners: dict[int, Listener] = {}
        self._keys: dict[Listener, int] = {}
        self._next = 0
        threading.Thread(target=self._read, daemon=True).start()

    clock = staticmethod(time.perf_counter)

    def check_process(self) -> None:
        """It is here."""

    def submit(self, request: Request, listener: Listener, *, wake: bool = True) -> None:  # noqa: ARG002
        with self._sending:
            self._next += 1
            self._listeners[self._next], self._keys[listener] = listener, self._next
            fields = {one.name: getattr(request.params, one.name) for one in dataclasses.fields(SamplingParams)}
            fields["logit_bias"] = dict(request.params.logit_bias)
            self._connection.send((self._next, (request.ids, fields)))

    def cancel(self, listener: Listener, tokens: int = 0) -> None:
        key = self._keys.pop(listener, None)
        if key is not None:
            del self._listeners[key]
            with self._sending:
                self._connection.send((key, tokens))

    def resume(self, listener: Listener) -> None:
        """Nobody is paused."""

    def wake(self, patience: float = 0.0) -> None:
        """It is woken by each request."""

    def close(self, patience: float | None = None) -> None:  # noqa: ARG002
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                for key, update in self._connection.recv():
                    listener = self._listeners.get(key)
                    if listener is None:
                        continue
                    tokens = listener.on_update(update)
                    if tokens is not None:
                        self.cancel(listener, tokens)
                    elif update.finish_reason is not None:
                        del self._listeners[key], self._keys[listener]
        except (EOFError, OSError):
            return


def load(path: str, device: str, sequences: int) -> rwkv_gpu.LLM:
    """A model whose engine is another process."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    context.Process(target=serve, args=(path, device, sequences, theirs), daemon=True).start()
    info = mine.recv()
    with GGUFFile.open(Path(path)) as file:
        engine: Any = SimpleNamespace(busy=False, compile_seconds=0.0, close=lambda: None)
        model_file = ModelFile(file.paths, info.fingerprint)
        llm = rwkv_gpu.LLM(engine, load_tokenizer(file.metadata), file.metadata, info, model_file)
    llm._driver.close()
    llm._driver = RemoteDriver(mine)  # type: ignore[assignment]
    return llm
