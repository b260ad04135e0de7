"""The reasoning limit: the allowed tokens before, at and after it."""

import numpy as np
import pytest

from rwkv_gpu.ops.sampling import allowed
from rwkv_gpu.text.reasoning_budget import ReasoningBudget
from rwkv_gpu.text.thinking import MARKS, THINK, Opened
from rwkv_gpu.text.tokenizer import load_tokenizer
from rwkv_gpu.text.utf8 import ends_inside_character
from tests.text.vocabularies import TINY

CHATTING = ("rwkv", "bpe", "spm", "spm without prefix", "gemma4", "sarvam", "granite-embed-multi-311m", "plamo2")
TOKENIZERS = {name: load_tokenizer(TINY[name]) for name in CHATTING}
INSIDE = Opened("<think>\n")


class Follower:
    """A model that writes a given text as far as its tokens are allowed."""

    def __init__(self, tokenizer, limit):
        self.tokenizer, self.limit, self.ids = tokenizer, limit, []

    def write(self, text):
        """Writes a text token by token, unless other tokens are forced. Returns the number of forced tokens."""
        forced = 0
        for token in self.tokenizer.encode(text, parse=True):
            while len(only := self.allowed()) == 1:
                self.accept(int(only[0]))
                forced += 1
            self.accept(token)
        return forced

    def allowed(self):
        return np.flatnonzero(allowed(self.limit.mask(), self.tokenizer.vocab_size))

    def accept(self, token):
        self.ids.append(token)
        self.limit.accept(token)

    @property
    def text(self):
        return self.tokenizer.decode_bytes(self.ids, special=True).decode()


def limited(name, limit, message="", marks=THINK, **more):
    tokenizer = TOKENIZERS[name]
    words = -(-tokenizer.vocab_size // 32)
    return Follower(tokenizer, ReasoningBudget(tokenizer, marks, limit, message, words, **more))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("message", ["", "enough\n"])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_reasoning_ends_at_its_limit_with_the_message_and_the_mark(name, message, limit):
    model = limited(name, limit, message, opened=INSIDE, last=5)
    assert model.write("a b a b a b a b") > 0
    before, met, after = model.text.partition(message + THINK.closing)
    assert met and len(TOKENIZERS[name].encode(before)) <= limit + 1
    assert "b a b" in after, "the answer is free"
    assert THINK.closing not in after


@pytest.mark.parametrize("name", TOKENIZERS)
def test_reasoning_that_ends_by_itself_is_left_alone_and_each_one_has_the_limit(name):
    model = limited(name, 40, opened=INSIDE)
    assert model.write("a b</think>" + "a b" * 30) == 0
    model = limited(name, 4)
    assert model.write("a b a b a b a b") == 0, "text outside of reasoning has no limit"
    assert model.write("<think>a b a b a b a b a b") > 0
    assert model.write("<think>a b a b a b a b a b") > 0
    assert model.text.count(THINK.closing) == 2


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_character_is_completed_before_reasoning_ends(name):
    tokenizer = TOKENIZERS[name]
    size = len(tokenizer.encode("🦉"))
    for limit in range(1, size + 1):
        model = limited(name, limit, opened=INSIDE)
        model.write("🦉🦉")
        before, met, after = model.text.partition("</think>")
        assert met and before in ("🦉", " 🦉", " ", "") and after.endswith("🦉"), "it is decoded strictly"


def test_the_last_letter_of_a_mark_comes_before_the_end_of_empty_reasoning():
    model = limited("rwkv", 0, "no", opened=Opened("<think", ">"))
    model.write("a")
    assert model.text == ">no</think>a"
    model = limited("rwkv", 0, opened=Opened("<think></think", ">", closed=True))
    model.write(">a")
    assert model.text == ">a", "reasoning that is over cannot end again"


def test_the_limit_works_with_other_marks_and_with_a_grammar_of_the_answer():
    class Inner:
        """A grammar that allows two tokens, and is done after four."""

        done, seen = False, 0

        def mask(self):
            return np.array([6, *[0] * 7], np.uint32)

        def accept(self, _):
            self.seen += 1
            self.done = self.seen >= 4

    inner = Inner()
    marks = MARKS["<seed:think>"]
    model = limited("rwkv", 1, marks=marks, inner=inner, opened=Opened("<seed:think>"))
    assert [*model.allowed()] == [1, 2]
    model.accept(1)
    assert len(model.allowed()) == 1
    model.accept(int(model.allowed()[0]))
    model.accept(int(model.allowed()[0]))
    model.accept(int(model.allowed()[0]))
    assert inner.done and not model.limit.done, "the mark comes first"
    while len(model.allowed()) == 1:
        model.accept(int(model.allowed()[0]))
    assert model.limit.done and model.text.endswith("</seed:think>")


def test_ends_of_texts_inside_characters_are_found():
    for text in ("a", "é", "水", "🦉"):
        data = text.encode()
        assert not ends_inside_character(data) and not ends_inside_character(b"x" + data)
        for cut in range(1, len(data)):
            assert ends_inside_character(b"x" + data[:cut])
    for data in (b"", b"\x80", b"\x80" * 9, b"a\xff\xff\xff\xff"):
        assert ends_inside_character(data) is (data[-1:] == b"\xff")
    for first in range(0x100):
        size = 1 + sum(first >= least for least in (0xC0, 0xE0, 0xF0))
        for more in range(4 if first < 0x80 or first >= 0xC0 else 0):
            assert ends_inside_character(bytes([first]) + b"\x80" * more) is (more + 1 < size)
