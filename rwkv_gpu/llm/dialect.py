"""How a model is talked to: how messages become its prompt, where its answers end, and what is a thought."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..engine.request import Request
from ..engine.sampling_params import SamplingParams
from ..text.grammar import Form, Grammars
from ..text.template import ChatTemplate
from ..text.thinking import Thinking, opens_thinking
from ..text.tokenizer import Tokenizer
from .completion import Completion
from .reader import Ends, Reader
from .transcript import Transcript, as_bytes, as_text
from .validate import truth

OPENING, CLOSING = "<think>", "</think>"
TAIL = 64  # bytes of a prompt that show whether it has opened or closed the thoughts


@dataclass(frozen=True)
class Message:
    """What one side said. An answer is kept as it was said, too, for the prompts after it."""

    role: str
    content: str
    reasoning: str = ""
    raw: str | None = None

    def shown(self) -> dict[str, str]:
        """As a user of the library has it."""
        told = {"role": self.role, "content": self.content}
        return {**told, "reasoning": self.reasoning} if self.reasoning else told

    def rendered(self) -> dict[str, str]:
        """As a template gets it."""
        return {"role": self.role, "content": self.content if self.raw is None else self.raw}


@dataclass(frozen=True)
class Asked:
    """A prompt made of messages."""

    transcript: Transcript
    border: int  # tokens of the messages; what opens the answer comes after them
    opened: str  # the thoughts that the prompt has begun

    def answer(self, dialect: "Dialect", completion: Completion, stopped: str | None) -> tuple[Message, Transcript]:
        """The message that an answer makes, and the transcript with it."""
        tokenizer = dialect.tokenizer
        said = as_text(b"".join(tokenizer.piece(token, special=True) for token in completion.tokens))
        if stopped is not None and stopped in said:
            said = said[: said.rindex(stopped)]
        message = Message("assistant", completion.text.strip(), completion.reasoning, self.opened + said)
        return message, self.transcript.said(tokenizer, completion.tokens)


class Dialect:
    """A template and a tokenizer together."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self.tokenizer = tokenizer
        self.template = template
        end = template.end_of_turn()
        special = [token for token in tokenizer.encode(end, parse=True) if not tokenizer.piece(token)]
        self.stop_ids = frozenset(special[:1])  # of an end such as <|im_end|>\n, what comes first
        self._ends = () if special or not end else (end.rstrip() or end,)
        between = template.next_turn().rstrip()
        self._thought_ends = (between,) if between and not special else ()

    def ask(
        self,
        messages: Sequence[Mapping[str, object]],
        known: Iterable[Transcript] = (),
        think: bool | None = None,
    ) -> Asked:
        """The prompt for these messages, with the ids of what is known of it; `think` asks for thoughts or none."""
        variables: dict[str, Any] = {} if truth("think", think) is None else {"enable_thinking": think}
        whole = self.template.render(messages, add_generation_prompt=True, **variables)
        pieces = [self.template.render(messages, add_generation_prompt=False, **variables), whole]
        if not whole.startswith(pieces[0]):
            pieces = [whole]
        else:
            pieces[1] = whole[len(pieces[0]) :]
        text = as_bytes(whole)
        nearest = max(known, key=lambda transcript: transcript.common(text).nbytes, default=Transcript())
        transcript = nearest.prompt(self.tokenizer, pieces)
        border = transcript.common(as_bytes(pieces[0])).ids
        opened = whole[whole.rindex(OPENING) :] if opens_thinking(whole) else ""
        return Asked(transcript, border, opened)

    @cached_property
    def grammars(self) -> Grammars:
        """What makes a grammar of a form for its answers."""
        return Grammars(self.tokenizer, self._vocabulary, self.stop_ids)

    def request(self, asked: Asked, params: SamplingParams, form: Form | None = None) -> Request:
        """What the engine is asked for; thoughts have no form."""
        grammar = None if form is None else self.grammars.grammar(form, after=CLOSING if asked.opened else "")
        ends = self.stop_ids | (frozenset() if grammar is None else grammar.stop_ids)
        chosen = replace(params, stop_ids=params.stop_ids | self.tokenizer.stop_ids | ends)
        return Request(asked.transcript.ids, chosen, grammar, keep=True, marks=(asked.border,))

    def reader(self, asked: Asked, params: SamplingParams, form: Form | None = None) -> Reader:
        """What reads the answer. What ends a turn may be part of a form, which has an end of its own."""
        ends = Ends((*params.stop, *(() if form else self._ends)), (*params.stop, *self._thought_ends))
        return Reader(
            self.tokenizer, ends, Thinking(as_text(asked.transcript.text[-TAIL:])), closing(self.tokenizer, form)
        )


def closing(tokenizer: Tokenizer, form: Form | None) -> frozenset[int]:
    """What ends an answer of a form, has a text, and is no part of it."""
    return frozenset({tokenizer.eot} if form is not None and tokenizer.eot is not None else ())
