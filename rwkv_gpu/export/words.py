"""A tokenizer and a chat template as data that a browser can follow."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import BadInput, BadTemplate, UnsupportedModel
from ..llm.chat_format import ChatFormat
from ..text.base import Tokenizer
from ..text.bpe import BpeTokenizer
from ..text.pretokenizers import DEFAULT, PRE, PreTokenizer
from ..text.raw_bpe import RawBpeTokenizer
from ..text.rwkv import RwkvTokenizer
from ..text.special import MATCHED
from ..text.spm import SpmTokenizer
from ..text.template import ChatTemplate
from ..text.thinking import Marks, opened
from ..text.tokenizer import load_tokenizer
from ..text.vocabulary import Kind, read_flag, read_id, read_merges, read_name, read_scores

KINDS: dict[type[Tokenizer], str] = {
    RwkvTokenizer: "rwkv",
    BpeTokenizer: "bpe",
    RawBpeTokenizer: "raw-bpe",
    SpmTokenizer: "spm",
}
# The characters of Oniguruma's \s; JavaScript's includes U+FEFF and lacks U+0085.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_ESCAPED = re.compile(r"\\(p\{\w+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_INTERSECTION = re.compile(r"\[([^\[\]]*)&&\[")
_KEPT = "nrtvf^$\\.*+?()[]{}|/-"  # characters that mean the same after a backslash in both languages


def tokenizer_data(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer of a file. Bytes are texts of the characters U+0000 to U+00FF."""
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
        # Tokens that are matched whole, and shown like special tokens: id and bytes.
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
    if isinstance(tokenizer, BpeTokenizer | RawBpeTokenizer):
        merges = read_merges(metadata, vocabulary.ids)
        data["merges"] = [[vocabulary.ids[left], vocabulary.ids[right]] for left, right in merges]
    if isinstance(tokenizer, BpeTokenizer):
        row = PRE.get(read_name(metadata, "pre") or "", DEFAULT)
        return {**data, "patterns": patterns(row), "whole": row.ignore_merges}
    if isinstance(tokenizer, RawBpeTokenizer):
        raw = tokenizer.row
        cuts = {"patterns": [_javascript(raw.words.pattern)], "whole": raw.whole_line_ends, "spaces": raw.marks_spaces}
        return {**data, **cuts, "bytes": tokenizer.byte_ids}
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
    """The patterns that split text into words, as JavaScript's regular expressions with the flag v."""
    return [_javascript(pattern) for pattern in row.patterns]


def _javascript(pattern: str) -> str:
    found, at, depth = [], 0, 0
    pattern = pattern.replace(r"(?<!\s)\s++$", r"(?<!\s)\s+$")  # possessive quantifiers only save time there
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
        found.append("\\" + letter if depth and letter in "(){}/|" else letter)  # special characters in sets
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


def chat_data(metadata: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """The texts between the messages of a conversation, in the model's template, and how it edits the messages.

    A browser joins them. The result is compared with what the template renders, also for reasoning in earlier answers.
    `think` has the differences if reasoning is on, and if it is off.
    """
    tokenizer = load_tokenizer(metadata)
    try:
        chat = ChatFormat(tokenizer, ChatTemplate.from_metadata(metadata), vocabulary)
        marks = chat.marks
        if marks.channels:
            raise UnsupportedModel("its answers are in channels (Harmony), which a page cannot separate")
        data = _form(chat, marks, None)
        forms = {str(think).lower(): _form(chat, marks, think) for think in (True, False) if chat.can_think}
    except BadTemplate as error:
        raise UnsupportedModel(str(error)) from None
    except BadInput as error:
        raise UnsupportedModel(f"its chat template refuses an ordinary conversation: {error}") from None
    thinks = {think: {name: one for name, one in form.items() if one != data[name]} for think, form in forms.items()}
    stops = sorted(chat.stop_ids | tokenizer.stop_ids)
    thoughts = [marks.opening, marks.closing]
    shown = [tokenizer.vocabulary.ids.get(mark.removesuffix("thought"), -1) for mark in thoughts if marks.control]
    data |= {"think": thinks, "thoughts": thoughts, "wraps": list(marks.wraps or ()), "shown": shown}
    data |= {"stops": stops, "ends": list(chat.ends), "thoughtEnds": list(chat.reasoning_ends)}
    return {**data, "template": chat.template.source}


def _form(chat: ChatFormat, marks: Marks, think: bool | None) -> dict[str, Any]:
    """The part of `chat_data` that may depend on reasoning: on, off, or the template's default."""
    data = _between(chat, think)
    talks = [*CONVERSATIONS, *_with_reasoning(marks)]
    if data["system"] is None:
        talks = [[m for m in one if m["role"] != "system"] for one in talks]
    expected = [_rendered(chat, one, think) for one in talks]
    data["answer"], lead, around = _reasons(chat, marks, think, data)
    for data["late"], data["edits"] in itertools.product((False, True), [*_edits(marks, lead, around)]):
        if all(join(data, one) == prompt for one, prompt in zip(talks, expected, strict=True)):
            break
    else:
        raise UnsupportedModel("its chat template changes messages in a way that a page cannot follow")
    begun = opened(data["ending"] + data["opening"], marks.opening, marks.closing)
    return {**data, "begun": begun.text, "due": begun.due * bool(begun.text)}


Messages = Sequence[Mapping[str, str]]
_S, _U, _R, _A, _V = "a-system-text", "a-question", "a-thought", "an-answer", "another-one"
_BLANK = rf"[{_SPACE}\x1c-\x1f]"  # the white space that Python's `strip` removes
_END = r"(?![\s\S])"  # the end of a text, in Python and in JavaScript


Edit = list[str]  # a pattern, and the texts around its first group that replace a match


def _edits(marks: Marks, lead: str, around: tuple[str, str]) -> Iterator[dict[str, list[Edit]]]:
    """Edits of messages by role, in order; simple ones come first."""
    opening, closing = (re.sub(r"[|\[\]]", r"\\\g<0>", mark) for mark in (marks.opening, marks.closing))
    rests = ("()", r"\n*()", rf"\n*([\s\S]*?)\n*{_END}", rf"{_BLANK}*([\s\S]*?){_BLANK}*{_END}")
    drops = [*(rf"^[\s\S]*{closing}{rest}" for rest in rests), rf"{opening}[\s\S]*?(?:{closing}|{_END})()"]
    kept = (rf"^{gap}{opening}{gap}([\s\S]*?){gap}{closing}{gap}" for gap in (r"\n*", f"{_BLANK}*"))
    thoughts: list[list[Edit]] = [[], *([[drop, "", ""]] for drop in drops), *([[one, *around]] for one in kept)]
    lines: list[list[Edit]] = [[], [[r"\r(?=\n)()", "", ""], [r"\n(?=\n)()", "", ""]]]  # removes blank lines
    start, end = f"^{_BLANK}+()", f"{_BLANK}+{_END}()"
    strips: list[list[Edit]] = [[], *([[strip, "", ""]] for strip in (f"{start}|{end}", start, end))]
    lacks = "", rf"(?![\s\S]*{closing})", rf"(?![\s\S]*{opening})"
    leads: list[list[Edit]] = [[[f"^(){one}", lead, ""]] for one in lacks]
    each = itertools.product(lines, thoughts, strips, strips, strips, leads if lead else [[]])
    for both, thought, user, answer, system, before in each:
        for edits in (thought + answer, answer + thought):
            yield {"user": both + user, "assistant": both + edits + before, "system": system}


def _reasons(
    chat: ChatFormat, marks: Marks, think: bool | None, data: Mapping[str, Any]
) -> tuple[str, str, tuple[str, str]]:
    """For an earlier answer: the text before its reasoning marks, the marks, and the texts around its reasoning."""
    answer = re.split("|".join(map(re.escape, (marks.opening, marks.closing))), data["answer"])[0]
    talk = _talk(_U, f"{marks.opening}\n{_R}\n{marks.closing}\n\n{_A}", _V)
    before, _, after = _rendered(chat, talk, think).partition(_R)
    around = before.removeprefix(data["start"] + _U + answer), after.partition(_A)[0]
    return answer, data["answer"].removeprefix(answer), around


def _talk(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


CONVERSATIONS = (
    _talk("Hi"),
    _talk("Hi", system="Be brief."),
    _talk("What is 1 + 1?", "It is 2.\n\nTwo.", "{{ why }}\n\n\n\nNow?"),
    _talk("one", "two", "three", "four", "five <b>", system="Sie sind höflich.\nImmer."),
    _talk("  x ", " y\n", "\n z"),
    _talk("Hi", system=" s\n"),
)


def _with_reasoning(marks: Marks) -> list[list[dict[str, str]]]:
    """Conversations whose answers have reasoning: with and without line ends, and cut off."""
    opening, closing = marks.opening, marks.closing
    answers = (
        f"{opening}\nhm so\n{closing}\n\nIt is 2.",
        f"{opening}hm{closing}Two. \n",
        f"{opening} hm {closing} Two.",
        f"{opening}\nhm, so",
    )
    return [_talk("one", answer, "two", "three", "four") for answer in answers]


def _rendered(chat: ChatFormat, messages: Messages, think: bool | None, *, opens: bool = True) -> str:
    return chat.prompt(messages, think=think, opens=opens).transcript.text.decode()


def _between(chat: ChatFormat, think: bool | None) -> dict[str, Any]:
    """The texts around the messages of two conversations: one with an answer, and one with a system text."""
    talk = _talk(_U, _A, _V)
    start, rest = _cut(_rendered(chat, talk, think), _U)
    answer, rest = _cut(rest, _A)
    question, rest = _cut(rest, _V)
    # The prompt of a conversation is tokenised in two parts: its messages, and the opening of the answer.
    _, ending = _cut(_rendered(chat, talk, think, opens=False), _V)
    data: dict[str, Any] = {"start": start, "answer": answer, "question": question, "ending": ending}
    data |= {"opening": rest.removeprefix(ending), "system": None, "first": None}
    with suppress(BadInput, BadTemplate):
        system, rest = _cut(_rendered(chat, _talk(_U, system=_S), think), _S)
        data |= {"system": system, "first": _cut(rest, _U)[0]}
    return data


def _cut(text: str, mark: str) -> tuple[str, str]:
    before, shown, after = text.partition(mark)
    if not shown:
        raise BadTemplate(f"its chat template does not show '{mark}'")
    return before, after


def _edited(chat: Mapping[str, Any], message: Mapping[str, str]) -> str:
    text = message["content"]
    for pattern, before, after in chat["edits"][message["role"]]:
        text = re.sub(pattern, partial(_put, before, after), text)
    return text


def _put(before: str, after: str, found: re.Match[str]) -> str:
    return before + (found[1] or "") + after


def join(chat: Mapping[str, Any], messages: Messages) -> str:
    """The prompt of a conversation, as the browser makes it."""
    after = {"system": "first", "user": "answer", "assistant": "question"}
    turns = [(message["role"], _edited(chat, message)) for message in messages]
    if chat["late"] and turns[0][0] == "system":  # the template puts the system text into the last question
        turns = [*turns[1:-1], ("user", turns[0][1] + chat["first"] + turns[-1][1])]
    prompt = chat["system" if turns[0][0] == "system" else "start"]
    for number, (_, text) in enumerate(turns):
        prompt += (chat[after[turns[number - 1][0]]] if number else "") + text
    return str(prompt) + str(chat["ending"]) + str(chat["opening"])
