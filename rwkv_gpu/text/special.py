"""Special tokens in text: splits a text at them, before a tokenizer processes the rest."""

import re
from collections.abc import Callable, Iterable, Iterator

from rwkv_gpu.text.interruption import steps
from rwkv_gpu.text.vocabulary import Kind, Vocabulary

Part = bytes | int  # text still to be tokenised, or the id of a special token
Place = tuple[int, int, int]  # start and end of a special token in a text, and its id

_ALWAYS = frozenset({Kind.USER_DEFINED})
MATCHED = _ALWAYS | {Kind.CONTROL, Kind.UNKNOWN}


class SpecialTokens:
    """Tokens that are matched whole: user-defined ones always, control and unknown ones on request."""

    def __init__(self, vocabulary: Vocabulary, text_of: Callable[[int], bytes]) -> None:
        kinds = vocabulary.kinds
        self._all = _Finder((text_of(i), i) for i, kind in enumerate(kinds) if kind in MATCHED)
        self._always = _Finder((text_of(i), i) for i, kind in enumerate(kinds) if kind in _ALWAYS)

    def split(self, text: bytes, *, parse: bool) -> list[Part]:
        """`text` as runs of plain bytes and special token ids, in order."""
        parts: list[Part] = []
        start = 0
        for at, end, token in (self._all if parse else self._always).find(text):
            if at > start:
                parts.append(text[start:at])
            parts.append(token)
            start = end
        return [*parts, text[start:]] if start < len(text) else parts


class _Finder:
    """Finds special tokens in time independent of their number."""

    def __init__(self, tokens: Iterable[tuple[bytes, int]]) -> None:
        self._ids: dict[bytes, int] = {}
        for text, token in tokens:
            self._ids.setdefault(text, token)
        self._lengths: dict[bytes, list[int]] = {}  # lengths of tokens by their first two bytes
        for length, start in sorted({(len(text), text[:2]) for text in self._ids}):
            self._lengths.setdefault(start, []).append(length)
        first = b"".join(re.escape(bytes([byte])) for byte in sorted({text[0] for text in self._ids}))
        self._starts = re.compile(b"[" + first + b"]" if first else b"(?!)", re.DOTALL)

    def find(self, text: bytes) -> list[Place]:
        """The tokens in order. Longer ones take precedence over shorter ones anywhere; then the lower id."""
        places: dict[tuple[int, int], list[int]] = {}
        for at, length, token in self._everywhere(text):
            places.setdefault((-length, token), []).append(at)
        taken = bytearray(len(text))
        chosen = []
        for (negative, token), starts in sorted(places.items()):
            for at in starts:
                end = at - negative
                # Earlier tokens are as long or longer, so an overlapping one covers an end of this one.
                if not taken[at] and not taken[end - 1]:
                    taken[at:end] = b"\1" * (end - at)
                    chosen.append((at, end, token))
        return sorted(chosen)

    def _everywhere(self, text: bytes) -> Iterator[Place]:
        """The start and length of each token that occurs, including overlapping ones."""
        for match in steps(self._starts.finditer(text)):
            at = match.start()
            for start in (text[at : at + 1], text[at : at + 2]):
                for length in self._lengths.get(start, ()):
                    token = self._ids.get(text[at : at + length])
                    if token is not None and at + length <= len(text):
                        yield at, length, token
