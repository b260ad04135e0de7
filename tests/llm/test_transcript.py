"""Generated tokens are never tokenised again, for any text and any template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.transcript import Transcript, as_bytes, as_text
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden


def tokenizer(name="tiny-rwkv7.gguf"):
    with GGUFFile.open(golden(name)) as file:
        return load_tokenizer(file.metadata)


RWKV = tokenizer()
TEXTS = st.text("ab the\n", max_size=12)
FROM_SLOT = st.lists(st.integers(1, 268), max_size=8)


@given(st.lists(st.tuples(TEXTS, FROM_SLOT), max_size=5))
def test_a_growing_chat_keeps_every_id(turns):
    told, said = "", Transcript()
    for question, answer in turns:
        before = said.ids
        prompt = said.prompt(RWKV, [told + question])
        assert prompt.ids[: len(before)] == before
        said = prompt.append(RWKV, answer)
        told = as_text(said.text)
    assert RWKV.decode_bytes(said.ids, special=True) == said.text


def test_a_repeated_prompt_has_no_tokens_without_text_of_an_earlier_answer():
    llama = tokenizer("quiet-llama.gguf")
    prompt = Transcript().prompt(llama, ["Hi"])
    silent = next(token for token in range(llama.vocab_size) if not llama.piece(token, special=True))
    said = prompt.append(llama, [silent, silent])
    assert said.prompt(llama, ["Hi"]) == prompt
    assert silent not in said.prompt(llama, ["Hi|"]).ids


@given(st.lists(FROM_SLOT, min_size=1, max_size=4), TEXTS)
def test_rewritten_history_is_reused_as_far_as_it_agrees(answers, other):
    said = Transcript().prompt(RWKV, ["Hi"])
    for answer in answers:
        said = said.append(RWKV, answer)
    for cut in said.cuts:
        prompt = said.prompt(RWKV, [as_text(said.text[: cut.nbytes]) + "|" + other])
        assert prompt.text == said.text[: cut.nbytes] + b"|" + other.encode()
        assert RWKV.decode_bytes(prompt.ids, special=True) == prompt.text
        agreed = said.common(prompt.text)
        assert agreed.nbytes >= cut.nbytes
        assert prompt.ids[: agreed.ids] == said.ids[: agreed.ids]


@given(st.binary(max_size=20))
def test_any_bytes_are_restored(said):
    assert as_bytes(as_text(said)) == said


def test_lone_surrogates_of_a_user_are_bytes_too():
    assert as_bytes("a\ud800") == b"a\xed\xa0\x80"


@pytest.mark.parametrize("name", ["llama-spm-small-Q4_0.gguf", "tiny-rwkv7.gguf"])
def test_text_after_a_text_is_tokenised_as_a_continuation(name):
    mine = tokenizer(name)
    begun = Transcript().prompt(mine, ["hello"])
    assert begun.ids[0] == mine.bos or not mine.add_bos
    grown = begun.prompt(mine, ["hello", " world"])
    assert mine.decode(grown.ids) == "hello world"
    assert grown.ids[: len(begun.ids)] == begun.ids
