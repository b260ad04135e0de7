"""The application on a cluster of this machine (`make test-ray`). Replicas are killed, replaced, added and removed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from tests.golden_files import OWN
from tests.ray.cluster import BIN, PATIENCE, QUICK, App, cluster, free_port, messages, process_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of Ray's own
    pytest.mark.timeout(900),
]
QUESTION = "Please tell me about the weather of the mountains and about the rivers of the plains. " * 4
LOG_PROBABILITY = 0.005  # 1e-5 from sums in another order; more on a GPU that rounds activations
LONG = "Tell me a story about the sea."


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    with cluster() as address:
        yield address


@pytest.fixture(scope="module")
def app(head: str, tmp_path_factory: pytest.TempPathFactory) -> App:
    assert head
    return App(free_port(), tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def three(app: App, tmp_path_factory: pytest.TempPathFactory) -> App:
    """Starts three replicas with a store."""
    store = str(tmp_path_factory.mktemp("store"))
    app.run(min_replicas=3, max_replicas=3, sequences=2, store=store)
    app.wait(3)
    return app


def text_of(answer: Any) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_greedy_answers_are_the_same_on_all_replicas_and_without_ray(three):
    answers: dict[str, set[str]] = {}
    for n in range(24):
        replica, answer = three.chat(LONG, session=f"greedy {n}", max_tokens=24)
        answers.setdefault(replica, set()).add(text_of(answer))
    assert len(answers) == 3
    with rwkv_gpu.load(builtin_model(), device="cpu") as llm:
        alone = llm.create_chat_completion(messages(LONG), max_tokens=24, temperature=0)
    assert {text for texts in answers.values() for text in texts} == {text_of(alone)}


def test_a_conversation_keeps_its_replica_by_its_session_or_its_beginning(three):
    for session in ("named", ""):
        texts, replicas = [f"{QUESTION} {session}?"], set()
        for turn in range(3):
            replica, answer = three.chat(*texts, session=session)
            replicas.add(replica)
            if turn:
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            texts += [text_of(answer), f"and more {turn}"]
        assert len(replicas) == 1


def test_metrics_slots_and_health_cover_all_replicas(three):
    status, _, health = three.request("GET", "/health")
    names = three.names()
    assert status == 200 and health["status"] == "ok" and len(names) == 3
    _, _, metrics = three.request("GET", "/metrics")
    assert all(f'replica="{name}"' in metrics for name in names)
    status, _, slots = three.request("GET", "/slots")
    assert status == 200 and {slot["replica"] for slot in slots} <= set(names)
    assert not any(slot["is_processing"] for slot in slots)
    status, headers, body = three.request("GET", "/nothing")
    assert status == 404 and body["error"]["request_id"] == headers["x-request-id"]


def test_a_stream_is_resumed_at_the_replica_that_runs_it(three):
    body = {"messages": messages(LONG), "max_tokens": 8, "stream": True, "resumable": True}
    for n in range(3):
        _, headers, content = three.request("POST", "/v1/chat/completions", body, x_session_id=f"stream {n}")
        status, again, rest = three.request("GET", f"/v1/streams/{headers['x-stream-id']}")
        assert (status, rest) == (200, content)
        assert again["x-replica"] == headers["x-replica"]


def test_a_client_that_goes_away_ends_its_request(three):
    connection = HTTPConnection("127.0.0.1", three.port)
    schema = {"type": "array", "items": {"enum": ["fox", "owl"]}, "minItems": 100_000}
    form = {"type": "json_schema", "json_schema": {"name": "long", "schema": schema}}
    body = {"messages": messages(LONG), "stream": True, "response_format": form}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.read(200)
    running = [slot for slot in three.request("GET", "/slots")[2] if slot["state"] != "idle"]
    response.close()
    connection.close()
    assert len(running) == 1
    end = time.monotonic() + 20
    while any(slot["state"] != "idle" for slot in three.request("GET", "/slots")[2]):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_killed_replica_loses_its_running_answer_and_the_chat_continues_from_its_state(three):
    texts, before = [QUESTION], 0
    for turn in range(3):
        replica, answer = three.chat(*texts, session="killed")
        before = answer["usage"]["prompt_tokens"]
        texts += [text_of(answer), f"and now part {turn} of it"]
    time.sleep(3)  # states are written in the background
    connection = HTTPConnection("127.0.0.1", three.port, timeout=60)
    body = {"messages": messages(*texts), "max_tokens": 400, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"x-session-id": "killed"})
    response = connection.getresponse()
    assert response.headers["x-replica"] == replica and response.read(200)
    os.kill(process_of(replica), signal.SIGKILL)
    rest = response.read().decode()
    response.close()
    connection.close()
    assert '"code":"engine_lost"' in rest and "[DONE]" not in rest
    other, answer = three.chat(*texts, session="killed")
    usage = answer["usage"]
    assert other != replica
    assert usage["prompt_tokens_details"]["cached_tokens"] >= before  # all before the last complete turn
    three.wait(3)


def test_different_replicas_give_the_same_greedy_text_and_log_probabilities_within_tolerance(app, adapter):
    """One replica uses numpy, the other a GPU. Sessions are distributed by speed, so the slow one gets only some of
    them.
    """
    app.run(device=f"cpu,{adapter.index}", min_replicas=2, max_replicas=2, sequences=2)
    app.wait(2)
    devices = {one["id"]: one["device"] for one in app.request("GET", "/health")[2]["replicas"]}
    assert set(devices.values()) == {"cpu", str(adapter.index)}
    asked = {"max_tokens": 12, "logprobs": True, "top_logprobs": 5}
    found: dict[str, list[dict[str, Any]]] = {}
    for n in range(2000):
        replica, answer = app.chat(LONG, session=f"unlike {n}", **asked)
        found.setdefault(devices[replica], answer["choices"][0]["logprobs"]["content"])
        if len(found) == 2:
            break
    one, other = found.values()
    assert [token["token"] for token in one] == [token["token"] for token in other]
    differences = []
    for a, b in zip(one, other, strict=True):
        likely, others = ({top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in (a, b))
        differences += [abs(likely[token] - others[token]) for token in likely.keys() & others.keys()]
    assert len(differences) >= 40
    assert max(differences) < LOG_PROBABILITY, max(differences)


def test_replacing_all_replicas_moves_a_hundred_sessions_without_a_failed_request(app, tmp_path):
    args = {"min_replicas": 2, "max_replicas": 2, "sequences": 4, "store": str(tmp_path)}
    app.run(**args)
    app.wait(2)

    def first(n: int) -> tuple[str, list[str]]:
        text = f"Session {n}. {QUESTION}"
        replica, answer = app.chat(text, session=str(n), max_tokens=4)
        return replica, [text, text_of(answer), "go on"]

    def second(n: int) -> tuple[str, int]:
        replica, answer = app.chat(*talks[n][1], session=str(n), max_tokens=4)
        return replica, answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with ThreadPoolExecutor(8) as pool:
        talks = list(pool.map(first, range(100)))
        old = {replica for replica, _ in talks}
        replacing = pool.submit(app.run, **args, timeout=599)
        moved = dict(zip(range(50), pool.map(second, range(50)), strict=True))
        replacing.result()
        end = time.monotonic() + PATIENCE
        while app.names() & old or app.states() != {"RUNNING": 2}:
            assert time.monotonic() < end, app.states()
            time.sleep(0.2)
        moved |= dict(zip(range(50, 100), pool.map(second, range(50, 100)), strict=True))
    assert len(old) == 2
    assert not {replica for n, (replica, _) in moved.items() if n >= 50} & old
    # All turns except the last come from the store. A few tokens of the hundred may be computed, if that was faster.
    cached = sorted(cached for _, cached in moved.values())
    assert sum(one > 60 for one in cached) >= 80, cached


def test_replicas_are_added_under_load_and_removed_after_it_without_a_failed_request(app, tmp_path):
    scaling = {"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 1, **QUICK}
    app.run({"Replica": {"autoscaling_config": scaling}}, sequences=2, store=str(tmp_path))
    app.wait(1)
    most, end, answered = 1, time.monotonic() + 240, 0

    def talk(client: int) -> int:
        asked = 0
        while is_on and time.monotonic() < end:
            app.chat(f"{client} {asked} {LONG}", session=f"{client} {asked // 3}", max_tokens=16)
            asked += 1
        return asked

    is_on = True
    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(talk, client) for client in range(6)]
        light = pool.submit(lambda: None)
        while most < 3 and time.monotonic() < end:
            most = max(most, app.states().get("RUNNING", 0))
            time.sleep(0.3)
        is_on = False
        answered = sum(client.result() for client in clients)
        light.result()
    assert most == 3 and answered > 6
    gone = time.monotonic() + 120
    while app.states() != {"RUNNING": 1}:  # requests one at a time, while replicas drain
        assert time.monotonic() < gone, app.states()
        app.chat(LONG, max_tokens=4)
        time.sleep(0.2)


def test_requests_beyond_the_bounds_are_refused_as_the_server_refuses_them(app):
    app.run(min_replicas=1, max_replicas=1, sequences=1, max_queue=2)
    app.wait(1)

    def ask(n: int) -> tuple[int, Any, Any]:
        body = {"messages": messages(f"{n} {LONG}"), "max_tokens": 60, "ignore_eos": True}
        return app.request("POST", "/v1/chat/completions", body)

    with ThreadPoolExecutor(16) as pool:
        asked = []
        for n in range(16):
            asked.append(pool.submit(ask, n))
            time.sleep(0.3 if n < 4 else 0)  # so that the first requests are running before the others arrive
        found = [one.result() for one in asked]
    refused = [(headers["retry-after"], body["error"]["code"]) for status, headers, body in found if status == 429]
    assert {status for status, *_ in found} == {200, 429}
    assert set(refused) == {("1", "queue_full")}
    assert len(found) - len(refused) >= 4  # one is answered, one is at the replica, two wait


def test_each_replica_keeps_its_model(app):
    app.run(
        min_replicas=2, max_replicas=2, max_models=1, sequences=2, models=["builtin", str(OWN / "quiet-rwkv7.gguf")]
    )
    app.wait(2)
    used: dict[str, list[str]] = {"builtin": [], "quiet-rwkv7": []}
    for n in range(12):
        for model, replicas in used.items():
            replica, answer = app.chat(f"{n} hello", model=model, max_tokens=2)
            assert answer["model"] == model
            replicas.append(replica)
        time.sleep(0.5)
    assert len(set(used["builtin"][4:])) == len(set(used["quiet-rwkv7"][4:])) == 1, used
    assert set(used["builtin"][4:]) != set(used["quiet-rwkv7"][4:])


# -------------------------------------------------------------------- batches


def lines(path: Path, count: int) -> Path:
    rows = [{"id": n, "prompt": f"Once upon a time, {n} foxes", "max_tokens": 12} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def batch(source: Path, target: Path, *more: str) -> "subprocess.Popen[str]":
    command = [BIN / "rwkv-gpu", "batch", str(source), str(target), "--device", "cpu", "--sequences", "2", *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def results(path: Path) -> dict[int, str]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    texts = {one["id"]: one["text"] for one in found}
    assert len(texts) == len(found)
    return texts


def test_a_batch_that_was_killed_continues_and_computes_nothing_again(head, tmp_path):
    from ray import serve

    serve.delete("default")  # frees its processors for the batch
    source, target, alone = lines(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl", tmp_path / "alone.jsonl"
    on_cluster = ("--ray", head, "--ray-actors", "2")
    first = batch(source, target, *on_cluster)
    end = time.monotonic() + 120
    while not target.exists() or target.read_text().count("\n") < 15:
        assert first.poll() is None and time.monotonic() < end, first.communicate()
        time.sleep(0.05)
    first.kill()
    first.communicate()
    done = len(results(target))
    written = target.read_bytes()
    assert 15 <= done < 60
    second = batch(source, target, *on_cluster)
    _, said = second.communicate(timeout=240)
    assert second.returncode == 0, said
    assert f"{60 - done} of 60 lines answered, {done} answered before" in said
    assert target.read_bytes().startswith(written)
    third = batch(source, alone)
    third.communicate(timeout=240)
    assert results(target) == results(alone)


def test_a_missing_cluster_is_an_error_in_one_line(tmp_path):
    asked = batch(lines(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl", "--ray", f"127.0.0.1:{free_port()}")
    _, said = asked.communicate(timeout=120)
    assert asked.returncode == 2
    assert said.startswith("rwkv-gpu: --ray 127.0.0.1:") and said.count("\n") == 1, said


@pytest.mark.usefixtures("head")
def test_a_stage_answers_rows_as_a_batch_does():
    import ray

    from rwkv_gpu.ray import Answer

    rows = [{"id": n, "prompt": f"Once upon a time, {n} foxes", "max_tokens": 4} for n in range(6)]
    found = ray.data.from_items([*rows, {"id": 6, "prompt": None, "max_tokens": 4}]).map_batches(
        Answer, fn_constructor_kwargs={"device": "cpu"}, batch_size=4, concurrency=1
    )
    answers = {row["id"]: row for row in found.take_all()}
    assert len(answers) == 7 and all(answers[n]["text"] and not answers[n]["error"] for n in range(6))
    assert '"prompt" or "messages"' in answers[6]["error"]
    with rwkv_gpu.load(builtin_model(), device="cpu") as llm:
        assert answers[3]["text"] == llm.generate(rows[3]["prompt"], max_tokens=4).text
