"""Special tokens in running text: cuts a text at them, before any tokenizer sees the rest."""

from collections.abc import Callable

from rwkv_gpu.text.vocabulary import Kind, Vocabulary

Part = bytes | int  # text still to be tokenised, or the id of a special token

_ALWAYS = frozenset({Kind.USER_DEFINED})
MATCHED = _ALWAYS | {Kind.CONTROL, Kind.UNKNOWN}


class SpecialTokens:
    """The tokens that are matched whole: user-defined ones always, control and unknown ones when asked for."""

    def __init__(self, vocabulary: Vocabulary, text_of: Callable[[int], bytes]) -> None:
        found = [(text_of(i), i) for i, kind in enumerate(vocabulary.kinds) if kind in MATCHED]
        # Long ones first, each through the whole text: a shorter one only gets what the longer ones leave.
        self._all = sorted(found, key=lambda item: -len(item[0]))
        self._always = [(text, i) for text, i in self._all if vocabulary.kinds[i] in _ALWAYS]

    def split(self, text: bytes, *, parse: bool) -> list[Part]:
        """`text` as runs of plain bytes and special token ids, in order."""
        parts: list[Part] = [text] if text else []
        for special, token in self._all if parse else self._always:
            if special in text:
                parts = [piece for part in parts for piece in _cut(part, special, token)]
        return parts


def _cut(part: Part, special: bytes, token: int) -> list[Part]:
    if isinstance(part, int):
        return [part]
    cut: list[Part] = []
    for run in part.split(special):
        if run:
            cut.append(run)
        cut.append(token)
    return cut[:-1]
