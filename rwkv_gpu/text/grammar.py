"""Structured output: restricts the next tokens by a JSON schema, a regular expression or a grammar.

llguidance does the parsing, in helper processes (`grammar_pool`). Grammars match bytes; the bytes of tokens come from
the tokenizer. Control tokens are never allowed, except those that end an answer at a possible end.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import BadGrammar, BadInput
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.gbnf import token_names
from rwkv_gpu.text.grammar_pool import Limits, Pool, Session, Source, Vocabulary, find_library
from rwkv_gpu.text.grammar_worker import Reply

# calls: a lark grammar of JSON and forced text; channels: the same after reasoning (Harmony); tagged: with free text
Kind = Literal["schema", "regex", "lark", "gbnf", "calls", "channels", "tagged"]
Words = npt.NDArray[np.uint32]

HIDDEN = b"\xff"  # llguidance does not match tokens that begin with this byte as text
REMEMBERED = 64  # bytes searched for the end of the reasoning
LONGEST = 1 << 20  # characters of a form
MAX_NAMES = 256  # texts of a grammar that may be names of tokens
ENDLESS = 1 << 40  # tokens, if no budget is known


@dataclass(frozen=True)
class Form:
    """A constraint of an answer."""

    kind: Kind
    source: str
    model: Any = field(default=None, compare=False)  # the pydantic class of a schema

    @classmethod
    def of(
        cls,
        *,
        schema: Any = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> "Form | None":
        """Returns the given constraint, if any: a JSON schema (or True, for any JSON), a regular expression or grammar.

        A pydantic class is a schema. A grammar is written in Lark's syntax or, with `root ::=`, in GBNF.
        """
        given = {"schema": schema, "regex": regex, "grammar": grammar}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise BadInput(f"{' and '.join(names)} are both given; an answer can have one form only")
        if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
            return cls("schema", _dumped(_closed(schema.model_json_schema())), schema)
        if schema is not None:
            return cls("schema", schema if isinstance(schema, str) else _dumped(schema))
        for name in names:
            if not isinstance(given[name], str):
                raise BadInput(f"{name} is {given[name]!r}; it must be a string")
        if regex is not None:
            return cls("regex", regex)
        if grammar is not None:
            return cls("gbnf" if "::=" in grammar else "lark", grammar)
        return None


def _closed(schema: Any) -> Any:
    """A pydantic class's schema, whose objects have no other properties unless the class allows them."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(schema.get("properties"), dict) else closed


class Grammars:
    """Creates grammars for one vocabulary.

    `size` is the number of the model's logits. Work runs in processes of `pool`.
    """

    def __init__(
        self, tokenizer: Tokenizer, size: int, ends: frozenset[int] = frozenset(), pool: Pool | None = None
    ) -> None:
        find_library()
        ends = tokenizer.stop_ids | ends | ({tokenizer.eot} if tokenizer.eot is not None else frozenset())
        self._stop_ids = frozenset(token for token in ends if not tokenizer.piece(token))
        self._texts = ends - self._stop_ids
        if not ends:
            raise BadInput("this model has no token that ends an answer, so no answer can be constrained")
        self._tokenizer, self._size = tokenizer, size
        self._pool = pool or pool_of(tokenizer, size)

    def grammar(
        self, form: Form, *, after: str = "", optional: bool = False, begun: str = "", budget: int = ENDLESS,
        wait: bool = True, salt: int = 0,
    ) -> "Grammar":  # fmt: skip
        """Returns the grammar of one answer, which is unconstrained until it contains `after`.

        If that is `optional`, the answer may end without it. The answer begins with `begun`; at most `budget` tokens
        follow. Compiled forms are reused with the same salt.

        Raises BadGrammar for a wrong grammar: at once, or, without `wait`, when the first mask is requested.
        """
        # Otherwise such a token does not end the answer
        texts = frozenset(token for token in self._texts if f"<[{token}]>" not in form.source)
        free, mark, held = begun.partition(after) if after else ("", "", begun)
        if mark or form.kind == "schema":
            held = held.lstrip()
        _check_length(form)
        ends = tuple(sorted(self._stop_ids | texts))
        source = Source(form.kind, form.source, ends, held.encode(), salt, self._named_tokens(form))
        session = self._pool.session(source, budget)
        marks = "" if mark else after
        grammar = Grammar(
            form, session, self._tokenizer, self._size, self._stop_ids, texts, marks, free, budget, optional
        )
        if wait:
            grammar.check()
        return grammar

    def _named_tokens(self, form: Form) -> tuple[tuple[str, int], ...]:
        """The tokens that a GBNF grammar names by their text, such as <think>."""
        names = sorted(token_names(form.source)) if form.kind == "gbnf" else []
        found = ((name, self._tokenizer.encode(name, parse=True)) for name in names[:MAX_NAMES])
        return tuple((name, ids[0]) for name, ids in found if len(ids) == 1)


class Grammar:
    """The allowed tokens of one answer. `accept` never blocks; `mask` and `done` wait for the helper process."""

    def __init__(
        self,
        form: Form,
        session: Session,
        tokenizer: Tokenizer,
        size: int,
        stop_ids: frozenset[int],
        texts: frozenset[int],
        after: str = "",
        free: str = "",
        budget: int = ENDLESS,
        optional: bool = False,
    ) -> None:
        self._name = NAMES.get(form.kind, "grammar")
        self._session = session
        # Text tokens that end an answer. The matcher treats them only as ends, but its mask, which is based on bytes,
        # includes them as text.

        self._texts = texts
        self._words = -(-size // 32)
        self._tokenizer = tokenizer
        self.stop_ids = stop_ids  # tokens that end the answer; text that ends it, as in RWKV, makes it `done` instead
        self._after = after.encode()
        self._seen = free.encode()
        self._left = budget
        self._optional = optional

    @property
    def ready(self) -> bool:
        """True if `mask` and `done` return at once."""
        return self._session.ready

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once `mask` and `done` return at once: now, or from another thread."""
        self._session.when_ready(callback)

    @property
    def done(self) -> bool:
        """True if the answer is complete and nothing can follow."""
        if self._after:
            return False
        error, _, _, done = self._session.reply()
        return done and error is None

    def mask(self) -> Words:
        """One bit per token, set if it is allowed. [ceil(V / 32)]"""
        if self._after:
            every = np.full(self._words, 0xFFFFFFFF, np.uint32)
            return every if self._optional else _without(every, self.stop_ids)
        _, mask, accepting, _ = self.check()
        words = np.zeros(self._words, np.uint32)
        found = np.frombuffer(mask, np.uint32)[: self._words]
        words[: len(found)] = found
        return words if accepting else _without(words, self._texts)

    def accept(self, token: int) -> None:
        """Advances by a generated token."""
        self._left -= 1
        if not self._after:
            self._session.accept(token, self._left)
            return
        self._seen = (self._seen + self._tokenizer.piece(token, special=True))[-REMEMBERED - len(self._after) :]
        if self._after in self._seen:
            self._after = b""
            self._session.refresh(self._left)

    def check(self) -> Reply:
        """The helper's reply, when available; raises BadGrammar instead of a failed one."""
        reply = self._session.reply()
        if reply[0] is not None:
            raise BadGrammar(f"the {self._name} {_one_line(reply[0])}")
        return reply


def pool_of(tokenizer: Tokenizer, size: int, limits: Limits | None = None) -> Pool:
    """The helper processes for a vocabulary, which is read when the first of them starts."""

    def vocabulary() -> Vocabulary:
        ends = tokenizer.stop_ids or {0}
        return Vocabulary([_text(tokenizer, token) for token in range(size)], min(ends), tokenizer.bos)

    return Pool(vocabulary, limits)


def _check_length(form: Form) -> None:
    if len(form.source) > LONGEST:
        name = NAMES.get(form.kind, "grammar")
        raise BadGrammar(f"the {name} is too large: it has {len(form.source):,} characters; the limit is {LONGEST:,}")


def _without(words: Words, tokens: Iterable[int]) -> Words:
    """The mask without these tokens."""
    for token in tokens:
        words[token // 32] &= np.uint32(0xFFFFFFFF ^ 1 << token % 32)
    return words


NAMES: dict[Kind, str] = {  # the others are grammars
    "schema": "JSON schema", "regex": "regular expression",
    **dict.fromkeys(("calls", "channels", "tagged"), "JSON schema of the tools"),
}  # fmt: skip


def _text(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of a token; markup such as <think> is a marker, not text."""
    text = tokenizer.piece(token) if token < tokenizer.vocab_size else b""
    marks = len(text) > 2 and text.startswith(b"<") and text.endswith(b">")
    return text if text and not marks else HIDDEN + f"[{token}]".encode()


def _dumped(schema: bool | Mapping[str, Any]) -> str:
    if schema is True:
        return "{}"
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the JSON schema is not JSON: {error}") from None
    except RecursionError:
        raise BadGrammar("the JSON schema is too deep: nest its parts less") from None


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300]
