"""Tokenizers from metadata: the guarantees of every kind, and refusals."""

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadFile, BadInput, UnsupportedModel
from rwkv_gpu.text.special import SpecialTokens
from rwkv_gpu.text.tokenizer import KINDS, load_tokenizer
from rwkv_gpu.text.vocabulary import PREFIX, Defaults, read_id, read_kinds, read_vocabulary
from tests.text.vocabularies import CONTROL, EXACT, NORMAL, TINY, USER, bpe, metadata, rwkv, spm


def test_every_kind_has_a_tiny_vocabulary():
    assert {fields[PREFIX + "model"] for fields in TINY.values()} == KINDS.keys()


@pytest.mark.parametrize("name", TINY)
def test_an_empty_text_has_no_tokens_but_those_added(name):
    tokenizer = load_tokenizer(TINY[name])
    assert tokenizer.encode("") == tokenizer.encode(b"") == []
    added = [tokenizer.bos] * tokenizer.add_bos + [tokenizer.eos] * tokenizer.add_eos
    assert tokenizer.encode("", special=True) == added
    assert tokenizer.decode([]) == tokenizer.stream().flush() == ""


@pytest.mark.parametrize("make", [rwkv, bpe, spm])
def test_bos_and_eos_are_added_according_to_the_flags(make):
    tokenizer = load_tokenizer(make(bos_token_id=1, eos_token_id=2, add_bos_token=True, add_eos_token=True))
    plain = tokenizer.encode("ab")
    assert tokenizer.encode("ab", special=True) == [1, *plain, 2]
    tokenizer = load_tokenizer(make(bos_token_id=1, eos_token_id=2, add_bos_token=False, add_eos_token=False))
    assert tokenizer.encode("ab", special=True) == plain


@pytest.mark.long
@pytest.mark.parametrize("name", TINY)
def test_long_runs_of_one_letter_take_no_quadratic_time(name):
    tokenizer = load_tokenizer(TINY[name])
    for text in ("a" * 200_000, " " * 200_000, "你" * 70_000):
        started = time.process_time()
        ids = tokenizer.encode(text)
        assert time.process_time() - started < 20  # takes under a second; a quadratic algorithm takes many minutes
        if name in EXACT:
            assert tokenizer.decode(ids) == text


@pytest.mark.long
def test_rwkv_takes_a_megabyte_in_no_quadratic_time():
    fields, rng = rwkv(), random.Random(0)
    words = ["".join(rng.choices("abcdefghij xyz", k=rng.randint(2, 7))) for _ in range(65_000)]
    fields[PREFIX + "tokens"] = [*dict.fromkeys([*fields[PREFIX + "tokens"], *words])]
    fields[PREFIX + "token_type"] = np.full(len(fields[PREFIX + "tokens"]), NORMAL, np.int32)
    tokenizer = load_tokenizer(fields)
    text = "".join(rng.choices("abcdefghij klmnop\nxyz.é", k=1_000_000))
    started = time.process_time()
    ids = tokenizer.encode(text)
    assert time.process_time() - started < 40  # takes under a second
    assert tokenizer.decode(ids) == text


def test_a_vocabulary_of_152k_tokens_loads_in_no_quadratic_time():
    fields, letters = bpe("qwen2"), "abcdefghijklmnopqrstuvwxyz"
    pairs = [a + b for a in letters for b in letters]
    words = [*pairs, *(a + b for a in pairs[:224] for b in pairs)]
    fields[PREFIX + "tokens"] = [*dict.fromkeys([*fields[PREFIX + "tokens"], *words])]
    fields[PREFIX + "token_type"] = np.full(len(fields[PREFIX + "tokens"]), NORMAL, np.int32)
    fields[PREFIX + "merges"] = [f"{word[: len(word) // 2]} {word[len(word) // 2 :]}" for word in words]
    started = time.process_time()
    tokenizer = load_tokenizer(fields)
    assert time.process_time() - started < 40  # takes under a second
    assert tokenizer.vocab_size > 152_000
    assert [tokenizer.piece(i) for i in tokenizer.encode("abcd")] == [b"abcd"]


def test_tokens_named_like_an_end_stop_and_become_control_tokens():
    names = ["</s>", "<|endoftext|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_pad|>", "<|file_sep|>"]
    first = len(bpe()[PREFIX + "tokens"])
    fields = bpe()
    fields[PREFIX + "tokens"] = [*fields[PREFIX + "tokens"][:-2], *names, "<think>"]
    fields[PREFIX + "token_type"] = np.array([*fields[PREFIX + "token_type"][:-2], *[NORMAL] * len(names), USER])
    del fields[PREFIX + "eos_token_id"]
    tokenizer = load_tokenizer(fields)
    ids = {name: first - 2 + i for i, name in enumerate(names)}
    assert tokenizer.stop_ids == set(ids.values()) - {ids["<|fim_prefix|>"]}
    assert tokenizer.eot == ids["<|im_end|>"]
    assert tokenizer.decode(list(ids.values())) == ""
    assert tokenizer.encode("<|fim_prefix|>", parse=True) == [ids["<|fim_prefix|>"]]


@pytest.mark.parametrize(
    ("names", "inside"),
    [
        (["<|return|>", "<|call|>", "<|end|>", "<|start|>"], {"<|end|>", "<|start|>"}),
        (["<|calls|>", "<|flush|>", "<|end|>"], {"<|end|>"}),
        (["<|return|>", "<|end|>"], set()),
        (["<turn|>", "<|tool_response>", "</s>"], {"</s>"}),
    ],
)
def test_a_token_that_ends_answers_in_other_models_may_occur_inside_one(names, inside):
    letters = [(text, NORMAL) for text in bpe()[PREFIX + "tokens"][:256]]
    tokens = [*letters, *((name, CONTROL) for name in names)]
    tokenizer = load_tokenizer(metadata("gpt2", tokens, merges=[], pre="gpt-2"))
    assert {names[token - 256] for token in tokenizer.stop_ids} == set(names) - inside
    for i, name in enumerate(names):
        assert tokenizer.decode([256 + i]) == (name if name in inside else "")


def test_longer_special_tokens_go_first():
    letters = [(text, NORMAL) for text in bpe()[PREFIX + "tokens"][:256]]
    tokenizer = load_tokenizer(
        metadata("gpt2", [*letters, ("<a>", CONTROL), ("<a><b>", CONTROL)], merges=[], pre="gpt-2")
    )
    assert tokenizer.encode("<a><b><a>", parse=True) == [257, 256]


def specials(texts: list[str], kinds: list[int]) -> SpecialTokens:
    fields = metadata("gpt2", list(zip(texts, kinds, strict=True)))
    return SpecialTokens(read_vocabulary(fields, Defaults()), lambda token: texts[token].encode())


def cut_one_after_the_other(text: bytes, texts: list[str], kinds: list[int], parse: bool) -> list[bytes | int]:
    """Finds tokens by the definition: each in the text between the longer ones."""
    parts: list[bytes | int] = [text]
    matched = {USER, CONTROL} if parse else {USER}
    for token in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        if kinds[token] not in matched:
            continue
        cut: list[bytes | int] = []
        for part in parts:
            runs = part.split(texts[token].encode()) if isinstance(part, bytes) else [part]
            cut += [piece for i, run in enumerate(runs) for piece in ([token, run] if i else [run])]
        parts = cut
    return [part for part in parts if part != b""]


SPECIALS = st.tuples(st.text("ab<", min_size=1, max_size=5), st.sampled_from([NORMAL, USER, CONTROL]))


@given(st.lists(SPECIALS, min_size=1, unique_by=lambda pair: pair[0]), st.text("ab<c", max_size=30), st.booleans())
def test_special_tokens_are_split_off_as_if_one_after_the_other(tokens, text, parse):
    texts, kinds = [list(column) for column in zip(*tokens, strict=True)]
    expected = cut_one_after_the_other(text.encode(), texts, kinds, parse)
    assert specials(texts, kinds).split(text.encode(), parse=parse) == expected


def test_thousands_of_special_tokens_cost_a_text_no_more_than_few():
    texts = [f"<unused{i}>" for i in range(6000)]
    found = specials(texts, [USER] * len(texts))
    text = "".join(texts * 5).encode()
    started = time.process_time()
    assert found.split(text, parse=False) == [*range(6000)] * 5
    found.split(b"<" * len(text), parse=False)
    assert time.process_time() - started < 5  # takes 0.3 s; each token through the text in turn takes minutes


def test_an_empty_token_is_given_a_name():
    fields = rwkv()
    fields[PREFIX + "tokens"][-1] = ""
    tokenizer = load_tokenizer(fields)
    assert tokenizer.decode([tokenizer.vocab_size - 1]) == f"[EMPTY_{tokenizer.vocab_size - 1}]"


@pytest.mark.parametrize("kind", ["morse", ""])
def test_an_unknown_kind_is_refused_by_name(kind):
    with pytest.raises(UnsupportedModel, match=f"'{kind}' is not supported; known: rwkv, gpt2, llama"):
        load_tokenizer({PREFIX + "model": kind})


def test_a_file_without_a_tokenizer_is_refused():
    with pytest.raises(BadFile, match=r"tokenizer\.ggml\.model is missing"):
        load_tokenizer({})


@pytest.mark.parametrize(
    ("make", "name", "value", "message"),
    [
        (rwkv, "model", 3, "must be a string"),
        (rwkv, "tokens", None, "is missing"),
        (rwkv, "tokens", [], "is empty"),
        (rwkv, "tokens", "abc", "must be an array of strings"),
        (rwkv, "tokens", np.zeros(3), "must be an array of strings"),
        (rwkv, "tokens", ["a", "b", "a"], "'a' is there twice"),
        (rwkv, "token_type", np.ones(3, np.int32), "has 3 entries for"),
        (rwkv, "token_type", ["normal"], "must be an array of numbers"),
        (rwkv, "eot_token_id", 10**6, "is 1000000, but the vocabulary has"),
        (bpe, "bos_token_id", -1, "is -1, but the vocabulary has"),
        (bpe, "eos_token_id", "0", "must be a token id"),
        (bpe, "eos_token_id", True, "must be a token id"),
        (bpe, "add_bos_token", 1, "must be true or false"),
        (bpe, "pre", 7, "must be a string"),
        (bpe, "merges", None, "is missing"),
        (bpe, "merges", ["t h", "q w"], "'q w' names a token"),
        (bpe, "merges", ["th"], "'th' names a token"),
        (bpe, "merges", ["t h e"], "'t h e' names a token"),
        (spm, "scores", np.zeros(5, np.float32), "has 5 entries for"),
        (spm, "scores", np.zeros((2, 2)), "must be an array of numbers"),
        (spm, "scores", np.full(len(spm()[PREFIX + "tokens"]), np.nan), "not finite"),
        (spm, "add_space_prefix", "yes", "must be true or false"),
    ],
)
def test_malformed_metadata_is_refused_by_key(make, name, value, message):
    fields = make()
    fields[PREFIX + name] = value
    with pytest.raises(BadFile, match=rf"^tokenizer\.ggml\.{name}.*{message}"):
        load_tokenizer(fields)


def test_an_id_is_below_the_size_of_the_vocabulary():
    for token in (0, 4):
        assert read_id({PREFIX + "x_token_id": token}, "x", 5) == read_id({}, "x", 5, token) == token
    with pytest.raises(BadFile, match=r"is 5, but the vocabulary has 5 tokens \(0 to 4\)"):
        read_id({PREFIX + "x_token_id": 5}, "x", 5)
    assert read_id({}, "x", 5, 5) is None
    tokenizer = load_tokenizer(bpe())
    last = tokenizer.vocab_size - 1
    assert tokenizer.piece(last, special=True)
    for token in (-1, last + 1):
        with pytest.raises(BadInput, match=rf"token id {token} .* \(0 to {last}\)"):
            tokenizer.piece(token)


def test_kinds_that_are_not_known_are_undefined_and_ids_beyond_the_vocabulary_are_not_suppressed():
    kinds = np.arange(-1, 8)
    assert [*read_kinds({PREFIX + "token_type": kinds}, 9)] == [0, 0, 1, 2, 3, 4, 5, 6, 0]
    fields = bpe()
    size = len(fields[PREFIX + "tokens"])
    fields[PREFIX + "suppress_tokens"] = np.array([-1, 0, size - 1, size])
    assert load_tokenizer(fields).suppressed == {0, size - 1}
    for wrong in (np.zeros(2), np.zeros((1, 1), np.int32)):
        with pytest.raises(BadFile, match="must be an array of token ids"):
            load_tokenizer({**fields, PREFIX + "suppress_tokens": wrong})


def test_a_part_of_a_text_has_its_first_or_last_tokens():
    tokenizer = load_tokenizer(bpe())
    longest = max(4, max(len(text.encode()) for text in tokenizer.vocabulary.tokens))
    text = "ab" * longest
    for tokens in (0, 1, 2, 3):
        most = tokens * longest
        assert tokenizer.cut(text, tokens) == (text[:most] if 0 < most < len(text) else text)
        assert tokenizer.cut(text, tokens, left=True) == (text[-most:] if 0 < most < len(text) else text)
    assert tokenizer.fewest_tokens(text) == 2 and tokenizer.fewest_tokens(text[1:], text) == 3


def test_a_flag_without_its_token_is_refused():
    fields = bpe(add_bos_token=True)
    del fields[PREFIX + "bos_token_id"]
    with pytest.raises(BadFile, match=r"add_bos_token is true, but tokenizer\.ggml\.bos_token_id is missing"):
        load_tokenizer(fields)


def test_tokens_of_infilling_prompts_are_found_by_key_by_older_key_or_by_text():
    tokens = ["a", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "b", "c", "d", "<|repo_name|>", "<|file_sep|>"]

    def read(texts=tokens, **ids):
        given = {f"{PREFIX}{role}_token_id": token for role, token in ids.items()}
        found = read_vocabulary({PREFIX + "tokens": list(texts), **given}, Defaults())
        return found.infill, found.of_project, found.of_file

    assert read() == ((1, 2, 3), 7, 8)
    assert read(prefix=4, suffix=5, middle=6) == ((4, 5, 6), 7, 8)
    assert read(fim_pre=0, prefix=4, fim_mid=6, fim_rep=5, fim_sep=4) == ((0, 2, 6), 5, 4)
    assert read(tokens[:3]) == (None, None, None), "a part has no token"
    assert read(tokens[:3], middle=0) == ((1, 2, 0), None, None)
