"""What the router of replicas adds to a request: the same request to a replica itself, and through the router.

    python -m benchmarks.router_time

The request asks for a model that is not there, so that it costs nothing but its way: its body is read twice, once by
the router, and its response is passed on.
"""

import http.client
import json
import statistics
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import click

from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.replicas.run import ReplicaRunner
from rwkv_gpu.server.replicas.supervisor import serve_replica
from rwkv_gpu.server.run import Runner, listen
from rwkv_gpu.server.service import Service

CONFIG = ServerConfig(port=0, drain=1.0)


class Nothing:
    """A model that is never asked."""

    states = None

    def close(self) -> None:
        """Nothing is open."""


def replica(pipe: "Connection[Any, Any]", device: str) -> None:  # noqa: ARG001
    catalogue = Catalogue([ServedModel("nothing", "")], lambda *_: Nothing())  # type: ignore[arg-type, return-value]
    serve_replica(pipe, Runner(Service(CONFIG, catalogue)), listen("127.0.0.1", 0))


def times(port: int, body: bytes, count: int) -> list[float]:
    """Milliseconds of requests, one after the other, by one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    found = []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        assert response.status == 404
        found.append(1000 * (time.perf_counter() - began))
    connection.close()
    return found


@click.command()
@click.option("--count", default=300, show_default=True)
@click.option("--messages", default=20, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(count: int, messages: int, rounds: int) -> None:
    runner, listener, ready = ReplicaRunner(CONFIG, ["cpu", "cpu"], replica), listen("127.0.0.1", 0), threading.Event()
    thread = threading.Thread(target=runner.run, args=(listener, ready.set))
    thread.start()
    ready.wait(120)
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"message {n} " * 30} for n in range(messages)]
    body = json.dumps({"model": "no such model", "messages": talk}).encode()
    port = runner.replicas[0].port
    assert port is not None
    added = []
    for _ in range(rounds):  # in turns: the machine has others
        direct, routed = times(port, body, count), times(listener.getsockname()[1], body, count)
        added.append(statistics.median(routed) - statistics.median(direct))
        print(f"p50 direct {statistics.median(direct):.2f} ms, by the router {statistics.median(routed):.2f} ms")
    print(
        f"the router adds {statistics.median(added):.2f} ms ({min(added):.2f} to {max(added):.2f}), {len(body):,} bytes"
    )
    runner.signal()
    thread.join()


if __name__ == "__main__":
    main()
