"""The tools of a request: checked, in the form that templates take, and as a grammar if the model must call one."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput
from ..text.base import Tokenizer
from ..text.closed_schema import closed
from ..text.grammar import Form, Kind
from ..text.messages import joined, plain
from ..text.tool_calls import Piece, ToolForm, ToolParser
from .unique import unique
from .validate import truth

MOST = 128  # tools, as in OpenAI's API
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
ANY = {"type": "object"}
INSTRUCTIONS = """You may call functions. Their signatures are:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between <tool_call> and </tool_call>:
<tool_call>
{{"name": "the name", "arguments": {{"argument": "value"}}}}
</tool_call>
The results come between <tool_response> and </tool_response>."""


@dataclass(frozen=True)
class Tools:
    """The tools that the model may call, and whether it must."""

    given: tuple[dict[str, Any], ...]  # the tools in the form of OpenAI's API, which templates take, too
    required: bool  # True if the answer must be a call
    only: str | None  # the only tool that it may call
    parallel: bool  # True if an answer may have several calls

    @classmethod
    def read(cls, rest: dict[str, Any]) -> "Tools | None":
        """Takes tools, tool_choice and parallel_tool_calls out of the fields of a request."""
        given, choice = rest.pop("tools", None), rest.pop("tool_choice", None)
        parallel = truth("parallel_tool_calls", rest.pop("parallel_tool_calls", None))
        tools = tuple(_checked(tool, f"tools[{i}]") for i, tool in enumerate(_listed(given)))
        names = [tool["function"]["name"] for tool in tools]
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"two tools are called '{name}'; give each a name of its own")
        required, only = _choice(choice, names)
        if choice == "none" or not tools:
            return None
        return cls(tools, required, only, parallel is not False)

    @property
    def schemas(self) -> dict[str, Any]:
        """Parameter schemas of the callable tools, by name."""
        every = {tool["function"]["name"]: tool["function"].get("parameters") or ANY for tool in self.given}
        return every if self.only is None else {self.only: every[self.only]}

    @property
    def strict(self) -> bool:
        """True if arguments must follow their schemas."""
        return any(tool["function"].get("strict") is True for tool in self.given)

    def grammar(
        self, form: ToolForm, tokenizer: Tokenizer, schema: Form | None = None
    ) -> tuple[Form, str | None] | None:
        """If calls are required or strict: returns the grammar of the answer, and the mark after which it applies.

        An empty mark means after the reasoning; None means the whole answer. With `schema`, an answer that need not be
        a call is either a call or follows the schema.
        """
        if not (self.required or self.strict or schema):
            return None
        if schema is not None and not self.required and form.name == "harmony":
            return None  # the schema applies to the channel of answers only
        if form.name in _WITHOUT_GRAMMAR:
            raise BadInput(
                f"this model calls tools in the form of {form.name}, which has no grammar yet; use tool_choice auto"
            )
        if form.name == "harmony":
            return self._in_channels(tokenizer)
        opening, *others = _FORMS.get(form.name, _JSON)
        before, between, end = (_literal(text, tokenizer) for text in others)
        again = f"({between} call)*" if self.parallel and between else ""
        rest = f"{before} call {again} {end}"
        rules = self._calls(form.name, tokenizer)
        kind: Kind = "tagged" if form.name in _HEAD else "calls"  # elements hold any text
        if self.required:
            return Form(kind, f"start: {_literal(opening, tokenizer)} {rest}\n{rules}"), ""
        if schema is not None:
            choice = f"start: answer | {_literal(opening, tokenizer)} {rest}"
            return Form(kind, f"{choice}\nanswer: %json {_compact(_parsed(schema.source))}\n{rules}"), ""
        if form.bare:
            return Form("tagged", f"start: /[^{{](.|\\n)*/ | {rest}\n{rules}"), ""
        return Form(kind, f"start: {rest}\n{rules}"), opening

    def _in_channels(self, tokenizer: Tokenizer) -> tuple[Form, str | None]:
        """The grammar of an answer in the Harmony format.

        A call is its own message to a function, and ends the answer; reasoning may come before.
        """
        headers = " | ".join(_literal(header, tokenizer) for header in _HEADERS)
        each = [f"{_literal(tool, tokenizer)} header %json {_compact(schema)}" for tool, schema in self.schemas.items()]
        rules = f"header: {headers}\ncall: " + "\n    | ".join(each)
        if not self.required:
            return Form("calls", f"start: call\n{rules}"), _TO
        analysis, ended = (_literal(text, tokenizer) for text in _ANALYSIS)
        opening = _literal(f"<|channel|>commentary {_TO}", tokenizer)
        rules += f"\nreasoning: {analysis} TEXT {ended}\nTEXT: /(.|\\n)*/"
        return Form("channels", f"start: reasoning? {opening} call\n{rules}"), None

    def _calls(self, name: str, tokenizer: Tokenizer) -> str:
        """The rule `call`: one of the tools with its arguments."""
        each = [(tool, _compact(schema)) for tool, schema in self.schemas.items()]
        if name == "mistral":
            each_rule = [f"{_literal(tool + '[ARGS]', tokenizer)} %json {schema}" for tool, schema in each]
        elif name == "deepseek":
            each_rule = [f"{_literal(tool + '<｜tool▁sep｜>', tokenizer)} %json {schema}" for tool, schema in each]
        elif name == "kimi":
            mark = "<|tool_call_argument_begin|>"
            each_rule = [
                f"{_literal('functions.' + tool + ':', tokenizer)} /[0-9]/ {_literal(mark, tokenizer)} %json {schema}"
                for tool, schema in each
            ]
        elif name == "cohere":
            each_rule = [
                f'"{{\\"tool_call_id\\": \\"" /[0-9]/ "\\", \\"tool_name\\": \\"{_escaped(tool)}\\", '
                f'\\"parameters\\": " %json {schema} "}}"'
                for tool, schema in each
            ]
        elif name in ("glm", "qwen3-coder"):
            return self._tagged(name, tokenizer)
        else:
            key = "parameters" if name == "llama3" else "arguments"
            each_rule = [_json_call(tool, key, schema) for tool, schema in each]
        return "call: " + "\n    | ".join(each_rule)

    def _tagged(self, name: str, tokenizer: Tokenizer) -> str:
        """Rules for calls with arguments as XML elements.

        They fix the names and order of arguments, and the types of their values.
        """
        rules, calls = [], []
        before, after = _ELEMENT[name]
        end = _literal(after, tokenizer)
        for n, (tool, schema) in enumerate(self.schemas.items()):
            shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            needed = schema.get("required") or []
            parts = []
            for k, (key, described) in enumerate((schema.get("properties") or {}).items()):
                part, text = f"p{n}_{k}", isinstance(described, dict) and described.get("type") == "string"
                if text:
                    lazy = "" if end.startswith("<[") else "[lazy]"  # a control token ends any text
                    rules.append(f"v{part}{lazy}: {_free_text(described)} {end}")
                else:
                    described = {**shared, **described} if isinstance(described, dict) else described
                    rules.append(f"v{part}: %json {_compact(described)} {end}")
                rules.append(f"{part}: {_literal(before.format(key=key), tokenizer)} v{part}")
                parts.append(part + ("" if key in needed else "?"))
            head, tail = (_literal(text.format(name=tool), tokenizer) for text in _HEAD[name])
            calls.append(f"{head} {' '.join(parts)} {tail}")
        return "\n".join(["call: " + "\n    | ".join(calls), *rules])


def _free_text(schema: dict[str, Any]) -> str:
    """A string as an element holds it: without quotes."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return "(" + " | ".join(f'"{_escaped(value)}"' for value in values if isinstance(value, str)) + ")"
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        begins, ends = pattern.startswith("^"), pattern.endswith("$")
        pattern = pattern[begins : len(pattern) - ends].replace("/", r"\/")
        return f"/{'' if begins else ANYTHING}({pattern}){'' if ends else ANYTHING}/"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"/(.|\\n){{{least},{most}}}/" if least or most != "" else f"/{ANYTHING}/"


ANYTHING = r"(.|\n)*"
# By form: text before all calls, before each call, between calls, and after all.
_JSON = ("<tool_call>", "\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")
_WITHOUT_GRAMMAR = "gemma4", "lfm2", "minimax", "minimax-m3", "muse", "dsml", "seed"
_FORMS: dict[str, tuple[str, str, str, str]] = {
    "cohere": ("<|START_ACTION|>", "[\n    ", ",\n    ", "\n]<|END_ACTION|>"),
    "gigachat": ("<|function_call|>", "", "", ""),
    "granite": ("<|tool_call|>", "[", ", ", "]"),
    "kimi": (
        "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_end|><|tool_call_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "jamba": ("<tool_calls>", "[\n    ", ",\n    ", "\n]</tool_calls>"),
    "minimax-m1": ("<tool_calls>", "\n", "\n", "\n</tool_calls>"),
    "nemotron": ("<TOOLCALL>", "[", ", ", "]</TOOLCALL>"),
    "glm": ("<tool_call>", "", "</tool_call>\n<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]", "", "[TOOL_CALLS]", ""),
    "rwkv": ("```json", "\n", "\n", "\n```"),
    "llama3": ("", "", "", ""),
    "deepseek": (
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
}  # fmt: skip
# Harmony format: text before a function's name, before its arguments, and around reasoning.
_TO = "to=functions."
_HEADERS = (" <|constrain|>json<|message|>", "<|channel|>commentary <|constrain|>json<|message|>", "<|message|>")
_ANALYSIS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
_HEAD = {"glm": ("{name}\n", ""), "qwen3-coder": ("<function={name}>\n", "</function>")}
_ELEMENT = {
    "glm": ("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"),
    "qwen3-coder": ("<parameter={key}>\n", "\n</parameter>\n"),
}


def _compact(schema: Any) -> str:
    """A schema as JSON that matches no white space, which would cost tokens."""
    if isinstance(schema, dict):
        schema = {"x-guidance": {"whitespace_flexible": False}, **closed(schema)}
    return json.dumps(schema, ensure_ascii=False)


def _parsed(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        raise BadInput("schema is not JSON; give a JSON schema") from None


def _json_call(tool: str, key: str, schema: str) -> str:
    return f'"{{\\"name\\": \\"{tool}\\", \\"{key}\\": " %json {schema} "}}"'


def _literal(text: str, tokenizer: Tokenizer) -> str:
    """A text as a Lark literal; special tokens become token references."""
    found = []
    for part in re.split(r"(<[^<>\n]+>|\[TOOL_CALLS\]|\[ARGS\])", text):
        ids = tokenizer.encode(part, parse=True) if part else []
        if len(ids) == 1 and part[0] in "<[":
            found.append(f"<[{ids[0]}]>")
        elif part:
            found.append(f'"{_escaped(part)}"')
    return " ".join(found)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


class Calling:
    """Parses an answer that may call tools as its text arrives: deltas of OpenAI's API, and the final message."""

    def __init__(self, form: ToolForm, tools: Tools) -> None:
        self._parser = ToolParser(form, tools.schemas)
        self._most = MOST if tools.parallel else 1
        self._text: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def feed(self, text: str) -> list[dict[str, Any]]:
        """The deltas of more text."""
        return [delta for piece in self._parser.feed(text) for delta in self._deltas(piece)]

    def flush(self, *, cut: bool = False) -> list[dict[str, Any]]:
        """The deltas of withheld text, at the end. In an answer that was `cut`, a call may be incomplete."""
        return [delta for piece in self._parser.flush(cut=cut) for delta in self._deltas(piece)]

    def reason(self, reason: str) -> str:
        """The finish reason of OpenAI's API."""
        return "tool_calls" if self._calls and reason == "stop" else reason

    def message(self) -> dict[str, Any]:
        """Content and calls of the whole answer."""
        text = "".join(self._text).strip()
        return {"content": text or None, "tool_calls": self._calls} if self._calls else {"content": text}

    def _deltas(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if isinstance(piece, str):
            self._text.append(piece)
            yield {"content": piece}
        elif len(self._calls) < self._most:
            call = {"id": f"call_{unique(24)}", "type": "function"}
            index = len(self._calls)
            self._calls.append({**call, "function": {"name": piece.name, "arguments": piece.arguments}})
            yield {"tool_calls": [{"index": index, **call, "function": {"name": piece.name, "arguments": ""}}]}
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece.arguments}}]}


def describe_tools(messages: Sequence[Mapping[str, object]], tools: Tools) -> list[dict[str, Any]]:
    """Rewrites messages for a template without tool support.

    A system message lists the tools, and results become user messages.
    """
    text = INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools.given))
    told: list[dict[str, Any]] = []
    for message in messages:
        one = {**message}
        if one.get("role") == "tool":
            one = {"role": "user", "content": f"<tool_response>\n{joined(one.get('content'))}\n</tool_response>"}
        elif one.get("tool_calls"):
            one = {"role": "assistant", "content": _written(one)}
        told.append(one)
    if told and told[0].get("role") == "system":
        return [{**told[0], "content": f"{joined(told[0].get('content'))}\n\n{text}"}, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def _written(message: Mapping[str, Any]) -> str:
    """The calls of an earlier answer in the generic form."""
    parts = [text] if (text := joined(message.get("content"))) else []
    for call in message["tool_calls"]:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = {}
        written = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>\n{written}\n</tool_call>")
    return "\n".join(parts)


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise BadInput(f"tools is a {type(given).__name__}; it must be a list of functions")
    if len(given) > MOST:
        raise BadInput(f"there are {len(given)} tools; give at most {MOST}")
    return [*given]


def _checked(tool: Any, where: str) -> dict[str, Any]:
    checked = plain(tool, where)
    if not isinstance(checked, dict) or checked.get("type", "function") != "function":
        raise BadInput(f"{where} must be {{'type': 'function', 'function': {{...}}}}; no other type is known")
    function = checked.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadInput(f"{where}.function must have a name")
    if not NAME.fullmatch(function["name"]):
        raise BadInput(f"{where}.function.name is {function['name']!r}; use at most 64 letters, digits, _, - or .")
    parameters = function.get("parameters")
    if parameters is not None and not (isinstance(parameters, dict) and parameters.get("type", "object") == "object"):
        raise BadInput(f"{where}.function.parameters must be a JSON schema of an object")
    truth(f"{where}.function.strict", function.get("strict"))
    return {"type": "function", "function": function}


def _choice(choice: Any, names: Sequence[str]) -> tuple[bool, str | None]:
    """Parses tool_choice: whether a call is required, and of which tool."""
    if choice in (None, "auto", "none"):
        return False, None
    if not names:
        raise BadInput("tool_choice is given without tools; give both or neither")
    if choice in ("required", "any"):
        return True, None
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        raise BadInput(f"tool_choice is {choice!r}; it must be auto, none, required, or name one of {', '.join(names)}")
    return True, name
