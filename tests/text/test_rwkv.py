"""The RWKV tokenizer: the longest token that matches, over bytes."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.rwkv import LONGEST, RwkvTokenizer, unescape
from rwkv_gpu.text.vocabulary import PREFIX
from tests.text.vocabularies import NORMAL, Metadata, rwkv

TOKENIZER = RwkvTokenizer(rwkv())
FRAGMENTS = st.sampled_from([TOKENIZER.piece(i, special=True) for i in range(TOKENIZER.vocab_size)])
TEXTS = st.binary() | st.lists(FRAGMENTS | st.binary(max_size=2)).map(b"".join)


def longest_matches(text: bytes, tokenizer: RwkvTokenizer = TOKENIZER) -> list[bytes]:
    tokens = [tokenizer.piece(i, special=True) for i in range(tokenizer.vocab_size)]
    pieces = []
    while text:
        piece = max((token for token in tokens if text.startswith(token)), key=len)
        pieces.append(piece)
        text = text[len(piece) :]
    return pieces


@given(TEXTS)
def test_any_bytes_are_restored(text):
    assert TOKENIZER.decode_bytes(TOKENIZER.encode(text), special=True) == text


@given(TEXTS)
def test_each_token_is_the_longest_that_matches(text):
    assert [TOKENIZER.piece(i, special=True) for i in TOKENIZER.encode(text)] == longest_matches(text)


def with_words(words: list[str]) -> Metadata:
    """The tiny vocabulary and these tokens, where it does not have them."""
    fields = rwkv()
    fields[PREFIX + "tokens"] = [*dict.fromkeys([*fields[PREFIX + "tokens"], *words])]
    fields[PREFIX + "token_type"] = np.full(len(fields[PREFIX + "tokens"]), NORMAL, np.int32)
    return fields


@given(st.lists(st.text("ab", min_size=1, max_size=6)), st.text("abc", max_size=30))
def test_tokens_that_begin_with_one_another_match_the_longest(words, text):
    tokenizer = RwkvTokenizer(with_words(words))
    pieces = [tokenizer.piece(i, special=True) for i in tokenizer.encode(text)]
    assert pieces == longest_matches(text.encode(), tokenizer)


def test_a_token_that_is_too_long_is_refused():
    RwkvTokenizer(with_words(["a" * LONGEST]))
    with pytest.raises(BadFile, match=rf"token 269 has {LONGEST + 1} bytes, expected at most {LONGEST}"):
        RwkvTokenizer(with_words(["a" * (LONGEST + 1)]))


def test_memory_is_linear_in_the_length_of_the_tokens():
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=LONGEST)) for _ in range(300)]
    fields = with_words(words)
    tracemalloc.start()
    RwkvTokenizer(fields)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * sum(map(len, words))  # each prefix as a key would take 500 times their length


def test_end_of_turn_text_is_not_a_stop_token():
    assert TOKENIZER.encode("\n\n") == [TOKENIZER.eot]
    assert TOKENIZER.stop_ids == {0}


def test_the_name_of_a_control_token_is_matched_as_text():
    assert TOKENIZER.encode("<s>") == TOKENIZER.encode("<s>", parse=True) == [0]
    assert TOKENIZER.decode([0]) == ""
    assert TOKENIZER.decode([0], special=True) == "<s>"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("plain é", "plain é".encode()),
        (r"\t\n\r", b"\t\n\r"),
        (r"\x00\xff\xE4", b"\x00\xff\xe4"),
        (r"\\\'\"", b"\\'\""),
        (r"\\x41", rb"\x41"),
    ],
)
def test_token_texts_are_unescaped(text, data):
    assert unescape(text) == data


@pytest.mark.parametrize("text", ["\\", "\\x4", "\\xzz", "a\\x", "\\\\\\"])
def test_a_broken_escape_is_refused(text):
    with pytest.raises(BadFile, match=r"tokenizer\.ggml\.tokens"):
        unescape(text)


def test_a_vocabulary_that_misses_a_byte_is_refused():
    fields = rwkv()
    fields["tokenizer.ggml.tokens"][1 + 0x41] = "AAA"
    with pytest.raises(BadFile, match="no token for the byte 0x41"):
        RwkvTokenizer(fields)
