"""A tokenizer and a chat template as data that a browser can follow."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BadInput, BadTemplate, UnsupportedModel
from ..llm.chat_format import ChatFormat
from ..text.base import Tokenizer
from ..text.bpe import BpeTokenizer
from ..text.pretokenizers import DEFAULT, PRE, PreTokenizer
from ..text.rwkv import RwkvTokenizer
from ..text.special import MATCHED
from ..text.spm import SpmTokenizer
from ..text.template import ChatTemplate
from ..text.thinking import marks_of
from ..text.tokenizer import load_tokenizer
from ..text.vocabulary import Kind, read_flag, read_id, read_merges, read_name, read_scores

KINDS: dict[type[Tokenizer], str] = {RwkvTokenizer: "rwkv", BpeTokenizer: "bpe", SpmTokenizer: "spm"}
# What Oniguruma means by \s, which in JavaScript includes U+FEFF and lacks U+0085.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_ESCAPED = re.compile(r"\\(p\{\w+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_BLANK_LINES = re.compile(r"\n{2,}")
_INTERSECTION = re.compile(r"\[([^\[\]]*)&&\[")
_KEPT = "nrtvf^$\\.*+?()[]{}|/-"  # letters that mean the same after a backslash in both


def tokenizer_data(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer of a file. Bytes are texts of the letters U+0000 to U+00FF."""
    tokenizer = load_tokenizer(metadata)
    kind = KINDS.get(type(tokenizer))
    if kind is None:
        known = ", ".join(KINDS.values())
        raise UnsupportedModel(f"a {type(tokenizer).__name__} cannot be exported for browsers yet; known: {known}")
    vocabulary = tokenizer.vocabulary
    ids = range(len(vocabulary))
    data: dict[str, Any] = {
        "kind": kind,
        "pieces": [_letters(tokenizer.piece(token)) for token in ids],
        # What is matched whole, and shown where special tokens are: id and bytes.
        "special": [[i, _letters(tokenizer.piece(i, special=True))] for i in ids if vocabulary.kinds[i] in MATCHED],
        "always": [i for i in ids if vocabulary.kinds[i] == Kind.USER_DEFINED],
        "before": [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else [],
        "after": [tokenizer.eos] if tokenizer.add_eos and tokenizer.eos is not None else [],
        "stops": sorted(tokenizer.stop_ids),
        "strip": tokenizer.strip_space,
        "clean": tokenizer.clean_spaces,
        "absorb": sorted(tokenizer.takes_spaces),
        "absorbBefore": sorted(tokenizer.takes_spaces_before),
    }
    if kind == "rwkv":
        return {**data, "tokens": [_letters(tokenizer._text_of(token)) for token in ids]}  # control tokens match too
    data["tokens"] = list(vocabulary.tokens)
    if kind == "bpe":
        row = PRE.get(read_name(metadata, "pre") or "", DEFAULT)
        merges = [
            [vocabulary.ids[left], vocabulary.ids[right]] for left, right in read_merges(metadata, vocabulary.ids)
        ]
        return {**data, "patterns": patterns(row), "whole": row.ignore_merges, "merges": merges}
    assert isinstance(tokenizer, SpmTokenizer)
    scores = read_scores(metadata, len(vocabulary)).tolist()
    return {
        **data,
        "scores": scores,
        "bytes": tokenizer.byte_ids,
        "prefix": read_flag(metadata, "add_space_prefix", True),
        "unknown": read_id(metadata, "unknown", len(vocabulary), default=0),
    }


def _letters(data: bytes) -> str:
    return data.decode("latin-1")


def patterns(row: PreTokenizer) -> list[str]:
    """The patterns of a way to cut words as regular expressions of JavaScript with the flag v."""
    return [_javascript(pattern) for pattern in row.patterns]


def _javascript(pattern: str) -> str:
    found, at, depth = [], 0, 0
    pattern = pattern.replace(r"(?<!\s)\s++$", r"(?<!\s)\s+$")  # possessive, which only saves time there
    pattern = _INTERSECTION.sub(r"[[\1]&&[", pattern)
    while at < len(pattern):
        escaped = _ESCAPED.match(pattern, at)
        letter = pattern[at]
        if escaped:
            found.append(_escape(escaped[1], depth > 0))
            at = escaped.end()
            continue
        at += 1
        depth += (letter == "[") - (letter == "]")
        found.append("\\" + letter if depth and letter in "(){}/|" else letter)  # letters of the syntax of sets
    return "".join(found)


def _escape(escaped: str, inside: bool) -> str:
    """One escape in JavaScript's spelling, within a set or outside of it."""
    if escaped == "s":
        return _SPACE if inside else f"[{_SPACE}]"
    if escaped == "S":
        return f"[^{_SPACE}]"
    if escaped == "p{Han}":
        return r"\p{Script=Han}"
    if len(escaped) > 1 or escaped in _KEPT:
        return "\\" + escaped
    return ("\\" if inside and escaped in "&!#%,:;<=>@`~" else "") + escaped


def chat_data(metadata: Mapping[str, Any], vocabulary: int) -> dict[str, Any] | None:
    """The texts between the messages of a conversation, in the model's template; None if it has no such form.

    A browser joins them and the messages. The result is compared with what the template renders.
    """
    tokenizer = load_tokenizer(metadata)
    try:
        chat = ChatFormat(tokenizer, ChatTemplate.from_metadata(metadata), vocabulary)
        data = _between(chat)
        fits = data is not None and all(join(data, one) == _rendered(chat, one) for one in CONVERSATIONS)
    except (BadInput, BadTemplate):
        return None
    if data is None or not fits or marks_of(chat.template.source).channels:
        return None
    stops = sorted(chat.stop_ids | tokenizer.stop_ids)
    marks = marks_of(chat.template.source)
    thoughts = [marks.opening, marks.closing]
    return {**data, "stops": stops, "ends": list(chat.ends), "thoughts": thoughts, "template": chat.template.source}


Messages = Sequence[Mapping[str, str]]
_S, _U, _A, _V = "a-system-text", "a-question", "an-answer", "another-one"


def _talk(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


CONVERSATIONS = (
    _talk("Hi"),
    _talk("Hi", system="Be brief."),
    _talk("What is 1 + 1?", "It is 2.\n\nTwo.", "{{ why }}\n\n\n\nNow?"),
    _talk("one", "two", "three", "four", "five <b>", system="Sie sind höflich.\nImmer."),
    _talk("  x ", " y\n", "\n z"),
)


def _rendered(chat: ChatFormat, messages: Messages) -> str:
    return chat.prompt(messages).transcript.text.decode()


def _between(chat: ChatFormat) -> dict[str, Any] | None:
    """The texts around the messages of a conversation with an answer, and of one with a system text."""
    start, rest = _cut(_rendered(chat, _talk(_U, _A, _V)), _U)
    answer, rest = _cut(rest, _A)
    question, rest = _cut(rest, _V)
    # The prompt of a conversation is tokenised in two parts: its messages, and the opening of the answer.
    thinks: Any = {} if chat.template.built_in else {"enable_thinking": True}
    _, before = chat.template.prompt(_talk(_U, _A, _V), **thinks)
    _, ending = _cut(before, _V)
    opening = rest.removeprefix(ending)
    ending = ending if rest.startswith(ending) else ""
    data: dict[str, Any] = {"start": start, "answer": answer, "question": question, "ending": ending}
    data["opening"] = opening
    system = _rendered(chat, _talk(_U, system=_S))
    if _S in system:
        data["system"], rest = _cut(system, _S)
        data["first"], _ = _cut(rest, _U)
    padded = _rendered(chat, _talk(f" {_U} ", f" {_A} ", f" {_V} "))
    data["trim"] = {"user": padded.startswith(start + _U), "assistant": f" {_A} " not in padded}
    data["lines"] = "\n\n\n" not in _rendered(chat, _talk("x\n\n\ny"))  # whether blank lines are left out
    return data


def _cut(text: str, mark: str) -> tuple[str, str]:
    before, shown, after = text.partition(mark)
    if not shown:
        raise BadTemplate(f"the chat template does not show '{mark}'")
    return before, after


def join(chat: Mapping[str, Any], messages: Messages) -> str:
    """The prompt of a conversation, as the browser makes it."""
    texts = [*messages]
    system = texts.pop(0)["content"].strip() if texts[0]["role"] == "system" else None
    prompt = chat["start"] if system is None else chat.get("system", "") + system + chat.get("first", "")
    for number, message in enumerate(texts):
        content = message["content"]
        if chat["lines"]:
            content = _BLANK_LINES.sub("\n", content.replace("\r\n", "\n"))
        prompt += content.strip() if chat["trim"][message["role"]] else content
        if number + 1 < len(texts):
            prompt += chat["question" if message["role"] == "assistant" else "answer"]
    return str(prompt) + str(chat["ending"]) + str(chat["opening"])
