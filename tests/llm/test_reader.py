"""Converts tokens to text: reasoning is separate, stop strings are hidden, and nothing is lost."""

import pytest

from rwkv_gpu.llm.reader import Ends, Reader
from rwkv_gpu.text.thinking import Thinking
from tests.llm.test_driver import Letters


def read(text, ends=(), thoughts=(), thinking=None):
    reader = Reader(Letters(), Ends(ends, thoughts), thinking)
    parts = [part for letter in text for part in reader.feed(ord(letter))] + reader.flush()
    told = {False: "", True: ""}
    for part in parts:
        told[part.thinking] += part.text
    return told[False], told[True], reader.stopped


@pytest.mark.parametrize(
    ("said", "answer", "thought", "stopped"),
    [
        ("plain", "plain", "", None),
        (" plain", "plain", "", None),
        ("<think>a\n\nb</think>\n\nyes\n\nUser", "yes", "a\n\nb", "\n\n"),
        ("<think>a\n\nUser: b", "", "a", "\n\nUser:"),
        ("yes\n\nUser: no", "yes", "", "\n\n"),
        ("yes\n", "yes\n", "", None),
        ("<think>half</thi", "", "half</thi", None),
        ("<think></think> so", "so", "", None),
    ],
)
def test_an_answer_ends_where_its_turn_does_and_a_thought_where_the_next_begins(said, answer, thought, stopped):
    assert read(said, ["\n\n"], ["\n\nUser:"], Thinking()) == (answer, thought, stopped)


def test_an_answer_continues_the_thoughts_that_its_prompt_opened():
    assert read("a</think>b", thinking=Thinking("<think>")) == ("b", "a", None)


def test_marks_stay_text_if_reasoning_is_not_separated():
    assert read(" <think>a</think>b") == (" <think>a</think>b", "", None)
