"""Byte-level BPE: words by pattern, bytes by merges."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import UnsupportedModel
from rwkv_gpu.text.bpe import BpeTokenizer, PreTokenizerWarning, split_words
from rwkv_gpu.text.pretokenizers import PRE
from rwkv_gpu.text.raw_bpe import RAW
from rwkv_gpu.text.tokenizer import load_tokenizer
from rwkv_gpu.text.utf8 import decode_leniently
from rwkv_gpu.text.vocabulary import PREFIX
from tests.text.vocabularies import bpe, hybrid_dna, raw_bpe, whitespace

TOKENIZERS = {pre: BpeTokenizer(bpe(pre)) for pre in PRE}
WORDS = st.sampled_from(
    ["the", " the", "'s", " ", "\n", "12", "é", "你", "\u0301", "🙂", "Ab", "ABc", ".", "\u00a0", "<"]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(WORDS).map("".join)


def pieces(tokenizer, text, **options):
    return [tokenizer.piece(i, special=True).decode("utf-8", "replace") for i in tokenizer.encode(text, **options)]


@pytest.mark.parametrize("pre", PRE)
@given(text=TEXTS)
def test_the_joined_pieces_of_any_text_are_that_text(pre, text):
    tokenizer = TOKENIZERS[pre]
    assert b"".join(map(tokenizer.piece, tokenizer.encode(text))) == text.encode()


@given(TEXTS)
def test_any_text_is_restored_if_spaces_are_not_cleaned(text):
    assert TOKENIZERS["qwen2"].decode(TOKENIZERS["qwen2"].encode(text)) == text


@given(st.binary())
def test_any_bytes_decode_to_themselves_or_the_replacement_character(data):
    tokenizer = TOKENIZERS["qwen2"]
    text = decode_leniently(data).encode("utf-8", "surrogatepass")
    assert tokenizer.decode_bytes(tokenizer.encode(data)) == text


def test_a_character_beyond_unicode_is_the_replacement_character():
    assert decode_leniently(b"\xff\xf4\x8f\xbf\xbf\xf4\x90\x80\x80") == "\ufffd\U0010ffff\ufffd"


UNITS = [
    " ",
    "\t",
    "\n",
    " \n",
    "\r",
    "a",
    "A",
    "aB",
    "7",
    "'",
    "'s",
    "!",
    "/",
    "<|",
    "_",
    "你",
    "가",
    "\u0301",
    "\u00a0",
]


def cpu_seconds(tokenizer, text):
    started = time.process_time()
    tokenizer.encode(text)
    return time.process_time() - started


@pytest.mark.parametrize("pre", {row.patterns: pre for pre, row in PRE.items()}.values())
def test_no_text_takes_more_than_linear_time(pre):
    tokenizer, size = TOKENIZERS[pre], 20_000
    for unit in UNITS:
        for end in ("", "x", "7", "\0", "\n", " X"):
            text = unit * (size // len(unit.encode())) + end
            # 0.05 s; quadratic algorithms take at least 0.5 s. Garbage collection or other programs may delay a run.
            assert any(cpu_seconds(tokenizer, text) < 0.4 for _ in range(4)), (unit, end)


def test_merges_go_by_rank():
    # "t h" comes before "h e", and "Ġ t" after "t h": " the" is never "Ġt" + "he"
    assert pieces(TOKENIZERS["gpt-2"], "the then there the") == [
        "the",
        " ",
        "the",
        "n",
        " ",
        "the",
        "r",
        "e",
        " ",
        "the",
    ]


def test_a_word_that_is_a_token_needs_no_merges_for_some_tokenizers():
    assert pieces(TOKENIZERS["llama-bpe"], "a zzz") == ["a", " zzz"]
    assert pieces(TOKENIZERS["qwen2"], "a zzz") == ["a", " ", "z", "z", "z"]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's 2024!\n\nNow", ["it", "'s", " 2024", "!", "\n", "\n", "Now"]),
        ("default", "it's 2024!", ["it", "'", "s", " ", "202", "4", "!"]),
        ("llama-bpe", "IT'S 2024!\n\nNow  x", ["IT", "'S", " ", "202", "4", "!\n\n", "Now", " ", " x"]),
        ("qwen2", "x=2024\n", ["x", "=", "2", "0", "2", "4", "\n"]),
        ("smollm", "a 12", ["a", " ", "1", "2"]),
        ("falcon", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("tekken", "camelCase ÉCOLEs 12", ["camel", "Case", " ÉCOLEs", " ", "1", "2"]),
        ("gpt-4o", "HTTPServer's 1234", ["HTTPServer's", " ", "123", "4"]),
        ("deepseek-llm", "abc 12你好\n", ["abc", " ", "12", "你好", "\n"]),
        ("deepseek-coder", "abc 12", ["abc", " ", "1", "2"]),
        ("deepseek-v3", "(abc 1234你好。", ["(abc", " ", "123", "4", "你好", "。"]),
        ("bailingmoe", "x\r\n\ny", ["x", "\r\n\n", "y"]),
    ],
)
def test_words_are_split_by_the_pattern(pre, text, words):
    assert [word for word, _ in split_words(PRE[pre]).pre_tokenize_str(text)] == words


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("<dna>ACGTACGT</dna> the", [271, 275, 277, 272, 32, 259]),
        ("the <dna>acgtacCCCCCC", [259, 32, 271, 275, 276]),
        ("x<dna></dna>x<dna>NNNNNN<dna>TTTTTT</dna>", [120, 271, 272, 120, 271, 273, 273, 273, 272]),
        ("<dna>你TTTTTT", [271, 273, 273]),
    ],
)
def test_bases_between_dna_tags_are_tokens_of_six_as_llama_cpp_has_them(text, ids):
    tokenizer = load_tokenizer(hybrid_dna())
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(tokenizer.encode("<dna>ACGTACCCCCCC")) == "<dna>ACGTACCCCCCC"


def test_every_name_that_llama_cpp_knows_is_known():
    """The names are those of llama.cpp of September 2026. Only other converters write `mmbert`."""
    names = (Path(__file__).parent / "pre_tokenizer_names.txt").read_text().split()
    assert set(names) - PRE.keys() - RAW.keys() == set()


@pytest.mark.parametrize("name", ["gemma4", "mmbert", "granite-embed-multi-311m", "sarvam-moe"])
def test_names_of_bpe_over_characters_mean_it_in_files_of_byte_level_bpe(name):
    tokenizer = load_tokenizer(raw_bpe() | {PREFIX + "model": "gpt2", PREFIX + "pre": name})
    assert pieces(tokenizer, "ab ab") == pieces(load_tokenizer(raw_bpe()), "ab ab")
    assert tokenizer.add_bos == (name != "sarvam-moe")


def test_white_space_is_dropped_where_the_kind_of_tokenizer_is_whitespace():
    tokenizer = load_tokenizer(whitespace())
    assert tokenizer.encode(" ab\n ab\u3000") == 2 * tokenizer.encode("ab")
    small = load_tokenizer(whitespace() | {PREFIX + "normalizer.lowercase": True})
    assert small.encode("AB") == tokenizer.encode("ab")


def test_user_defined_tokens_match_always_and_control_tokens_when_parsed():
    tokenizer = TOKENIZERS["qwen2"]
    text = "the<think>the<|im_end|>"
    assert pieces(tokenizer, text)[:3] == ["the", "<think>", "the"]
    assert tokenizer.eos not in tokenizer.encode(text)
    assert pieces(tokenizer, text, parse=True) == ["the", "<think>", "the", "<|im_end|>"]


def test_control_tokens_are_hidden_and_user_defined_ones_shown():
    tokenizer = TOKENIZERS["qwen2"]
    ids = tokenizer.encode("<think>the<|im_end|>", parse=True)
    assert tokenizer.decode(ids) == "<think>the"
    assert tokenizer.decode(ids, special=True) == "<think>the<|im_end|>"


def test_bos_is_added_by_default_for_some_tokenizers():
    assert TOKENIZERS["llama-bpe"].encode("the", special=True)[0] == TOKENIZERS["llama-bpe"].bos
    assert TOKENIZERS["qwen2"].encode("the", special=True) == TOKENIZERS["qwen2"].encode("the")
    assert not BpeTokenizer(bpe("llama-bpe", add_bos_token=False)).add_bos


def test_lone_surrogates_are_kept():
    tokenizer = TOKENIZERS["qwen2"]
    assert tokenizer.decode_bytes(tokenizer.encode("the\ud83d the")) == b"the\xed\xa0\xbd the"


def test_an_unknown_pre_tokenizer_is_refused_and_not_guessed():
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.ggml\.pre 'martian' is not supported.*update rwkv-gpu"):
        BpeTokenizer(bpe("martian"))


def test_a_missing_pre_tokenizer_name_warns_once_and_uses_the_default():
    with pytest.warns(PreTokenizerWarning, match="is missing.*convert it again") as caught:
        tokenizer = BpeTokenizer(bpe(None))
    assert len(caught) == 1
    assert tokenizer.encode("it's 2024") == TOKENIZERS["default"].encode("it's 2024")
