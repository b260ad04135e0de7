"""A span for each request, in the trace of its client. Skips without OpenTelemetry's packages."""

import sys

import pytest

from rwkv_gpu.server.call import Call
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.spans import Spans


def call(**notes):
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    made = Call({"method": "POST", "path": "/v1/completions"}, "req_1", {b"traceparent": trace}, notes=notes)
    made.route = "/v1/completions"
    return made


def test_a_request_is_a_span_of_its_clients_trace():
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="make test-clients installs it")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    spans = Spans(provider)
    spans.write(call(model="quiet", prompt_tokens=3, completion_tokens=5), 200)
    failed = call()
    failed.failed(ApiError(429, "full"))
    spans.write(failed, 429)
    first, second = memory.get_finished_spans()
    assert first.name == "POST /v1/completions"
    assert f"{first.context.trace_id:x}" == "af7651916cd43dd8448eb211c80319c"
    assert first.attributes["gen_ai.usage.output_tokens"] == 5
    assert second.status.description == "full"


def test_without_the_package_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    Spans().write(call(), 200)
    assert Spans()._tracer is None
