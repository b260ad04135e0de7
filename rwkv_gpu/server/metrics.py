"""Counters of the server, exported to Prometheus.

They are plain numbers, changed only in the event loop: a token costs one comparison and one addition.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from rwkv_gpu.llm.completion import Completion

LONG_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SHORT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
Gauges = Callable[[], Iterable[tuple[str, str, str, float]]]  # name, description, model, value

# Names of the same metrics in llama-server and vLLM, and with our gauge or kind of tokens
LLAMA_TOKENS = {
    "prompt_tokens_cached": "cached", "tokens_predicted": "generated",
    "spec_decode_num_draft_tokens": "drafted", "spec_decode_num_accepted_tokens": "accepted",
}  # fmt: skip
LLAMA_GAUGES = {"requests_processing": "requests_running", "requests_deferred": "requests_waiting"}
VLLM_TOKENS = {"prompt_tokens": "prompt", "generation_tokens": "generated", "prefix_cache_hits": "cached"}
VLLM_TOKENS |= {
    "prefix_cache_queries": "prompt", "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
}  # fmt: skip
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
        self.started = int(time.time())
        self._seconds: Counter[str] = Counter()  # seconds of computing: prompt, predicted
        self._reads = 0  # steps that read texts without an answer
        self._longest = 0  # tokens of a prompt and its answer
        self._reasons: Counter[tuple[str, str]] = Counter()  # answers by model and finish reason
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def ended(self, model: str, completions: Sequence[Completion]) -> None:
        """Counts the time and the length of ended answers."""
        for one in completions:
            self._seconds["prompt"] += one.stats.prompt_seconds  # type: ignore[assignment]  # a Counter of floats
            self._seconds["predicted"] += one.stats.decode_seconds  # type: ignore[assignment]
            self._longest = max(self._longest, one.stats.prompt_tokens + one.stats.new_tokens)
            self._reasons[model, one.finish_reason] += 1

    def read(self, model: str, tokens: int, spent: Sequence[float]) -> None:
        """Counts texts that were read without an answer, such as those of embeddings, and the seconds of each step."""
        self.tokens[model, "prompt"] += tokens
        self._seconds["prompt"] += sum(spent)  # type: ignore[assignment]
        self._reads += len(spent)

    def page(self, accept: str) -> tuple[bytes, bytes]:
        """The metrics in a format that the scraper accepts, and its media type."""
        encode, media_type = choose_encoder(accept)
        text: bytes = encode(self._registry)
        if media_type.startswith("text/plain"):  # as in llama-server; in OpenMetrics, names of counters end in _total
            text = text.replace(b"# TYPE llamacpp:n_tokens_max gauge", b"# TYPE llamacpp:n_tokens_max counter")
        return text, media_type.encode()

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

    def _of_llama(self, gauges: Mapping[str, float]) -> Iterable[Any]:
        """Metrics that only llama-server has."""
        kinds: Counter[str] = Counter()
        for (_, kind), count in self.tokens.items():
            kinds[kind] += count
        steps, seconds = gauges.get("steps", 0), self._seconds
        computed = max(0, kinds["prompt"] - kinds["cached"])
        counters: dict[str, float] = {
            "spec_decode_num_drafts": gauges.get("drafts_verified", 0),
            "prompt_tokens": computed, "prompt_seconds": seconds["prompt"], "n_decode": steps + self._reads,
            "tokens_predicted_seconds": seconds["predicted"],
        }  # fmt: skip
        for name, value in counters.items():
            yield CounterMetricFamily(f"llamacpp:{name}", "As in llama-server", value=value)
        rates: dict[str, float] = {
            "prompt_tokens_seconds": computed / seconds["prompt"] if seconds["prompt"] else 0,
            "predicted_tokens_seconds": kinds["generated"] / seconds["predicted"] if seconds["predicted"] else 0,
            "n_busy_slots_per_decode": gauges.get("step_sequences", 0) / steps if steps else 0,
            "n_tokens_max": self._longest,
        }  # fmt: skip
        for name, value in rates.items():
            yield GaugeMetricFamily(f"llamacpp:{name}", "As in llama-server", value=value)

    def _by_other_names(self, gauges: Mapping[str, float]) -> Iterable[Any]:
        """Metrics under the names of llama-server, which have no labels, and of vLLM."""
        for name, kind in LLAMA_TOKENS.items():
            total = sum(count for (_, counted), count in self.tokens.items() if counted == kind)
            yield CounterMetricFamily(f"llamacpp:{name}", f"Tokens: {kind}", value=total)
        yield from self._of_llama(gauges)
        success = CounterMetricFamily("vllm:request_success", "Ended answers", labels=("model_name", "finished_reason"))
        for labels, count in self._reasons.items():
            success.add_metric(labels, count)
        yield success
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
