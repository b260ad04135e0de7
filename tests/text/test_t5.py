"""SentencePiece's unigram model: the best sum of scores, on text normalised by a character map."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from rwkv_gpu.errors import BadFile
from rwkv_gpu.text.charsmap import CharacterMap
from rwkv_gpu.text.tokenizer import load_tokenizer
from rwkv_gpu.text.vocabulary import PREFIX, SPACE
from tests.text.vocabularies import CONTROL, NORMAL, REPLACED, Metadata, charsmap, metadata, t5

FIELDS = t5()
TOKENS = FIELDS[PREFIX + "tokens"]
TOKENIZER = load_tokenizer(FIELDS)
UNKNOWN = 3
CHARSMAP = PREFIX + "precompiled_charsmap"


def shown(text: str | bytes, fields: Metadata = FIELDS) -> list[str]:
    return [fields[PREFIX + "tokens"][token] for token in load_tokenizer(fields).encode(text)]


def scored(words: dict[str, float], **fields: bool) -> Metadata:
    """Returns a vocabulary of these words only."""
    tokens = [("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", 2), *((word, NORMAL) for word in words)]
    return metadata("t5", tokens, scores=np.array([0, 0, 0, *words.values()], np.float32), **fields)


def test_the_best_sum_beats_the_longest_token():
    assert shown("abc", scored({"ab": -5, "c": -5, "a": -1, "bc": -2})) == ["a", "bc"]
    assert shown("abc", scored({"ab": -1, "c": -1, "a": -1, "bc": -2})) == ["ab", "c"]


def test_an_unknown_character_costs_more_than_the_worst_token():
    assert shown("abx", scored({"a": -1, "bx": -11.5, "b": -2})) == ["a", "bx"]
    assert shown("abx", scored({"a": -1, "bx": -31.5, "b": -2})) == ["a", "bx"]  # now "bx" is the worst
    assert shown("axb", scored({"a": -1, "b": -2})) == ["a", "<unk>", "b"]


def test_unknown_characters_in_a_row_are_one_token_also_over_spaces():
    fields = scored({"a": -1}, add_space_prefix=True)
    assert shown("☃☃a☃ ☃", fields) == ["<unk>", "a", "<unk>"]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("ﬁ½㍿㍿", "fi1⁄2株式会社株式会社"),
        ("ＡＢ! ＡＢx Ba", "ab! abx ba"),  # the longest sequence
        ("the\t\u3000the\u200b", "the the"),
        ("  the   the ", "the the"),
        (b"th\xffe\xc3", "th\ufffde\ufffd"),
        ("a\x00\x7fb", "a\x00b"),
    ],
)
def test_the_text_is_normalised_before_it_is_split(text, form):
    assert TOKENIZER.encode(text) == TOKENIZER.encode(form)


def test_spaces_are_handled_as_the_file_sets():
    kept = t5(remove_extra_whitespaces=False)
    assert "".join(shown("  a  b ", kept)) == SPACE * 3 + "a" + SPACE * 2 + "b" + SPACE
    assert "".join(shown("  a  b ", t5(remove_extra_whitespaces=False, add_space_prefix=False))) == "▁▁a▁▁b▁"
    assert "".join(shown("  a  b ")) == "▁a▁b"
    assert shown("  ", kept) == ["▁", "▁"]
    assert shown("  ") == []


@pytest.mark.parametrize("joins", [True, False])
def test_no_space_is_added_before_a_continuation(joins):
    tokenizer = load_tokenizer(t5(remove_extra_whitespaces=joins))
    (*_, before) = tokenizer.encode("a")
    assert "".join(TOKENS[token] for token in tokenizer.encode("bab", after=before)) == "bab"
    assert "".join(TOKENS[token] for token in tokenizer.encode(" bab", after=before)) == "▁bab"


def test_special_tokens_enclose_a_text_according_to_the_flags():
    the = TOKENS.index("▁the")
    assert TOKENIZER.encode("the", special=True) == [0, the, 2]
    assert load_tokenizer(t5(add_bos_token=False, add_eos_token=False)).encode("the", special=True) == [the]
    bare = scored({"a": -1})
    assert load_tokenizer(bare).encode("a", special=True) == [3, 1]  # T5 has an end, and no beginning


@pytest.mark.parametrize(("architecture", "spaces"), [("nomic-bert-moe", 0), ("jina-bert-v3", 0), ("bert", 1)])
def test_the_mask_of_some_models_takes_the_spaces_before_it(architecture, spaces):
    fields = t5(remove_extra_whitespaces=False) | {"general.architecture": architecture}
    ids = load_tokenizer(fields).encode("the <mask>", parse=True)
    assert [TOKENS[token] for token in ids] == ["▁the", *["▁"] * spaces, "<mask>"]


def test_a_token_across_a_space_is_found():
    fields = scored({"▁": -2, "a": -2, "b": -2, "a▁b": -1, "▁a": -2}, add_space_prefix=True)
    assert shown("aa ba b", fields) == ["▁a", "a▁b", "a▁b"]


@given(st.text() | st.binary())
def test_words_one_by_one_have_the_ids_of_the_whole_text(text):
    tokenizer = load_tokenizer(FIELDS)
    tokenizer._cuts = False
    assert tokenizer.encode(text) == TOKENIZER.encode(text)


@given(
    st.dictionaries(
        st.text("ab\u0301é你", min_size=1, max_size=4),
        st.text("ab\u0301你 ", max_size=3),
        min_size=1,
        max_size=12,
    ),
    st.text("ab\u0301é你x"),
)
def test_the_map_replaces_the_longest_sequence(replaced, text):
    found = CharacterMap({CHARSMAP: charsmap(replaced)})
    data = text.encode()
    for at in range(len(text)):
        start = len(text[:at].encode())
        fits = [sequence for sequence in replaced if text.startswith(sequence, at)]
        longest = max(fits, key=len, default="")
        expected = (start + len(longest.encode()), replaced[longest].encode()) if fits else (start, b"")
        assert found.longest(data, start) == expected


@pytest.mark.parametrize("sequence", [text for text in REPLACED if len(text) == 1])
def test_the_package_tokenizers_accepts_the_map_of_these_tests(sequence):
    assert normalizers.Precompiled(FIELDS[CHARSMAP].tobytes()).normalize_str(sequence) == REPLACED[sequence]


def test_a_file_without_a_map_replaces_nothing():
    fields = t5()
    del fields[CHARSMAP]
    assert TOKENS.index("á") not in load_tokenizer(fields).encode("a\u0301")
    assert TOKENS.index("á") in TOKENIZER.encode("xa\u0301")


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda data: data[:-1], "is cut short"),
        (lambda data: data[:400], "is cut short"),
        (lambda data: data[:2], "is cut short"),
        (lambda data: data[:0], "is cut short"),
        (lambda data: np.append(data[: 4 + int.from_bytes(data[:4].tobytes(), "little")], np.uint8(0)), "lies beyond"),
        (lambda data: data.astype(np.float32), "must be an array of bytes"),
        (lambda data: "text", "must be an array of bytes"),
    ],
)
def test_a_damaged_map_is_refused(damaged, message):
    with pytest.raises(BadFile, match=rf"^tokenizer\.ggml\.precompiled_charsmap {message}|is damaged.*{message}"):
        load_tokenizer(t5(precompiled_charsmap=damaged(charsmap(REPLACED))))


@given(st.binary(max_size=80), st.text())
def test_any_map_is_refused_or_ends(data, text):
    size = len(data) // 2
    packed = np.frombuffer(size.to_bytes(4, "little") + data + b"\0", np.uint8)
    try:
        tokenizer = load_tokenizer(t5(precompiled_charsmap=packed))
    except BadFile:
        return
    assert set(tokenizer.encode(text)) <= set(range(len(TOKENS)))


def test_a_vocabulary_needs_an_unknown_token():
    with pytest.raises(BadFile, match=r"^tokenizer\.ggml\.unknown_token_id is missing"):
        load_tokenizer(metadata("t5", [("a", NORMAL)], scores=np.zeros(1, np.float32)))
