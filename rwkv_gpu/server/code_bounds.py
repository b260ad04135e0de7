"""Bounds of code completions, as in llama-server: their time, and the indentation of their lines."""

import time
from dataclasses import dataclass, field, replace

from rwkv_gpu.llm.completion import Event

from .answers import Answer
from .call import Json
from .errors import ApiError, shown


@dataclass
class Written:
    """What an answer has written so far."""

    began: float = field(default_factory=time.monotonic)  # time of its first token
    length: int = 0  # characters
    indent: int | None = None  # spaces and tabs at the beginning of the current line; None after another character


@dataclass
class Bounds:
    """Ends an answer at a line break after some time, and before a line with too little indentation."""

    seconds: float  # from the first token; 0 is no limit
    indent: int  # spaces and tabs; 0 is no limit
    kept: dict[int, int] = field(default_factory=dict)  # characters of answers that were cut, by their index
    _written: dict[int, Written] = field(default_factory=dict)

    @classmethod
    def take(cls, fields: Json) -> "Bounds":
        """Takes the bounds out of the fields of a request; -1 and 0 are no bound."""
        found = {}
        for name in ("t_max_predict_ms", "n_indent"):
            value = found[name] = fields.pop(name, 0)
            if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 31:
                raise ApiError(400, f"{name} is {shown(value)}; it must be a whole number", param=name)
        return cls(max(0, found["t_max_predict_ms"]) / 1000, max(0, found["n_indent"]))

    def apply(self, index: int, answer: Answer, event: Event) -> Event:
        """Closes the answer if the event reaches a bound. Returns the event without text beyond it."""
        written = self._written.setdefault(index, Written())
        late = self.seconds and "\n" in event.text and time.monotonic() - written.began > self.seconds
        most = self._most(written, event.text)
        if late or most < len(event.text):
            answer.close()
            self.kept.setdefault(index, written.length + most)
        written.length += len(event.text)
        return replace(event, text=event.text[:most])

    def _most(self, written: Written, text: str) -> int:
        """The number of characters before a line with too little indentation."""
        for at, char in enumerate(text):
            if written.indent is not None and char in " \t":
                written.indent += 1
            elif written.indent is not None and written.indent < self.indent:
                return at
            else:
                written.indent = 0 if char == "\n" else None
        return len(text)
