"""Text in, text out: a model, its tokenizer and a runner behind one object."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine.caches import Kind
from .engine.runner import GpuRunner, HostRunner, Runner, prefill
from .errors import BadInput, ContextFull
from .gguf.file import GGUFFile
from .gpu.adapters import find
from .gpu.device import Device
from .gpu.loader import Progress
from .models.registry import load_model
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

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> Completion:
        """Continues a prompt until the model ends or `max_tokens` are said."""
        ids = self.tokenize(prompt, special=True) if isinstance(prompt, str) else list(prompt)
        self._check(ids)
        if max_tokens < 1:
            raise BadInput(f"max_tokens is {max_tokens}; it must be at least 1")
        if not 0 <= temperature < 1000:
            raise BadInput(f"temperature is {temperature}; it must be between 0 (greedy) and 1000")
        start = time.perf_counter()
        logits = prefill(self._runner, ids)[-1]
        prompted = time.perf_counter()
        rng = np.random.default_rng(seed)
        said: list[int] = []
        reason = "length"
        for token in self._tokens(logits, len(ids), temperature, rng):
            if token in self._tokenizer.stop_ids:
                reason = "stop"
                break
            said.append(token)
            if len(said) == max_tokens or len(ids) + len(said) == self._runner.context:
                break
        stats = Stats(len(ids), len(said), prompted - start, time.perf_counter() - prompted)
        return Completion(self.detokenize(said), tuple(said), reason, stats)

    def _tokens(
        self, logits: npt.NDArray[np.float32], position: int, temperature: float, rng: np.random.Generator
    ) -> Iterator[int]:
        """Sampled ids, one a step, without end."""
        while True:
            token = sample(logits, temperature, rng)
            yield token
            logits = prefill(self._runner, [token], start=position)[-1]
            position += 1

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


def sample(logits: npt.NDArray[np.float32], temperature: float, rng: np.random.Generator) -> int:
    """An id by softmax(logits / temperature); the largest at temperature 0."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = (logits - logits.max()).astype(np.float64) / temperature
    p = np.exp(scaled)
    return int(rng.choice(len(p), p=p / p.sum()))


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
