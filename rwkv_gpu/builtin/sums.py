"""Computes plain sums that are asked in words or signs, and says where one is beyond it.

The built-in model itself adds and multiplies small numbers only; a result from here is exact.
"""

import math
import re
from fractions import Fraction

BEYOND = "I cannot work that out. I compute plain sums, such as 12 * 7 or 15% of 80; for more, please use a calculator."
MOST = 10**15  # larger results are not shown
DIGITS = 6  # behind the point, where a result has no end

_UNITS = re.findall(
    r"\w+",
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen
    """,
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_NUMBERS = dict(zip(_UNITS, range(20), strict=True)) | dict(zip(_TENS, range(20, 100, 10), strict=True))
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6}

_OPENING = re.compile(
    r"^\W*(?:(?:a |another |the |one |just )*(?:quick|simple|easy|small|little|last|next) one|one question)\b"
)
_FRAME = re.compile(
    r"^(?:\s|[,.!?:]|(?:hey|hello|hi|ok|okay|so|and|now|please|pls|quick|quickly|question|what'?s|whats|what is"
    r"|what are|what does|what do (?:you|i|we) get (?:(?:if|when) (?:you|i|we)|when|if)"
    r"|how much is|how much are|how much does|how much|calculate"
    r"|compute|evaluate|solve|work out|figure out|tell me"
    r"|can you|could you|do you know|do|give me|i need|the (?:result|answer|value) of"
    r"|result of|answer to|for me|sum(?! of)|math|maths)\b)+"
)
_TAIL = re.compile(
    r"(?:\s|[=?.,]|(?<!\d)!|\b(?:equal|equals|make|makes|is|be|please|pls|for me|thanks|thank you|exactly|what"
    r"|come to"
    r"|together|as a number|in (?:numbers|digits|figures|total)|quickly|right)\b)+$"
)

# Phrases with the operator in front, as "divide A by B"; the rest are infix.
_N = r"(-?\d[\d.]*|\([^()]*\))"
_PHRASES = (
    (rf"\bdivide {_N} by {_N}", r"(\1)/(\2)"),
    (rf"\bmultiply {_N} (?:by|with|and) {_N}", r"(\1)*(\2)"),
    (rf"\b(?:subtract|take) {_N} (?:from|away from) {_N}", r"(\2)-(\1)"),
    (rf"\badd {_N} (?:and|to|with|plus) {_N}", r"(\1)+(\2)"),
    (rf"\b(?:the )?(?:sum|total) of {_N}(?: and|,) {_N}", r"(\1)+(\2)"),
    (rf"\b(?:the )?product of {_N}(?: and|,) {_N}", r"(\1)*(\2)"),
    (rf"\b(?:the )?difference (?:of|between) {_N}(?: and|,) {_N}", r"(\1)-(\2)"),
    (rf"\b(?:the )?(?:quotient|ratio) of {_N}(?: and|,) {_N}", r"(\1)/(\2)"),
    (rf"\b(?:the )?(?:square )?root of {_N}", r"sqrt(\1)"),
    (rf"\bsqrt (?:of )?{_N}", r"sqrt(\1)"),
    (rf"{_N} (?:factorial)\b", r"fact(\1)"),
    (rf"\b(?:the )?factorial of {_N}", r"fact(\1)"),
    (rf"{_N} ?!", r"fact(\1)"),
    (rf"\b(?:the )?(?:square of {_N})", r"(\1)^2"),
    (rf"\b(?:the )?cube of {_N}", r"(\1)^3"),
    (rf"{_N} to the (\d+)(?:st|nd|rd|th)\b(?: power)?", r"(\1)^(\2)"),
    (rf"{_N} squared\b", r"(\1)^2"),
    (rf"{_N} cubed\b", r"(\1)^3"),
    (rf"{_N} ?(?:%|percent|per cent) of {_N}", r"(\1)/100*(\2)"),
    (rf"{_N} (?:is |gets |was )?(?:doubled|times two)\b", r"2*(\1)"),
    (rf"{_N} (?:is |gets |was )?(?:halved|cut in half)\b", r"(\1)/2"),
    (rf"{_N} (?:is |gets |was )?tripled\b", r"3*(\1)"),
    (rf"{_N} (?:is )?(?:subtracted|taken) (?:away )?from {_N}", r"(\2)-(\1)"),
    (rf"{_N} (?:is )?added to {_N}", r"(\1)+(\2)"),
    (rf"{_N} (?:is )?increased by {_N}", r"(\1)+(\2)"),
    (rf"{_N} (?:is )?(?:decreased|reduced|lowered) by {_N}", r"(\1)-(\2)"),
    (rf"{_N} less than {_N}", r"(\2)-(\1)"),
    (rf"{_N} more than {_N}", r"(\2)+(\1)"),
    (rf"\b(?:twice|double) (?:of )?{_N}", r"2*(\1)"),
    (rf"\b(?:a )?half (?:of )?{_N}", r"(\1)/2"),
    (rf"\b(?:a |one )?third of {_N}", r"(\1)/3"),
    (rf"\b(?:a |one )?quarter of {_N}", r"(\1)/4"),
    (r"\b(?:raised )?to the power (?:of )?", "^"),
    (r"\b(?:multiplied by|times)\b|[\u00d7\u00b7]|\*(?!\*)", "*"),
    (r"(?<=[\d)])\s*x\s*(?=[\d(])", "*"),
    (r"\bdivided by\b|\bover\b|\u00f7|\s:\s", "/"),
    (r"\*\*", "^"),
    (r"\b(?:plus|and)\b", "+"),
    (r"\b(?:minus|less|take away)\b|[\u2212\u2013]", "-"),
    (r"\b(?:modulo|mod)\b", "%"),
)
_EXPRESSION = re.compile(r"(?:sqrt|fact|[\d.+\-*/^%()]|\s)+")
# So many things, each at a price, and nothing more.
_EACH = re.compile(
    r"^[^\d]*?(\d+) (?:[a-z]+ ){1,3}(?:(?:that |which )?costs?|costing|at|for|priced)(?: at)?"
    r" [$\u20ac\u00a3]?(\d+(?:\.\d+)?) ?(?:[$\u20ac\u00a3]|[a-z]+)?"
    r" ?(?:each|apiece|a piece|per piece)\b[^\d]*how much[^\d]*$"
)


def answer(question: str) -> str:
    """The result of a plain sum, as a sentence; nothing where a question is none."""
    if each := _EACH.search(in_figures(question.lower())):
        return f"That is {shown(Fraction(each[1]) * Fraction(each[2]))}"
    text = _FRAME.sub("", f" {in_figures(_OPENING.sub('', question.lower()))}")
    text = _TAIL.sub("", text).strip()
    said = text
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    for pattern, sign in _PHRASES:
        text = re.sub(pattern, sign, text)
    if not _EXPRESSION.fullmatch(text) or not re.search(r"\d\D+\d|sqrt|fact", text):
        return ""
    try:
        value = _Reader(text).whole()
    except (ValueError, ArithmeticError):
        return BEYOND
    if re.match(r"(?:divide|multiply|subtract|take|add)\b", said):
        return f"That is {shown(value)}"
    said = said[:1].upper() + said[1:]
    return f"{said} {'is' if re.search('[a-wyz]', said, re.IGNORECASE) else '='} {shown(value)}"


def in_figures(text: str) -> str:
    """Numbers in figures: two hundred and five is 205."""
    text = re.sub(r"\b(half )?a dozen\b", lambda match: "6" if match[1] else "12", text)
    text = re.sub(r"\ba (?=hundred|thousand|million)", "", text)
    one = rf"(?:{'|'.join((*_UNITS, *_TENS, *_SCALES))})\b"
    between = r"(?:[\s-]+|(?<=hundred)\s+and\s+|(?<=thousand)\s+and\s+)"

    def figures(match: re.Match[str]) -> str:
        total = part = 0
        for word in re.split(r"[\s-]+", match[0]):
            if word in _SCALES:
                part = max(part, 1) * _SCALES[word]
                if _SCALES[word] > 100:
                    total, part = total + part, 0
            elif word != "and":
                part += _NUMBERS[word]
        return str(total + part)

    return re.sub(rf"\b{one}(?:{between}{one})*", figures, text)


class _Reader:
    """Computes an expression: sums of products of powers."""

    def __init__(self, text: str) -> None:
        self._tokens = re.findall(r"\d+\.?\d*|\.\d+|sqrt|fact|\S", text)

    def whole(self) -> Fraction:
        value = self._sum()
        if self._tokens or abs(value) > MOST:
            raise ValueError
        return value

    def _next(self, *wanted: str) -> str:
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in wanted else ""

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._next("+", "-"):
            value = value + self._product() if sign == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._power()
        while sign := self._next("*", "/", "%"):
            other = self._power()
            value = value * other if sign == "*" else value / other if sign == "/" else value % other
        return value

    def _power(self) -> Fraction:
        if self._next("-"):
            return -self._power()
        base = self._atom()
        if self._next("^"):
            exponent = self._power()
            if exponent.denominator != 1 or abs(exponent) > 64 or abs(base) > 10**6:
                raise ValueError
            return Fraction(base**exponent)
        return base

    def _atom(self) -> Fraction:
        name = self._next("sqrt", "fact")
        if self._next("("):
            value = self._sum()
            if not self._next(")"):
                raise ValueError
        elif self._tokens:
            value = Fraction(self._tokens.pop(0))
        else:
            raise ValueError
        if name == "sqrt":
            return _root(value)
        if name == "fact":
            if value.denominator != 1 or not 0 <= value <= 17:
                raise ValueError
            return Fraction(math.factorial(int(value)))
        return value


def _root(value: Fraction) -> Fraction:
    """The square root, exact or to DIGITS places."""
    if not 0 <= value <= MOST:
        raise ValueError
    above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if above**2 == value.numerator and below**2 == value.denominator:
        return Fraction(above, below)
    return Fraction(math.sqrt(value))


def shown(value: Fraction) -> str:
    """A number with thousands apart; about, where its digits have no end."""
    exact = f"{float(value):.{DIGITS}f}"
    short = exact.rstrip("0").rstrip(".")
    if value.denominator == 1:
        return f"{value.numerator:,}."
    whole, _, rest = short.partition(".")
    text = f"{int(whole):,}.{rest}" if rest else f"{int(whole):,}"
    text = "-" + text if short.startswith("-0.") else text
    return f"{text}." if Fraction(short) == value else f"about {text}."
