"""The RWKV tokenizer: the longest token that matches, over bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.rwkv import RwkvTokenizer, unescape
from tests.text.vocabularies import rwkv

TOKENIZER = RwkvTokenizer(rwkv())
FRAGMENTS = st.sampled_from([TOKENIZER.piece(i, special=True) for i in range(TOKENIZER.vocab_size)])
TEXTS = st.binary() | st.lists(FRAGMENTS | st.binary(max_size=2)).map(b"".join)


def longest_matches(text: bytes) -> list[bytes]:
    tokens = [TOKENIZER.piece(i, special=True) for i in range(TOKENIZER.vocab_size)]
    pieces = []
    while text:
        piece = max((token for token in tokens if text.startswith(token)), key=len)
        pieces.append(piece)
        text = text[len(piece) :]
    return pieces


@given(TEXTS)
def test_any_bytes_come_back(text):
    assert TOKENIZER.decode_bytes(TOKENIZER.encode(text), special=True) == text


@given(TEXTS)
def test_each_token_is_the_longest_that_matches(text):
    assert [TOKENIZER.piece(i, special=True) for i in TOKENIZER.encode(text)] == longest_matches(text)


def test_the_end_of_turn_is_text_and_does_not_stop():
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
