"""Finds the tokens that stand at some place of a text, in time that does not grow with how many tokens there are."""

from collections.abc import Mapping

_HEAD = 4  # bytes that tokens are grouped by: a mark of a space and a letter


class Matches:
    """Tokens by their bytes. Memory and time to make it grow with these bytes alone, however long one token is."""

    def __init__(self, tokens: Mapping[bytes, int]) -> None:
        self._ids = tokens
        self._lengths: dict[bytes, list[int]] = {}  # of tokens that begin with these bytes, or are fewer
        for length, head in sorted({(len(text), text[:_HEAD]) for text in tokens}):
            self._lengths.setdefault(head, []).append(length)

    def at(self, text: bytes, start: int) -> list[tuple[int, int]]:
        """The end and the id of each token that stands at `start`, from the shortest to the longest."""
        found = []
        for head in range(start + 1, min(start + _HEAD, len(text)) + 1):
            for length in self._lengths.get(text[start:head], ()):
                end = start + length
                if end > len(text):
                    break
                token = self._ids.get(text[start:end])
                if token is not None:
                    found.append((end, token))
        return found
