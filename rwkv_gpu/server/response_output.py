"""The output of the Responses API: items of reasoning, text and calls, and the events that write them."""

import json
from dataclasses import dataclass, field
from typing import Any

from rwkv_gpu.llm.unique import unique

from .call import Json

Event = tuple[str, Json]  # event type without the common prefix, and data
REASONING, MESSAGE, CALL = "reasoning", "message", "function_call"


@dataclass
class Output:
    """Items, built from deltas of chat completions. A delta goes into the open item of its kind, or begins one."""

    items: list[Json] = field(default_factory=list)  # complete items
    _open: Json | None = None
    _text: str = ""  # text of the open item

    def feed(self, delta: Json) -> list[Event]:
        """The events for a delta."""
        events: list[Event] = []
        if delta.get("reasoning_content"):
            events += self._write(REASONING, delta["reasoning_content"])
        if delta.get("content"):
            events += self._write(MESSAGE, delta["content"])
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                events += self.close() + self._begin(CALL, call_id=call["id"], name=call["function"]["name"])
            else:
                events += self._write(CALL, call["function"]["arguments"])
        return events

    def close(self, status: str = "completed") -> list[Event]:
        """Ends the open item, if there is one."""
        item, text, place = self._open, self._text, self._place
        if item is None:
            return []
        item["status"] = status
        if item["type"] == CALL:
            item |= {"arguments": text, "status": "completed" if _is_json(text) else status}
            events = [("function_call_arguments.done", {**place, "name": item["name"], "arguments": text})]
        elif item["type"] == REASONING:
            item["content"] = [{"type": "reasoning_text", "text": text}]
            events = [("reasoning_text.done", {**place, "text": text})]
        else:
            item["content"] = [text_part(text)]
            events = [("output_text.done", {**place, "text": text, "logprobs": []})]
            events.append(("content_part.done", {**place, "part": text_part(text)}))
        events.append(("output_item.done", {"output_index": len(self.items), "item": item}))
        self.items.append(item)
        self._open, self._text = None, ""
        return events

    def end(self, status: str) -> list[Event]:
        """Ends the output. An answer without text or calls has an empty message."""
        begun = [] if any(one["type"] != REASONING for one in self.every) else self.close() + self._begin(MESSAGE)
        return begun + self.close(status)

    @property
    def every(self) -> list[Json]:
        """All items, including the open one."""
        return [*self.items, *([] if self._open is None else [self._open])]

    def _write(self, kind: str, text: str) -> list[Event]:
        begun = [] if self._open is not None and self._open["type"] == kind else self.close() + self._begin(kind)
        self._text += text
        name = {CALL: "function_call_arguments", REASONING: "reasoning_text", MESSAGE: "output_text"}[kind]
        more: Json = {"logprobs": []} if kind == MESSAGE else {}
        return [*begun, (f"{name}.delta", {**self._place, "delta": text, **more})]

    def _begin(self, kind: str, **more: Any) -> list[Event]:
        prefix, fields = _KINDS[kind]
        self._open = {"id": f"{prefix}_{unique()}", "type": kind, "status": "in_progress", **fields, **more}
        events: list[Event] = [("output_item.added", {"output_index": len(self.items), "item": {**self._open}})]
        if kind == MESSAGE:
            events.append(("content_part.added", {**self._place, "part": text_part("")}))
        return events

    @property
    def _place(self) -> Json:
        if self._open is None:
            return {}
        index = {} if self._open["type"] == CALL else {"content_index": 0}
        return {"item_id": self._open["id"], "output_index": len(self.items), **index}


# Prefix of an item's id, and its initial fields.
_KINDS: dict[str, tuple[str, Json]] = {
    REASONING: ("rs", {"summary": [], "content": []}),
    MESSAGE: ("msg", {"role": "assistant", "content": []}),
    CALL: ("fc", {"arguments": ""}),
}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def text_part(text: str) -> Json:
    """A text part of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
