"""One server on several devices: chats keep their replica, and a killed one loses only running answers and returns."""

import asyncio
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rwkv_gpu
from rwkv_gpu.engine.cache.prefix_index import Salt, key_of
from rwkv_gpu.server.call import Call
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.edge import Edge
from rwkv_gpu.server.keys import owner_of, salt_of
from rwkv_gpu.server.replicas.affinity import Affinity, beginnings_of
from rwkv_gpu.server.replicas.gateway import Incoming
from rwkv_gpu.server.replicas.merged import merged_health, merged_metrics
from rwkv_gpu.server.replicas.policy import SLACK
from rwkv_gpu.server.replicas.router import Replica, Router
from rwkv_gpu.server.replicas.run import ReplicaRunner
from rwkv_gpu.server.replicas.supervisor import serve_replica
from rwkv_gpu.server.replicas.upstream import FORWARDED, ROUTER_KEY
from rwkv_gpu.server.run import Runner, listen
from rwkv_gpu.server.service import Service
from tests.process import PATIENCE, posix
from tests.server.gate import until
from tests.server.serving import MODEL, Served, events

CONFIG = ServerConfig(port=0, drain=1.0, sequences=2, api_keys=("key",))
KEY = {"authorization": "Bearer key"}
SCHEMA = {"type": "array", "items": {"enum": ["fox", "owl"]}, "minItems": 100_000}
LONG = {"stream": True, "response_format": {"type": "json_schema", "json_schema": {"name": "long", "schema": SCHEMA}}}


def replica(store: str, pipe: Any, device: str) -> None:
    def load(path: str, progress: Any) -> rwkv_gpu.LLM:
        return rwkv_gpu.load(path, device=device, sequences=2, chunk_size=64, progress=progress, store=store)

    service = Service(CONFIG, Catalogue([ServedModel("quiet", str(MODEL))], load))
    serve_replica(pipe, Runner(service), listen("127.0.0.1", 0))


class ServedReplicas(Served):
    def __init__(self, runner: ReplicaRunner, port: int, store: Path) -> None:
        self.runner, self.port, self.store = runner, port, store  # type: ignore[assignment]

    @property
    def replicas(self) -> list[Replica]:
        return self.runner.replicas  # type: ignore[attr-defined, no-any-return]

    def kill(self, number: int) -> None:
        self.runner.supervisor.processes[number].kill()  # type: ignore[attr-defined]

    def wait_stored(self, *messages: str) -> None:
        """Waits until the store has a prefix of a conversation: the state first, then the list that names it."""
        with rwkv_gpu.load(MODEL, device="cpu", sequences=2, chunk_size=64, store=str(self.store)) as llm:
            roles = ("user", "assistant")
            chat = [{"role": roles[n % 2], "content": text} for n, text in enumerate(messages)]
            salt = Salt.of(salt_of(owner_of({name.encode(): value.encode() for name, value in KEY.items()}), ""))
            text = key_of(llm.apply_chat_template(chat), salt)
            until(lambda: (found := llm.states.find(text)) is not None and len(found[0]) > 0.8 * len(text))

    def wait_ready(self) -> None:
        until(lambda: all(one.is_ready for one in self.replicas))

    def chat(self, *messages: str, **more: Any) -> tuple[int, Any]:
        """Sends messages. Returns the replica and the body of the answer."""
        roles = ("user", "assistant")
        body = {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(messages)], **more}
        status, headers, answer = self.request("POST", "/v1/chat/completions", {"max_tokens": 4, **body}, **KEY)
        assert status == 200, answer
        return int(headers["x-replica"]), answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedReplicas]:
    store = tmp_path_factory.mktemp("store")
    runner = ReplicaRunner(CONFIG, ["cpu", "cpu"], partial(replica, str(store)))
    listener, ready = listen("127.0.0.1", 0), threading.Event()
    served = ServedReplicas(runner, listener.getsockname()[1], store)
    thread = threading.Thread(target=runner.run, args=(listener, ready.set))
    thread.start()
    assert ready.wait(PATIENCE)
    yield served
    runner.signal()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not any(process.is_alive() for process in runner.supervisor.processes.values())


def test_a_conversation_stays_with_its_replica_and_reuses_its_stored_prefix(server):
    server.wait_ready()
    for question in ("about the first thing", "about the second thing", "about the third thing"):
        messages = [question]
        used = set()
        for turn in range(3):
            number, answer = server.chat(*messages)
            used.add(number)
            if turn:
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            messages += [answer["choices"][0]["message"]["content"], f"more, please {turn}"]
        assert len(used) == 1


def test_a_session_that_the_client_names_stays_with_its_replica(server):
    server.wait_ready()

    def ask(session: str, text: str) -> str:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
        _, headers, _ = server.request("POST", "/v1/chat/completions", body, x_session_id=session, **KEY)
        return str(headers["x-replica"])

    for session in ("one", "two"):
        assert len({ask(session, f"{session} {n}") for n in range(4)}) == 1


def test_simultaneous_requests_are_spread_over_replicas(server):
    server.wait_ready()
    with ThreadPoolExecutor(6) as pool:
        used = [number for number, _ in pool.map(lambda n: server.chat(f"question {n}", max_tokens=60), range(6))]
    assert set(used) == {0, 1}


def test_a_killed_replica_loses_only_its_running_answers_and_is_restarted(server):
    server.wait_ready()
    streams = []
    for n in range(4):
        connection = server.connect()
        body = {"messages": [{"role": "user", "content": f"long {n}"}], **LONG}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), KEY)
        response = connection.getresponse()
        response.read(100)  # it has begun
        streams.append((connection, response, int(response.headers["x-replica"])))
    assert {number for *_, number in streams} == {0, 1}
    server.kill(0)
    for connection, response, number in streams:
        if number == 0:
            rest = response.read().decode()
            assert '"code":"engine_lost"' in rest and "[DONE]" not in rest
        else:
            assert response.read(300)  # the stream continues
        response.close()
        connection.close()
    number, _ = server.chat("while it is away")
    assert number == 1
    server.wait_ready()
    with ThreadPoolExecutor(6) as pool:
        again = pool.map(lambda n: server.chat(f"after that {n}", max_tokens=60)[0], range(6))
    assert set(again) == {0, 1}


def test_a_conversation_whose_replica_is_killed_continues_elsewhere_with_its_state(server):
    server.wait_ready()
    messages = ["a first question, " * 20]
    number, answer = server.chat(*messages)
    messages += [answer["choices"][0]["message"]["content"], "and a second one"]
    server.wait_stored(*messages)
    server.kill(number)
    other, answer = server.chat(*messages)
    assert other != number
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.8 * usage["prompt_tokens"]


def test_a_stream_is_resumed_at_the_replica_that_runs_it(server):
    server.wait_ready()
    connection = server.connect()
    body = {"messages": [{"role": "user", "content": "keeps the first busy"}], **LONG}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), KEY)
    busy = connection.getresponse()
    busy.read(100)
    body = {"messages": [{"role": "user", "content": "resume"}], "max_tokens": 8, "stream": True, "resumable": True}
    _, headers, content = server.request("POST", "/v1/chat/completions", body, **KEY)
    assert headers["x-replica"] != busy.headers["x-replica"]
    busy.close()
    connection.close()
    where = server.replicas[int(headers["x-replica"])]
    where.running += SLACK  # so that a request without a stream would go to the other
    status, _, again = server.request("GET", f"/v1/streams/{headers['x-stream-id']}", **KEY)
    where.running -= SLACK
    assert status == 200
    assert events(again) == events(content)


def test_a_client_that_goes_away_ends_its_request(server):
    server.wait_ready()
    connection = server.connect()
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}], **LONG}), KEY
    )
    response = connection.getresponse()
    response.read(100)
    assert [slot for slot in server.get("/slots", **KEY) if slot["state"] != "idle"]
    response.close()
    connection.close()
    until(lambda: all(slot["state"] == "idle" for slot in server.get("/slots", **KEY)))


def test_metrics_slots_and_health_cover_all_replicas(server):
    server.wait_ready()
    text = server.get("/metrics", **KEY).decode()
    for number in (0, 1):
        assert f'rwkv_gpu_model_loaded{{replica="{number}",model="quiet"}} 1.0' in text
    assert text.count("# TYPE rwkv_gpu_model_loaded gauge") == 1
    health = server.get("/health")
    assert health["status"] == "ok"
    assert [(one["id"], one["device"], one["status"]) for one in health["replicas"]] == [
        (0, "cpu", "ok"),
        (1, "cpu", "ok"),
    ]
    assert health["models"][0]["id"] == "quiet"


@pytest.mark.parametrize("path", ["/metrics", "/slots", "/v1/models"])
def test_a_key_is_required(server, path):
    server.wait_ready()
    status, _, body = server.request("GET", path)
    assert status == 401
    assert "API key" in str(body)


def test_a_large_body_is_refused_before_it_is_passed_on(server):
    status, _, body = server.request("POST", "/v1/chat/completions", b"x" * (CONFIG.max_body + 1), **KEY)
    assert (status, "larger than" in body["error"]["message"]) == (413, True)
    status, _, body = server.request("POST", "/v1/chat/completions", b"x" * (CONFIG.max_body + 1))
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")  # the body is not read without a key


# ---------------------------------------------------------------- the parts


def chat(*texts: str, system: str = "") -> list[bytes]:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": text} for text in texts]
    return beginnings_of("", {"messages": messages})


def test_the_longest_shared_prefix_counts_and_a_system_message_alone_does_not():
    affinity = Affinity()
    affinity.remember(chat("a", system="be brief"), 0)
    affinity.remember(chat("a", "b", "c", system="be brief"), 1)
    assert affinity.find(chat("a", "b", "c", "d", system="be brief")) == 1
    assert affinity.find(chat("x", system="be brief")) is None
    assert affinity.find(chat("a", system="be long")) is None
    affinity.forget(1)
    assert affinity.find(chat("a", "b", system="be brief")) is None


def test_beginnings_are_bounded_and_the_oldest_are_forgotten():
    affinity = Affinity(most=3)
    for n in range(5):
        affinity.remember(chat(f"talk {n}"), n)
    assert [affinity.find(chat(f"talk {n}")) for n in range(5)] == [None, None, 2, 3, 4]
    assert len(beginnings_of("", {"prompt": "x" * 10_000_000})) <= 256
    assert len(chat(*map(str, range(1000)))) <= 256


def test_the_gateways_own_observations_override_older_reports_of_a_replica():
    affinity = Affinity()
    affinity.remember(chat("a"), 1)
    affinity.learn([*chat("a"), *chat("b")], 0)
    assert (affinity.find(chat("a")), affinity.find(chat("b"))) == (1, 0)


def test_texts_with_a_common_prefix_share_it():
    one, two = (beginnings_of("", {"prompt": "word " * 400 + end}) for end in ("one", "two"))
    assert one[:-1] == two[:-1]
    assert one[-1] != two[-1]


def router(*running: int) -> Router:
    replicas = [Replica(n, "cpu", port=1, is_ready=True, running=busy) for n, busy in enumerate(running)]
    return Router(replicas, 1000)


def asked(beginnings: list[bytes]) -> Incoming:
    return Incoming({}, b"", beginnings=beginnings)


def test_a_conversation_moves_only_where_its_replica_has_much_more_to_do():
    one = router(0, 0)
    assert one.choose(asked(chat("a")), set()).number == 0
    one.replicas[0].running = SLACK
    assert one.choose(asked(chat("a", "b")), set()).number == 0
    one.replicas[0].running = SLACK + 1
    assert one.choose(asked(chat("a", "b")), set()).number == 1
    one.replicas[0].running = 0
    assert one.choose(asked(chat("a", "b", "c")), set()).number == 1  # where it was last
    one.lost(one.replicas[1])
    assert one.choose(asked(chat("a", "b", "c", "d")), set()).number == 0


def test_a_replica_that_was_started_again_has_no_conversations():
    one = router(1, 0)
    assert one.choose(asked(chat("a")), set()).number == 1
    one.lost(one.replicas[1])
    one.replicas[1].port, one.replicas[1].is_ready = 1, True
    one.replicas[0].running, one.replicas[1].running = 0, 1
    assert one.choose(asked(chat("a", "b")), set()).number == 0


def test_a_client_cannot_forge_its_address():
    forged = [(FORWARDED, b"10.0.0.1"), (FORWARDED.upper(), b"10.0.0.2"), (ROUTER_KEY, b"guess"), (b"accept", b"*/*")]
    headers = router(0)._headers({"headers": forged, "client": ("192.0.2.7", 5), "http_version": "1.1"})
    assert sorted(headers) == sorted([(b"accept", b"*/*"), (FORWARDED, b"192.0.2.7"), (ROUTER_KEY, b"")])


def test_a_request_without_a_host_gets_one_since_replicas_are_asked_in_http_1_1():
    for version, expected in (("1.0", [b"localhost"]), ("1.1", [])):
        headers = router()._headers({"headers": [(b"x", b"y")], "http_version": version})
        assert [value for name, value in headers if name == b"host"] == expected


def test_requests_of_one_moment_are_spread_and_counted_until_they_end(monkeypatch):
    one, chosen = router(0, 0, 0), []

    all_run = asyncio.Event()

    async def answer(_self: Router, _request: Incoming, replica: Replica, _send: Any) -> bool:
        chosen.append(replica.number)
        if len(chosen) == 9:
            all_run.set()
        await all_run.wait()
        return True

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(_: Any) -> None: ...

    async def ask_all() -> None:
        each = (one.pass_on(asked([b"%d" % number]), receive, send) for number in range(9))
        await asyncio.gather(*each)

    monkeypatch.setattr(Router, "_answer", answer)
    asyncio.run(ask_all())
    assert sorted(chosen) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [replica.running for replica in one.replicas] == [0, 0, 0]


def test_health_is_ok_while_one_replica_is():
    states = [{"id": 0, "device": "0", "status": "down"}, {"id": 1, "device": "1", "status": "ok", "models": []}]
    assert merged_health(states)[0] == 200
    assert merged_health(states[:1])[0] == 503


def test_metrics_of_each_replica_keep_their_family_together():
    page = '# HELP a_total What\n# TYPE a_total counter\na_total{k="v"} 1.0\n# TYPE b gauge\nb 2.0\n'
    merged = merged_metrics({"0": page, "1": page})
    assert merged == (
        '# HELP a_total What\n# TYPE a_total counter\na_total{replica="0",k="v"} 1.0\na_total{replica="1",k="v"} 1.0\n'
        '# TYPE b gauge\nb{replica="0"} 2.0\nb{replica="1"} 2.0\n'
    )


CLIENT = "127.0.0.1" if sys.platform == "darwin" else "127.0.0.2"


def logged_client(port: int, log: Path) -> str:
    """Returns the logged client of a request from `CLIENT` that claims another origin."""
    connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE, source_address=(CLIENT, 0))
    connection.request("GET", "/v1/models", headers={"X-Forwarded-For": "9.9.9.9", "X-Router-Key": "guess"})
    connection.getresponse().read()
    connection.close()
    end = time.monotonic() + PATIENCE
    while not (lines := [line for line in log.read_text().splitlines() if "/v1/models" in line]):
        assert time.monotonic() < end
        time.sleep(0.05)
    return str(re.search(r"client=(\S+)", lines[0])[1])  # type: ignore[index]


def test_only_the_router_sets_the_address_of_the_client():
    edge = Edge(None, Service(replace(CONFIG, router_key="secret"), Catalogue([], None)), None, frozenset())

    def client(*headers: tuple[bytes, bytes]) -> str:
        return edge._client(Call({"client": ("10.0.0.1", 1)}, "id", dict(headers), owner=b""))

    said = (b"x-forwarded-for", b"10.0.0.2")
    assert client(said, (b"x-router-key", b"secret")) == "10.0.0.2"
    assert client(said) == client(said, (b"x-router-key", b"")) == client(said, (b"x-router-key", b"no")) == "10.0.0.1"


@posix
def test_the_command_serves_two_devices_and_drains(tmp_path):
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", str(MODEL), "--device", "cpu,cpu", "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    end = time.monotonic() + PATIENCE
    while "serving on" not in (text := (tmp_path / "log").read_text()):
        assert time.monotonic() < end and process.poll() is None, text
        time.sleep(0.05)
    assert text.count("replica ready") == 2
    port = re.search(r"serving on \S+:(\d+)/", text)[1]  # type: ignore[index]
    assert logged_client(int(port), tmp_path / "log") == CLIENT
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_a_missing_device_is_an_error_in_one_line():
    command = [
        sys.executable,
        "-m",
        "rwkv_gpu.cli.main",
        "serve",
        str(MODEL),
        "--device",
        "cpu,nosuchgpu",
        "--port",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no device named like 'nosuchgpu'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
