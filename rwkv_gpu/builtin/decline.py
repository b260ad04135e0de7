"""Requests that the built-in model declines, whatever else their words may mean.

`decline.txt` has the rules. A rule is an act and what it is done to, near each other: "cook meth" is one, "cook dinner"
and "kill the process" are none. Some phrases are enough by themselves, and some words make a sentence innocent.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

RULES = Path(__file__).with_name("decline.txt")
ANSWERS = {
    "no": "I do not help with that: somebody could get hurt, or it is against the law.",
    "hate": "I do not write that: it hurts people. Let us talk about something nicer.",
    "sorry": (
        "I am so sorry that you feel like this. Please talk to somebody now: a person you trust, a doctor, or a crisis "
        "line. In an emergency call your local emergency number. You are not alone."
    ),
    "doctor": (
        "I am no doctor, and I know too little for that. Please ask a doctor or a pharmacist. "
        "In an emergency call your local emergency number now."
    ),
}
SHOWN = 400  # characters that are read of each end of a long text

# Words that are understood in a wrong spelling, and with digits in place of letters.
_GRAVE = re.findall(
    r"\w+",
    """
    bomb bombs explosive explosives grenade poison poisoning weapon weapons suicide murder heroin cocaine
    methamphetamine fentanyl malware ransomware keylogger trojan phishing counterfeit blackmail kidnap
    terrorist terrorism assassinate strangle molotov shoplift stalking stealing burglary launder hacking overdose
    """,
)
_SHORT = ["die", "kill", "meth", "hack", "guns", "gun", "drugs", "nude", "nudes", "porn", "virus", "steal"]
_DIGITS = str.maketrans("013457@$", "oieastas")


@dataclass(frozen=True)
class Rule:
    """What is declined by an answer, and what makes it innocent after all."""

    answer: str
    asks: tuple[re.Pattern[str], ...]
    innocent: tuple[re.Pattern[str], ...]

    def match(self, text: str) -> bool:
        """Whether a text asks for it."""
        asked = any(pattern.search(text) for pattern in self.asks)
        return asked and not any(pattern.search(text) for pattern in self.innocent)


def decline(text: str) -> str:
    """What is answered to a request that is declined; nothing for any other."""
    if len(text) > 2 * SHOWN:
        text = f"{text[:SHOWN]} {text[-SHOWN:]}"
    plain = " ".join(_plain(text))
    return next((rule.answer for rule in _rules() if rule.match(plain)), "")


@functools.cache
def _rules() -> tuple[Rule, ...]:
    head, *blocks = re.split(r"^= ", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    groups = dict(re.findall(r"^([a-z]+): (.+)$", head, re.MULTILINE))
    found = []
    for block in blocks:
        name, *lines = block.strip().splitlines()
        asks = [line for line in lines if not line.startswith("! ")]
        innocent = [line[2:] for line in lines if line.startswith("! ")]
        patterns = [tuple(_pattern(line, groups) for line in part) for part in (asks, innocent)]
        found.append(Rule(ANSWERS[name], patterns[0], patterns[1]))
    return tuple(found)


def _pattern(line: str, groups: dict[str, str]) -> re.Pattern[str]:
    """The expression of a line: `act  ~5~  what` is both, at most so many words apart."""
    line = re.sub(r"\{([a-z]+)\}", lambda match: groups[match[1]], line)
    near, _, after = line.partition("  &  ")
    act, gap, what = re.fullmatch(r"(?:(.*)  ~(\d)~  )?(.*)", near).groups()  # type: ignore[union-attr]
    if act is not None:
        near = rf"\b(?:{act})\b(?:\W+[\w'-]+){{0,{gap}}}?\W+(?:{what})\b"
    return re.compile(near + after)


def _plain(text: str) -> Iterator[str]:
    """The words in lower case, without the digits and misspellings that hide grave ones."""
    for word in text.lower().replace("’", "'").split():
        bare = word.strip(".,!?\"'")
        meant = bare.translate(_DIGITS)
        if meant != bare and meant in (*_GRAVE, *_SHORT):
            yield meant
        elif len(bare) > 5 and bare.isalpha() and (near := get_close_matches(bare, _GRAVE, 1, 0.87)):
            alike = near[0][0] == bare[0] and abs(len(near[0]) - len(bare)) < 2
            yield near[0] if alike else word
        else:
            yield word
