"""Text in, text out: a model, its tokenizer and a runner behind one object."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine.caches import Kind
from .engine.runner import GpuRunner, HostRunner, Runner, prefill
from .engine.sampling import Sampler, SamplingParams
from .errors import BadInput, ContextFull
from .gguf.file import GGUFFile
from .gpu.adapters import find
from .gpu.device import Device
from .gpu.loader import Progress
from .models.registry import load_model
from .text.stops import StopStrings
from .text.tokenizer import Tokenizer, load_tokenizer

EVERY_ROWS = 64  # rows of a step when the logits of each are asked for, since logits are large


@dataclass(frozen=True)
class Stats:
    """What a generation took."""

    prompt_tokens: int
    new_tokens: int
    prompt_seconds: float
    decode_seconds: float

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """New tokens a second, the first of them apart: it comes with the prompt."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds and self.new_tokens > 1 else 0.0


@dataclass(frozen=True)
class Completion:
    """What a model said."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str  # stop, or length
    stats: Stats


@dataclass(frozen=True)
class Event:
    """A token that was said, and the text that became certain by it; the last may be text alone."""

    text: str
    token: int | None
    logprob: float


class LLM:
    """A loaded model. Use as a context manager, or call `close`."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self.vocab_size = vocabulary

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back all memory."""
        self._runner.close()

    def tokenize(self, text: str | bytes, *, special: bool = False, parse: bool = False) -> list[int]:
        """Token ids of a text; `special` adds what the file says stands at the ends, `parse` reads special tokens."""
        return self._tokenizer.encode(text, special=special, parse=parse)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(ids)

    def logits(self, ids: Sequence[int], *, chunk_size: int | None = None) -> npt.NDArray[np.float32]:
        """The logits of every position, from a fresh state. [T, V]"""
        self._check(ids)
        size = min(chunk_size or self._runner.chunk_size, EVERY_ROWS)
        return prefill(self._runner, ids, chunk_size=size, every=True)

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **settings: Any
    ) -> "Generation":
        """Continues a prompt token by token. `settings` are fields of SamplingParams; without any, greedy."""
        if params is None:
            params = SamplingParams(**{"temperature": 0.0, "max_tokens": 128, **settings})
        elif settings:
            params = replace(params, **settings)
        ids = self.tokenize(prompt, special=True) if isinstance(prompt, str) else list(prompt)
        self._check(ids)
        return Generation(self._runner, self._tokenizer, Sampler(params, self.vocab_size), ids)

    def generate(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **settings: Any
    ) -> Completion:
        """Continues a prompt until the model ends, a stop string is met, or `max_tokens` are said."""
        generation = self.stream(prompt, params, **settings)
        for _ in generation:
            pass
        return generation.completion

    def _check(self, ids: Sequence[int]) -> None:
        if len(ids) == 0:
            raise BadInput("the prompt has no tokens; give at least one")
        context = self._runner.context
        if context is not None and len(ids) > context:
            raise ContextFull(
                f"a prompt of {len(ids):,} tokens does not fit the context of {context:,}; "
                "shorten it, or load the model with a larger context"
            )
        for at, token in enumerate(ids):
            if not 0 <= token < self.vocab_size:
                raise BadInput(f"token id {token} at place {at} is not in the vocabulary of {self.vocab_size:,}")


class Generation:
    """An answer on its way: iterate for its events, then look at `completion`."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer, sampler: Sampler, ids: Sequence[int]) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._sampler = sampler
        self._ids = ids
        self._said: list[int] = []
        self._text: list[str] = []
        self._reason = "length"
        self._start = self._prompted = time.perf_counter()
        self._events = self._run()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    @property
    def completion(self) -> Completion:
        """What was said so far."""
        now = time.perf_counter()
        stats = Stats(len(self._ids), len(self._said), self._prompted - self._start, now - self._prompted)
        return Completion("".join(self._text), tuple(self._said), self._reason, stats)

    def _run(self) -> Iterator[Event]:
        params, context = self._sampler.params, self._runner.context
        stops, text = StopStrings(params.stop), self._tokenizer.stream(continues=True)
        stop_ids = self._tokenizer.stop_ids | params.stop_ids
        self._start = time.perf_counter()
        logits = prefill(self._runner, self._ids)[-1]
        self._prompted = time.perf_counter()
        self._sampler.accept_all(self._ids)
        room = params.max_tokens if context is None else min(params.max_tokens, context - len(self._ids))
        stopped = False
        while not stopped and len(self._said) < room:
            if self._said:
                start = len(self._ids) + len(self._said) - 1
                logits = prefill(self._runner, [self._said[-1]], start=start)[-1]
            chosen = self._sampler.sample(logits)
            if chosen.token in stop_ids:
                stopped = True
                break
            self._sampler.accept(chosen.token)
            self._said.append(chosen.token)
            shown, stopped = stops.feed(text.feed(chosen.token))
            self._text.append(shown)
            yield Event(shown, chosen.token, chosen.logprob)
        self._reason = "stop" if stopped else "length"
        rest = "" if stops.stopped else stops.feed(text.flush())[0] + stops.flush()
        if rest:
            self._text.append(rest)
            yield Event(rest, None, 0.0)


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    chunk_size: int = 512,
    progress: Progress | None = None,
    layers_per_submit: int = 0,
    context: int | None = None,
    kv: Kind = "f16",
    **opening: Any,
) -> LLM:
    """Opens a GGUF model on a device. The file is read once and closed.

    `device` is auto, cpu, an index or a part of a name; `chunk_size` is how many tokens of a prompt go in one step.
    For models that attend, `context` is how many tokens a sequence may have, prompt and answer together (as many as it
    was trained on, but 4,096 at most, where nothing is said), and `kv` is how keys and values are stored: f16 or f32.
    """
    if not 1 <= chunk_size <= 1 << 16:
        raise BadInput(f"chunk_size is {chunk_size}; it must be between 1 and 65536")
    with GGUFFile.open(path) as file:
        model = load_model(file)
        tokenizer = load_tokenizer(file.metadata)
        choice = find(device)
        runner: Runner
        if choice.adapter is None:
            runner = HostRunner(file, model, chunk_size=chunk_size, context=context, kv=kv)
        else:
            opened = Device(choice.adapter, **opening)
            try:
                runner = GpuRunner(
                    opened, file, model, chunk_size=chunk_size, layers_per_submit=layers_per_submit, progress=progress,
                    context=context, kv=kv,
                )  # fmt: skip
            except BaseException:
                opened.close()
                raise
        return LLM(runner, tokenizer, model.vocabulary)
