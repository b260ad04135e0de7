"""Converts the messages of a chat to its prompt, by the model's own jinja2 template or a built-in one.

A prompt may begin with the text of the BOS token: tokenize it with `parse`, and without adding BOS again.
"""

import re
import secrets
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from rwkv_gpu.errors import BadInput, BadTemplate, printable
from rwkv_gpu.text.budget import Budget, Exceeded, Limits
from rwkv_gpu.text.builtin_templates import BUILT_IN
from rwkv_gpu.text.capabilities import Capabilities
from rwkv_gpu.text.conform import REASONING, check_arguments, conform_messages, conform_tools, functions_text
from rwkv_gpu.text.messages import check_messages, plain
from rwkv_gpu.text.sandbox import Refused, Sandbox
from rwkv_gpu.text.vocabulary import read_id, read_name, read_strings

Messages = Sequence[Mapping[str, object]]
KEY = "tokenizer.chat_template"
# All exceptions that rendering or compiling a template can raise.
_FAULTS = (
    TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, AssertionError,
)  # fmt: skip
_COMPILE_FAULTS = (*_FAULTS, SyntaxError, MemoryError)
_REMEDY = f"pass another template, or a built-in one by its name: {', '.join(BUILT_IN)}"
PROBING = Limits(seconds=1.0)
WORLD = "rwkv-world"  # converters write this as the template of every RWKV model, or a template that contains CONVERTED
CONVERTED = "'User: ' + message['content']|trim"
_G1 = re.compile(r"(?<![A-Za-z0-9])[gG][01][a-z]?[0-9]?(?![A-Za-z0-9])")
_TURNS = ("user", "assistant", "user")
_TIME_FORMAT = re.compile(r"(?:[^%]|%-?[a-zA-Z%]){0,100}")


class ChatTemplate:
    """A chat template, compiled once. `source` is jinja2, or the name of a built-in one."""

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        limits: Limits | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = _source(source)
        self._limits = limits or Limits()
        self._clock = clock
        self._constants = {"bos_token": bos, "eos_token": eos}
        self._mark, self._cut = (f"{mark}{secrets.token_hex(8)}" for mark in "\ue000\ue001")  # occur in no message
        self._lock = threading.Lock()  # the sandbox has the budget of one run
        self._sandbox = Sandbox(self._limits)
        self._sandbox.globals["strftime_now"] = self._strftime
        self._template = self._compile()
        self._can: Capabilities | None = None  # unknown before the first prompt
        self._endless = False  # whether a probe exceeded its limits
        self._takes_functions = "functions" in self.source and re.search(r"\btools\b", self.source) is None

    @property
    def built_in(self) -> bool:
        """True if it is one of the built-in templates."""
        return any(self.source == template.source for template in BUILT_IN.values())

    def __repr__(self) -> str:
        """The beginning of its source."""
        return f"<ChatTemplate {self.source[:40]!r}, {len(self.source):,} characters>"

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], *, name: str | None = None, limits: Limits | None = None
    ) -> "ChatTemplate":
        """The template of a GGUF file, or the built-in one of that name; without both, one that fits the vocabulary."""
        source = metadata.get(KEY) if name is None else name
        if source is not None and not isinstance(source, str):
            raise BadTemplate(f"{KEY} must be a string, not {type(source).__name__}; {_REMEDY}")
        tokens = read_strings(metadata, "tokens")
        ends = [read_id(metadata, role, len(tokens)) for role in ("bos", "eos")]
        bos, eos = ("" if token is None else tokens[token] for token in ends)
        if source is None or (name is None and _is_g1(metadata) and (source.strip() == WORLD or CONVERTED in source)):
            source = _guess(metadata, tokens)
        return cls(source, bos=bos, eos=eos, limits=limits)

    def render(
        self,
        messages: Messages,
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Messages | None = None,
        limits: Limits | None = None,
        **variables: object,
    ) -> str:
        """Returns the prompt for these messages. `variables` are passed to the template, such as enable_thinking.

        Raises `Exceeded` if that takes more than `limits`, or another thread is rendering.
        """
        return "".join(self._parts(messages, tools, variables, limits, add_generation_prompt))

    def prompt(
        self, messages: Messages, /, *, tools: Messages | None = None, limits: Limits | None = None, **variables: object
    ) -> tuple[str, str]:
        """The prompt for these messages, and the prompt without the opening of an answer."""
        before, opening = self._parts(messages, tools, variables, limits, True)
        if self._sandbox.marks_opening:
            return before + opening, before
        return before, self.render(messages, add_generation_prompt=False, tools=tools, limits=limits, **variables)

    def unfinished(
        self, messages: Messages, /, *, tools: Messages | None = None, limits: Limits | None = None, **variables: object
    ) -> str | None:
        """The prompt up to the text that ends the last message; None if the template does not show it.

        That text is the content, or the reasoning of a message without content.
        """
        last = messages[-1]
        names = ("content",) if last.get("content") else [name for name in REASONING if last.get(name)]
        cut = [*messages[:-1], {**last, **dict.fromkeys(names, self._cut)}]
        whole = self.render(cut, add_generation_prompt=False, tools=tools, limits=limits, **variables)
        before, shown, _ = whole.rpartition(self._cut)
        return before if shown else None

    def _parts(
        self,
        messages: Messages,
        tools: Messages | None,
        variables: Mapping[str, object],
        limits: Limits | None,
        opened: bool,
    ) -> tuple[str, str]:
        """The prompt before and after the mark of the answer's opening, if that was found."""
        if limits is not None and self._can is None:
            raise Exceeded("has not been probed yet")
        conformed = conform_messages(check_messages(messages), self.can)
        listed = conform_tools(plain(tools, "tools"), self.can)
        try:
            return self._render(conformed, listed, plain(variables, "the variables"), limits, opened)
        except BadTemplate:
            check_arguments(conformed)
            raise

    @property
    def can(self) -> Capabilities:
        """The abilities of this template."""
        if self._can is None:
            can = Capabilities(self._probe)
            can.learn()
            self._can = can
        return self._can

    def _probe(self, messages: Messages, tools: Messages | None) -> str | None:
        """The prompt for exactly these messages.

        None if the template fails, or if an earlier probe exceeded the limits.
        """
        if self._endless:
            return None
        try:
            return "".join(self._render(messages, tools, {}, PROBING, False))
        except Exceeded:
            self._endless = True
        except (BadInput, BadTemplate):
            pass
        return None

    def _render(
        self,
        messages: Messages,
        tools: Messages | None,
        variables: Mapping[str, object],
        limits: Limits | None,
        opened: bool,
    ) -> tuple[str, str]:
        given: dict[str, Any] = {
            **self._constants,
            **self._dates(),
            **({"functions": functions_text(tools)} if self._takes_functions else {}),
            **variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": opened,
        }
        if not self._lock.acquire(blocking=limits is None or limits is PROBING):
            raise Exceeded("is rendered by another thread")
        try:
            self._sandbox.budget = Budget(limits or self._limits, given)
            return self._run(given)
        except Refused as refusal:
            raise BadInput(f"the chat template refuses these messages: {refusal}") from None
        except (Exceeded, MemoryError, *_FAULTS) as fault:
            if limits is not None and isinstance(fault, Exceeded):
                raise
            raise self._fault(fault) from None
        finally:
            self._sandbox.budget = Budget(self._limits)
            self._lock.release()

    @cached_property
    def knows_tools(self) -> bool:
        """True if tools appear in the prompt: some templates have tools, but drop those in this form."""
        if re.search(r"\btools\b", self.source) is None and not self._takes_functions:
            return False
        function = {"name": "a-tool", "description": "a-tool", "parameters": {"type": "object", "properties": {}}}
        question = {"role": "user", "content": "a-question"}
        try:
            return "a-tool" in self.render([question], tools=[{"type": "function", "function": function}])
        except (BadInput, BadTemplate):
            return True

    def end_of_turn(self) -> str:
        """Text after an answer in a prompt, such as RWKV's "\\n\\n": a model that generates it has finished."""
        answer = "an-answer"
        chat = [{"role": "user", "content": "a-question"}, {"role": "assistant", "content": answer}]
        _, shown, end = self.render(chat, add_generation_prompt=False).rpartition(answer)
        return end if shown else ""

    def next_turn(self) -> str:
        """Text between an answer and the next question, such as RWKV's "\\n\\nUser: "."""
        first, answer, second = "a-question", "an-answer", "another-one"
        chat = [{"role": role, "content": text} for role, text in zip(_TURNS, (first, answer, second), strict=True)]
        _, _, rest = self.render(chat, add_generation_prompt=False).partition(answer)
        between, shown, _ = rest.partition(second)
        return between if shown else ""

    def _run(self, given: dict[str, Any]) -> tuple[str, str]:
        size = 0
        pieces = []
        for piece in self._template.generate(given):
            size += len(piece)
            self._sandbox.budget.allow(size)
            pieces.append(piece)
        before, _, opening = "".join(pieces).partition(self._mark)
        return before, opening

    def _compile(self) -> Template:
        if len(self.source) > self._limits.source:
            raise BadTemplate(
                f"the chat template has {len(self.source):,} characters; at most {self._limits.source:,} are allowed: "
                f"{_REMEDY}"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # Python's, about code generated by jinja2
                code = self._sandbox.compile(self._sandbox.prepare(self.source, self._mark), filename="<template>")
        except _COMPILE_FAULTS as fault:
            raise self._fault(fault) from None
        return Template.from_code(self._sandbox, code, self._sandbox.make_globals(None))

    def _dates(self) -> dict[str, str]:
        """Variables with today's date, under the names that llama.cpp sets too."""
        now = self._clock()
        return {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}

    def _strftime(self, form: object) -> str:
        """The current time in format `form`."""
        if not isinstance(form, str) or not _TIME_FORMAT.fullmatch(form):
            raise ValueError("strftime_now takes a short format, such as '%d %b %Y'")
        return self._clock().strftime(form)

    def _fault(self, fault: BaseException) -> BadTemplate:
        line = getattr(fault, "lineno", None) if isinstance(fault, TemplateSyntaxError) else _line(fault.__traceback__)
        place = f"the chat template, line {line}:" if line else "the chat template:"
        said = fault.message if isinstance(fault, TemplateSyntaxError) else str(fault)
        reason = printable(" ".join((said or "fails").split()), 300)
        kind = "" if isinstance(fault, TemplateError | Exceeded) else f"{type(fault).__name__}: "
        return BadTemplate(f"{place} {kind}{reason}; {_REMEDY}")


def _source(source: str) -> str:
    """The source of a built-in template, if a name is given."""
    if "{" in source:
        return source
    name = source.strip()
    if name not in BUILT_IN:
        raise BadTemplate(f"there is no built-in chat template {name[:40]!r}; known: {', '.join(BUILT_IN)}")
    return BUILT_IN[name].source


def _guess(metadata: Mapping[str, Any], tokens: Sequence[str]) -> str:
    """The name of the built-in template that fits a file without one."""
    if read_name(metadata, "model") == "rwkv":
        return "rwkv-g1" if _is_g1(metadata) else WORLD
    known = set(tokens)
    for name, built_in in BUILT_IN.items():
        if built_in.mark in known:
            return name
    raise BadTemplate(f"the file has no chat template ({KEY}); {_REMEDY}")


def _is_g1(metadata: Mapping[str, Any]) -> bool:
    """True if the file's name says that it is an RWKV-7 G1, such as "Rwkv7 G1j 2.9B"; no other key does."""
    if read_name(metadata, "model") != "rwkv":
        return False
    names = (metadata.get(f"general.{key}") for key in ("name", "basename", "finetune", "version"))
    return any(isinstance(name, str) and _G1.search(name) for name in names)


def _line(trace: TracebackType | None) -> int | None:
    """The line of the template that failed: the last frame generated by jinja2."""
    line = None
    while trace is not None:
        if "__jinja_exception__" in trace.tb_frame.f_globals:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
