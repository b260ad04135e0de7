"""Presets: a model under a name of its own, with a system prompt, settings, a template, adapters and first messages.

A preset is a small file in the folder of models. Its name can be used in place of a model's name.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BadFile, BadInput, BadTemplate, printable
from ..replace_file import replace_bytes
from ..text.builtin_templates import BUILT_IN
from ..text.go_template import as_jinja
from .completion import Settings, form, own_names, sampling
from .modelfile import OPTIONS, SWITCH, Modelfile
from .reasoning_options import ReasoningOptions

MAX_BYTES = 8 << 20
CLOSING, APOSTROPHE = re.compile(r'"(?="")|"\Z'), "'"  # quotes that end a text in triple quotes
KINDS: dict[str, tuple[type, ...]] = {
    "base": (str,), "system": (str, type(None)), "template": (str, type(None)), "settings": (dict,),
    "context": (int, type(None)), "adapters": (list,), "messages": (list,), "license": (str,),
}  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """The contents of a preset's file. `base` is the path of a GGUF file, `builtin`, or a name on the hub."""

    base: str
    system: str | None = None
    template: str | None = None  # jinja2 source, or the name of a built-in template
    settings: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None
    adapters: Sequence[tuple[str, float]] = ()  # paths of LoRA adapters, and their scales
    messages: Sequence[tuple[str, str]] = ()  # role and content of the messages with which every chat begins
    license: str = ""
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)  # not in the file: a server sets them

    def __post_init__(self) -> None:
        """Refuses invalid settings."""
        sampling(None, Settings(), self.settings)
        form(self.settings)
        if self.context is not None and self.context < 1:
            raise BadInput(f"the context is {self.context}; it must be a positive number of tokens")

    @classmethod
    def of(cls, file: Modelfile, base: "Preset", adapters: Sequence[tuple[str, float]] = ()) -> "Preset":
        """The preset of a Modelfile whose model is `base`. Values that the Modelfile leaves out come from the base."""
        template = None if file.template is None else template_source(file.template)
        own = cls("", file.system, template, file.settings, file.context, adapters, file.messages, file.license)
        return own.over(base)

    def over(self, other: "Preset") -> "Preset":
        """This preset, with those values of `other` that it leaves out."""
        return Preset(
            self.base or other.base,
            other.system if self.system is None else self.system,
            other.template if self.template is None else self.template,
            {**other.settings, **self.settings},
            self.context or other.context,
            (*other.adapters, *self.adapters),
            self.messages or other.messages,
            self.license or other.license,
            self.reasoning.over(other.reasoning),
        )

    def first_messages(self) -> list[dict[str, str]]:
        """The messages with which a chat begins, without the system prompt."""
        return [{"role": role, "content": content} for role, content in self.messages]

    def before(self, messages: Any) -> Any:
        """The messages of a request, after the preset's messages.

        The preset's system prompt is added if they have none.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            return messages  # later checks refuse them
        own = isinstance(messages[0], Mapping) and messages[0].get("role") in ("system", "developer")
        system = [messages[0]] if own else [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.first_messages(), *messages[own:]]

    def as_modelfile(self) -> str:
        """Returns the preset as the text of a Modelfile."""
        lines = [f"FROM {self.base}"]
        lines += [f"SYSTEM {_quoted(self.system)}"] if self.system is not None else []
        lines += [f"TEMPLATE {_quoted(self.template)}"] if self.template is not None else []
        lines += [f"ADAPTER {path}" if scale == 1 else f"ADAPTER {path}:{scale}" for path, scale in self.adapters]
        lines += [f"MESSAGE {role} {_quoted(content)}" for role, content in self.messages]
        return "\n".join((*lines, *(f"PARAMETER {line}" for line in self.parameter_lines()), ""))

    def parameter_lines(self) -> list[str]:
        """The settings, one per line, under Ollama's names, or ours if Ollama has none."""
        names = {ours: name for name, ours in OPTIONS.items()}
        lines = [f"{SWITCH} 2"] if "mirostat_tau" in self.settings else []
        for name, value in self.settings.items():
            texts = [_quoted(one) if isinstance(one, str) else one for one in (value if name == "stop" else [value])]
            lines += [f"{names.get(name, name)} {text}" for text in texts]
        return lines + ([] if self.context is None else [f"num_ctx {self.context}"])


def _quoted(text: str) -> str:
    """A text in quotes. Quotes inside that would end it become apostrophes, because a Modelfile cannot escape them."""
    line = f'"{text}"'
    if "\n" not in text and '"""' not in line:
        return line
    return f'"""{CLOSING.sub(APOSTROPHE, text)}"""'


def template_source(text: str) -> str:
    """A template in jinja2 or the name of a built-in one; a Go template is translated."""
    return text if "{%" in text or text in BUILT_IN else as_jinja(text)


def write_preset(path: Path, preset: Preset) -> None:
    """Writes a preset's file."""
    fields = {name: getattr(preset, name) for name in KINDS}
    replace_bytes(path, json.dumps(fields, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass"))


def read_preset(path: str | os.PathLike[str]) -> Preset:
    """Reads a preset's file. Raises BadFile with the reason if it is not a preset."""
    name = printable(os.fspath(path))
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        found = json.loads(data) if len(data) <= MAX_BYTES else None
        return _checked(found)
    except OSError as error:
        raise BadFile(f"{name}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, BadInput, BadTemplate) as error:
        why = str(error) if isinstance(error, BadInput) else "it is damaged"
        raise BadFile(f"{name}: is not a preset that can be used: {why}; create it again") from None


def _checked(found: Any) -> Preset:
    if not isinstance(found, dict) or found.keys() != KINDS.keys():
        raise ValueError("fields")
    if any(type(found[name]) not in kinds for name, kinds in KINDS.items()):
        raise ValueError("types")
    pairs = [(role, content) for role, content in found["messages"]]
    adapters = tuple((path, float(scale)) for path, scale in found["adapters"])
    if not all(isinstance(text, str) for pair in (*((path,) for path, _ in adapters), *pairs) for text in pair):
        raise ValueError("texts")
    settings = own_names(found["settings"])
    if isinstance(settings.get("stop"), list):
        settings["stop"] = tuple(settings["stop"])
    return replace(Preset(**{**found, "settings": settings, "messages": pairs}), adapters=adapters)
