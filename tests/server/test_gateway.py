"""The common part of the one-machine router and the front of a Ray cluster, without replicas."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from rwkv_gpu.server.replicas.gateway import MAX_STREAMS, Gateway, Incoming, Page

METRICS = Page(0, "cpu", 200, b"# TYPE a gauge\na 1\n")


class Recorder(Gateway[int]):
    """Records the requests that it should forward."""

    def __init__(self, *pages: Page) -> None:
        super().__init__(max_body=1 << 20)
        self.passed: list[Incoming] = []
        self.found = pages

    async def pass_on(self, request: Incoming, receive: Any, send: Any) -> None:  # noqa: ARG002
        self.passed.append(request)

    async def pages(self, request: Incoming) -> Sequence[Page]:
        self.passed.append(request)
        return self.found

    def ask(self, path: str, body: bytes = b"", root: str = "", **headers: str) -> tuple[int, Any]:
        """Returns the status and body that the gateway itself sends; 0 if it forwards the request."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST" if body else "GET", "path": root + path, "root_path": root,
            "raw_path": (root + path).replace(" ", "%20").encode(), "query_string": b"",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        asyncio.run(self(scope, receive, send))
        text = b"".join(message.get("body", b"") for message in sent).decode()
        is_json = sent and dict(sent[0]["headers"])[b"content-type"] == b"application/json"
        return (sent[0]["status"], json.loads(text) if is_json else text) if sent else (0, "")


def chat(text: str, **more: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def test_replicas_know_paths_below_the_prefix_where_a_proxy_mounts_the_server():
    gateway = Recorder(Page(0, "cpu", 200, b"[]"))
    gateway.ask("/v1/a model", chat("a"), root="/llm")
    gateway.ask("/v1/a model", chat("a"))
    for request in gateway.passed:
        scope = request.scope
        assert (scope["path"], scope["raw_path"], scope["root_path"]) == ("/v1/a model", b"/v1/a%20model", "")
    assert gateway.ask("/slots", root="/llm") == (200, [])


def test_a_conversation_is_known_by_its_text_or_by_the_session_and_key_of_its_client():
    gateway = Recorder()
    for body, headers in [
        (chat("a"), {}),
        (chat("b"), {}),
        (chat("a"), {"x_session_id": "s", "authorization": "one"}),
        (chat("b"), {"x_session_id": "s", "authorization": "one"}),
        (chat("a"), {"x_session_id": "s", "authorization": "two"}),
        (chat("a"), {"authorization": "Bearer two"}),
        (chat("a", cache_salt="s"), {}),
    ]:
        assert gateway.ask("/v1/chat/completions", body, **headers) == (0, "")
    by_text, other_text, named, again, other_client, *others = (tuple(one.beginnings) for one in gateway.passed)
    assert named == again
    assert len({by_text, other_text, named, other_client, *others}) == 6
    assert {one.model for one in gateway.passed} == {"m"}


@pytest.mark.parametrize("body", [b"{", b"[1]", b"[" * 100_000, b"\xff"], ids=["cut", "list", "deep", "bytes"])
def test_a_wrong_body_is_passed_on_because_the_replica_names_the_error(body):
    gateway = Recorder()
    assert gateway.ask("/v1/chat/completions", body) == (0, "")
    assert gateway.passed[0].body == body and not gateway.passed[0].beginnings


def test_a_body_that_is_too_large_is_refused_at_once():
    gateway = Recorder()
    status, answer = gateway.ask("/v1/chat/completions", b"x" * (1 << 20) + b"x")
    assert status == 413 and "--max-body" in answer["error"]["message"]
    assert not gateway.passed


def test_a_stream_is_found_by_its_id_and_the_oldest_are_forgotten():
    gateway = Recorder()
    for number in range(MAX_STREAMS + 1):
        gateway.remember_stream([(b"x-stream-id", b"%d" % number)], number)
    gateway.remember_stream([(b"content-type", b"text/plain")], 7)
    for number in (0, 1, MAX_STREAMS):
        gateway.ask(f"/v1/streams/{number}")
    assert [gateway.replica_of_stream(one) for one in gateway.passed] == [None, 1, MAX_STREAMS]


def test_a_merged_page_has_the_replicas_that_run_and_passes_a_refusal_on():
    ok = {"status": "ok", "models": ["m"]}
    up, down = Page(0, "cpu", 200, json.dumps(ok).encode()), Page(1, "cpu", None)
    gateway = Recorder(up, down)
    status, health = gateway.ask("/health")
    assert status == 200 and [one["status"] for one in health["replicas"]] == ["ok", "down"]
    assert Recorder(down).ask("/health")[0] == 503
    assert Recorder(METRICS, down).ask("/metrics") == (200, '# TYPE a gauge\na{replica="0"} 1\n')
    refusal = Page(1, "cpu", 401, b'{"error": "key"}')
    assert Recorder(METRICS, refusal).ask("/metrics") == (401, {"error": "key"})


def test_merged_pages_are_requested_as_plain_text():
    gateway = Recorder(METRICS)
    gateway.ask("/metrics", accept="application/openmetrics-text", accept_encoding="gzip", authorization="k")
    assert gateway.passed[0].scope["headers"] == [(b"authorization", b"k")]
