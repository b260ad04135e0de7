"""Text decoded token by token equals text decoded at once, in whole characters."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.base import certain_bytes, clean_spaces
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.text.vocabularies import EXACT, TINY

TOKENIZERS = {name: load_tokenizer(fields) for name, fields in TINY.items()}
LETTERS = {
    name: {tokenizer.piece(token): token for token in range(tokenizer.vocab_size)}
    for name, tokenizer in TOKENIZERS.items()
}
FUSSY = st.text(" '?!.,srevmtdl", max_size=12).map(str.encode)  # all characters that affect the cleaning of spaces


def streamed(tokenizer, ids, **options):
    stream = tokenizer.stream(**options)
    return [*(stream.feed(token) for token in ids), stream.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), special=st.booleans())
def test_the_joined_stream_equals_the_decoded_text(name, data, special):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    text = "".join(streamed(tokenizer, ids, special=special))
    assert text == tokenizer.decode(ids, special=special)
    assert text == tokenizer.decode_bytes(ids, special=special).decode("utf-8", "replace")


@pytest.mark.parametrize("name", EXACT)
@given(text=FUSSY)
def test_the_joined_stream_of_spaces_and_punctuation_equals_the_decoded_text(name, text):
    tokenizer = TOKENIZERS[name]
    ids = [LETTERS[name][bytes([byte])] for byte in text]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", EXACT)
@given(text=st.text("é你🙂a ́", max_size=8))
def test_no_half_characters_come_out(name, text):
    tokenizer = TOKENIZERS[name]
    ids = [LETTERS[name][bytes([byte])] for byte in text.encode()]
    parts = streamed(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("name", EXACT)
def test_text_that_is_certain_is_not_withheld(name):
    tokenizer = TOKENIZERS[name]
    stream = tokenizer.stream()
    assert "".join(stream.feed(token) for token in tokenizer.encode("the cat")) == "the cat"


def test_a_character_cut_short_at_the_end_becomes_the_replacement_character():
    tokenizer = TOKENIZERS["rwkv"]
    ids = tokenizer.encode(b"a\xe4\xbd")
    assert streamed(tokenizer, ids) == ["a", "", "\ufffd"]


@pytest.mark.parametrize("more", [b"", b" 's"])
def test_cleaning_the_final_part_needs_no_later_text(more):
    for letters in itertools.product(b" 'rves?", repeat=4):
        whole = bytes(letters) + more
        for end in range(len(whole) + 1):
            cut = certain_bytes(whole[:end])
            assert clean_spaces(whole[:cut]) + clean_spaces(whole[cut:]) == clean_spaces(whole)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Well , yes .", "Well, yes."),
        ("a  ?", "a ?"),
        ("it 's we 've you 're I 'm", "it's we've you're I'm"),
        ("he 'd , she 'll", "he 'd, she 'll"),
        ("rock ' n", "rock'n"),
        (" ' ' ", "'' "),
        (" '  .", "'."),
        ("  ' s", "'s"),
    ],
)
def test_spaces_are_cleaned_as_llama_cpp_cleans_them(text, cleaned):
    assert clean_spaces(text.encode()) == cleaned.encode()


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_id_out_of_range_is_refused_by_number(name, token):
    tokenizer = TOKENIZERS[name]
    for refuse in (tokenizer.piece, tokenizer.stream().feed, lambda i: tokenizer.decode([i])):
        with pytest.raises(BadInput, match=f"token id {token} .* {tokenizer.vocab_size} tokens"):
            refuse(token)
