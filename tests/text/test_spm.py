"""SentencePiece-style BPE: the best-scored pair first, bytes where there is no token."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.spm import SpmTokenizer
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden
from tests.text.vocabularies import spm

FIELDS = spm()
TOKENIZER = SpmTokenizer(FIELDS)
BARE = SpmTokenizer(spm(add_space_prefix=False))
TEXTS = st.text("aab bc你好é!x", max_size=40) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def merged(text: str) -> list[str]:
    """Merges by the definition, by brute force over the whole text."""
    tokens = FIELDS["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, FIELDS["tokenizer.ggml.scores"].tolist(), strict=True))
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@given(TEXTS)
def test_words_one_by_one_have_the_ids_of_the_whole_text(text):
    tokens = FIELDS["tokenizer.ggml.tokens"]
    expected = [
        piece
        for symbol in merged(text)
        for piece in ([symbol] if symbol in tokens else [f"<0x{byte:02X}>" for byte in symbol.encode()])
    ]
    assert [tokens[i] for i in BARE.encode(text)] == expected


@given(TEXTS)
def test_any_text_is_restored(text):
    for tokenizer in (TOKENIZER, BARE):
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")


@given(st.binary())
def test_any_bytes_are_restored_except_the_space_marker(data):
    # After an incomplete character the space marker stays, as in llama.cpp: its first byte counts to that character.
    space = "▁".encode()
    assert BARE.decode_bytes(BARE.encode(data)).replace(space, b" ") == data.replace(space, b" ")


def test_a_space_goes_before_text_at_the_start_and_after_special_tokens():
    word = TOKENIZER.encode("ab")
    assert [TOKENIZER.piece(token) for token in word] == [b" ab"]
    assert TOKENIZER.encode("ab<s>ab", parse=True) == [*word, 1, *word]


def test_the_first_space_is_stripped_once_with_or_without_bos_before_it():
    ids = TOKENIZER.encode("ab ab", special=True)
    assert ids[0] == TOKENIZER.bos
    assert TOKENIZER.decode(ids) == TOKENIZER.decode(ids[1:]) == "ab ab"
    assert TOKENIZER.decode(ids, special=True) == "<s> ab ab"


def test_a_stream_that_continues_a_prompt_keeps_its_first_space():
    (word,) = TOKENIZER.encode("ab")
    assert TOKENIZER.stream().feed(word) == "ab"
    assert TOKENIZER.stream(continues=True).feed(word) == " ab"


def test_scores_decide_and_not_lengths():
    tokens = FIELDS["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in BARE.encode("aba")] == ["aba"]  # "ab" is merged before "ba", and "aba" after that
    assert [tokens[i] for i in BARE.encode("a b")] == ["a▁b"]


def test_incomplete_characters_become_byte_tokens():
    tokens = FIELDS["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in BARE.encode(b"\xc3aa")] == ["<0xC3>", "<0x61>", "a"]


@pytest.mark.parametrize("text", ["ab", "a" * 100, "<0x41>", "</s>"])
def test_the_cache_does_not_change_the_ids(text):
    fresh = SpmTokenizer(FIELDS)
    assert fresh.encode(text) == fresh.encode(text)


def test_special_tokens_of_phi3_take_the_spaces_behind_them():
    """The expected ids were computed by llama.cpp."""
    with GGUFFile.open(golden("tiny-phi3.gguf")) as file:
        phi3, plain = (load_tokenizer({**file.metadata, "general.architecture": arch}) for arch in ("phi3", "llama"))
    texts = "<|user|>", "<|end|>", "<|assistant|>", "<s>"
    user, end, assistant, first = (phi3.encode(text, parse=True)[0] for text in texts)
    hi = plain.encode("Hi")
    assert phi3.encode("<|user|>\nHi<|end|>\n \t<|assistant|>\n", parse=True) == [user, *hi, end, assistant]
    assert phi3.encode("\n<|user|>\n\nHi", parse=True, after=end) == [user, *hi]
    assert phi3.encode("<s>\nHi", parse=True) == plain.encode("<s>\nHi", parse=True) != [first, *hi]
    assert len(plain.encode("<|user|>\nHi", parse=True)) > len(phi3.encode("<|user|>\nHi", parse=True))
