"""Faults of operators and of unknown clients. A bystander's stream runs during each, and must not change."""

import contextlib
import gzip
import hmac
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rwkv_gpu.errors import DeviceLost, OutOfMemory
from rwkv_gpu.server import keys
from rwkv_gpu.server.catalogue import ServedModel
from tests.process import PATIENCE, posix
from tests.server.bystander import BYSTANDER, TEXT, bystander, told
from tests.server.gate import until
from tests.server.serving import LLAMA, MODEL, Served, serving
from tests.server.test_edge import raw

ASK = {"prompt": "The sea", "max_tokens": 2, "temperature": 0}
KEYS = {"x_api_key": "first-key"}


def begin(port: int, body: dict = BYSTANDER) -> http.client.HTTPConnection:
    """Sends a request."""
    connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE)
    connection.request("POST", TEXT, json.dumps(body), {"connection": "close"})
    return connection


def answer(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """Returns the response of a request as soon as it begins."""
    response = connection.getresponse()
    connection.close()  # when the response is read
    return response


def ask(port: int, body: dict) -> http.client.HTTPResponse:
    """Sends a request and returns the response."""
    return answer(begin(port, body))


@pytest.fixture(scope="module")
def locked():
    """Starts a server with keys, and another bystander during the test."""
    with serving(api_keys=("first-key", "second-key")) as server, bystander(server, **KEYS):
        yield server


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/slots", {}, 401), ("/metrics", {}, 401), ("/props", {}, 401), ("//slots", {}, 401), ("/slots/", {}, 401),
        ("/health/../slots", {}, 401), ("/SLOTS", {}, 401), ("/%73lots", {}, 401),
        ("/slots?api_key=first-key", {}, 401), ("/slots", {"cookie": "x-api-key=first-key"}, 401),
        ("/slots", {"x_forwarded_for": "127.0.0.1"}, 401), ("/slots", {"authorization": "Bearer first-ke"}, 401),
        ("/slots", {"proxy_authorization": "Bearer first-key"}, 401), ("/slots", {"x_original_url": "/health"}, 401),
        ("/slots", {**KEYS, "origin": "https://evil.example"}, 403), ("/slots", {**KEYS, "origin": "null"}, 403),
        ("/v1/streams/strm_" + "0" * 32, KEYS, 404),
    ],
)  # fmt: skip
def test_a_request_without_a_valid_key_is_refused_while_other_requests_run(locked, path, headers, status):
    assert locked.request("GET", path, **headers)[0] == status


def test_a_stream_of_another_key_is_neither_read_nor_stopped_while_other_requests_run(locked):
    body = {**BYSTANDER, "resumable": True}
    _, headers, content = locked.request("POST", TEXT, body, **KEYS)
    path = f"/v1/streams/{headers['x-stream-id']}"
    for method in ("GET", "DELETE"):
        assert locked.request(method, path, x_api_key="second-key")[0] == 404
        assert locked.request(method, path)[0] == 401
    assert locked.request("GET", path, **KEYS)[2] == content


def test_the_time_of_a_refusal_does_not_tell_how_much_of_a_key_is_right(locked, monkeypatch):
    """The comparison takes the same time for every key: it compares digests of equal length with all keys."""
    compared = []

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "hmac", SimpleNamespace(compare_digest=compare_digest))
    for key in ("first-kex", "xxxxxxxxx", "x"):
        assert locked.request("GET", "/v1/models", x_api_key=key)[0] == 401
    assert locked.request("GET", "/v1/models", x_api_key="first-key")[0] == 200
    assert len(compared) >= 4 and {*compared} == {(32, 32)}


@pytest.fixture(scope="module")
def busy():
    with serving(max_body=1 << 20) as server, bystander(server):
        yield server


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_is_refused_while_other_requests_run(busy, host):
    assert busy.request("GET", "/v1/models", host=host)[0] == 403


def test_a_gigabyte_body_and_a_decompression_bomb_are_refused_while_other_requests_run(busy):
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n"
    assert b" 413 " in raw(busy, head).splitlines()[0]
    chunked = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with contextlib.suppress(ConnectionError):  # the server closes it during the write
        assert b" 413 " in raw(busy, chunked + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 40).splitlines()[0]
    bomb = gzip.compress(b'{"prompt": "' + b"a" * 20_000_000 + b'"}')
    assert busy.request("POST", TEXT, bomb, content_encoding="gzip")[0] == 415


def test_a_head_of_a_megabyte_is_refused_while_other_requests_run(busy):
    with contextlib.suppress(ConnectionError):
        answer = raw(busy, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * (1 << 20) + b"\r\n\r\n")
        assert not answer or b" 431 " in answer.splitlines()[0]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "quiet/../quiet", "a" * 100_000])
def test_a_model_outside_the_folder_is_not_found_while_other_requests_run(busy, name):
    assert busy.request("POST", TEXT, {**ASK, "model": name})[0] == 404


def test_a_crafted_file_in_the_folder_disturbs_no_other_request(tmp_path):
    shutil.copy(MODEL, tmp_path / "good.gguf")
    (tmp_path / "bad.gguf").write_bytes(MODEL.read_bytes()[:5000] + b"\xff" * 50_000)
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    with serving(ServedModel("quiet", str(MODEL)), catalogue={"folder": tmp_path}) as server, bystander(server):
        for name in ("bad", "empty", "loop"):
            assert server.request("POST", TEXT, {**ASK, "model": name})[0] in (404, 500)
        assert server.request("POST", TEXT, {**ASK, "model": "good"})[0] == 200


def test_a_full_queue_disturbs_no_running_request():
    """Waiting requests keep their places. Of many new ones, some get 429, and all others the same text."""
    with serving(max_queue=2) as server:
        answers = [(one.status, one.read()) for one in [answer(one) for one in [begin(server.port) for _ in range(12)]]]
        texts = [told(content) for status, content in answers if status == 200]
        assert {status for status, _ in answers} <= {200, 429}
        assert len(texts) >= 4 and len({*texts}) == 1
        with bystander(server):
            assert server.request("POST", TEXT, ASK)[0] == 200


@pytest.mark.parametrize("error", [DeviceLost("the GPU is gone"), OutOfMemory("no room")])
def test_a_lost_engine_disturbs_no_request_to_another_model(error):
    with serving(ServedModel("a", str(MODEL)), ServedModel("b", str(LLAMA))) as server, bystander(server, model="b"):
        first, text = server.llm, server.post(TEXT, ASK)["choices"][0]["text"]

        def lost(*_):
            raise error

        server.engine._runner.submit = lost
        assert server.request("POST", TEXT, ASK)[0] in (429, 503)
        model = server.service.catalogue.models[0]
        if isinstance(error, OutOfMemory):
            with contextlib.suppress(AttributeError):
                del first._driver._engine._runner.submit
        until(lambda: model.llm is not None and server.request("POST", TEXT, ASK)[0] == 200)
        assert server.post(TEXT, ASK)["choices"][0]["text"] == text


def test_an_engine_lost_before_a_request_reaches_it_is_reloaded():
    """The driver has ended, and `start` raises its error. No reader waits for the stream."""
    with serving() as server:
        text, first = server.post(TEXT, ASK)["choices"][0]["text"], server.llm
        first.close()
        status, headers, answer = server.request("POST", TEXT, ASK)
        assert (status, answer["error"]["code"]) == (503, "engine_lost") and "retry-after" in headers
        until(lambda: server.service.catalogue.models[0].llm not in (None, first))
        assert server.post(TEXT, ASK)["choices"][0]["text"] == text


def connected(server: Served, stack: contextlib.ExitStack, count: int) -> None:
    """Opens connections: a third are idle, a third send half a head, and a third half a body."""
    for n in range(count):
        one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        if n % 3 == 1:
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: loc")
        elif n % 3 == 2:
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")


def slow_reader(server: Served, stack: contextlib.ExitStack) -> None:
    """Starts a stream of thousands of tokens and does not read it."""
    body = json.dumps({**BYSTANDER, "max_tokens": 3000, "logit_bias": {"0": -1000}}).encode()
    one = stack.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    one.connect(("127.0.0.1", server.port))
    one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@pytest.mark.parametrize(("idle", "slow", "running"), [(200, 1, 4), pytest.param(1000, 8, 64, marks=pytest.mark.slow)])
def test_a_thousand_connections_do_not_disturb_running_streams(idle, slow, running):
    """Idle connections, slowloris and slow readers do not change the text of running streams."""
    resource = pytest.importorskip("resource", reason="Windows limits no open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4 * (idle + running):
        pytest.skip("too few open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))

    def load(path, progress):
        import rwkv_gpu

        return rwkv_gpu.load(path, device="cpu", sequences=running + slow, progress=progress)

    with serving(load=load, sequences=running + slow) as server, contextlib.ExitStack() as opened:
        alone = told(server.request("POST", TEXT, BYSTANDER)[2])
        connected(server, opened, idle)
        for _ in range(slow):
            slow_reader(server, opened)
        asked = [begin(server.port) for _ in range(running)]
        assert server.request("GET", "/health")[0] == 200
        texts = {told(answer(one).read()) for one in asked}
        assert len(texts) == 1 and (texts == {alone} or running > 8)  # sums of large batches are rounded differently
        opened.close()
        until(lambda: not server.service._calls and not server.engine._slots.sequences)


# ------------------------------------------------------------ processes


@contextlib.contextmanager
def process(tmp_path, port: int = 0):
    """Starts `rwkv-gpu serve` as a process. Yields its handle and port."""
    code = "from rwkv_gpu.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", str(MODEL), "--device", "cpu", "--port", str(port), "--drain=3600"]
    environment = {**os.environ, "RWKV_GPU_CACHE": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        try:
            for line in running.stderr:
                if "serving on" in line:
                    break
            yield running, int(line.rsplit(":", 1)[1].split("/")[0])
        finally:
            running.kill()


@posix
def test_streams_end_unchanged_after_sigterm_under_load(tmp_path):
    with process(tmp_path) as (server, port):
        alone = told(ask(port, {**BYSTANDER, "max_tokens": 200}).read())
        responses = [ask(port, {**BYSTANDER, "max_tokens": 200}) for _ in range(6)]
        server.send_signal(signal.SIGTERM)
        assert {told(response.read()) for response in responses} == {alone}
        assert server.wait(PATIENCE) == 0


def test_after_kill_9_it_starts_clean_on_the_same_port(tmp_path):
    with process(tmp_path) as (server, port):
        alone = told(ask(port, BYSTANDER).read())
        streams = [ask(port, {**BYSTANDER, "max_tokens": 3000, "logit_bias": {"0": -1000}}) for _ in range(3)]
        server.kill()
        server.wait(PATIENCE)
        for stream in streams:
            with stream, contextlib.suppress(http.client.IncompleteRead, ConnectionError):
                stream.read()
    with process(tmp_path, port) as (_, same):
        assert same == port
        assert told(ask(port, BYSTANDER).read()) == alone
