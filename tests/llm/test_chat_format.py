"""Prompts of a talk go on with the ids that were said, in each template's own way."""

import pytest

from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.chat_format import ChatFormat, Message
from rwkv_gpu.llm.completion import Completion, Stats
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden

Q = Message("user", "Hi")


def chat_format(name, template=None):
    with GGUFFile.open(golden(name)) as file:
        return ChatFormat(load_tokenizer(file.metadata), ChatTemplate.from_metadata(file.metadata, name=template), 4096)


def completion(mine, text):
    return Completion(text, tuple(mine.tokenizer.encode(text, parse=True)), "stop", Stats(0, 0, 0, 0, 0))


def talk(mine, said, stopped=None, think=None):
    """The prompt of a first question, its transcript with the answer, and the prompt of a second question."""
    first = mine.prompt([Q.for_template()], (), think)
    message, transcript = first.answer(mine.tokenizer, completion(mine, said), stopped)
    second = mine.prompt([m.for_template() for m in (Q, message, Q)], [transcript], think)
    return first, transcript, second


@pytest.mark.parametrize(
    ("name", "said", "stopped"),
    [
        ("rwkv7-mini-F16.gguf", " Hello there.\n\n", "\n\n"),
        ("qwen3-small-Q8_0.gguf", "Hello there.", None),
        ("qwen3-small-Q8_0.gguf", "\n Hello there. ", None),
        ("llama-bpe-small-Q4_K_M.gguf", "Hello there.", None),
    ],
)
def test_a_second_question_begins_with_all_that_was_said(name, said, stopped):
    _, transcript, second = talk(chat_format(name), said, stopped)
    assert second.transcript.ids[: len(transcript.ids)] == transcript.ids
    assert len(second.transcript.ids) > len(transcript.ids)


def test_thoughts_that_a_template_drops_are_tokenised_no_more_and_the_rest_is_kept():
    mine = chat_format("rwkv7-mini-F16.gguf")
    first, transcript, second = talk(mine, "a</think>\n\nHello\n\n", "\n\n", think=True)
    assert first.open_thoughts == "<think>"
    assert b"a</think>" not in second.transcript.text
    border = second.transcript.ids[: first.message_tokens]
    assert border == transcript.ids[: first.message_tokens]
    assert first.message_tokens < len(first.transcript.ids)


def test_the_border_is_where_another_way_of_answering_begins():
    mine = chat_format("rwkv7-mini-F16.gguf")
    plain, thinking = (mine.prompt([Q.for_template()], (), given) for given in (None, True))
    assert plain.message_tokens == thinking.message_tokens
    assert plain.transcript.ids[: plain.message_tokens] == thinking.transcript.ids[: plain.message_tokens]


@pytest.mark.parametrize(
    ("name", "template", "ends"),
    [
        ("rwkv7-mini-F16.gguf", None, ("\n\n",)),
        ("qwen3-small-Q8_0.gguf", None, "<|im_end|>"),
        ("llama-bpe-small-Q4_K_M.gguf", None, "<|eot_id|>"),
        ("tiny-rwkv7.gguf", "chatml", ("<|im_end|>",)),
    ],
)
def test_an_answer_ends_by_what_ends_a_turn_as_a_token_where_there_is_one(name, template, ends):
    mine = chat_format(name, template)
    if isinstance(ends, str):
        [end] = mine.tokenizer.encode(ends, parse=True)
        assert mine.stop_ids == {end}
        assert mine._ends == ()
    else:
        assert mine.stop_ids == frozenset()
        assert mine._ends == ends
    request = mine.request(mine.prompt([Q.for_template()]), SamplingParams(stop_ids=frozenset({7})))
    assert request.params.stop_ids == mine.tokenizer.stop_ids | mine.stop_ids | {7}


GLM = ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"]


def glm_format(template="glm"):
    """A vocabulary of letters and GLM's marks, whose file says of none of them that it ends an answer."""
    letters = [chr(code) for code in range(33, 127)]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "glm4", "tokenizer.ggml.merges": [],
        "tokenizer.ggml.tokens": [*letters, *GLM], "tokenizer.ggml.token_type": [1] * len(letters) + [3] * len(GLM),
        "tokenizer.ggml.eos_token_id": len(letters),
    }  # fmt: skip
    return ChatFormat(load_tokenizer(metadata), ChatTemplate.from_metadata(metadata, name=template), 200)


def test_where_turns_have_no_end_the_mark_of_the_next_one_ends_an_answer():
    mine = glm_format()
    [user] = mine.tokenizer.encode("<|user|>", parse=True)
    assert mine.stop_ids == {user}
    unmarked = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    assert glm_format(unmarked).stop_ids == frozenset()


def test_glm_thinks_unless_it_is_asked_not_to():
    mine = glm_format(None)  # its vocabulary shows the template
    assert mine.can_think
    ends = {think: mine.prompt([Q.for_template()], (), think).transcript.text for think in (None, True, False)}
    assert ends[None] == ends[True] == b"[gMASK]<sop><|user|>Hi<|assistant|><think>"
    assert ends[False].endswith(b"<|assistant|></think>")
