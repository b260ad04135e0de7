"""Translates chat templates of Ollama's Modelfiles, which are Go templates, to jinja2.

Templates over `.Messages` become loops. Older ones describe one turn by `.System`, `.Prompt` and `.Response`; they
become a macro, which is called for each turn. Constructs without a translation are refused by name.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import BadTemplate, printable

MOST = 1 << 16  # characters of a template
DEEPEST = 50  # nested actions and parentheses
STRINGS = r"\"(?:\\.|[^\"\\])*\"|`[^`]*`"
PIECE = re.compile(STRINGS + r"|[^\"`}]+|\}(?!\})")
TOKEN = re.compile(
    r"\s*(?:(?P<string>" + STRINGS + r")|(?P<number>-?\d+(?:\.\d+)?)(?![\w.])|(?P<variable>\$\w*(?:\.\w+)*)"
    r"|(?P<field>\.\w+(?:\.\w+)*|\.(?![\w.]))|(?P<word>\w+)|(?P<mark>:=|[=|(),]))"
)
RESPONSE = "\ue000"  # placeholder for the answer
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
CONSTANTS = {"true": "true", "false": "false", "nil": "none"}
THINKS = "(enable_thinking is defined and enable_thinking)"
OF_CHAT = {  # fields of a template over messages
    "Messages": "messages", "System": "System", "Tools": "tools", "Think": THINKS, "Response": "''", "Prompt": "''",
    "Suffix": "''", "IsThinkSet": "(enable_thinking is defined)", "ThinkLevel": "(reasoning_effort|default(''))",
}  # fmt: skip
OF_TURN = {  # fields of a template of one turn
    "System": "System", "Prompt": "Prompt", "Response": "Response", "Suffix": "''", "Tools": "tools", "Think": THINKS,
    "IsThinkSet": "(enable_thinking is defined)", "Messages": "[]",
}  # fmt: skip
OF_ITEMS = {"Thinking": "reasoning_content"}  # fields of messages whose names differ by more than their case
JSON = ("Arguments", "Tools", "ToolCalls", "Parameters", "Properties")  # fields that are printed as JSON
CHAT = """{%- set v = namespace() -%}
{%- set System = messages|selectattr('role', 'equalto', 'system')|map(attribute='content')|join('\\n\\n') -%}
"""
TURNS = """{%- macro turn(System, Prompt, Response) -%}{%- set v = namespace() -%}BODY{%- endmacro -%}
{%- set s = namespace(system='', prompt='', response='', last='') -%}
{%- for m in messages -%}
{%- if (m.role == 'system' and (s.prompt or s.response)) or (m.role == 'user' and s.response) -%}
{{- turn(s.system, s.prompt, s.response) -}}
{%- set s.system = '' -%}{%- set s.prompt = '' -%}{%- set s.response = '' -%}
{%- endif -%}
{%- if m.role == 'system' -%}{%- set s.system = m.content -%}
{%- elif m.role == 'assistant' -%}{%- set s.response = m.content -%}
{%- else -%}{%- set s.prompt = (s.prompt ~ '\\n\\n' if s.prompt else '') ~ m.content -%}
{%- endif -%}
{%- set s.last = m.role -%}
{%- endfor -%}
{%- if s.last == 'assistant' -%}{{- turn(s.system, s.prompt, s.response) -}}
{%- else -%}{{- turn(s.system, s.prompt, 'MARK').split('MARK')[0] -}}{%- endif -%}
"""


def as_jinja(source: str) -> str:
    """The same template in jinja2. Raises BadTemplate, which names what has no translation."""
    if len(source) > MOST:
        raise BadTemplate(f"the template has {len(source):,} characters; it may have {MOST:,}")
    if re.search(r"\.Messages\b", source):
        return CHAT + Translation(OF_CHAT).body(source)
    body = Translation(OF_TURN).body(source)
    if not re.search(r"\.Response\b", source):
        body += Translation(OF_TURN).body("{{ .Response }}")
    return TURNS.replace("MARK", RESPONSE).replace("BODY", body)


@dataclass
class Open:
    """An action that is not ended yet."""

    kind: str  # if, range or with
    dot: str  # the value of the dot outside of the block
    variables: dict[str, str]  # the variables outside of the block
    at: int  # number of its loop


@dataclass
class Translation:
    """The translation of one template, action by action."""

    root: dict[str, str]
    dot: str = ""  # jinja's name of the dot; empty at the root
    variables: dict[str, str] = field(default_factory=dict)
    opened: list[Open] = field(default_factory=list)
    count: int = 0  # number of blocks so far, for names

    def body(self, source: str) -> str:
        """The whole template."""
        out = []
        for text, action in actions(source):
            out += [_text(text), self.action(action)]
        if self.opened:
            raise BadTemplate(f"{{{{ {self.opened[-1].kind} }}}} has no {{{{ end }}}}")
        return "".join(out)

    def action(self, text: str) -> str:
        """One action."""
        if not text or text.startswith("/*"):
            return ""
        word, _, rest = text.partition(" ")
        word = re.match(r"\w*", text)[0]  # type: ignore[index]
        rest = text[len(word) :]
        if word in ("if", "with", "range"):
            return self._begin(word, rest)
        if word == "else":
            return self._else(rest)
        if word == "end":
            return self._end()
        if word in ("break", "continue"):
            return f"{{%- {word} -%}}"
        if word in ("define", "template", "block"):
            raise _refused(word)
        expression = Expression(self, text)
        if expression.declares:
            return self._assigned(expression)
        shown = expression.whole()
        as_json = expression.last in JSON or (text == "." and self.dot)
        value = _json(shown) if as_json else f"({shown} if {shown} is not none else '')|default('')"
        return f"{{{{- {value} -}}}}"

    def _assigned(self, expression: "Expression") -> str:
        [name] = expression.declares
        value = expression.whole()
        if expression.new:
            self.variables = {**self.variables, name: f"v.{name}{self.count}"}
        elif name not in self.variables:
            raise BadTemplate(f"${name} is assigned before it is declared")
        return f"{{%- set {self.variables[name]} = {value} -%}}"

    def _begin(self, kind: str, rest: str) -> str:
        expression = Expression(self, rest)
        value = expression.whole()
        if len(self.opened) >= DEEPEST:
            raise BadTemplate(f"it has more than {DEEPEST} nested actions")
        self.count += 1
        self.opened.append(Open(kind, self.dot, self.variables, self.count))
        names, at = expression.declares, self.count
        if kind == "if":
            if names:
                raise _refused("if with a variable")
            return f"{{%- if {value} -%}}"
        if kind == "with":
            self.dot = f"item{at}"
            self.variables = {**self.variables, **dict.fromkeys(names, self.dot)}
            return f"{{%- set v.w{at} = {value} -%}}{{%- if v.w{at} -%}}{{%- set item{at} = v.w{at} -%}}"
        if len(names) == 2 and expression.last not in ("Messages", "Tools", "ToolCalls"):
            raise _refused(f"range with two variables over .{expression.last}")
        self.dot = f"item{at}"
        own = [f"at{at}", self.dot] if len(names) == 2 else [self.dot]
        self.variables = {**self.variables, **dict(zip(names, own, strict=False))}
        return f"{{%- for item{at} in {value} or [] -%}}{{%- set at{at} = loop.index0 -%}}"

    def _else(self, rest: str) -> str:
        if not self.opened:
            raise BadTemplate("{{ else }} has no {{ if }}")
        last = self.opened[-1]
        self.variables = last.variables
        if last.kind != "if":
            self.dot = last.dot
        if not rest.strip():
            return "{%- else -%}"
        if last.kind != "if" or not re.match(r"\s+if\b", rest):
            raise _refused(f"else{rest}")
        return f"{{%- elif {Expression(self, rest.split('if', 1)[1]).whole()} -%}}"

    def _end(self) -> str:
        if not self.opened:
            raise BadTemplate("{{ end }} has nothing to end")
        last = self.opened.pop()
        self.dot, self.variables = last.dot, last.variables
        return "{%- endfor -%}" if last.kind == "range" else "{%- endif -%}"

    def field(self, path: str) -> str:
        """A field of the dot, such as .Role, or of the root."""
        names = path.split(".")[1:]
        if names == [""]:
            return self.dot or "messages"
        return chain(self.dot, names) if self.dot else self.of_root(names)

    def of_root(self, names: Sequence[str]) -> str:
        """A field of the template's data."""
        if names[0] not in self.root:
            raise _refused(f".{names[0]}")
        return chain(self.root[names[0]], names[1:])

    def variable(self, path: str) -> str:
        """A variable, or a field of one."""
        name, *names = path[1:].split(".")
        if not name:
            return self.of_root(names) if names else "messages"
        if name not in self.variables:
            raise BadTemplate(f"${name} is not declared")
        return chain(self.variables[name], names)


class Expression:
    """An expression: a pipeline of operands and functions, and the variables that it declares."""

    def __init__(self, translation: Translation, text: str) -> None:
        self._translation = translation
        self._tokens = _tokens(text)
        self.last = ""  # the last field that was read
        self.declares: list[str] = []
        self.new = False
        marks = [value for kind, value in self._tokens if kind == "mark" and value in (":=", "=")]
        if marks:
            at = self._tokens.index(("mark", marks[0]))
            self.declares = [value[1:] for kind, value in self._tokens[:at] if kind == "variable"]
            self.new = marks[0] == ":="
            self._tokens = self._tokens[at + 1 :]

    def whole(self) -> str:
        """The translation of all of it."""
        value = self._pipeline(0)
        if self._tokens:
            raise _refused(self._tokens[0][1])
        return value

    def _pipeline(self, depth: int) -> str:
        if depth > DEEPEST:
            raise BadTemplate(f"it has more than {DEEPEST} nested parentheses")
        value = self._command(None, depth)
        while self._next("|"):
            value = self._command(value, depth)
        return value

    def _command(self, piped: str | None, depth: int) -> str:
        if self._tokens and self._tokens[0][0] == "word" and self._tokens[0][1] not in CONSTANTS:
            name, arguments = self._tokens.pop(0)[1], []
            while self._tokens and self._tokens[0][1] not in ("|", ")"):
                arguments.append(self._operand(depth))
            return _call(name, [*arguments, *([] if piped is None else [piped])])
        if piped is not None:
            raise _refused("| without a function")
        return self._operand(depth)

    def _operand(self, depth: int) -> str:
        if not self._tokens:
            raise BadTemplate("an action has no value")
        kind, text = self._tokens.pop(0)
        if kind == "string":
            return json.dumps(text[1:-1] if text[0] == "`" else _unquoted(text), ensure_ascii=False)
        if kind == "number" or text in CONSTANTS:
            return CONSTANTS.get(text, text)
        if kind in ("field", "variable"):
            self.last = text.rpartition(".")[2]
            return self._translation.field(text) if kind == "field" else self._translation.variable(text)
        if text != "(":
            raise _refused(text)
        value = f"({self._pipeline(depth + 1)})"
        if not self._next(")"):
            raise BadTemplate("a parenthesis is not closed")
        if self._tokens and self._tokens[0][0] == "of_group":
            value = chain(value, self._tokens.pop(0)[1].split(".")[1:])
        return value

    def _next(self, mark: str) -> bool:
        found = bool(self._tokens) and self._tokens[0] == ("mark", mark)
        if found:
            self._tokens.pop(0)
        return found


def chain(value: str, names: Sequence[str]) -> str:
    """Fields of a value; their names have lower case and underscores here."""
    for name in names:
        value += "." + OF_ITEMS.get(name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return value


def _comparison(sign: str) -> Callable[[Sequence[str]], str]:
    return lambda of: "(" + " or ".join(f"{of[0]} {sign} {one}" for one in of[1:]) + ")"


FUNCTIONS: dict[str, tuple[int, int, Callable[[Sequence[str]], str]]] = {  # minimum and maximum arguments
    **{name: (2, 9 if name == "eq" else 2, _comparison(sign)) for name, sign in COMPARISONS.items()},
    "and": (1, 9, lambda of: f"({' and '.join(of)})"),
    "or": (1, 9, lambda of: f"({' or '.join(of)})"),
    "not": (1, 1, lambda of: f"(not {of[0]})"),
    "len": (1, 1, lambda of: f"({of[0]}|length)"),
    "slice": (2, 3, lambda of: f"{of[0]}[{of[1]}:{of[2] if len(of) > 2 else ''}]"),
    "index": (2, 2, lambda of: f"{of[0]}[{of[1]}]"),
    "json": (1, 1, lambda of: f"({of[0]}|tojson)"),
    "currentDate": (0, 0, lambda _: "strftime_now('%Y-%m-%d')"),
}


def _call(name: str, arguments: Sequence[str]) -> str:
    if name not in FUNCTIONS:
        raise _refused(name)
    fewest, most, write = FUNCTIONS[name]
    if not fewest <= len(arguments) <= most:
        raise BadTemplate(f"{name} has {len(arguments)} arguments")
    return write(arguments)


def actions(source: str) -> Iterator[tuple[str, str]]:
    """Yields each text and the action after it, which is empty at the end; without the spaces that actions trim."""
    at, trims = 0, False
    while (begin := source.find("{{", at)) >= 0:
        inside = begin + 2
        text = source[at:begin]
        if source[inside : inside + 1] == "-" and source[inside + 1 : inside + 2].isspace():
            text, inside = text.rstrip(), inside + 1
        end = _end_of_action(source, inside)
        action = source[inside:end].rstrip()
        yield text.lstrip() if trims else text, action.removesuffix("-").strip()
        at, trims = end + 2, action.endswith("-")
    yield source[at:].lstrip() if trims else source[at:], ""


def _end_of_action(source: str, at: int) -> int:
    """The end of an action: the first }} outside of strings and comments."""
    begin = at
    if source[at:].lstrip()[:2] == "/*":
        at = max(at, source.find("*/", at))
    while not source.startswith("}}", at):
        found = PIECE.match(source, at)
        if found is None:
            raise BadTemplate(f"an action is not closed: {printable(source[begin:], 40)!r}")
        at = found.end()
    return at


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text.rstrip()):
        match = TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _refused(text[at:].strip()[:20])
        kind, word = match.lastgroup, match[match.lastgroup]
        of_group = kind == "field" and match.start("field") == at and found[-1:] == [("mark", ")")]
        found.append(("of_group" if of_group else kind, word))
        at = match.end()
    return found


def _text(text: str) -> str:
    return f"{{{{- {json.dumps(text, ensure_ascii=False)} -}}}}" if text else ""


def _json(value: str) -> str:
    return f"({value} if {value} is string else {value}|tojson)"


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        raise _refused(text) from None


def _refused(what: str) -> BadTemplate:
    what = printable(what.strip(), 60)
    return BadTemplate(f"{what!r} of a Go template has no translation here; write the template in jinja2")
