"""Thoughts and answers told apart, wherever the pieces are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.text.thinking import Part, Thinking, opens_thinking
from tests.text.cuts import cut, cuts

WORDS = st.sampled_from(["<think>", "</think>", "\n", "a", "<", "</", "think>", "<think"])
TEXTS = st.lists(WORDS, max_size=10).map("".join)


PROMPTS = {False: "Assistant:", True: "Assistant: <think>\n"}


def run(pieces, prompt="", **options):
    stream = Thinking(prompt, **options)
    parts = [part for piece in pieces for part in stream.feed(piece)] + stream.flush()
    joined = []
    for part in parts:
        assert part.text
        if joined and joined[-1].thinking == part.thinking:
            joined[-1] = Part(joined[-1].text + part.text, part.thinking)
        else:
            joined.append(part)
    return [(part.text, part.thinking) for part in joined]


@given(TEXTS, cuts(), st.booleans())
def test_any_pieces_give_what_the_whole_gives(text, places, inside):
    prompt = PROMPTS[inside]
    assert run(cut(text, places), prompt) == run([text], prompt)


@given(TEXTS, st.booleans())
def test_no_letter_outside_the_marks_is_lost(text, inside):
    assert "".join(part for part, _ in run([text], PROMPTS[inside])).count("a") == text.count("a")


@pytest.mark.parametrize(
    ("text", "inside", "parts"),
    [
        ("<think>\nhm\n</think>\n\nYes.", False, [("hm\n", True), ("Yes.", False)]),
        ("hm</think>Yes.", True, [("hm", True), ("Yes.", False)]),
        ("Yes.", False, [("Yes.", False)]),
        ("hm", True, [("hm", True)]),
        ("<think></think>\n\nYes.", False, [("Yes.", False)]),
        ("a <think>b</think> c", False, [("a ", False), ("b", True), (" c", False)]),
        ("a </think> b", False, [("a </think> b", False)]),
        ("<think>a <think> b", False, [("a <think> b", True)]),
        ("1 <thin", False, [("1 <thin", False)]),
    ],
)
def test_parts_are_told_apart(text, inside, parts):
    assert run([text], PROMPTS[inside]) == parts


def test_line_ends_after_thoughts_that_a_prompt_has_closed_are_no_part_of_the_answer():
    assert run(list("\n\nYes.\n\n"), "Assistant: <think>\n</think>") == [("Yes.\n\n", False)]
    assert run(list("\n\nYes."), "Assistant:") == [("\n\nYes.", False)]


def test_other_marks_can_be_given():
    text = "[THINK]a[/THINK]b"
    assert run(list(text), opening="[THINK]", closing="[/THINK]") == [("a", True), ("b", False)]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("Assistant: <think>", True),
        ("Assistant: <think>\n", True),
        ("Assistant: <think>\n</think>", False),
        ("", False),
    ],
)
def test_a_prompt_shows_whether_it_opened_the_thoughts(prompt, opened):
    assert opens_thinking(prompt) == opened
