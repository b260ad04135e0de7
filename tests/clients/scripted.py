"""A model whose logits follow a script: each answer is its next text, within the grammar of the request."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rwkv_gpu
from rwkv_gpu.server.catalogue import ServedModel
from tests.gguf.writer import text_key, with_keys, written
from tests.server.serving import MODEL, Served, serving

# Messages in a form with reasoning and with tools in Hermes' format.
TEMPLATE = """{%- if tools %}[tools] <tool_call>{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif -%}
{%- for message in messages -%}
[{{ message.role }}]
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
SPACE = b" \n"


class Follower:
    """The logits of one answer: highest for the next scripted token. White space may differ from the script."""

    def __init__(self, script: bytes, tokens: list[bytes], end: int, diverged: list[str]) -> None:
        self._script, self._tokens, self._end = script, tokens, end
        self._diverged = diverged
        self._at: int | None = 0  # None: the grammar has forbidden the rest
        self._length: int | None = None  # tokens seen so far

    def __call__(self, ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        for token in ids[len(ids) if self._length is None else self._length :]:
            self._follow(self._tokens[token])
        self._length = len(ids)
        scores = np.zeros_like(logits)
        if self._at is None or self._at == len(self._script):
            scores[self._end] = 1e4
            return scores
        for token, piece in enumerate(self._tokens):
            after = self._after(piece) if piece else None
            if after is not None:
                exact = self._script.startswith(piece, self._at)
                scores[token] = 2e3 * exact + 1e3 * (after > self._at) + len(piece)
        return scores

    def _after(self, piece: bytes) -> int | None:
        """Returns the position in the script after these bytes; None if they do not continue it."""
        at, script = self._at, self._script
        assert at is not None
        for byte in piece:
            if at < len(script) and script[at] == byte:
                at += 1
            elif byte not in SPACE:
                while at < len(script) and script[at] in SPACE:
                    at += 1
                if at == len(script) or script[at] != byte:
                    return None
                at += 1
        return at

    def _follow(self, piece: bytes) -> None:
        if self._at is None:
            return
        after = self._after(piece)
        if after is None:
            before, rest = self._script[max(0, self._at - 60) : self._at], self._script[self._at :][:40]
            self._diverged.append(f"{piece!r} in place of {rest!r} after {before!r}")
        self._at = after


@dataclass
class Script:
    """The answers that the model is to give, and the prompts that it received."""

    answers: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def say(self, *answers: str) -> None:
        """Sets the next answers."""
        self.answers[:] = answers
        self.prompts.clear()
        self.diverged.clear()

    def check(self) -> None:
        """Checks that all answers were requested, and that no grammar changed one."""
        assert not self.diverged, self.diverged
        assert not self.answers, f"not requested: {self.answers}"

    def follow(self, llm: rwkv_gpu.LLM) -> None:
        """Makes a loaded model follow this script."""
        start: Callable[..., Any] = llm.start
        tokenizer = llm.tokenizer
        tokens = [tokenizer._text_of(token) for token in range(llm.vocab_size)]
        [end] = {tokenizer.eos} - {None}

        def scripted(prepared: Any, *given: Any, **more: Any) -> Any:
            requests = []
            for request, reader in prepared.requests:
                with self.lock:
                    text = self.answers.pop(0) if self.answers else "The script has ended."
                    self.prompts.append(llm.detokenize(request.ids))
                follower = Follower(text.encode(), tokens, end, self.diverged)
                params = replace(request.params, logits_processors=(follower,), temperature=0.0)
                requests.append((replace(request, params=params), reader))
            return start(replace(prepared, requests=requests), *given, **more)

        llm.start = scripted  # type: ignore[method-assign]


def call(name: str, arguments: str) -> str:
    """Returns a tool call in the model's format."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@contextlib.contextmanager
def scripted_server(folder: Path) -> Iterator[tuple[Served, Script]]:
    """Starts a server with a scripted model, named scripted."""
    data = with_keys(MODEL.read_bytes(), [text_key("tokenizer.chat_template", TEMPLATE)])
    script = Script()

    def load(path: str, progress: Any) -> rwkv_gpu.LLM:
        llm = rwkv_gpu.load(path, device="cpu", sequences=2, chunk_size=512, progress=progress)
        script.follow(llm)
        return llm

    model = ServedModel("scripted", str(written(folder, data)))
    with serving(model, load=load, catalogue={"any_name": True}) as served:
        yield served, script
