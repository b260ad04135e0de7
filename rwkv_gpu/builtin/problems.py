"""Tells questions that ask for a calculation from questions about the program that have numbers in them.

Who asks how many kilowatts 5 GPUs of 350 W draw wants no passage on GPUs.
"""

import re

from .sums import in_figures


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_MODEL_SIZE = re.compile(r"\b\d+(?:\.\d+)?b\b")
# Numbers that count nothing.
_NAMES = _any(
    r"(?<![\w-])--?[a-z][\w-]*(?:[ =]\d[\d.]*)?",  # options and their values
    _MODEL_SIZE.pattern,
    r"\b(?:i?q|f|bf|fp|int)\d\w*|\b\d+.?bits?\b(?! per)",  # types of weights
    r"\b(?:[rg]tx|rx|radeon|geforce|arc) ?\d+\w*|\b[1-9]0[5-9]0\b|\b[a-z]+\d[\w.]*",  # graphics cards
    r"\b(?:exit|error) (?:code )?\d+",
    r"\b(?:python|version|port|llama|qwen|phi|gemma|gpt|mistral|deepseek|rwkv|vulkan|cuda|dx|windows|ubuntu|debian"
    r"|seed|temperature|top.[pk]|min.p) ?(?:is |of |to |at )?v?\d[\d.]*",
)
_NUMBER = _any(
    r"(?<![\w.])[$\u20ac\u00a3]?\d+(?:\.\d+)?",
    r"\b(?:half|twice|double|triple|quarter|third)\b",
    r"\b(?:does|do|will) an? (?:hour|day|week|month|year) ",
)
_UNIT = r"(?:kilo|mega|giga|tera|milli)?(?:bytes?|bits?|watts?|watt.hours?|volts?|amps?|joules?)"
_UNIT = rf"(?:{_UNIT}|[kmgt]i?b|k?wh?|seconds?|secs?|minutes?|mins?|hours?|days?|weeks?|months?|years?)"
_SIZE = r"\d[\d.]* ?[kmgt]i?b\b"
_ASKS = _any(
    r"\bhow (?:many|much|long|far|fast)\b",
    r"\bhow (?:large|big|heavy|old) (?:is|are|was|will)\b",
    r"\bwhat(?:'?s| is| are| was| will be)\b",
    r"\bwhat (?:do|does|did|will|would) ",
    r"\b(?:what|which) (?:percentage|percent|share|part|fraction)\b",
    r"\bwhich is (?:the )?(?:cheap|fast|larg|small|bett)er\b",
    r"\bat what time\b|\bwhen (?:do|does|will|is)\b",
    r"\b(?:calculate|compute|work out|figure out)\b",
    r"= ?\?",
    r"\band \d[^?]*\?$",
    r"\b(?:price|cost|speed|rate) per [a-z]+ ?\?$",
    rf"[.,;:] {_UNIT} ?\?",
)
# Each of these with two numbers asks for a third one.
_RELATIONS = _any(
    r"\d ?(?:%|percent|per cent) (?:of|off|more|less|faster|slower|smaller|larger|cheaper|longer|shorter)\b",
    r"\b(?:percentage|percent|share|part|fraction) of\b",
    r"\b(?:what|which) (?:percentage|percent|share|part|fraction)\b",
    r"\d ?[a-z%]* ?(?:/ ?|per |(?:an?|every) (?=second|minute|hour|day|week|month|year|piece))[a-z]",
    r"\d[^?!;]{0,40}\b(?:each|apiece)\b",
    r"\beach (?:\w+ ){0,2}(?:about |for |at )?[$\u20ac\u00a3]?\d",
    r"\beach pay\b|\btakes? \d",
    r"\b(?:left|leaves?|until|difference|altogether|equally|evenly|in total|in all|in between)\b|\bremain",
    r"\b(?:the|its|their) total\b|\b(?:is|are) that\b|\b(?:do|does|will) that (?:make|cost|take|give|need)\b",
    r"\b(?:costs?|pay|prices?|dollars?|euros?|cents?)\b|[$\u20ac\u00a3]\d",
    r"\d ?(?:k?w|kwh|watts?|kg|km)\b",
    r"\bhow many (?:of )?(?:\w+ )?(?:\w+ (?:of|with|at|that (?:are|have)) )?\d|\bhow many \w+ (?:of|with|at) \d",
    r"\d[\d.]* ?(?:[a-z]+ )?(?:times|plus|minus|divided by|multiplied by|[x*\u00d7+/]) \d|\d ?[a-z]* ?=",
    r"\b(?:half|twice|double|triple|quarter|third) (?:of|as|that|the)\b",
)
_CONVERTS = re.compile(rf"\bhow (?:many|much) {_UNIT} (?:is|are|in|make|has|have|does?|per)\b|\bconvert \d")
_CLOCK = re.compile(r"\b\d{1,2}(?::\d\d| ?[ap]\.?m\b| o'?clock)")
# Days before or after a date; a number of seconds as a date; a time of day some minutes later.
_TIMES = _any(
    r"\b\d+ (?:days?|weeks?|months?|years?) (?:after|before|from|past)\b.*\b(?:\d{1,2}|today|tomorrow|now)\b",
    r"\b(?:what|which) date (?:is|was|will be)\b.*\d|\bhow many (?:days|weeks)\b.*\b(?:until|till|between|since)\b.*\d",
    r"\b(?:timestamp|epoch|unix time)\b.*\d{6,}",
    r"\d{6,}.*\b(?:timestamp|epoch|unix time)\b",
    r"\b(?:past|o'?clock|[ap]\.?m\.?|noon|midnight|\d:\d\d)\b.*"
    r"\b(?:plus|minus|and|after|before|later|earlier)\b.*\b(?:minutes?|hours?)\b",
)
_SIZED = _any(
    rf"\bhow (?:many|long|(?:big|large) is)\b.*{_SIZE}.*{_SIZE}",
    rf"{_SIZE}.*{_SIZE}.*\bhow (?:many (?!layers)|long|(?:big|large) is)\b",
)
_IF = _any(
    r"\b(?:if|suppose|given|assum\w+|when)\b.*\bhow (?:many|much|long|large|big)\b", r"\bhow (?:many|long)\b.*\bif\b"
)
# Numbers are stated first, and what is asked for has none: a disk of 1 TB, models of 40 GB, how many?
_STATED = re.compile(
    r"\d.*\D\d.*[,.;:] (?:so |and |then )?how (?:many|much|long)\b"
    r"(?! (?:sequences|requests|chats|users|people|layers|contexts?|memory|v?ram|slower|faster)\b)[^\d]*$"
)
# What asks for help all the same.
_HELP = _any(
    r"\bwhat (?:do|does|is|are)\b.*\b(?:mean|print|show|stand for)\b",
    r"\d ?\w* or \d[\w ]*\W*$",  # a choice of two values
    r"\bcan (?:the server|rwkv.gpu|it)\b|\bdoes rwkv.gpu\b",
)
_MEMORY = re.compile(
    r"\bhow (?:much|big)\b.*\b(?:memory|v?ram|contexts?|models?|quants?)\b|\bhow (?:(?:many|much) layers|fast)\b"
)

_MATHS = re.compile(
    r"\b(?:solve|equation|derivative|integral|integrate|logarithm|log|sin|sine|cos|cosine|tan|tangent|cube root"
    r"|hypotenuse|prime number|prime factors?|factori[sz]e|average of|mean of|median|modulo|percent|percentage|radius"
    r"|circumference|area of|volume of|binary|hexadecimal|roman numerals?|square root|root of|factorial|interest"
    r"|probability|in decimal|in octal|celsius|fahrenheit"
    r"|(?:kilo)?met(?:er|re)s|miles|inches|feet|pounds|kilos?|kg|km|euros?"
    r"|dollars?|ounces|gallons"
    r"|lit(?:er|re)s|how many (?:seconds|minutes|hours|days|weeks|months))\b|[\d)] ?[*/^+] ?[\d(]|\bx\b.*=|=.*\bx\b"
    r"|\d (?:plus|minus|times|multiplied by|divided by) \d|\b(?:sum|product|difference) (?:of|between) \d"
)
_QUANTITY = re.compile(
    r"\bhow (?:many|much|far|long|fast|old|big|high|tall)\b|\bwhen does\b"
    r"|\bwhat (?:is|are|was) the (?:total|price|speed|age|distance|rest|change|remainder)\b|\beach\b"
)


def beyond(question: str) -> bool:
    """Whether a question asks for a number that follows from others, which nobody here works out."""
    text = in_figures(question.lower())
    numbers = [float(number) for number in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])", text.replace(",", ""))]
    if _MATHS.search(text) and (numbers or re.search(r"\bx\b", text)):
        return True
    hard = len(numbers) > 2 or (len(numbers) > 1 and (max(numbers) > 20 or "each" in text))
    return hard and _QUANTITY.search(text) is not None


def calculation(question: str) -> bool:
    """Whether a question gives numbers and asks for one that follows from them, whatever it is about."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", in_figures(re.sub(r"\bone\b", " ", question.lower())))
    named = _NAMES.sub(" ", text)
    numbers = len(_NUMBER.findall(named))
    if (len(_CLOCK.findall(named)) > 1 and "how long" in named) or _TIMES.search(text):
        return True
    if numbers and named == text and _CONVERTS.search(named):
        return True
    if numbers > 1 and _STATED.search(named):
        return True
    if numbers < 2 or not _ASKS.search(named) or _HELP.search(named):
        return False
    memory = _MEMORY.search(named) is not None
    if memory and _MODEL_SIZE.search(text):
        return False
    if _RELATIONS.search(named) or _SIZED.search(named):
        return True
    return not memory and (numbers > 2 or _IF.search(named) is not None)
