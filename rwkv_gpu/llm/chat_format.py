"""A model's chat format: how messages become its prompt, where answers end, and which part is reasoning."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

from ..engine.cache.prefix_index import PLAIN, Salt, key_of, shared
from ..engine.request import Grammar, Request, check_length
from ..engine.sampling_params import SamplingParams
from ..errors import BadInput, BadTemplate
from ..text.base import Tokenizer
from ..text.budget import Limits
from ..text.conform import REASONING
from ..text.grammar import Form, Grammars
from ..text.grammar_pool import Pool
from ..text.messages import check_messages, joined, plain
from ..text.reasoning_budget import ReasoningBudget
from ..text.template import ChatTemplate
from ..text.thinking import Opened, marks_of, opened
from ..text.tool_calls import GENERIC, ToolForm, form_of
from .completion import Completion, check_ends
from .images import Image, Images, MediaInput, mark_of, marked, spans_of, without_marks
from .reader import Ends, Reader
from .reasoning_options import ReasoningOptions
from .tools import Tools, describe_tools
from .transcript import Transcript, as_bytes, as_text
from .validate import truth

CHANNEL = "<|channel|>"
# Template variables that turn reasoning on, and off. Some models always reason; for them, the second value only asks
# for less reasoning.
SWITCHES: dict[str, tuple[bool | int | str | None, bool | int | str]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),  # DeepSeek-V3.1, Granite 3
    "thinking_mode": ("enabled", "disabled"),  # MiniMax-M3
    "thinking_budget": (-1, 0),  # Seed-OSS
    "reasoning_effort": (None, "low"),  # gpt-oss
    "reasoning_strength": (None, "low"),  # Muse
}
# Template variables that callers cannot set
RESERVED = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "limits"}
TAIL = 64  # bytes at the end of a prompt, which show whether the prompt begins reasoning
SYSTEMS = 16  # remembered tokenised system messages
MIN_SHARED = 64  # minimum tokens of system messages for a separate prefill step


@dataclass(frozen=True)
class Message:
    """A chat message. `raw` is an answer exactly as generated, which later prompts repeat."""

    role: str
    content: str
    reasoning: str = ""
    raw: str | None = None
    images: tuple[Image, ...] = ()  # those whose marks are in the content, in order
    calls: tuple[dict[str, Any], ...] = ()  # calls of tools, in the form of OpenAI's API
    call: tuple[str, str] | None = None  # the id and the name of the call that this is the result of

    def as_dict(self) -> dict[str, str]:
        """The form for users of the library."""
        message = {"role": self.role, "content": without_marks(self.content) if self.images else self.content}
        return {**message, "reasoning": self.reasoning} if self.reasoning else message

    def for_template(self, *, sees: bool = True) -> dict[str, Any]:
        """The form for chat templates; without images for a model that sees none."""
        if self.calls:
            return {"role": self.role, "content": self.content, "tool_calls": [*self.calls]}
        if self.call is not None:
            return {"role": self.role, "content": self.content, "tool_call_id": self.call[0], "name": self.call[1]}
        if self.images and not sees:
            return {"role": self.role, "content": without_marks(self.content)}
        message = {"role": self.role, "content": self.content if self.raw is None else self.raw}
        return {**message, "images": self.images} if self.images else message

    def for_model(self, media_input: MediaInput | None) -> "Message":
        """The same message for another model: an answer without its marks, and images as that model sees them."""
        if media_input is None or not self.images:
            return replace(self, raw=None)
        images, content = tuple(map(media_input.again, self.images)), self.content
        for old, new in zip(self.images, images, strict=True):
            content = content.replace(mark_of(old), mark_of(new))
        return replace(self, content=content, raw=None, images=images)


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt made from messages."""

    transcript: Transcript
    message_tokens: int  # tokens of the messages; the tokens after them open the answer
    opened: Opened  # the reasoning that the prompt has begun
    repeats: bool = True  # whether later prompts repeat an answer with its marks, which some templates refuse
    system_tokens: int = 0  # tokens of the system messages, if there are other messages
    begun: str = ""  # beginning of the answer, if it continues the last message
    images: Images = field(default_factory=dict)  # images of the messages
    salt: Salt = PLAIN

    def answer(self, tokenizer: Tokenizer, completion: Completion, stopped: str | None) -> tuple[Message, Transcript]:
        """The assistant message made from a completion, and the transcript extended by it."""
        generated = as_text(b"".join(tokenizer.piece(token, special=True) for token in completion.tokens))
        if stopped is not None and stopped in generated:
            generated = generated[: generated.rindex(stopped)]
        raw = self.opened.text + generated
        message = Message("assistant", completion.text.strip(), completion.reasoning, raw if self.repeats else None)
        return message, self.transcript.append(tokenizer, completion.tokens)


class ChatFormat:
    """A chat template together with a tokenizer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        vocabulary: int,
        *,
        context: int | None = None,
        pool: Pool | None = None,
        media_input: MediaInput | None = None,
    ) -> None:
        self.media_input = media_input  # None: the model sees no images
        self._vocabulary = vocabulary
        self._context = context  # maximum tokens of a sequence; None is unlimited
        self._pool = pool  # helper processes for grammars
        self.tokenizer = tokenizer
        self.template = template
        harmony = len(tokenizer.encode(CHANNEL, parse=True)) == 1  # independent of the template
        self.marks = marks_of(template.source + CHANNEL * harmony)  # of reasoning
        around = [tokenizer.encode(mark, parse=True) for mark in self.marks.around]
        self._around = frozenset(ids[0] for ids in around if len(ids) == 1)
        end, between = template.end_of_turn(), template.next_turn().rstrip()
        # If a turn has no end mark, as in GLM, the mark of the next turn ends it, if it is a special token.
        marks = tokenizer.encode(end or between, parse=True)
        special = [token for token in (marks if end else marks[:1]) if not tokenizer.piece(token)]
        # The first token of an end mark such as <|im_end|>\n, except brackets of several parts.
        self.stop_ids = frozenset([token for token in special if special.count(token) == 1][:1])
        self.ends = () if special or not end else (end.rstrip() or end,)
        self._system_ids = lru_cache(SYSTEMS)(partial(_system_ids, template, tokenizer))  # shared by many chats
        self.reasoning_ends = (between,) if between and not special else ()

    def prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        known: Iterable[Transcript] = (),
        think: bool | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        continues: bool = False,
        opens: bool = True,
        tools: Tools | None = None,
        limits: Limits | None = None,
        salt: int = 0,
        bounded: bool = True,
    ) -> ChatPrompt:
        """Returns the prompt for these messages.

        Reuses the ids of the `known` transcript with the longest common prefix.

        `think` turns reasoning on (True) or off (False); `variables` are other template variables. With `continues`,
        the last message is the beginning of the answer. Without `opens`, the prompt ends with the last message.
        `tools` are what the model may call. Raises `Exceeded` if the template takes more than `limits`.
        System messages are remembered for prompts with the same `salt`. If `bounded`, a prompt that does not fit the
        context is refused.
        """
        messages, images = marked(messages, self.media_input)
        messages = check_messages(messages)
        for message in messages:  # before a template and a tokenizer read it
            if bounded and isinstance(text := message.get("content"), str):
                check_length(self.tokenizer.fewest_tokens(text), self._context, least=True)
        if tools is not None and not self.template.knows_tools:
            messages, tools = describe_tools(messages, tools), None
        given = None if tools is None else tools.given
        chosen = self._variables(think, variables or {})
        if continues:
            pieces, begun = self._continued(messages, given, limits, chosen)
        else:
            pieces, begun = self._opened(messages, given, limits, chosen), ""
            pieces = pieces if opens else pieces[:1]
        whole = "".join(pieces)
        if opens and bounded:
            check_length(self.tokenizer.fewest_tokens(whole), self._context, least=True)
        text = as_bytes(whole)
        nearest = max(known, key=lambda transcript: transcript.common(text).nbytes, default=Transcript())
        tokenizer = self.tokenizer if self.media_input is None else self.media_input.tokenizer(self.tokenizer, images)
        transcript = nearest.prompt(tokenizer, pieces)
        message_tokens = transcript.common(as_bytes(pieces[0])).ids
        system_tokens = self._system_tokens(messages, transcript, [given, chosen, salt], limits)
        state = opened(whole.removesuffix(begun), self.marks.opening, self.marks.closing)
        repeats = not self.marks.channels
        return ChatPrompt(transcript, message_tokens, state, repeats, system_tokens, begun, images)

    def _end_of_reasoning(self, prompt: str) -> str:
        """The text that ends the reasoning of a prompt, so that the answer follows."""
        state = opened(prompt, self.marks.opening, self.marks.closing)
        if state.closed:
            return f"{state.due}\n\n" if state.due else ""
        return f"{state.due}\n{self.marks.closing}\n\n" if state.text else ""

    def _variables(self, think: bool | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The template variables: the caller's, and those that switch reasoning.

        It is on by default, as in llama.cpp; built-in templates have defaults of their own.
        """
        variables = {**given}
        for name in RESERVED & variables.keys():
            raise BadInput(f"chat_template_kwargs has {name}, which callers cannot set; leave it out")
        if truth("think", think) is None:
            return variables if self.template.built_in else {"enable_thinking": True, **variables}
        for name, (on, off) in SWITCHES.items():
            value = on if think else off
            if value is not None and name in self.template.source:
                variables.setdefault(name, value)
        return variables

    def _opened(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, Any]] | None,
        limits: Limits | None,
        variables: Mapping[str, Any],
    ) -> list[str]:
        """The prompt in two pieces: the messages, and the opening of the answer.

        A single piece if they cannot be separated.
        """
        whole, before = self.template.prompt(messages, tools=tools, limits=limits, **variables)
        return [before, whole[len(before) :]] if whole.startswith(before) else [whole]

    def _continued(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, Any]] | None,
        limits: Limits | None,
        variables: Mapping[str, Any],
    ) -> tuple[list[str], str]:
        """The prompt in pieces, the last of which is the text that the answer continues; and that text."""
        begun = _beginning(messages)
        before = self.template.unfinished(messages, tools=tools, limits=limits, **variables)
        if before is not None:
            return [before, begun], begun
        if self.marks.channels:
            raise BadInput("this template shows no text that an answer could continue; ask for a new answer")
        pieces = self._opened(messages[:-1], tools, limits, variables)
        return [*pieces, self._end_of_reasoning("".join(pieces)) + begun], begun

    def _system_tokens(
        self,
        messages: Sequence[Mapping[str, object]],
        transcript: Transcript,
        given: Sequence[object],
        limits: Limits | None,
    ) -> int:
        """Tokens of the system messages, which other chats may share; 0 if they are few or cannot be rendered alone."""
        first = list(itertools.takewhile(lambda message: message.get("role") == "system", messages))
        if not first or len(first) == len(messages):
            return 0
        alone = self._system_ids(json.dumps(plain([first, *given], "the messages")), limits)
        count = shared(key_of(alone), key_of(transcript.ids))
        return count if count >= MIN_SHARED else 0

    @cached_property
    def can_think(self) -> bool:
        """True if the template can switch reasoning on and off."""
        question = [{"role": "user", "content": "a-question"}]
        try:
            on, off = (self.prompt(question, think=think).transcript.text for think in (True, False))
        except (BadInput, BadTemplate):
            return False
        return on != off

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles constraints of an answer: schemas, regular expressions and grammars."""
        return Grammars(self.tokenizer, self._vocabulary, self.stop_ids, self._pool)

    def request(
        self,
        prompt: ChatPrompt,
        params: SamplingParams,
        form: Form | None = None,
        *,
        after: str | None = "",
        wait: bool = True,
    ) -> Request:
        """Returns the request to the engine.

        A form (schema, regex or grammar) constrains the answer, not its reasoning.

        With `after`, the form applies only after that text, if the answer contains it. If `after` is None, the form
        also applies to the reasoning. If the answer continues the last message, the form applies from its beginning.
        `wait` waits until the form is compiled, so that a wrong one is refused at once.
        """
        check_ends(params, form)
        grammar: Grammar | None = None
        optional = bool(after)
        ends = self.stop_ids | self.tokenizer.stop_ids
        if form is not None:
            state = prompt.opened
            thinks = (state.text and not state.closed) or self.marks.channels
            if after == "" and (thinks or prompt.begun.startswith(self.marks.opening)):
                after = self.marks.answer
            elif after == "" and state.closed and not prompt.begun:
                after = state.due
            left = budget(params, len(prompt.transcript.ids), self._context)
            constraint = self.grammars.grammar(
                form, after=after or "", optional=optional, begun=prompt.begun, budget=left, wait=wait,
                salt=prompt.salt.number,
            )  # fmt: skip
            grammar, ends = constraint, ends | constraint.stop_ids
        chosen = params.ending_at(ends, self.tokenizer.suppressed)
        ids, marks = prompt.transcript.ids, (prompt.system_tokens, prompt.message_tokens)
        images = spans_of(ids, prompt.images)
        return Request(ids, chosen, grammar, keep=True, images=images, marks=marks, salt=prompt.salt)

    def limited(
        self, request: Request, prompt: ChatPrompt, options: ReasoningOptions, after: str | None = ""
    ) -> Request:
        """Returns the request with a limit on its reasoning. A form that includes the reasoning ends it instead."""
        marks, begun = self.marks, prompt.opened
        reasons = marks.channels or (begun.text and not begun.closed) or marks.closing in self.template.source
        if options.limit is None or after is None or not reasons:
            return request
        limit = ReasoningBudget(
            self.tokenizer, marks, options.limit, options.message or "", -(-self._vocabulary // 32),
            inner=request.grammar, opened=begun, last=request.ids[-1],
        )  # fmt: skip
        return replace(request, grammar=limit)

    def reader(
        self, prompt: ChatPrompt, params: SamplingParams, form: Form | None = None, *, tools: bool = False
    ) -> Reader:
        """Returns the reader of the answer.

        A form (schema, regex or grammar) has its own end, so text that usually ends a turn does not end the answer.
        """
        texts = () if form or params.ignore_eos else self.ends
        ends = Ends((*params.stop, *texts), (*params.stop, *self.reasoning_ends))
        text = prompt.transcript.text.removesuffix(as_bytes(prompt.begun))
        thinking = self.marks.splitter(as_text(text[-TAIL:]), tools=tools)
        never = closing(self.tokenizer, form)
        control = self.marks.control or (tools and self.tool_form.control)
        if control:  # then the tokens that end an answer also have visible text
            never |= self.stop_ids | self.tokenizer.stop_ids
        goes_on = bool(prompt.begun)
        more: Any = {"hidden": self._around, "goes_on": goes_on, "schema": None if form is None else form.model}
        return Reader(self.tokenizer, ends, thinking, never, control=control, **more)

    @cached_property
    def tool_form(self) -> ToolForm:
        """The syntax of this model's tool calls."""
        return form_of(self.template.source + CHANNEL * self.marks.channels) if self.template.knows_tools else GENERIC


def _system_ids(template: ChatTemplate, tokenizer: Tokenizer, described: str, limits: Limits | None) -> tuple[int, ...]:
    """Tokens of the system messages, given as JSON; none if they cannot be rendered alone."""
    messages, tools, variables, _ = json.loads(described)
    try:
        text = template.render(messages, add_generation_prompt=False, tools=tools, limits=limits, **variables)
    except (BadInput, BadTemplate):
        return ()
    return tuple(tokenizer.encode(as_bytes(text), parse=True))


def _beginning(messages: Sequence[Mapping[str, object]]) -> str:
    """The text of the last message, which the answer continues: its content, or else its reasoning."""
    last = messages[-1] if messages else {}
    text = joined(last.get("content")) or next((str(last[name]) for name in REASONING if last.get(name)), "")
    if last.get("role") != "assistant" or last.get("tool_calls") or not text or len(messages) < 2:
        raise BadInput("continue_final_message is true, so the last message must be the assistant's, after a question")
    return text


def closing(tokenizer: Tokenizer, form: Form | None) -> frozenset[int]:
    """Tokens that end an answer with a form, and that add no text to the answer."""
    return frozenset({tokenizer.eot} if form is not None and tokenizer.eot is not None else ())


def budget(params: SamplingParams, prompt: int, context: int | None) -> int:
    """Maximum tokens of an answer to a prompt of `prompt` tokens."""
    return params.max_tokens if context is None else min(params.max_tokens, context - prompt)
