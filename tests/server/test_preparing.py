"""Short requests are prepared in the event loop, others on threads. Simultaneous requests start together."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import rwkv_gpu
from rwkv_gpu.server import body, service
from rwkv_gpu.server.service import QUICK, SHORT
from rwkv_gpu.text import grammar, grammar_pool
from rwkv_gpu.text.interruption import Interrupted, steps
from tests.process import PATIENCE
from tests.server.gate import until
from tests.server.serving import load, serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
SLOW = "{% for i in range(times or 1) %}{{ i }}{% endfor %}"
CASES = {
    "a short text": (TEXT, {"prompt": "a"}, True),
    "a short chat": (CHAT, {"messages": HI}, True),
    "a long text": (TEXT, {"prompt": "a" * SHORT}, False),
    "a long chat": (CHAT, {"messages": [{"role": "user", "content": "a" * SHORT}]}, False),
    "many answers": (TEXT, {"prompt": "a", "n": 5}, False),
    "a form": (TEXT, {"prompt": "a", "regex": "[a-z]"}, False),
    "a schema": (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, False),
    "a template that takes its time": (CHAT, {"messages": HI, "chat_template_kwargs": {"times": 20_000}}, False),
}


def load_slow(path: str, progress) -> rwkv_gpu.LLM:
    llm = load(path, progress)
    llm._metadata = {**llm._metadata, "tokenizer.chat_template": SLOW}
    return llm


@pytest.mark.parametrize("case", CASES)
def test_only_short_requests_are_prepared_in_the_event_loop(monkeypatch, case):
    monkeypatch.setattr(service, "QUICK", replace(QUICK, seconds=60))  # its other limits count, not the machine's speed
    path, body, in_loop = CASES[case]
    with serving(load=load_slow) as server:
        _ = server.llm.chat_format  # the first chat would compile it
        on = []
        work = server.service.work

        async def working(function, **more):
            on.append(function)
            return await work(function, **more)

        server.service.work = working
        status, _, _ = server.request("POST", path, {**body, "max_tokens": 1})
        assert status in (200, 400)  # a prompt of 20,000 numbers does not fit
        assert bool(on) != in_loop


STAGES = {  # of a request with a large schema; its body is parsed first
    "its body is parsed": (body, "parse"),
    "its schema is checked": (grammar, "_check_length"),
    "its schema is compiled": (grammar_pool.Helper, "_talk"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_health_is_answered_while_a_large_schema_waits_at_any_stage(monkeypatch, stage):
    """No stage may block the event loop, however long it takes. So its length does not delay others."""
    begun, over = threading.Event(), threading.Event()
    place, name = STAGES[stage]
    original = getattr(place, name)

    def halted(*given):
        begun.set()
        assert over.wait(PATIENCE)
        return original(*given)

    large = {"enum": ["yes"], "description": "a" * body.OFF_LOOP}
    asked = {
        "messages": HI,
        "max_tokens": 9,
        "response_format": {"type": "json_schema", "json_schema": {"schema": large}},
    }
    assert len(json.dumps(asked)) > body.OFF_LOOP
    with serving() as server, ThreadPoolExecutor(1) as client:
        monkeypatch.setattr(place, name, halted)
        answer = client.submit(server.request, "POST", CHAT, asked)
        try:
            assert begun.wait(PATIENCE)
            assert server.get("/health")["status"] == "ok" and not answer.done()
        finally:
            over.set()
        status, _, answered = answer.result()
        assert status == 200, answered


def test_a_template_is_not_compiled_in_the_event_loop():
    with serving() as server:
        threads = []
        of = type(server.llm)._format

        def compiling(*given):
            threads.append(threading.current_thread().name)
            return of(server.llm, *given)

        server.llm._format = compiling
        server.post(CHAT, {"messages": HI, "max_tokens": 1})
    assert threads and all(name.startswith("rwkv-gpu-request") for name in threads)


def test_an_engine_is_woken_once_for_requests_that_come_together_or_when_a_step_is_full():
    with serving() as server:
        llm, woken = server.llm, []
        llm.wake = lambda patience=0.0: woken.append("now")

        def begin(*tokens):
            for one in tokens:
                server.service._wake_soon(llm, one)
            woken.append("after")

        server.on_loop(lambda: begin(3, 4))
        until(lambda: not server.service._begun)
        assert woken == ["after", "now"]
        woken.clear()
        server.on_loop(lambda: begin(llm.info.chunk_size))
        until(lambda: not server.service._begun)
        assert woken == ["now", "after", "now"]  # the last one ends the group


def test_a_client_that_disconnects_ends_the_tokenisation_of_its_text(monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def endless(*_given, **_options):
        begun.set()
        try:
            for _ in steps(itertools.repeat(None)):
                pass
        except Interrupted:
            ended.set()
            raise

    with serving() as server:
        monkeypatch.setattr(server.llm.tokenizer, "encode", endless)
        connection = server.connect()
        body = json.dumps({"prompt": "a" * SHORT, "max_tokens": 1})
        connection.request("POST", TEXT, body, {"content-type": "application/json"})
        assert begun.wait(PATIENCE)
        connection.close()
        assert ended.wait(PATIENCE)
