"""WordPiece: words without accents and capitals, the longest tokens first, one unknown token for what they miss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.tokenizer import load_tokenizer
from rwkv_gpu.text.vocabulary import PREFIX, SPACE
from tests.text.vocabularies import CASED, NORMAL, metadata, wordpiece

FIELDS = wordpiece()
TOKENS = FIELDS[PREFIX + "tokens"]
TOKENIZER = load_tokenizer(FIELDS)
UNKNOWN, CLS, SEP = 1, 2, 3


def shown(text: str | bytes, **fields: bool) -> list[str]:
    return [TOKENS[token] for token in load_tokenizer(wordpiece(**fields)).encode(text)]


def test_the_longest_token_goes_first_within_a_word():
    words = ["▁un", "▁unto", "to", "ld", "t", "old", "▁u", "nto"]
    ids = {f"{role}_token_id": i for i, role in enumerate(("bos", "seperator", "unknown"))}
    first = [("[CLS]", 3), ("[SEP]", 3), ("[UNK]", 2)]
    tokenizer = load_tokenizer(metadata("bert", [*first, *((word, NORMAL) for word in words)], **ids))
    assert [tokenizer.piece(token) for token in tokenizer.encode("untold untoto")] == [
        *(b" unto", b"ld"),
        *(b" unto", b"to"),
    ]


def test_a_word_that_tokens_do_not_cover_is_one_unknown_token():
    assert shown("the hellothe") == ["▁the", "▁hello", "t", "h", "e"]
    assert shown("the hello☃the the") == ["▁the", "[UNK]", "▁the"]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("HELLO World", "hello world"),
        ("éÀl E\u0301", "eal e"),  # composed or not
        ("don't!", "don ' t !"),
        ("the~the$", "the ~ the $"),
        ("你好a", "你 好 a"),
        ("\u00a0the\u3000\u2028the\x85", "the the"),
        ("t\x00h\x1c\u200de\ufffd", "the"),  # control characters are not spaces
        ("I\u0307 İ", "i i"),
        ("ΣΣ", "σσ"),  # also at the end of a word, where Greek has another form
        (b"th\xffe", "the"),
    ],
)
def test_words_are_normalised(text, form):
    assert TOKENIZER.encode(text) == TOKENIZER.encode(form)
    assert UNKNOWN not in TOKENIZER.encode(form)


def test_korean_syllables_become_their_first_letter():
    assert shown("가") == ["▁ᄀ"]
    assert shown("가", **CASED) == ["▁가"]


def test_a_file_may_keep_capitals_and_accents():
    assert shown("À", **CASED) == ["▁À"]
    assert shown("À", **CASED, **{"normalizer.strip_accents": True}) == ["▁A"]
    assert shown("á", **{"normalizer.strip_accents": False}) == ["▁á"]


def test_cls_and_sep_enclose_a_text_regardless_of_the_flags():
    for added in (True, False):
        tokenizer = load_tokenizer(wordpiece(add_bos_token=added, add_eos_token=added, eos_token_id=SEP))
        assert tokenizer.encode("the", special=True) == [CLS, TOKENS.index("▁the"), SEP]
        assert (tokenizer.bos, tokenizer.eos) == (CLS, SEP)


def test_early_files_name_cls_alone_or_have_the_ids_of_bert():
    cls = wordpiece(cls_token_id=CLS)
    del cls[PREFIX + "bos_token_id"]
    assert load_tokenizer(cls).bos == CLS
    bare = wordpiece()
    for role in ("bos", "seperator", "unknown"):
        del bare[PREFIX + f"{role}_token_id"]
    tokenizer = load_tokenizer(bare)
    assert tokenizer.encode("☃", special=True) == [101, 100, 102]


@pytest.mark.parametrize("role", ["bos", "seperator", "unknown"])
def test_a_small_vocabulary_must_name_its_tokens(role):
    fields = metadata("bert", [("[A]", NORMAL), ("▁a", NORMAL)])
    fields |= {PREFIX + f"{name}_token_id": 0 for name in ("bos", "seperator", "unknown") if name != role}
    with pytest.raises(BadFile, match=rf"^tokenizer\.ggml\.{role}_token_id is missing"):
        load_tokenizer(fields)


def test_special_tokens_in_a_text_are_parsed_on_request():
    assert TOKENIZER.encode("the[SEP]the", parse=True) == [TOKENS.index("▁the"), SEP, TOKENS.index("▁the")]
    assert SEP not in TOKENIZER.encode("the[SEP]the")
    assert TOKENIZER.encode("the<think>") == [TOKENS.index("▁the"), TOKENS.index("<think>")]


def test_decoded_words_have_spaces_but_before_punctuation():
    assert TOKENIZER.decode(TOKENIZER.encode("Hello, world!")) == " hello, world!"


@given(st.text() | st.binary())
def test_tokens_spell_the_words_or_are_unknown(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.encode("".join(TOKENS[token].replace(SPACE, " ") for token in ids), parse=True) == ids


def test_a_token_of_a_megabyte_takes_no_more_than_its_memory():
    fields = wordpiece()
    fields[PREFIX + "tokens"] = [*TOKENS, "a" * 1_000_000]
    fields[PREFIX + "token_type"] = np.append(FIELDS[PREFIX + "token_type"], np.int32(NORMAL))
    assert load_tokenizer(fields).encode("a" * 100_000)[-1] < len(TOKENS)
