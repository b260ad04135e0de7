"""What a chat template can render, found by rendering short conversations with it.

Templates disagree about details of messages: whether there is a system role, whether arguments of tool calls are
objects or JSON text, whether content is text or a list of parts.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from rwkv_gpu.text.messages import ROLES

Message = dict[str, Any]
# Renders messages and tools exactly as given. None if the template fails or refuses them.
Probe = Callable[[Sequence[Message], "Sequence[Message] | None"], str | None]
LONG_ID, SHORT_ID = "call_0123456789abcdef01234567", "abcdef012"
QUESTION: Message = {"role": "user", "content": "a-question"}
FULL: Message = {
    "name": "a-tool",
    "description": "a-purpose",
    "parameters": {
        "type": "object",
        "properties": {"a-name": {"type": "string", "description": "a-meaning"}},
        "required": ["a-name"],
    },
}
BARE: Sequence[Message] = [
    {"name": "a-tool"},
    {"name": "a-tool", "parameters": {"properties": {"a-name": {"type": "string"}}}},
]
RAW_PART = re.compile(r"""["']type["']: ?["'](text|thinking)["']""")  # a part that is printed as it is


class Capabilities:
    """The abilities of a template. Each is probed at its first use."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._parts: dict[str, bool] = {}

    def learn(self) -> None:
        """Runs all probes."""
        for name, value in vars(Capabilities).items():
            if isinstance(value, cached_property):
                getattr(self, name)
        for role in ROLES:
            self.takes_parts(role)

    @cached_property
    def absent_tools(self) -> list[Message] | None:
        """The value of `tools` if there are none: None, or an empty list for templates that loop over it."""
        return [] if self._probe([QUESTION], None) is None and self._probe([QUESTION], []) is not None else None

    @cached_property
    def only_parts(self) -> bool:
        """True if content must be a list of parts."""
        typed = {"role": "user", "content": parts("a-question")}
        return not self._shows([QUESTION], "a-question") and self._shows([typed], "a-question")

    def takes_parts(self, role: str) -> bool:
        """True if content of this role may be a list of text parts."""
        if role not in self._parts:
            content = [*parts("first-part"), *parts("second-part")]
            before = {"system": [], "user": [], "assistant": [QUESTION], "tool": self._calls()}.get(role, [])
            after = [QUESTION] if role in ("system", "assistant") else []
            last = {"role": role, "content": content, **({"tool_call_id": LONG_ID} if role == "tool" else {})}
            tools = self._tools(FULL) if role == "tool" else self.absent_tools
            text = self._probe([*before, last, *after], tools) or ""
            shown = "first-part" in text and "second-part" in text
            self._parts[role] = shown and RAW_PART.search(text) is None
        return self._parts[role]

    @cached_property
    def thinking_parts(self) -> bool:
        """True if reasoning in the history is shown only as a part of content."""
        answer = {"role": "assistant", "content": "an-answer", "reasoning_content": "a-thought"}
        typed = {"role": "assistant", "content": [{"type": "thinking", "thinking": "a-thought"}, *parts("an-answer")]}
        if self._shows([QUESTION, answer, QUESTION], "a-thought"):
            return False
        text = self._probe([QUESTION, typed, QUESTION], self.absent_tools) or ""
        return "a-thought" in text and "an-answer" in text and RAW_PART.search(text) is None

    @cached_property
    def system(self) -> bool:
        """False if a system message is refused or left out, while a question is shown."""
        messages = self._after("a-system")
        return self._shows(messages, "a-system") or not self._shows(messages[1:], "a-question")

    @cached_property
    def two_systems(self) -> bool:
        """False if the template leaves out one of two system messages at the start, or refuses them."""
        messages = self._after("a-system", "a-second")
        return all(self._shows(messages, text) for text in ("a-system", "a-second"))

    def _after(self, *systems: str) -> list[Message]:
        """A question after system messages."""
        messages = [*({"role": "system", "content": text} for text in systems), QUESTION]
        return [{**one, "content": parts(one["content"])} for one in messages] if self.only_parts else messages

    @cached_property
    def short_ids(self) -> bool:
        """True if ids of tool calls must have nine letters or digits."""
        return not self._calls_shown(LONG_ID) and self._calls_shown(SHORT_ID)

    @cached_property
    def object_arguments(self) -> bool:
        """True if arguments of tool calls are objects, False if they are JSON text."""
        call_id = SHORT_ID if self.short_ids else LONG_ID
        objects, text = (self._rendered_calls(call_id, objects=form) or "" for form in (True, False))
        if "a-value" in objects and "'a-key'" not in objects:
            return True
        return "a-value" not in text

    @cached_property
    def thinks_or_answers(self) -> bool:
        """True if a message with tool calls may have reasoning or content, but not both."""
        call, result = self._calls()[1:]
        thought = {"thinking": "a-thought", "reasoning_content": "a-thought"}
        tools = self._tools(FULL)
        both = self._probe([QUESTION, {**call, **thought, "content": "an-answer"}, result], tools)
        return both is None and self._probe([QUESTION, {**call, **thought}, result], tools) is not None

    @cached_property
    def described_tools(self) -> bool:
        """True if tools need a description, parameters, and a description of each."""
        return any(self._probe([QUESTION], self._tools(function)) is None for function in BARE)

    def _shows(self, messages: Sequence[Message], text: str) -> bool:
        return text in (self._probe(messages, self.absent_tools) or "")

    def _calls_shown(self, call_id: str) -> bool:
        return any(self._rendered_calls(call_id, objects=form) for form in (True, False))

    def _rendered_calls(self, call_id: str, *, objects: bool) -> str | None:
        return self._probe(self._calls(call_id, objects=objects), self._tools(FULL))

    def _calls(self, call_id: str | None = None, *, objects: bool | None = None) -> list[Message]:
        """A question, a call, and its result."""
        call_id = call_id or (SHORT_ID if self.short_ids else LONG_ID)
        arguments: object = {"a-key": "a-value"}
        if not (self.object_arguments if objects is None else objects):
            arguments = json.dumps(arguments)
        call = {"id": call_id, "type": "function", "function": {"name": "a-tool", "arguments": arguments}}
        return [
            QUESTION,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "name": "a-tool", "content": "a-result"},
        ]

    @staticmethod
    def _tools(function: Message) -> list[Message]:
        return [{"type": "function", "function": function}]


def parts(text: str) -> list[Message]:
    """Content as a list of one text part."""
    return [{"type": "text", "text": text}]
