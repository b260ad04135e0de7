"""Fixed answers to what the built-in model would answer wrongly about itself, and to greetings from afar."""

import re

_WELCOME = "Hello! It is nice to meet you. You can chat with me, or ask me about rwkv-gpu."
_PROGRAM = "I am a program, and no human: the small built-in model of rwkv-gpu."
_FAVOURITE = "I am a small program and have no favourites. What do you like best?"
_FIRST = r"(?:(?:this|it)(?: is|'s) )?(?:my )?(?:very )?first time(?: (?:that )?(?:i|here)\b[\w ]*)?|(?:i am|i'm|im) new(?: here| to this)?"
_KINDS = r"(?:human(?: being)?|person|robot|bot|chat ?bot|ai|machine|computer|real|alive|man|woman|girl|boy|program|software)"
_ANSWERS = (
    (
        rf"(?:hi|hello|hey|hallo|hola|bonjour|ciao|greetings|good (?:morning|evening|afternoon|day))(?: there| everyone| all)?[ ,!.]*"
        rf"(?:(?:greetings )?from [a-z]+(?: [a-z]+)?[ ,!.]+(?:{_FIRST})|from [a-z]+(?: [a-z]+)?|{_FIRST})",
        _WELCOME,
    ),
    (
        rf"(?:so |and |but |wait |hey |hi |hello )*,? ?are you (?:a |an |really |actually |even |just |some (?:kind|sort) of )*{_KINDS}"
        rf"(?: or (?:a |an |just |not|some (?:kind|sort) of |really )*(?:{_KINDS})?)?",
        _PROGRAM,
    ),
    (
        rf"(?:so |and |but |hey |hi )*(?:am i|is this) (?:talking|speaking|chatting|writing) (?:to|with) (?:a |an |some )?(?:real )?{_KINDS}"
        rf"(?: or (?:a |an )?{_KINDS})?",
        _PROGRAM,
    ),
    (
        r"(?:hi |hey |so |and )*(?:what(?: is|'s)|which is|do you have a) ?(?:your )?favou?rite (?:kind of |sort of )?"
        r"(?:music|song|band|food|drink|film|movie|book|game|sport|animal|season|singer|dish|team)(?: to \w+)?"
        r"(?:[.?!]+ (?:i am|i'm|mine is|i like|i love) [^?]*)?",
        _FAVOURITE,
    ),
)
_PATTERNS = tuple((re.compile(pattern), answer) for pattern, answer in _ANSWERS)


def greeting(text: str) -> str:
    """The fixed answer to a whole message; nothing for any other."""
    plain = " ".join(text.lower().replace("\u2019", "'").split()).rstrip(" .!?:)(;-")
    return next((answer for pattern, answer in _PATTERNS if pattern.fullmatch(plain)), "")
