"""Stop strings in a stream of text: found across pieces, and never shown, not even partly.

An Aho-Corasick automaton searches for all of them at once, so the time depends only on the text.
"""

from collections import deque
from collections.abc import Sequence

from rwkv_gpu.errors import BadInput

MOST = 1_000  # stop strings per request
MAX_CHARACTERS = 1 << 14  # total characters


def check_stops(stops: Sequence[str]) -> None:
    """Refuses empty or too many stop strings."""
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise BadInput(f"stop holds {stop!r}; it must be strings of at least one character")
    characters = sum(map(len, stops))
    if len(stops) > MOST or characters > MAX_CHARACTERS:
        raise BadInput(
            f"stop has {len(stops):,} strings of {characters:,} characters; "
            f"at most {MOST:,} strings of {MAX_CHARACTERS:,} characters in total are allowed"
        )


class Automaton:
    """The prefixes of some strings as states.

    The current state is the longest prefix that the text ends with; state 0 is none.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.depth = [0]  # length of each state's prefix
        self.found = [0]  # length of the longest string that ends in this state
        for string in strings:
            self._add(string)
        self._shorter = self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while character not in self._next[state]:
            if not state:
                return 0
            state = self._shorter[state]
        return self._next[state][character]

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.found.append(0)
            state = self._next[state][character]
        self.found[state] = len(string)

    def _link(self) -> list[int]:
        """For each state, the longest other state that is its suffix, in order of length."""
        self._shorter = shorter = [0] * len(self._next)
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, longer in self._next[state].items():
                shorter[longer] = self.step(shorter[state], character)
                self.found[longer] = self.found[longer] or self.found[shorter[longer]]
                waiting.append(longer)
        return shorter


class StopStrings:
    """Passes text through up to the first stop string.

    The stop string that is completed first ends the text. If several are completed at one position, the longest does.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        check_stops(stops)
        self._automaton = Automaton(stops)
        self._state = 0
        self._held = ""  # possible beginning of a stop string
        self.stopped: str | None = None  # the stop string that was found

    def feed(self, text: str) -> tuple[str, bool]:
        """Returns the text that can be shown now, and whether a stop string was found. Afterwards nothing is shown."""
        if self.stopped is not None:
            return "", True
        automaton, state = self._automaton, self._state
        seen = self._held + text
        for at, character in enumerate(text, len(self._held) + 1):
            state = automaton.step(state, character)
            length = automaton.found[state]
            if length:
                self._held, self.stopped = "", seen[at - length : at]
                return seen[: at - length], True
        self._state = state
        cut = len(seen) - automaton.depth[state]
        self._held = seen[cut:]
        return seen[:cut], False

    def flush(self) -> str:
        """Returns the withheld text, at the end."""
        rest, self._held, self._state = self._held, "", 0
        return rest
