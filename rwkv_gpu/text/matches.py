"""Finds the tokens at a position of a text, in time independent of the size of the vocabulary."""

from collections.abc import Mapping

_HEAD = 4  # bytes by which tokens are grouped: a space mark and a letter


class Matches:
    """Tokens by their bytes. Memory and build time are linear in their total bytes, however long one token is."""

    def __init__(self, tokens: Mapping[bytes, int]) -> None:
        self._ids = tokens
        self._lengths: dict[bytes, list[int]] = {}  # lengths of tokens by their first bytes
        for length, head in sorted({(len(text), text[:_HEAD]) for text in tokens}):
            self._lengths.setdefault(head, []).append(length)

    def at(self, text: bytes, start: int) -> list[tuple[int, int]]:
        """The end and id of each token at `start`, from the shortest to the longest."""
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
