"""A server in this process on a free port, and a minimal client that uses sockets."""

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import rwkv_gpu
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.run import Runner, listen
from rwkv_gpu.server.service import Service
from tests.golden_files import OWN
from tests.process import PATIENCE

MODEL = OWN / "quiet-rwkv7.gguf"
LLAMA = OWN / "tiny-llama.gguf"


class Served:
    """A running server."""

    def __init__(self, runner: Runner, port: int) -> None:
        self.runner = runner
        self.service = runner.service
        self.port = port

    @property
    def llm(self) -> rwkv_gpu.LLM:
        """The first model."""
        llm = self.service.catalogue.models[0].llm
        assert llm is not None
        return llm

    @property
    def engine(self) -> Any:
        """The engine of the first model."""
        return self.llm._driver._engine

    def connect(self, timeout: float = PATIENCE) -> http.client.HTTPConnection:
        """Opens a connection to the server as localhost."""
        return http.client.HTTPConnection("localhost", self.port, timeout=timeout)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """Returns status, headers and body of a response. JSON is parsed."""
        connection = self.connect()
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, data, names)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.status, response.headers, json.loads(content) if is_json else content

    def get(self, path: str, **headers: str) -> Any:
        """Returns the body of a request that must succeed."""
        status, _, body = self.request("GET", path, **headers)
        assert status == 200, body
        return body

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """Returns the body of a request that must succeed."""
        status, _, answer = self.request("POST", path, body, **headers)
        assert status == 200, answer
        return answer

    def stream(self, path: str, body: Any) -> list[Any]:
        """Returns the data of all events."""
        _, _, content = self.request("POST", path, {**body, "stream": True})
        return events(content)

    def on_loop(self, function: Any) -> Any:
        """Runs a function in the server's event loop and returns its result."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.runner._loop).result(PATIENCE)  # type: ignore[arg-type]


def events(content: bytes) -> list[Any]:
    """Returns the data of server-sent events. The last one, which marks the end, is text."""
    found = []
    for block in content.decode().split("\n\n"):
        data = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
        found += [json.loads(line) if line.startswith("{") else line for line in data]
    return found


def load(path: str, progress: Any) -> rwkv_gpu.LLM:
    """Loads a model in numpy with room for two sequences."""
    return rwkv_gpu.load(path, device="cpu", sequences=2, chunk_size=64, progress=progress)


@contextlib.contextmanager
def serving(
    *models: ServedModel, load: Any = load, catalogue: dict[str, Any] | None = None, **config: Any
) -> Iterator[Served]:
    """Runs a server with these models, or with a tiny one, during the block."""
    settings = replace(ServerConfig(port=0, drain=1.0, sequences=2), **config)
    served = models or (ServedModel("quiet", str(MODEL)),)
    runner = Runner(Service(settings, Catalogue(served if catalogue is None else models, load, **(catalogue or {}))))
    listener = listen(settings.host, 0)
    port = listener.getsockname()[1]
    ready, failed = threading.Event(), []

    def run() -> None:
        try:
            runner.run(listener, ready.set)
        except BaseException as error:  # noqa: BLE001  it is raised below
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        if failed:
            raise failed[0]
        yield Served(runner, port)
    finally:
        if not runner.service.draining:  # a second signal would end the tests
            runner.signal()
        thread.join(PATIENCE)
        assert not thread.is_alive()
