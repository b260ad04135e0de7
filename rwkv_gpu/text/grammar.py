"""Structured output: which tokens may come next, by a JSON schema, a regular expression or a grammar.

llguidance does the parsing (the extra `grammar`; imported when it is first needed). A grammar knows bytes: those of
tokens come from the tokenizer. Control tokens are never part of what it allows, but where all may be over, those that
end it are.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import BadGrammar, BadInput, MissingExtra
from rwkv_gpu.text.tokenizer import Tokenizer

Kind = Literal["schema", "regex", "lark", "gbnf"]
Words = npt.NDArray[np.uint32]

HIDDEN = b"\xff"  # what begins with this byte is no text to llguidance
REMEMBERED = 64  # bytes that the end of the thoughts is looked for in
# Between the parts of JSON: as much as people write, and not for ever.
SPACES = {"whitespace_pattern": r"[ \n\t]{0,32}"}


@dataclass(frozen=True)
class Form:
    """What an answer must be like."""

    kind: Kind
    source: str

    @classmethod
    def of(
        cls,
        *,
        schema: str | bool | Mapping[str, Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> "Form | None":
        """The one that is given, if any: a JSON schema (or True, for any JSON), a regular expression, a grammar.

        A grammar is written in Lark's way or, with `root ::=`, in GBNF.
        """
        given = {"schema": schema, "regex": regex, "grammar": grammar}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise BadInput(f"{' and '.join(names)} are both given; an answer can have one form only")
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


class Grammars:
    """Makes grammars for one vocabulary, which is read once; `size` is that of the model's logits."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: frozenset[int] = frozenset()) -> None:
        self._library = _library()
        ends = tokenizer.stop_ids | ends | ({tokenizer.eot} if tokenizer.eot is not None else frozenset())
        self._stop_ids = frozenset(token for token in ends if not tokenizer.piece(token))
        self._texts = ends - self._stop_ids
        if not ends:
            raise BadInput("this model has no token that ends an answer, so none can be held to a form")
        self._tokenizer, self._size = tokenizer, size
        wrapped = self._library.TokenizerWrapper(_Vocabulary(tokenizer, size, ends))
        self._known = self._library.LLTokenizer(wrapped, eos_token=sorted(ends))

    def grammar(self, form: Form, *, after: str = "") -> "Grammar":
        """A grammar for one answer, which is free until it has said `after`. BadGrammar says what is wrong with it."""
        matcher = self._library.LLMatcher(self._known, self._compiled(form), log_level=0)
        if matcher.is_error():
            raise BadGrammar(f"the {NAMES[form.kind]} cannot be used: {_one_line(matcher.get_error())}")
        return Grammar(matcher, self._tokenizer, self._size, self._stop_ids, self._texts, after)

    def _compiled(self, form: Form) -> str:
        """The grammar in llguidance's own words."""
        matcher = self._library.LLMatcher
        try:
            if form.kind == "schema":
                return str(matcher.grammar_from_json_schema(form.source, defaults=SPACES))
            if form.kind == "regex":
                return str(matcher.grammar_from_regex(form.source))
            lark = self._library.gbnf_to_lark.gbnf_to_lark(form.source) if form.kind == "gbnf" else form.source
            return str(matcher.grammar_from_lark(lark))
        except Exception as error:  # noqa: BLE001 - its parsers share no base
            raise BadGrammar(f"the {NAMES[form.kind]} cannot be read: {_one_line(str(error))}") from None


class Grammar:
    """What one answer may still say. `done` when it is complete and nothing can follow."""

    def __init__(
        self,
        matcher: Any,
        tokenizer: Tokenizer,
        size: int,
        stop_ids: frozenset[int],
        texts: frozenset[int],
        after: str = "",
    ) -> None:
        self._matcher = matcher
        # Ends that are text. The matcher takes them for ends alone; its mask, which goes by bytes, for text too.
        self._texts = texts
        self._words = -(-size // 32)
        self._tokenizer = tokenizer
        self.stop_ids = stop_ids  # of those that end it; an end that is text, as RWKV's, makes it `done`
        self._after = after.encode()
        self._said = b""
        self.done = False

    def mask(self) -> Words:
        """A bit for each token, set where it is allowed. [ceil(V / 32)]"""
        words: Words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        self._check()
        if self._after:
            return _without(np.full_like(words, 0xFFFFFFFF), self.stop_ids)
        return words if self._matcher.is_accepting() else _without(words.copy(), self._texts)

    def accept(self, token: int) -> None:
        """Takes note of a token that was said."""
        if self._after:
            self._said = (self._said + self._tokenizer.piece(token, special=True))[-REMEMBERED - len(self._after) :]
            if self._after in self._said:
                self._after = b""
            return
        self._matcher.consume_token(token)
        self._check()
        self.done = bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BadGrammar(f"the grammar gave up: {_one_line(self._matcher.get_error())}")


def _without(words: Words, tokens: Iterable[int]) -> Words:
    """The mask less these tokens."""
    for token in tokens:
        words[token // 32] &= np.uint32(0xFFFFFFFF ^ 1 << token % 32)
    return words


NAMES: dict[Kind, str] = {"schema": "JSON schema", "regex": "regular expression", "lark": "grammar", "gbnf": "grammar"}


class _Vocabulary:
    """A tokenizer as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._ordinary = tokenizer.encode("a")[-1]
        self.eos_token_id = min(ends)
        self.bos_token_id = tokenizer.bos
        self.tokens = [self._text(token) for token in range(size)]

    def _text(self, token: int) -> bytes:
        """The bytes of a token; what looks like markup, as <think> does, is a marker and no text."""
        text = self._tokenizer.piece(token) if token < self._tokenizer.vocab_size else b""
        marks = len(text) > 2 and text.startswith(b"<") and text.endswith(b">")
        return text if text and not marks else HIDDEN + f"[{token}]".encode()

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text, after=self._ordinary)


def _library() -> Any:
    try:
        import llguidance
        import llguidance.gbnf_to_lark
    except ImportError:
        raise MissingExtra("structured output needs the package llguidance: pip install 'rwkv-gpu[grammar]'") from None
    return llguidance


def _dumped(schema: bool | Mapping[str, Any]) -> str:
    if schema is True:
        return "{}"
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the JSON schema is no JSON: {error}") from None


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300]
