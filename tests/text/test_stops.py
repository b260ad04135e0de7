"""Stop strings are found in any pieces, never shown in part, and delay no more text than necessary."""

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
    """Returns the text before the first complete stop, found letter by letter."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(STOPS, TEXTS, cuts())
def test_a_text_in_any_pieces_gives_the_same_result(stops, text, places):
    assert run(stops, cut(text, places)) == plain(stops, text)


@given(STOPS, TEXTS)
def test_only_a_possible_stop_string_is_withheld(stops, text):
    stream = StopStrings(stops)
    shown = ""
    for at, letter in enumerate(text):
        more, stopped = stream.feed(letter)
        shown += more
        if stopped:
            return
        held = text[len(shown) : at + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(st.lists(st.text("abé", min_size=1, max_size=8), min_size=1, max_size=40), st.text("abé", max_size=200), cuts())
def test_many_stops_are_found_as_by_a_search_for_each(stops, text, places):
    shown, stopped = run(stops, cut(text, places))
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert (shown, stopped) == (text, None)
        return
    end, _, first = min(ends)
    assert (shown, stopped) == (text[: end - len(first)], first)


def test_the_time_of_a_token_does_not_grow_with_the_number_of_stops():
    def steps(count):
        stream, taken = StopStrings([f"stop{n:06}" for n in range(count)]), []
        step = stream._automaton.step
        stream._automaton.step = lambda state, character: taken.append(1) or step(state, character)
        for _ in range(100):
            stream.feed("stop0000 stop ")
        return len(taken)

    assert steps(1) == steps(1000) == 1400


def test_a_long_stop_that_nearly_comes_again_and_again_costs_linear_time():
    links = []

    class Counted(list):
        def __getitem__(self, at):
            links.append(at)
            return super().__getitem__(at)

    stream = StopStrings(["a" * 16_000 + "b"])
    stream._automaton._shorter = Counted(stream._automaton._shorter)
    text = "a" * 15_999 + "c"
    for _ in range(4):
        assert stream.feed(text) == (text, False)
    assert len(links) <= 4 * len(text)


@pytest.mark.parametrize("stops", [["x"] * 1001, ["x" * 10_000, "y" * 10_000]])
def test_too_many_stops_are_refused_with_the_limits(stops):
    with pytest.raises(BadInput, match="at most 1,000 strings of 16,384 characters"):
        StopStrings(stops)


def test_nothing_is_shown_after_a_stop():
    stream = StopStrings(["\n\n"])
    assert stream.feed("Hi.\n") == ("Hi.", False)
    assert stream.feed("\nUser:") == ("", True)
    assert stream.feed("more") == ("", True)
    assert stream.flush() == ""
    assert stream.stopped == "\n\n"


def test_withheld_text_is_shown_at_the_end():
    stream = StopStrings(["<|im_end|>"])
    assert stream.feed("a <|im_") == ("a ", False)
    assert stream.flush() == "<|im_"


def test_without_stops_nothing_is_withheld():
    assert StopStrings([]).feed("abc") == ("abc", False)


@pytest.mark.parametrize("stops", [[""], ["a", ""], [3]])
def test_empty_stops_are_refused(stops):
    with pytest.raises(BadInput, match="at least one character"):
        StopStrings(stops)
