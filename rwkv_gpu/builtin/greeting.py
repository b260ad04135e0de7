"""Fixed answers to what the built-in model would answer wrongly about itself, and to greetings from afar."""

import re

_WELCOME = "Hello! It is nice to meet you. You can chat with me, or ask me about rwkv-gpu."
_PROGRAM = "I am a program, and no human: the small built-in model of rwkv-gpu."
_TOY = (
    "I am a very small model, a toy for simple English talk, and no source of knowledge. "
    "About rwkv-gpu I quote the documentation."
)
_FAVOURITE = "I am a small program and have no favourites. What do you like best?"
_SORRY = (
    "I am sorry that it gives you trouble. Which command did you type, and what does the error line say? "
    "`rwkv-gpu devices` shows whether your GPU is found, and `rwkv-gpu doctor` checks it."
)
_GROUPS = {
    "hello": r"(?:hi|hello|hey|hallo|hola|bonjour|ciao|greetings|good (?:morning|evening|afternoon|day))"
    r"(?: there| everyone| all)?[ ,!.]*",
    "place": r"(?:greetings )?from [a-z]+(?: [a-z]+)?",
    "first": r"(?:(?:(?:this|it)(?: is|'s) )?(?:my )?(?:very )?first time(?: (?:that )?(?:i|here)\b[\w ]*)?"
    r"|(?:i am|i'm|im) new(?: here| to this)?)",
    "a": r"(?:an? |really |actually |even |just |some (?:kind|sort) of |not |real )*",
    "kind": r"(?:human(?: being)?|person|robot|(?:chat ?)?bot|ai|machine|computer|real|alive|man|woman|girl|boy)",
    "able": r"(?:good|smart|clever|intelligent|accurate|reliable|capable|trustworthy|useful|powerful)",
    "it": r"(?:this|it|that|nothing|rwkv-gpu|(?:this|the|your) (?:stupid |damn |whole )?(?:program"
    r"|tool|thing|software|app|crap))",
    "adverb": r"(?:(?:really|just|simply|so|all|totally|completely|absolutely|still|always|even|ever|never|such"
    r"|a|an|full of) )*",
    "bad": r"(?:sucks?|(?<=nothing )works|fails?|breaks|crashes|bugs?|useless|broken|terrible|horrible|awful|crap"
    r"|garbage|rubbish|shit|trash"
    r"|annoying|keeps (?:crashing|failing|breaking)|piece of (?:crap|junk|garbage|shit|trash)|frustrating|junk"
    r"|mess|disappointing"
    r"|(?:doesn'?t|does not|don'?t|do not|won'?t|will not|is not|isn'?t|not|didn'?t) (?:even )?(?:work|working"
    r"|run|running|start|do anything))"
    r"(?: (?:program|tool|thing|software|app|crap))?",
    "where": r"(?: (?:at all|for me|here|again|today|now|anymore|any more|with (?:this|it)"
    r"|(?:on|with) (?:my|this|any) (?:machine|computer|laptop|pc|mac|system)))*",
    "so": r"(?:so |and |but |wait |hey |hi |hello )*,? ?",
    "art": r"(?:music|song|band|food|drink|film|movie|book|game|sport|animal|season|singer|dish|team)",
}
_COMPLAINT = (
    r"(?:(?:(?:{it}|what)(?: is|'s)? ?)?{adverb}{bad}"
    r"|(?:i am |i'm )?{adverb}(?:stuck|frustrated|annoyed)"
    r"|i {adverb}hate (?:this|it)){where}"
)
_GROUPS["complaint"] = _COMPLAINT.format(**_GROUPS)
_ANSWERS = (
    (r"{so}(?:{complaint}(?:[ ,.!;:-]+(?:and |but )?|$)){{1,4}}", _SORRY),
    ("{hello}(?:{place}(?:[ ,!.]+{first})?|{first})", _WELCOME),
    ("{so}are you,? {a}{kind}(?: or {a}{kind}?)?", _PROGRAM),
    ("{so}(?:am i|is this) (?:talking|speaking|chatting|writing) (?:to|with) {a}{kind}(?: or {a}{kind})?", _PROGRAM),
    ("{so}how {able} are you(?: really| actually| anyway)?", _TOY),
    (
        "{so}(?:what(?: is|'s)|which is|do you have a) ?(?:your )?favou?rite (?:kind of |sort of )?{art}"
        "(?:[.?!]+ (?:i am|i'm|mine is|i like|i love) [^?]*)?",
        _FAVOURITE,
    ),
)
_BEFORE = re.compile(r"(?i)\W*{hello}(?:{place})?(?:[ ,!.:]+{first})?[ ,!.:]+(?=\w+ \w+ \w)".format(**_GROUPS))
_PATTERNS = tuple((re.compile(pattern.format(**_GROUPS)), answer) for pattern, answer in _ANSWERS)


def without_greeting(text: str) -> str:
    """A message without the greeting before its question: hello from Germany, does it run on Windows?"""
    return _BEFORE.sub("", text, count=1) if _BEFORE.match(text) else text


def greeting(text: str) -> str:
    """The fixed answer to a whole message; nothing for any other."""
    plain = " ".join(text.lower().replace("\u2019", "'").split()).rstrip(" .!?:)(;-")
    return next((answer for pattern, answer in _PATTERNS if pattern.fullmatch(plain)), "")
