"""Stop strings: found wherever the pieces are cut, never shown by halves, nothing held back without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.stops import StopStrings
from tests.text.cuts import cut, cuts

# Few letters, so that stops overlap themselves and each other.
TEXTS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3)


def run(stops, pieces):
    stream = StopStrings(stops)
    shown = ""
    for piece in pieces:
        text, stopped = stream.feed(piece)
        shown += text
        if stopped:
            break
    return shown + stream.flush(), stream.stopped


def plain(stops, text):
    """The rule, read out: the text before the first stop that is complete, reading letter by letter."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(STOPS, TEXTS, cuts())
def test_any_pieces_give_what_the_whole_gives(stops, text, places):
    assert run(stops, cut(text, places)) == plain(stops, text)


@given(STOPS, TEXTS)
def test_only_what_may_become_a_stop_is_held_back(stops, text):
    stream = StopStrings(stops)
    shown = ""
    for at, letter in enumerate(text):
        more, stopped = stream.feed(letter)
        shown += more
        if stopped:
            return
        held = text[len(shown) : at + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_is_shown_after_a_stop():
    stream = StopStrings(["\n\n"])
    assert stream.feed("Hi.\n") == ("Hi.", False)
    assert stream.feed("\nUser:") == ("", True)
    assert stream.feed("more") == ("", True)
    assert stream.flush() == ""
    assert stream.stopped == "\n\n"


def test_what_was_held_back_is_shown_at_the_end():
    stream = StopStrings(["<|im_end|>"])
    assert stream.feed("a <|im_") == ("a ", False)
    assert stream.flush() == "<|im_"


def test_without_stops_nothing_is_held():
    assert StopStrings([]).feed("abc") == ("abc", False)


@pytest.mark.parametrize("stops", [[""], ["a", ""], [3]])
def test_empty_stops_are_refused(stops):
    with pytest.raises(BadInput, match="at least one character"):
        StopStrings(stops)
