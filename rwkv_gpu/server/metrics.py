"""Counters of the server, exported to Prometheus.

They are plain numbers, changed only in the event loop: a token costs one comparison and one addition.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

LONG_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SHORT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
Gauges = Callable[[], Iterable[tuple[str, str, str, float]]]  # name, description, model, value

# Names of the same metrics in llama-server and vLLM, and our gauge or kind of tokens
LLAMA_TOKENS = {"prompt_tokens": "prompt", "tokens_predicted": "generated"}
LLAMA_GAUGES = {"requests_processing": "requests_running", "requests_deferred": "requests_waiting"}
VLLM_TOKENS = {"prompt_tokens": "prompt", "generation_tokens": "generated", "prefix_cache_hits": "cached"}
VLLM_GAUGES = {"requests_running": "vllm:num_requests_running", "requests_waiting": "vllm:num_requests_waiting"}


class Histogram:
    """A histogram with fixed bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, name: str, text: str) -> Any:
        """Converts it to a Prometheus metric, with cumulative counts."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), total))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum)


class Metrics:
    """All counters of a server; `gauges` yields current values."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges
        self.first_token = Histogram(LONG_SECONDS)
        self.next_token = Histogram(SHORT_SECONDS)
        self.request = Histogram(LONG_SECONDS)
        self.queued = Histogram(LONG_SECONDS)
        self.requests: Counter[tuple[str, str]] = Counter()  # by path and status
        self.errors: Counter[str] = Counter()  # by kind
        self.tokens: Counter[tuple[str, str]] = (
            Counter()
        )  # by model and kind: prompt, cached, generated, drafted or accepted
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self, accept: str) -> tuple[bytes, bytes]:
        """The metrics in a format that the scraper accepts, and its media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type.encode()

    def collect(self) -> Iterable[Any]:
        """All metrics; called by prometheus_client."""
        yield self.first_token.family("rwkv_gpu_time_to_first_token_seconds", "From the request to the first token")
        yield self.next_token.family("rwkv_gpu_inter_token_latency_seconds", "From a token to the next one")
        yield self.request.family("rwkv_gpu_request_seconds", "From the request to its end")
        yield self.queued.family("rwkv_gpu_queue_seconds", "Time that a request waited for its turn")
        requests = CounterMetricFamily("rwkv_gpu_requests", "Requests that have ended", labels=("path", "status"))
        for labels, count in self.requests.items():
            requests.add_metric(labels, count)
        errors = CounterMetricFamily("rwkv_gpu_errors", "Requests that ended with an error", labels=("code",))
        for code, count in self.errors.items():
            errors.add_metric((code,), count)
        tokens = CounterMetricFamily("rwkv_gpu_tokens", "Tokens of ended requests", labels=("model", "kind"))
        for labels, count in self.tokens.items():
            tokens.add_metric(labels, count)
        yield from (requests, errors, tokens)
        families: dict[str, Any] = {}
        sums: Counter[str] = Counter()
        for name, text, model, value in self._gauges():
            family = families.setdefault(name, GaugeMetricFamily(f"rwkv_gpu_{name}", text, labels=("model",)))
            family.add_metric((model,), value)
            sums[name] += value  # type: ignore[assignment]  # a Counter of floats
            if name in VLLM_GAUGES:
                vllm = VLLM_GAUGES[name]
                alias = families.setdefault(vllm, GaugeMetricFamily(vllm, text, labels=("model_name",)))
                alias.add_metric((model,), value)
        yield from families.values()
        yield from self._by_other_names(sums)

    def _by_other_names(self, gauges: Mapping[str, float]) -> Iterable[Any]:
        """Metrics under the names of llama-server, which have no labels, and of vLLM."""
        for name, kind in LLAMA_TOKENS.items():
            total = sum(count for (_, counted), count in self.tokens.items() if counted == kind)
            yield CounterMetricFamily(f"llamacpp:{name}", f"Tokens: {kind}", value=total)
        for name, gauge in LLAMA_GAUGES.items():
            yield GaugeMetricFamily(f"llamacpp:{name}", f"As rwkv_gpu_{gauge}, of all models", value=gauges[gauge])
        for name, kind in VLLM_TOKENS.items():
            family = CounterMetricFamily(f"vllm:{name}", f"Tokens: {kind}", labels=("model_name",))
            for (model, counted), count in self.tokens.items():
                if counted == kind:
                    family.add_metric((model,), count)
            yield family
        yield self.first_token.family("vllm:time_to_first_token_seconds", "From the request to the first token")
        yield self.next_token.family("vllm:inter_token_latency_seconds", "From a token to the next one")
        yield self.request.family("vllm:e2e_request_latency_seconds", "From the request to its end")
        yield self.queued.family("vllm:request_queue_time_seconds", "Time that a request waited for its turn")
