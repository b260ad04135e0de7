"""Special tokens in text: splits a text at them, before a tokenizer processes the rest."""

import re
from collections.abc import Callable, Iterable, Iterator, Set

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
    """Finds special tokens in time independent of their number.

    Vocabularies have tokens of 1 to 31 equal bytes, such as spaces. All of them occur at almost every byte of a long
    run. So they are searched in whole runs, not at each byte.
    """

    def __init__(self, tokens: Iterable[tuple[bytes, int]]) -> None:
        self._ids: dict[bytes, int] = {}
        for text, token in tokens:
            self._ids.setdefault(text, token)
        texts = sorted(filter(None, self._ids), key=len)
        self._of_runs: dict[bytes, list[tuple[int, int]]] = {}  # lengths and ids, by byte
        for text in filter(_is_run, texts):
            self._of_runs.setdefault(text[:1], []).append((len(text), self._ids[text]))
        self._lengths: dict[bytes, list[int]] = {}  # lengths of other tokens by their first two bytes
        others = [text for text in texts if not _is_run(text)]
        for length, start in sorted({(len(text), text[:2]) for text in others}):
            self._lengths.setdefault(start, []).append(length)
        self._starts = re.compile(_any_of({text[:1] for text in others}), re.DOTALL)
        least = min((lengths[0][0] for lengths in self._of_runs.values()), default=1)
        self._runs = re.compile(b"(%b)\\1{%d,}" % (_any_of(self._of_runs.keys()), least - 1), re.DOTALL)

    def find(self, text: bytes) -> list[Place]:
        """The tokens in order. Longer ones take precedence over shorter ones anywhere; then the lower id."""
        places: dict[tuple[int, int], list[range]] = {}
        for at, length, token in self._everywhere(text):
            places.setdefault((-length, token), []).append(range(at, at + 1))
        for run in steps(self._runs.finditer(text)) if self._of_runs else ():
            start, end = run.span()
            for length, token in self._of_runs[run[1]]:
                if length > end - start:
                    break
                places.setdefault((-length, token), []).append(range(start, end - length + 1))
        taken = bytearray(len(text))
        chosen = []
        for (negative, token), ranges in sorted(places.items(), key=lambda item: item[0]):
            for starts in ranges:
                at = taken.find(0, starts.start, starts.stop)
                while at >= 0:
                    end = at - negative
                    # Tokens that were taken before are at least as long, so an overlapping one covers an end of this
                    # one.
                    if not taken[end - 1]:
                        taken[at:end] = b"\1" * (end - at)
                        chosen.append((at, end, token))
                    at = taken.find(0, at + 1, starts.stop)
        return sorted(chosen)

    def _everywhere(self, text: bytes) -> Iterator[Place]:
        """The start and length of each token that is not a run and occurs, including overlapping ones."""
        for match in steps(self._starts.finditer(text)):
            at = match.start()
            for length in self._lengths.get(text[at : at + 2], ()):
                token = self._ids.get(text[at : at + length])
                if token is not None and at + length <= len(text):
                    yield at, length, token


def _is_run(text: bytes) -> bool:
    """True if all bytes of a token are equal."""
    return text == text[:1] * len(text)


def _any_of(starts: Set[bytes]) -> bytes:
    """A regular expression for one of some bytes."""
    return b"[" + b"".join(re.escape(byte) for byte in sorted(starts)) + b"]" if starts else b"(?!)"
