"""The end of a server, and its recovery after its engine was lost."""

import json
import logging
import threading

import pytest

from rwkv_gpu.errors import DeviceLost, OutOfMemory
from tests.process import PATIENCE
from tests.server.gate import gate, until
from tests.server.serving import Served, events, serving

ASK = {"prompt": "The sea", "max_tokens": 8, "temperature": 0}
LONG = {**ASK, "max_tokens": 400, "logit_bias": {"0": -1000}, "stream": True}


def streamed(server: Served, body: dict) -> tuple[threading.Thread, list]:
    """Returns the events of a stream. The list is complete when the thread has ended."""
    found: list = []
    thread = threading.Thread(target=lambda: found.extend(events(server.request("POST", "/v1/completions", body)[2])))
    thread.start()
    return thread, found


def test_after_a_signal_streams_end_new_requests_are_refused_and_health_reports_it():
    with serving(drain=PATIENCE) as server:
        with gate(server) as held:
            thread, found = streamed(server, {**ASK, "stream": True})
            until(lambda: server.engine.busy)
            server.runner.signal()
            status, _, health = server.request("GET", "/health")
            assert (status, health["status"]) == (503, "draining")
            status, headers, answer = server.request("POST", "/v1/completions", ASK)
            assert (status, answer["error"]["code"]) == (503, "shutting_down")
            assert "retry-after" in headers
            held.open = True
            thread.join(PATIENCE)
        assert found[-1] == "[DONE]"
        assert len(found) > 8


def test_streams_that_do_not_end_in_time_get_an_error_event(caplog):
    caplog.set_level(logging.INFO)
    with serving(drain=0.2) as server, gate(server) as held:
        thread, found = streamed(server, LONG)
        until(lambda: server.engine.busy)
        held.allow(3)
        server.runner.signal()
        thread.join(PATIENCE)
        assert found[-2]["error"]["code"] == "shutting_down"
        assert found[-1] == "[DONE]"
    [said] = [record for record in caplog.records if "shutting down" in record.getMessage()]
    assert said.fields == {"requests": 1, "seconds": 0.2}


def test_a_second_signal_does_not_wait(monkeypatch):
    ended = []
    monkeypatch.setattr("rwkv_gpu.server.run.os._exit", ended.append)
    with serving(drain=3600) as server, gate(server) as held:
        thread, found = streamed(server, LONG)
        until(lambda: server.engine.busy)
        held.allow(3)
        server.runner.signal()
        server.runner.signal()
        thread.join(PATIENCE)
        assert found[-2]["error"]["code"] == "shutting_down"
    until(lambda: ended == [1])


def test_a_lost_device_ends_streams_with_an_event_and_the_model_is_reloaded(caplog):
    caplog.set_level(logging.INFO)
    with serving() as server:
        text = server.post("/v1/completions", ASK)["choices"][0]["text"]
        first = server.llm
        with gate(server) as held:
            streams = [streamed(server, LONG) for _ in range(2)]

            def both_have_begun():
                held.allow(1)
                return [slot["state"] for slot in server.get("/slots")].count("generating") == 2

            until(both_have_begun)

            def lost(*_):
                raise DeviceLost("the GPU is gone")

            server.engine._runner.submit = lost
            held.open = True
            for thread, found in streams:
                thread.join(PATIENCE)
                assert found[-2]["error"]["code"] == "engine_lost"
                assert "text" in found[0]["choices"][0]
        until(lambda: server.service.catalogue.models[0].llm not in (None, first))
        assert server.request("GET", "/health")[0] == 200
        assert server.post("/v1/completions", ASK)["choices"][0]["text"] == text
    assert [record.message for record in caplog.records].count("engine lost") == 1


def test_a_model_that_cannot_be_reloaded_at_once_is_retried(monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.catalogue.RETRIES", (0.05, 0.05, 0.05))
    with serving() as server:
        catalogue, llm = server.service.catalogue, server.llm
        load, tries = catalogue._load, []

        def failing(path, progress):
            tries.append(path)
            if len(tries) < 3:
                raise DeviceLost("not yet")
            return load(path, progress)

        catalogue._load = failing
        server.on_loop(lambda: server.service.lost(catalogue.models[0], llm))
        until(lambda: len(tries) == 3 and catalogue.models[0].state == "ready")
        assert server.request("POST", "/v1/completions", ASK)[0] == 200


def test_memory_that_runs_out_ends_those_requests_and_no_others():
    with serving() as server:
        text = server.post("/v1/completions", ASK)["choices"][0]["text"]
        with gate(server) as held:
            thread, found = streamed(server, LONG)
            until(lambda: server.engine.busy)
            held.allow(2)
            submit, runner = server.engine._runner.submit, server.engine._runner

            def full(*_):
                runner.submit = submit
                raise OutOfMemory("no more")

            runner.submit = full
            held.allow(1)
            held.open = True
            thread.join(PATIENCE)
        assert found[-2]["error"]["code"] == "engine_lost"
        assert server.post("/v1/completions", ASK)["choices"][0]["text"] == text


def test_an_unexpected_error_is_a_500_without_its_text(caplog):
    with serving() as server:

        def broken(*_, **__):
            raise RuntimeError("a secret of the inside")

        server.llm.prepare_completion = broken
        status, headers, answer = server.request("POST", "/v1/completions", ASK)
        assert status == 500
        assert "secret" not in json.dumps(answer)
        assert answer["error"]["request_id"] == headers["x-request-id"]
    [record] = [one for one in caplog.records if one.exc_info]
    assert record.fields["request_id"] == headers["x-request-id"]


@pytest.mark.parametrize("log_prompts", [False, True])
def test_log_lines_have_no_text_of_prompts_unless_asked(caplog, log_prompts):
    caplog.set_level(logging.DEBUG)
    with serving(log_prompts=log_prompts) as server:
        server.post(
            "/v1/completions", {**ASK, "prompt": "confidential matter", "user": "a", "typo": 1}, x_request_id="this-one"
        )
        server.request("POST", "/v1/completions", {**ASK, "prompt": "confidential matter", "n": 0})
    lines = [{"message": record.getMessage(), **getattr(record, "fields", {})} for record in caplog.records]
    assert ("confidential" in json.dumps(lines)) == log_prompts
    [line] = [line for line in lines if line.get("request_id") == "this-one"]
    assert line["status"] == 200
    assert line["completion_tokens"] == 8
    assert line["ignored_fields"] == ["user", "typo"]


def test_a_client_that_leaves_is_in_the_log(caplog):
    caplog.set_level(logging.INFO)
    with serving() as server, gate(server):
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": False}), {"x-request-id": "gone"})
        until(lambda: server.engine.busy)
        connection.close()
        until(lambda: any(getattr(record, "fields", {}).get("request_id") == "gone" for record in caplog.records))
    [line] = [record.fields for record in caplog.records if getattr(record, "fields", {}).get("request_id") == "gone"]
    assert (line["status"], line["outcome"]) == (499, "disconnected")
