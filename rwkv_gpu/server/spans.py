"""Writes an OpenTelemetry span for each request, if its packages are installed and configured.

`opentelemetry-instrument rwkv-gpu serve model.gguf` configures them by OpenTelemetry's environment variables. Without
the package, this module does nothing.
"""

import time
from typing import Any

from .call import Call

# Fields of the log line, by OpenTelemetry's names.
NAMES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cached_tokens",
    "queued_seconds": "rwkv_gpu.queued_seconds",
    "outcome": "rwkv_gpu.outcome",
}


class Spans:
    """Writes spans, by default to the configured provider."""

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ModuleNotFoundError:
            self._tracer = None
            return
        self._kind, self._status = trace.SpanKind.SERVER, trace.StatusCode.ERROR
        self._extract = propagate.extract
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer("rwkv_gpu.server")

    def write(self, call: Call, status: int) -> None:
        """Writes the span of a request that has ended, in the trace that its client named."""
        if self._tracer is None or not call.route:
            return
        now = time.time_ns()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
        attributes = {name: call.notes[field] for field, name in NAMES.items() if field in call.notes}
        attributes |= {"http.route": call.route, "http.response.status_code": status, "rwkv_gpu.request_id": call.id}
        span = self._tracer.start_span(
            f"{call.scope['method']} {call.route}",
            context=self._extract({name: headers[name] for name in ("traceparent", "tracestate") if name in headers}),
            kind=self._kind,
            attributes=attributes,
            start_time=now - int(1e9 * (time.monotonic() - call.began)),
        )
        if call.fault is not None:
            span.set_status(self._status, call.fault.message)
        span.end(end_time=now)
