"""Ollama's Modelfiles: a model with a system prompt, settings, a template, adapters and first messages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engine.sampling_params import MIROSTAT_TAU, SPANS
from ..errors import BadFile, BadInput, printable
from .completion import own_names

MOST = 1 << 20  # characters of a Modelfile
OPTIONS = {  # Ollama's names of settings, with ours
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p",
    "seed": "seed", "stop": "stop", "repeat_penalty": "repetition_penalty", "repeat_last_n": "penalty_last_n",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty", "num_predict": "max_tokens",
    "mirostat": "mirostat", "mirostat_tau": "mirostat_tau", "mirostat_eta": "mirostat_eta",
}  # fmt: skip
SWITCH = "mirostat"  # the prefix of the settings that it switches
WITHOUT_EFFECT = frozenset({
    "num_keep", "num_batch", "num_gpu", "num_thread", "main_gpu", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv",
    "logits_all", "vocab_only", "embedding_only", "penalize_newline", "tfs_z",
})  # fmt: skip
# Used by Ollama only: here, the model's own template renders prompts and parses answers.
IGNORED = ("REQUIRES", "RENDERER", "PARSER")
ROLES = ("system", "user", "assistant")
INSTRUCTION = re.compile(r"[ \t]*([A-Za-z]+)(?:[ \t]+|$)")


@dataclass(frozen=True)
class Modelfile:
    """The contents of a Modelfile."""

    base: str  # FROM: a model's name, or a path
    system: str | None = None
    template: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None  # tokens
    adapters: tuple[str, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()  # role and content
    license: str = ""
    ignored: tuple[str, ...] = ()  # parameters without effect here


def parse(text: str, where: str = "Modelfile") -> Modelfile:
    """Reads a Modelfile. Raises BadFile with the first line that is wrong."""
    if len(text) > MOST:
        raise BadFile(f"{where} has {len(text):,} characters; it may have {MOST:,}")
    found: dict[str, list[str]] = {}
    for number, name, value in _instructions(text, where):
        if name not in KNOWN:
            raise BadFile(
                f"{where}, line {number}: {printable(name, 40)!r} is not an instruction; known: {', '.join(KNOWN)}"
            )
        found.setdefault(name, []).append(value)
    if len(found.get("FROM", ())) != 1:
        raise BadFile(f"{where} has {len(found.get('FROM', ())) or 'no'} FROM lines; it must have one")
    pairs = [_pair(value, where) for value in found.get("PARAMETER", ())]
    settings, context, ignored = parameters(pairs)
    return Modelfile(
        found["FROM"][0], _last(found, "SYSTEM"), _last(found, "TEMPLATE"), settings, context,
        tuple(found.get("ADAPTER", ())), tuple(_message(value, where) for value in found.get("MESSAGE", ())),
        "\n\n".join(found.get("LICENSE", ())), (*ignored, *(name for name in IGNORED if name in found)),
    )  # fmt: skip


KNOWN = ("FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", *IGNORED)


def parameters(pairs: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], int | None, list[str]]:
    """Settings in our names, the context, and the names without effect. A parameter may be text or a number."""
    found: dict[str, Any] = {}
    context, ignored = None, []
    for name, value in pairs:
        if name in WITHOUT_EFFECT:
            ignored.append(name)
        elif name == "num_ctx":
            context = _number(name, value, whole=True)
        elif name not in OPTIONS and name not in SPANS:
            raise BadInput(f"no parameter {printable(name, 40)!r}; known: {', '.join(OPTIONS)}, num_ctx")
        elif name == "stop":
            found["stop"] = (*found.get("stop", ()), *_stops(value))
        else:
            ours = OPTIONS.get(name, name)
            found[ours] = _number(name, value, whole=name == SWITCH or SPANS[ours].whole)
    return own_names(_plain(found)), context, ignored


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Settings without the mirostat switch. If mirostat is off, as by default, its target and rate are left out."""
    switch = found.pop(SWITCH, 0)
    if switch not in (0, 1, 2):
        raise BadInput(f"mirostat is {switch}; it must be 0, or 2 (1 is taken as 2)")
    if switch:
        found.setdefault("mirostat_tau", MIROSTAT_TAU)
    else:
        found = {name: value for name, value in found.items() if not name.startswith(SWITCH)}
    if found.get("max_tokens") == -2:  # Ollama's number for as many tokens as fit in the context
        found["max_tokens"] = -1
    return found


def _stops(value: Any) -> list[str]:
    """The stop strings of one parameter: a text, or a list of texts."""
    texts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise BadInput(f"parameter stop is {printable(str(value), 40)}; it must be a string or a list of strings")
    return [*texts]


def _number(name: str, value: Any, *, whole: bool) -> Any:
    try:
        number = float(value)
        if isinstance(value, bool) or (whole and number != int(number)):
            raise ValueError
        return int(number) if whole else number
    except (TypeError, ValueError, OverflowError):
        kind = "whole number" if whole else "number"
        raise BadInput(f"parameter {name} is {printable(str(value), 40)}; it must be a {kind}") from None


def _pair(value: str, where: str) -> tuple[str, str]:
    name, _, rest = value.partition(" ")
    if not rest.strip():
        raise BadFile(f"{where}: PARAMETER {printable(name, 40)} has no value")
    return name.lower(), _unquoted(rest.strip())


def _message(value: str, where: str) -> tuple[str, str]:
    role, _, content = value.partition(" ")
    if role not in ROLES:
        raise BadFile(f"{where}: MESSAGE has the role {printable(role, 40)!r}; it must be system, user or assistant")
    return role, _unquoted(content.strip())


def _last(found: Mapping[str, list[str]], name: str) -> str | None:
    return found[name][-1] if name in found else None


def _instructions(text: str, where: str) -> Iterator[tuple[int, str, str]]:
    """Yields the line number, name and value of each instruction. A value in triple quotes may have several lines."""
    lines = text.replace("\r\n", "\n").lstrip("\ufeff").split("\n")
    at = 0
    while at < len(lines):
        line, number = lines[at], at + 1
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = INSTRUCTION.match(line)
        if found is None:
            raise BadFile(f"{where}, line {number}: {printable(line.strip(), 40)!r} is not an instruction")
        value = line[found.end() :]
        before, quotes, _ = value.partition('"""')
        if quotes and (not before.strip() or found[1].upper() in ("MESSAGE", "PARAMETER")):
            while value.count('"""') < 2:
                if at == len(lines):
                    raise BadFile(f"{where}, line {number}: a text in triple quotes is not closed")
                value += "\n" + lines[at]
                at += 1
            yield number, found[1].upper(), before + value.split('"""')[1]
        else:
            value = value.strip()
            yield number, found[1].upper(), value if found[1].upper() in ("PARAMETER", "MESSAGE") else _unquoted(value)


def _unquoted(text: str) -> str:
    """A text without quotes around it."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text
