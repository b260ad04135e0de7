"""The syntaxes of tool calls by model family, and their parsing from a stream of text.

A form is recognised by a string in the chat template. A model without one gets instructions for the generic form.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rwkv_gpu.text.thinking import CALLED, TOOL, begun
from rwkv_gpu.text.tool_values import (
    DECODER,
    NAMESPACE,
    gemma_prefix,
    gemma_values,
    minimax_elements,
    python_calls,
    typed,
)

Schemas = Mapping[str, Mapping[str, Any]]  # parameter schemas of each tool, by name


@dataclass(frozen=True)
class Call:
    """A call as the model wrote it; `arguments` are JSON if the model wrote JSON."""

    name: str
    arguments: str


Piece = str | Call  # text of the answer, or a call


@dataclass(frozen=True)
class ToolForm:
    """The call syntax of a family."""

    name: str
    opening: tuple[str, ...]  # start of one or several calls; the earliest match
    closing: str  # end of the calls; empty if they end with the answer
    read: Callable[[str, Schemas], list[Call]]  # parses the text between them; empty for other content
    control: bool = False  # whether its marks are control tokens, which decoding hides
    bare: bool = False  # whether an answer that begins with a brace is a call without marks
    ends: str = ""  # text that ends each call, if a part of a call can be parsed as well


def read_json(text: str, schemas: Schemas) -> list[Call]:  # noqa: ARG001
    """{"name": ..., "arguments": {...}}, one or several, or a list of them; also with "parameters" for "arguments"."""
    found = []
    for value in _values(text):
        for one in value if isinstance(value, list) else [value]:
            call = _as_call(one)
            if call is None:
                return []
            found.append(call)
    return found


def read_tagged(text: str, schemas: Schemas) -> list[Call]:
    """<function=NAME> with <parameter=KEY> elements, as in Qwen3-Coder."""
    head = re.match(r"\s*<function=([^>\n]+)>(.*?)(?:</function>\s*)?$", text, re.DOTALL)
    if head is None:
        return read_json(text, schemas)
    pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", head[2], re.DOTALL)
    return [_typed(head[1].strip(), pairs, schemas)]


def read_pairs(text: str, schemas: Schemas) -> list[Call]:
    """NAME, then <arg_key> and <arg_value> elements, as in GLM."""
    if text.lstrip().startswith("{"):
        return read_json(text, schemas)
    name = text.partition("<arg_key>")[0].strip()
    pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|$)", text, re.DOTALL)
    return [_typed(name, pairs, schemas)] if name else []


def read_mistral(text: str, schemas: Schemas) -> list[Call]:
    """A list of calls in JSON, or NAME[ARGS]{...}; further calls may repeat the opening mark."""
    if text.lstrip().startswith("["):
        return read_json(text, schemas)
    found = []
    for part in text.split("[TOOL_CALLS]"):
        name, _, rest = part.partition("{")
        name = re.split(r"\[(?:CALL_ID|ARGS)\]", name)[0].strip()
        values = _values("{" + rest)
        if re.fullmatch(r"[\w.-]+", name) and values:
            found.append(Call(name, _dumped(values[0])))
    return found


def read_deepseek(text: str, schemas: Schemas) -> list[Call]:  # noqa: ARG001
    """Calls between their own marks: an optional kind, the name, the arguments, fenced or plain."""
    found = []
    for part in re.split("<｜tool▁call▁begin｜>", text)[1:]:
        body = part.partition("<｜tool▁call▁end｜>")[0]
        first, _, rest = body.partition("<｜tool▁sep｜>")
        name, _, fenced = rest.partition("\n") if "```" in rest else (first, "", rest)
        values = _values(fenced.replace("```json", "").replace("```", ""))
        if name.strip() and values:
            found.append(Call(name.strip(), _dumped(values[0])))
    return found


def read_harmony(text: str, schemas: Schemas) -> list[Call]:  # noqa: ARG001
    """A message to a function in OpenAI's Harmony format: the rest of the header, then the arguments."""
    header, _, body = text.partition("<|message|>")
    name = re.match(r"(?:functions\.)?([^\s<]+)", header)
    values = _values(body)
    return [Call(name[1], _dumped(values[0]) if values else body.strip())] if name else []


def read_invokes(text: str, schemas: Schemas) -> list[Call]:
    """<invoke name="NAME"> with <parameter name="KEY"> elements, as in MiniMax; other families add a prefix."""
    found = []
    for name, body in re.findall(r'<[^<>"]*invoke name="([^"<>]+)">(.*?)</[^<>"]*invoke>', text, re.DOTALL):
        pairs = re.findall(r'<[^<>"]*parameter name="([^"<>]+)"[^<>]*>(.*?)</[^<>"]*parameter>', body, re.DOTALL)
        found.append(_typed(name, pairs, schemas))
    return found


def read_elements(text: str, schemas: Schemas) -> list[Call]:
    """<invoke name="NAME"> with <KEY> elements, which may hold further ones, as in MiniMax-M3."""
    found = []
    for one in minimax_elements(text):
        name = re.fullmatch(r'invoke name="([^"<>]+)"', one.mark)
        if name:
            schema = {"type": "object", **schemas.get(name[1], {})}
            found.append(Call(name[1], _dumped(one.value(schema) if one.inside else {})))
    return found


def read_python(text: str, schemas: Schemas) -> list[Call]:
    """[NAME(KEY='VALUE', ...), ...], as in LFM2; or JSON."""
    return [Call(name, _dumped(values)) for name, values in python_calls(text)] or read_json(text, schemas)


def read_gemma(text: str, schemas: Schemas) -> list[Call]:  # noqa: ARG001
    """call:NAME{KEY:VALUE, ...}, as in Gemma 4."""
    head = re.match(r"\s*call:([^\s{]+)\s*(\{.*\})\s*$", text, re.DOTALL)
    values = gemma_values(head[2]) if head else None
    return [Call(head[1], _dumped(values))] if head and values is not None else []


def read_kimi(text: str, schemas: Schemas) -> list[Call]:  # noqa: ARG001
    """Calls between their own marks: functions.NAME:NUMBER, a mark, and the arguments."""
    found = []
    for part in text.split("<|tool_call_begin|>")[1:]:
        head, _, rest = part.partition("<|tool_call_argument_begin|>")
        name = re.match(r"\s*(?:functions\.)?([^\s:<]+)", head)
        values = _values(rest.partition("<|tool_call_end|>")[0])
        if name and values:
            found.append(Call(name[1], _dumped(values[0])))
    return found


JSON_FORM = ToolForm("hermes", ("<tool_call>",), "</tool_call>", read_json)
DEEPSEEK = ToolForm("deepseek", ("<｜tool▁calls▁begin｜>",), "<｜tool▁calls▁end｜>", read_deepseek)
KIMI = ToolForm("kimi", ("<|tool_calls_section_begin|>",), "<|tool_calls_section_end|>", read_kimi, control=True)
LFM2 = ToolForm("lfm2", ("<|tool_call_start|>",), "<|tool_call_end|>", read_python, control=True)
FENCE = "```json"
FUNCTION = "</function>"
LLAMA = ToolForm("llama3", ("<|python_tag|>",), "", read_json, control=True, bare=True)
# By a string in the template; the first match is used.
FORMS: Sequence[tuple[str, ToolForm]] = (
    ("<|tool_call>", ToolForm("gemma4", ("<|tool_call>",), "<tool_call|>", read_gemma, control=True)),
    ("<|tool_calls_section_begin|>", KIMI),
    (NAMESPACE, ToolForm("minimax-m3", (f"{NAMESPACE}<tool_call>",), f"{NAMESPACE}</tool_call>", read_elements, True)),
    ("<minimax:tool_call>", ToolForm("minimax", ("<minimax:tool_call>",), "</minimax:tool_call>", read_invokes)),
    ("<atem:function_calls>", ToolForm("muse", ("<atem:function_calls>",), "</atem:function_calls>", read_invokes)),
    ("｜DSML｜", ToolForm("dsml", ("<｜DSML｜function_calls>",), "</｜DSML｜function_calls>", read_invokes)),
    ("<|START_ACTION|>", ToolForm("cohere", ("<|START_ACTION|>",), "<|END_ACTION|>", read_json, control=True)),
    ("<|tool_call_start|>", LFM2),
    ("<|tool_list_start|>", LFM2),
    ('<tool_calls>\\n{"name"', ToolForm("minimax-m1", ("<tool_calls>",), "</tool_calls>", read_json)),
    ("<tool_calls>", ToolForm("jamba", ("<tool_calls>",), "</tool_calls>", read_json)),
    ("<TOOLCALL>", ToolForm("nemotron", ("<TOOLCALL>",), "</TOOLCALL>", read_json)),
    ("<|tool_call|>", ToolForm("granite", ("<|tool_call|>",), "", read_json, control=True)),
    ("<|function_call|>", ToolForm("gigachat", ("<|function_call|>",), "", read_json, control=True)),
    ("<|channel|>", ToolForm("harmony", (TOOL,), CALLED, read_harmony, ends=CALLED)),
    ("<arg_key>", ToolForm("glm", ("<tool_call>",), "</tool_call>", read_pairs, ends="</tool_call>")),
    ("<seed:tool_call>", ToolForm("seed", ("<seed:tool_call>",), "</seed:tool_call>", read_tagged, ends=FUNCTION)),
    ("<function=", ToolForm("qwen3-coder", ("<tool_call>", "<function="), "</tool_call>", read_tagged, ends=FUNCTION)),
    ("<tool_call>", JSON_FORM),
    ("[TOOL_CALLS]", ToolForm("mistral", ("[TOOL_CALLS]",), "", read_mistral, control=True)),
    ("<｜tool▁calls▁begin｜>", DEEPSEEK),
    ("<|python_tag|>", LLAMA),
    ('Respond in the format {"name"', LLAMA),
    ("Return only a JSON function call.", ToolForm("rwkv", (FENCE,), "```", read_json)),
)
GENERIC = ToolForm("generic", ("<tool_call>",), "</tool_call>", read_json)


def form_of(template: str) -> ToolForm:
    """The form that a chat template uses; the generic one if it has no tools."""
    return next((form for mark, form in FORMS if mark in template), GENERIC)


class ToolParser:
    """Separates calls from text while an answer arrives. A possible beginning of a mark is withheld."""

    def __init__(self, form: ToolForm, schemas: Schemas) -> None:
        self._form, self._schemas = form, schemas
        self._held = ""
        self._inside: str | None = None  # the opening mark of the current call
        self._begun = False  # whether anything but white space was seen
        self._space = ""  # white space before the current call, which belongs to the text if it is not a call

    def feed(self, text: str) -> list[Piece]:
        """Returns the text and calls that are certain now."""
        self._held += text
        return [piece for piece in self._split() if piece != ""]

    def flush(self, *, cut: bool = False) -> list[Piece]:
        """Returns the withheld rest at the end of the answer.

        An unfinished call is text, or, in an answer that was `cut` by its length, a call with incomplete arguments.
        """
        pieces = [*self._split(), *self._rest(cut=cut)]
        self._held, self._inside = "", None
        return [piece for piece in pieces if piece != ""]

    def _rest(self, *, cut: bool) -> list[Piece]:
        if self._inside is None:
            mark = max(begun(self._held, mark) for mark in self._form.opening) if cut else 0
            return [self._held[: len(self._held) - mark].rstrip()]
        body = self._held if self._inside != "<function=" else self._inside + self._held
        if not cut:
            return self._read(body, self._inside) or [self._space + self._inside + self._held]
        body = body[: len(body) - begun(body, self._form.closing)]
        whole = self._form.read(body, self._schemas) if self._form.ends in body else []
        known = [call for call in cut_calls(body, whole, self._schemas) if call.name in self._schemas]
        return [*known] if known or self._inside else [self._space + self._held]

    def _split(self) -> Iterator[Piece]:
        while True:
            if self._inside is None:
                yield from self._before()
                if self._inside is None:
                    return
            if not self._form.closing or self._form.closing not in self._held:
                return
            body, _, after = self._held.partition(self._form.closing)
            mark, self._inside = self._inside, None
            calls = self._read(body if mark != "<function=" else mark + body, mark)
            self._held = after.lstrip() if calls else after
            yield from calls or [self._space + mark + body + self._form.closing]

    def _before(self) -> Iterator[Piece]:
        """Yields the text before the next call, and enters the call."""
        text = self._held
        if self._form.bare and not self._begun and text.lstrip().startswith("{"):
            self._inside, self._held, self._space = "", text, ""
            return
        starts = [(text.find(mark), mark) for mark in self._form.opening if mark in text]
        if starts:
            at, self._inside = min(starts)
            self._held, before = text[at + len(self._inside) :], text[:at].rstrip()
            self._space = text[len(before) : at]
            yield before
            return
        keep = max(begun(text, mark) for mark in self._form.opening)
        shown = text[: len(text) - keep].rstrip()
        self._held = text[len(shown) :]
        self._begun = self._begun or bool(shown)
        yield shown

    def _read(self, body: str, mark: str) -> list[Piece]:
        calls = self._form.read(body, self._schemas)
        unmarked = mark in ("", FENCE)  # JSON that may be part of the answer
        known = all(call.name in self._schemas for call in calls) if unmarked else True
        return [*calls] if known else []


# The beginning of a call, by its name: JSON, and marks of families that write the name before the arguments.
_BEGUN = re.compile(
    r"""
    "(?:name|tool_name)"\s*:\s*"(?P<json>[^"]{1,64})"
  | invoke\ name="(?P<invoke>[^"<>]{1,64})"
  | <function=(?P<tagged>[^>\n]{1,64})>
  | call:(?P<gemma>[^\s{]{1,64})(?=\{)
  | (?<![\w.-])(?:functions\.)?(?P<kimi>[\w.-]{1,64}):\d{1,9}<\|tool_call_argument_begin\|>
  | <｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<deepseek>[\w.-]{1,64})(?=\n|<｜tool▁sep｜>)
  | \[TOOL_CALLS\](?P<mistral>[\w.-]{1,64})(?=\[)
  | ^\s*\[?(?:functions\.)?(?P<first>[\w.-]{1,64})(?=[\s<[{(])
    """,
    re.VERBOSE,
)
# A complete argument of the families that write arguments as elements. Each search ends at the next opening.
_PAIR = re.compile(
    r"""
    <parameter=(?P<tagged>[^<>\n]+)>\n?(?P<value>(?:(?!<parameter=).)*?)\n?</parameter>
  | <arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<of_key>(?:(?!<arg_value>).)*?)</arg_value>
  | parameter\ name="(?P<name>[^"<>]+)"[^<>]*>(?P<named>(?:(?!parameter\ name=).)*?)</[^<>"]{0,64}parameter>
    """,
    re.VERBOSE | re.DOTALL,
)


def cut_calls(text: str, whole: Sequence[Call], schemas: Schemas) -> list[Call]:
    """The calls in a text that ends inside a call: all complete ones, and the last with the arguments so far.

    `whole` are the complete calls of a text that is not JSON.
    """
    found, at = list[Call](), 0
    while True:
        at = len(text) - len(text[at:].lstrip(" \t\r\n,;["))
        try:
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        call = _as_call(value)
        found += [call] if call is not None else []
    at = at if found else 0
    names = [*_BEGUN.finditer(text, at)]
    names = [name for name in names if name.lastgroup in (names[0].lastgroup, "mistral")][0 if found else len(whole) :]
    return [*(found or whole), *(_open(name, text[name.end() :], schemas) for name in names[:1])]


def _open(name: re.Match[str], after: str, schemas: Schemas) -> Call:
    """A call without its end. Its arguments are the beginning of JSON, complete only if the model completed them."""
    called, pairs = name[name.lastgroup or 0], [*_PAIR.finditer(after)]
    if name.lastgroup in ("invoke", "tagged") or pairs or after.lstrip().startswith("<arg_key>"):
        values = [[group for group in pair.groups() if group is not None] for pair in pairs]
        return Call(called, _typed(called, [(key, value) for key, value in values], schemas).arguments[:-1])
    written = after[brace:] if (brace := after.find("{")) >= 0 else ""
    if name.lastgroup == "gemma":
        return Call(called, gemma_prefix(written))
    try:
        return Call(called, written[: DECODER.raw_decode(written)[1]])
    except (ValueError, RecursionError):
        return Call(called, "" if after.startswith("(") else written)


def _as_call(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("tool_name"))
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str):
        return None
    return Call(name, arguments if isinstance(arguments, str) else _dumped(arguments))


def _values(text: str) -> list[Any]:
    """The JSON values in a text, separated by white space, commas or semicolons; empty if it contains anything else."""
    found, at = list[Any](), 0
    while True:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,;"))
        if at >= len(text):
            return found
        try:
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        found.append(value)


def _typed(name: str, pairs: Sequence[tuple[str, str]], schemas: Schemas) -> Call:
    """Converts text values by the schemas of their parameters."""
    properties = schemas.get(name, {}).get("properties")
    known = properties if isinstance(properties, dict) else {}
    return Call(name, _dumped({key.strip(): typed(value, known.get(key.strip())) for key, value in pairs}))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
