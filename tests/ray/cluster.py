"""A Ray cluster on this machine that runs the application, started in the usual way."""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
CPUS, ADAPTERS = 8, 2  # that Ray counts, whatever the machine has
STORE_BYTES = 100_000_000  # of Ray's objects
PATIENCE = 180.0  # seconds for replicas to come or go
QUICK = {"upscale_delay_s": 1, "downscale_delay_s": 4, "metrics_interval_s": 0.5, "look_back_period_s": 2}


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class App:
    """The application as clients see it."""

    port: int
    folder: Path
    before: frozenset[str] = frozenset()  # the replicas that the last deployment replaces

    def run(self, deployments: dict[str, Any] | None = None, **args: Any) -> None:
        """Deploys the application by a Ray YAML file. A second call replaces all replicas one by one."""
        config = {
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "applications": [
                {
                    "name": "default",
                    "import_path": "rwkv_gpu.ray:app",
                    "args": {"device": "cpu", "drain": 20, **args},
                    "deployments": [{"name": name, **more} for name, more in (deployments or {}).items()],
                }
            ],
        }
        self.before = frozenset(self.names() if self.states() else ())
        path = self.folder / f"{secrets.token_hex(4)}.json"  # which is YAML, too
        path.write_text(json.dumps(config))
        found = subprocess.run(
            [BIN / "serve", "run", "--non-blocking", str(path)], capture_output=True, text=True, timeout=PATIENCE
        )
        assert found.returncode == 0, found.stderr

    def wait(self, replicas: int) -> None:
        """Waits until exactly this many replicas of the last deployment run."""
        end = time.monotonic() + PATIENCE
        while self.states() != {"RUNNING": replicas} or (self.before and self.names() & self.before):
            assert time.monotonic() < end, self.states()
            time.sleep(0.2)

    def states(self) -> dict[str, int]:
        """Returns the states of the replicas."""
        from ray import serve

        found = serve.status().applications.get("default")
        deployment = None if found is None else found.deployments.get("Replica")
        return {} if deployment is None else {str(name): n for name, n in deployment.replica_states.items() if n}

    def names(self) -> set[str]:
        """Returns the names of the replicas that respond."""
        return {one["id"] for one in self.request("GET", "/health")[2]["replicas"]}

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """Returns the status, headers and body of a response. JSON is parsed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), names)
            response = connection.getresponse()
            content = response.read()
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.status, response.headers, json.loads(content) if is_json else content.decode()

    def chat(self, *texts: str, session: str = "", **more: Any) -> tuple[str, Any]:
        """Asks for an answer to texts of user and assistant in turn. Returns the replica and the body."""
        body = {"messages": messages(*texts), "max_tokens": 8, "temperature": 0, **more}
        headers = {"x_session_id": session} if session else {}
        status, found, answer = self.request("POST", "/v1/chat/completions", body, **headers)
        assert status == 200, answer
        return found["x-replica"], answer


def messages(*texts: str) -> list[dict[str, str]]:
    """Converts texts to messages of user and assistant in turn."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


def process_of(replica: str) -> int:
    """Returns the process of a replica."""
    import ray

    actor = ray.get_actor(f"SERVE_REPLICA::default#Replica#{replica}", namespace="serve")
    found: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return found


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Starts a head on this machine with its own keys and files. Yields its address."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # short, because it contains sockets
    port = free_port()
    address = f"127.0.0.1:{port}"
    own = {"RAY_ADDRESS": address, "RAY_SERVE_LOG_TO_STDERR": "0"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    command = [
        BIN / "ray", "start", "--head", "--block", "--port", str(port), "--num-cpus", str(CPUS), "--num-gpus", "0",
        "--resources", json.dumps({"wgpu": ADAPTERS}),
        "--object-store-memory", str(STORE_BYTES), "--include-dashboard=false", "--temp-dir", str(folder),
    ]  # fmt: skip
    log = (folder / "head.log").open("w")
    head = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        import ray

        end = time.monotonic() + PATIENCE
        while "Ray runtime started" not in (said := (folder / "head.log").read_text()):
            assert head.poll() is None and time.monotonic() < end, said
            time.sleep(0.2)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        yield address
        from ray import serve

        serve.shutdown()
        ray.shutdown()
    finally:
        head.send_signal(signal.SIGTERM)  # it ends all that it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        log.close()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
