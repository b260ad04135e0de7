"""Translates GBNF, the grammars of llama.cpp, to Lark for llguidance: token by token, in linear time.

Both write alternatives, groups and repetitions alike. They differ in rule definitions and character escapes. Rules
without recursion become terminals, for which Lark requires names in capitals.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from rwkv_gpu.errors import BadGrammar

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|\#[^\r\n]*)
  | (?P<define>::=)
  | (?P<token>!?<(?:\[\d{1,9}\]|[^<>\r\n]{1,64})>)
  | (?P<name>[\w-]+)
  | (?P<literal>"(?:[^"\\\r\n]|\\.)*")
  | (?P<set>\[(?:[^\]\\]|\\.)*\])
  | (?P<repeat>\{\s*\d{1,9}\s*(?:,\s*(?:\d{1,9}\s*)?)?\})
  | (?P<sign>[|()*+?.])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_NAMED = re.compile(r"<[^<>\[\r\n][^<>\r\n]{0,63}>")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\])", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]", "-": "-", "^": "^", "/": "/"}
_LEAD = {"(", "|", ""}  # after these, an alternative begins


@dataclass
class Rule:
    """One rule: its tokens, and the rules that it refers to."""

    name: str
    parts: list[tuple[str, str]] = field(default_factory=list)  # kind and text
    names: set[str] = field(default_factory=set)
    has_token: bool = False  # whether it matches a token by its id, which terminals of Lark cannot do


def token_names(source: str) -> set[str]:
    """The texts in angle brackets, such as <think>, each of which may name a token."""
    return {*_NAMED.findall(source)}


def to_lark(source: str, ids: Mapping[str, int] = MappingProxyType({})) -> str:
    """Translates a grammar to Lark's syntax; `ids` are the tokens by their names, such as <think>.

    Raises BadGrammar with the position of an error.
    """
    rules = _rules(source, ids)
    if "root" not in rules:
        raise _wrong("there is no rule 'root'")
    for rule in rules.values():
        for name in rule.names:
            if name not in rules:
                raise _wrong(f"rule {name[:40]!r} is used but not defined")
    new_names = _new_names(rules)
    return "\n".join(f"{new_names[rule.name]}: {_body(rule, new_names)}" for rule in rules.values())


def _rules(source: str, ids: Mapping[str, int]) -> dict[str, Rule]:
    """All rules by name, in order."""
    rules: dict[str, Rule] = {}
    rule: Rule | None = None
    tokens = [*_tokens(source), ("end", "", len(source))]
    for (kind, text, at), (following, _, _) in pairwise(tokens):
        if kind == "name" and following == "define":
            if text in rules:
                raise _wrong(f"rule {text[:40]!r} is defined twice", source, at)
            rule = rules[text] = Rule(text)
        elif kind == "define":
            if rule is None or rule.parts:
                raise _wrong("'::=' comes without the name of a rule", source, at)
        elif rule is None:
            raise _wrong("a rule begins with its name and '::='", source, at)
        else:
            rule.parts.append((kind, _read(kind, text, source, at, ids)))
            rule.has_token |= kind == "token"
            if kind == "name":
                rule.names.add(text)
    return rules


def _tokens(source: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and position of each token, without white space and comments."""
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise _wrong("this is not GBNF", source, at)
        kind = match.lastgroup or ""
        if kind != "space":
            yield kind, match.group(), at
        at = match.end()


def _read(kind: str, text: str, source: str, at: int, ids: Mapping[str, int]) -> str:
    """Translates a token to Lark."""
    try:
        if kind == "literal":
            return json.dumps("".join(_letters(text[1:-1])), ensure_ascii=False)
        if kind == "set":
            return _set(text[1:-1])
        if kind == "token":
            return _token(text, ids)
    except ValueError as error:
        raise _wrong(str(error), source, at) from None
    return "/(?s:.)/" if text == "." else text


def _token(text: str, ids: Mapping[str, int]) -> str:
    """Translates a token, given by its id or its text; with !, it stands for any other token."""
    inverted, name = text.startswith("!"), text.removeprefix("!")
    if not name.startswith("<["):
        if name not in ids:
            raise ValueError(f"{name} is not one token of this model")
        name = f"<[{ids[name]}]>"
    return f"<[^{name[2:]}" if inverted else name


def _letters(text: str) -> Iterator[str]:
    """The characters that a text with escapes represents."""
    for match in _ESCAPE.finditer(text):
        code = match[1] or match[2] or match[3]
        if code:
            if 0xD800 <= int(code, 16) < 0xE000 or int(code, 16) > 0x10FFFF:
                raise ValueError(f"{match.group()} is not a character")
            yield chr(int(code, 16))
        elif match[4] is None:
            yield match.group()
        elif match[4] in _PLAIN:
            yield _PLAIN[match[4]]
        else:
            raise ValueError(f"{match.group()!r} is not an escape of GBNF")


def _set(text: str) -> str:
    """Translates a character set, such as [a-z], to a regular expression."""
    inverted = text.startswith("^")
    letters = [*_letters(text[inverted:])]
    dashes = _dashes(text[inverted:])
    ranges, at = [], 0
    while at < len(letters):
        if at + 2 < len(letters) and at + 1 in dashes:
            first, last, at = letters[at], letters[at + 2], at + 3
            if first > last:
                raise ValueError(f"the range {first}-{last} is empty")
            ranges.append(f"\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}")
        else:
            ranges.append(f"\\x{{{ord(letters[at]):x}}}")
            at += 1
    if not ranges:
        raise ValueError("a set of characters is empty")
    return f"/[{'^' * inverted}{''.join(ranges)}]/"


def _dashes(text: str) -> set[int]:
    """Indices of characters that are unescaped dashes."""
    return {at for at, match in enumerate(_ESCAPE.finditer(text)) if match.group() == "-"}


def _new_names(rules: dict[str, Rule]) -> dict[str, str]:
    """Lark names for all rules: capitals for terminals, which refer only to terminals."""
    terminals = _terminals(rules)
    taken: set[str] = {"start"}
    names = {"root": "start"}
    for name in rules:
        if name == "root":
            continue
        plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
        plain = plain if plain[0].isalpha() else f"r{plain}"
        new, count = plain, 1
        while new in taken:
            count += 1
            new = f"{plain}_{count}_{len(taken)}"
        taken.add(new)
        names[name] = new.upper() if name in terminals else new
    return names


def _terminals(rules: dict[str, Rule]) -> set[str]:
    """Rules without recursion, except the root."""
    missing = {name: len(rule.names) for name, rule in rules.items()}
    users: dict[str, list[str]] = {}
    for name, rule in rules.items():
        for used in rule.names:
            users.setdefault(used, []).append(name)
    ready = [name for name, count in missing.items() if not count and not rules[name].has_token]
    found: set[str] = set()
    while ready:
        name = ready.pop()
        if name == "root":
            continue
        found.add(name)
        for user in users.get(name, ()):
            missing[user] -= 1
            if not missing[user] and not rules[user].has_token:
                ready.append(user)
    return found


def _body(rule: Rule, names: dict[str, str]) -> str:
    """The alternatives of a rule; an empty one becomes an empty string."""
    out: list[str] = []
    depth, before = 0, ""
    for kind, text in rule.parts:
        if before in _LEAD and text in ("|", ")"):
            out.append('""')
        depth += (text == "(") - (text == ")")
        if depth < 0:
            break
        out.append(names[text] if kind == "name" else text)
        before = text if kind == "sign" else kind
    if depth:
        raise _wrong(f"the parentheses of rule {rule.name[:40]!r} do not match")
    return " ".join(out) + (' ""' if before in _LEAD else "")


def _wrong(what: str, source: str = "", at: int = 0) -> BadGrammar:
    place = ""
    if source:
        near = " ".join(source[at : at + 20].split())
        place = f"line {source.count(chr(10), 0, at) + 1}, at {near!r}: "
    return BadGrammar(f"the grammar cannot be read: {place}{what}")
