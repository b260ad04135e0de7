"""Which words of a question count, and whether it goes on with the one before it."""

import re
from collections.abc import Callable, Mapping

AROUND = 0.5  # what a word counts in the sentences around the one that asks

_SENTENCE = re.compile(r"(?<=[.!?;]) +|\n+")
_QUESTION = re.compile(
    r"(?i)\W*(?:but |and |so |ok |now )*(?:how|what|which|where|when|why|who|can|could|is|are|does|do|will|should)\b"
)
# It begins as a question that goes on with the one before it: and from Python? only the code? over http?
_GOES_ON = re.compile(
    r"(?i)\W*(and|but|then|also|even|only|just|what about|how about|what if|from|over|in|on|with|without|for|by|via)\b"
)
_MEANS = re.compile(r"(?i)\b(it|its|that|this|one|them|they|those|there(?=\W*$)|back|again|rest)\b")


def asked(question: str, read: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """The words of a question. Where it has several sentences, those around the ones that ask count half."""
    sentences = [part for part in _SENTENCE.split(question) if len(part.split()) > 2]
    if len(sentences) < 2:
        return read(question)
    asks = [part for part in sentences if part.endswith("?") or _QUESTION.match(part)] or sentences
    around = " ".join(part for part in sentences if part not in asks)
    return dict.fromkeys(read(around), AROUND) | read(" ".join(asks))


def goes_on(question: str, words: Mapping[str, float]) -> bool:
    """Whether a question may be one together with the question before it: and from Python?"""
    content = [word for word in words if word[0] != "~"]
    if len(content) > 3 or any(word[0] in "-/" for word in content):
        return False
    return bool(_MEANS.search(question)) or (bool(content) and bool(_GOES_ON.match(question)))
