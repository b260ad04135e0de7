"""Computes what follows from one rate and one amount: 40 tokens a second in 5 minutes, 4.5 GB at 30 MB/s."""

import re
from fractions import Fraction

from .sums import shown

_TIMES = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 0, "year": 0}
_SIZES = {"byte": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZES |= {"kbit": 125, "mbit": 125 * 10**3, "gbit": 125 * 10**6}
_SHORT = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "tok": "token", "t": "token"}
_SHORT |= {"kilobyte": "kb", "megabyte": "mb", "gigabyte": "gb", "terabyte": "tb", "gig": "gb", "kilometer": "km"}
_SHORT |= {"kilometre": "km", "meter": "m", "metre": "m", "mile": "mile", "foot": "feet", "inches": "inch"}
_N = r"(?<![\w.])([$\u20ac\u00a3]?)(\d+(?:\.\d+)?) ?"
_TIME = r"(?:s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?|weeks?|months?|years?)"
_RATE = re.compile(_N + rf"((?!{_TIME}\b)[a-z]+)? ?(?:/|\b(?:per|an?|each|every)\b) ?({_TIME})\b")
_AMOUNT = re.compile(_N + r"(?:(?:more|full|whole) )?([a-z]+)?")
_CONVERTS = re.compile(r"[^.?!]*\b1 ?[a-z]+ ?(?:=|is|equals) ?(\d+) ?[a-z]+\b[^.?!]*")
_JOINED = (
    (r"\bkm ?/ ?h\b|\bk[mp]h\b", "km per hour"),
    (r"\bmph\b", "miles per hour"),
    (r"\b([kmg])bps\b", r"\1bit per second"),
)
_ASKS = re.compile(r"\bhow (many|much|long|far)(?: more)?(?: ([a-z]+))?")


def answer(question: str) -> str:
    """The result as a sentence; nothing where a question has other numbers, or units that do not fit."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", question.lower())
    for short, whole in _JOINED:
        text = re.sub(short, whole, text)
    text, kilo = _kilo(re.sub(r"\b\d+(?:\.\d+)?b\b", " ", text))  # 70B is the size of a model, no amount
    rate, asks = _RATE.search(text), _ASKS.search(text)
    if not rate or not asks:
        return ""
    amounts = _AMOUNT.findall(text[: rate.start()] + " ; " + text[rate.end() :])
    if len(amounts) != 1:
        return ""
    speed, of, per = Fraction(rate[2]), _unit(rate[1] or rate[3] or ""), _unit(rate[4])
    coin, number, unit = amounts[0]
    asked = _unit(asks[2] or "")
    if not coin and _unit(unit) in _TIMES:
        time = _factor(_unit(unit), per, _TIMES, kilo)
        if not time or asks[1] == "long" or asked in _TIMES:
            return ""
        wanted = asked if asked in _SIZES else of
        part = _factor(of, wanted, _SIZES, kilo)
        return _said(speed * Fraction(number) * time * part, wanted) if part else ""
    part = _factor(_unit(coin or unit), of, _SIZES, kilo)
    if not part or not speed or asks[1] == "far" or not (asks[1] == "long" or asked in (*_TIMES, "time")):
        return ""
    wanted = asked if asked in _TIMES else per
    time = _factor(per, wanted, _TIMES, kilo)
    return _said(Fraction(number) * part / speed * time, wanted) if time else ""


def _kilo(text: str) -> tuple[str, int]:
    """The question without a sentence that says how many MB a GB has, and that number."""
    found = _CONVERTS.search(text)
    if not found or found[1] not in ("1000", "1024"):
        return text, 1000
    return text.replace(found[0], " "), int(found[1])


def _unit(word: str) -> str:
    """One name for a unit in all its forms."""
    word = _SHORT.get(word, word)
    single = word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word
    return _SHORT.get(single, single)


def _factor(unit: str, other: str, known: dict[str, int], kilo: int) -> Fraction:
    """How many of the other a unit has; 0 where they do not fit."""
    if unit == other:
        return Fraction(1)
    if not known.get(unit) or not known.get(other):
        return Fraction(0)
    sizes = [Fraction(known[name]) for name in (unit, other)]
    if kilo == 1024 and known is _SIZES:
        sizes = [Fraction(_SIZES.get(f"{name[0]}ib", known[name])) for name in (unit, other)]
    return sizes[0] / sizes[1]


def _said(value: Fraction, unit: str) -> str:
    name = unit.upper() if unit in _SIZES and unit != "byte" else unit
    plural = name if value == 1 or name.isupper() or name in ("km", "m", "feet") else f"{name}s"
    number = shown(value).removesuffix(".")
    return f"That is {unit}{number}." if unit in "$\u20ac\u00a3" else f"That is {number} {plural}."
