"""Stop strings in a stream of text: found across pieces, never shown, not even by halves."""

from collections.abc import Sequence

from rwkv_gpu.errors import BadInput


def held_back(text: str, sought: Sequence[str]) -> int:
    """How many characters at the end of `text` may yet become one of the sought strings."""
    longest = 0
    for string in sought:
        for n in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:n]):
                longest = n
                break
    return longest


def first_complete(text: str, sought: Sequence[str]) -> tuple[int, str] | None:
    """Where the one begins that is complete first, and which it is; of those that end together, the longest."""
    found = [(at + len(string), at, string) for string in sought if (at := text.find(string)) >= 0]
    return min(found)[1:] if found else None


class StopStrings:
    """Lets text through up to the first stop string. Of several, the one that is complete first ends the text."""

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise BadInput(f"stop holds {stop!r}; it must be strings of at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped: str | None = None  # the stop string that was met

    def feed(self, text: str) -> tuple[str, bool]:
        """What can be shown now that `text` came, and whether a stop string was met. After that nothing is shown."""
        if self.stopped is not None:
            return "", True
        text = self._held + text
        found = first_complete(text, self._stops)
        if found is not None:
            at, self.stopped = found
            self._held = ""
            return text[:at], True
        cut = len(text) - held_back(text, self._stops)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        rest, self._held = self._held, ""
        return rest
