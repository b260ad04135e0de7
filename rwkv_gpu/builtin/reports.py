"""Reads what is written like the title of a report rather than as a question: a symptom, or a feature request.

`symptoms.txt` has the symptoms, by their words. A feature request, such as "add support for X", is read as the
question whether X is there.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

RULES = Path(__file__).with_name("symptoms.txt")
SHARES = (1.0, 0.5)  # what the entries count that a report leads to, the best first
GENERAL = 0.5  # what an entry counts that helps with failures of any kind

_TAG = re.compile(
    r"(?i)^\W*(?:(?:misc\.?|eval|compile) )?"
    r"(?:bugs?|feature(?: requests?)?|feat|fr|enhancement|question|requests?|issue|usage"
    r"|help(?: wanted)?|rfc|discussion|suggestions?|ideas?|proposal)"
    r"\s*[\]):]+[\]:)\s-]*"
)
_MORE = r"(?:(?:for|of|the|an?|support|supporting|native|official|full|better|basic|option|ability|possibility|to)\b )*"
_REQUESTS = (
    rf"(?:please |pls |could you |can you |plz )*(?:add|implement|support|integrate|enable)\b {_MORE}(.+)",
    r"(?:please |pls )*(?:allow|provide|introduce) (?:users? )?(?:to |for )?(.+)",
    r"(?:new )?model request:? (.+)",
    rf"(?:any )?(?:plans?|chance|hope) (?:for|to|of) {_MORE}(.+)",
    r"(?:is|are) (.+) support\b.*",
    r"(?:when (?:will|is|are) )?(.{2,60}?) (?:support|integration|compatibility)"
    r"(?: when| please| pls| request| planned)?",
)
_REQUEST = tuple(re.compile(rf"(?i)\W*{request}[\s?.!]*$") for request in _REQUESTS)
_WHETHER = re.compile(
    r"(?i)\W*(?:is there|are there|any"
    r"|does (?:it|this|rwkv-gpu|the server|serve|chat) (?:have|support|offer|speak|know)"
    r"|do you (?:have|support)|can (?:it|i|the server) (?:use|do|have|speak))\b (.{2,60})$"
)
_MODEL = re.compile(r"(?i)\b(?:models?|arch(?:itecture)?s?|\d+(?:\.\d+)?[bm]|a\d+b|instruct|gguf|moe)\b|\w+/\w+")
_SHORTENED = re.compile(r"\b(ca|do|does|did|is|are|was|wo|could|would|has|have)n ?t\b")  # cant, dont
_ASKS = re.compile(r"(?i)\W*(?:how|what|where|which|who|can|could|does|do|is|are|will|should|i want|tell)\b")
_WHY = re.compile(r"(?i)\b(?:why|what (?:now|can i do|should i do|do i do|to do|is wrong|does it mean)|help)\b|\bbut\b")


@dataclass(frozen=True)
class Rule:
    """Expressions that are all found in a report, and one that is not."""

    heading: str  # the entry of docs/questions.md that helps
    found: tuple[re.Pattern[str], ...]
    never: re.Pattern[str] | None
    general: bool = False  # for failures of any kind

    def match(self, text: str) -> bool:
        if self.never and self.never.search(text):
            return False
        return all(pattern.search(text) for pattern in self.found)


def plain(text: str) -> str:
    """A title without tags at its beginning, such as [Bug] or Feature request:."""
    while (rest := _TAG.sub("", text, count=1)) != text and rest:
        text = rest
    return text


def requested(text: str) -> str:
    """What a title asks to have; nothing where it is none."""
    if _ASKS.match(text) and not re.match(r"(?i)\W*(?:can|could) you (?:add|support|implement)|\W*is .+ support", text):
        return ""
    found = next((match for pattern in _REQUEST if (match := pattern.match(text))), None)
    return found[1].rstrip(" ?.!") if found else ""


def asks_whether(text: str) -> str:
    """What a question asks to be there: is there X, does it support X; nothing where it asks something else."""
    found = _WHETHER.match(text)
    return found[1].rstrip(" ?.!") if found else ""


def names_model(request: str) -> bool:
    """Whether what is requested seems to be a model."""
    return _MODEL.search(request) is not None


def symptoms(text: str) -> dict[str, float]:
    """The headings of the entries that help with what is reported, and what each counts."""
    if _ASKS.match(text) and not _WHY.search(text):
        return {}
    low = _SHORTENED.sub(r"\1n't", text.lower().replace("\u2019", "'"))
    found: dict[str, bool] = {}
    for rule in rules():
        if rule.heading not in found and rule.match(low):
            found[rule.heading] = rule.general
    each = zip(found.items(), SHARES, strict=False)
    return {heading: share * (GENERAL if general else 1.0) for (heading, general), share in each}


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The rules of symptoms.txt."""
    found, heading, general = [], "", False
    for line in RULES.read_text(encoding="utf-8").splitlines():
        if line.startswith(("= ", "~ ")):
            heading, general = line[2:], line[0] == "~"
        elif line and not line.startswith("# "):
            asks, _, never = line.partition(" ! ")
            patterns = tuple(re.compile(part) for part in asks.rstrip("& ").split(" & "))
            found.append(Rule(heading, patterns, re.compile(never) if never else None, general))
    return tuple(found)
