"""Prompts of a talk go on with the ids that were said, in each template's own way."""

import pytest

from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.completion import Completion, Stats
from rwkv_gpu.llm.dialect import Dialect, Message
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden

Q = Message("user", "Hi")


def dialect(name, template=None):
    with GGUFFile.open(golden(name)) as file:
        return Dialect(load_tokenizer(file.metadata), ChatTemplate.from_metadata(file.metadata, name=template), 4096)


def completion(mine, text):
    return Completion(text, tuple(mine.tokenizer.encode(text, parse=True)), "stop", Stats(0, 0, 0, 0, 0))


def talk(mine, said, stopped=None, think=None):
    """The prompt of a first question, its transcript with the answer, and the prompt of a second question."""
    first = mine.ask([Q.rendered()], (), think)
    message, transcript = first.answer(mine, completion(mine, said), stopped)
    second = mine.ask([m.rendered() for m in (Q, message, Q)], [transcript], think)
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
    _, transcript, second = talk(dialect(name), said, stopped)
    assert second.transcript.ids[: len(transcript.ids)] == transcript.ids
    assert len(second.transcript.ids) > len(transcript.ids)


def test_thoughts_that_a_template_drops_are_tokenised_no_more_and_the_rest_is_kept():
    mine = dialect("rwkv7-mini-F16.gguf")
    first, transcript, second = talk(mine, "a</think>\n\nHello\n\n", "\n\n", think=True)
    assert first.opened == "<think>"
    assert b"a</think>" not in second.transcript.text
    border = second.transcript.ids[: first.border]
    assert border == transcript.ids[: first.border]
    assert first.border < len(first.transcript.ids)


def test_the_border_is_where_another_way_of_answering_begins():
    mine = dialect("rwkv7-mini-F16.gguf")
    plain, thinking = (mine.ask([Q.rendered()], (), given) for given in (None, True))
    assert plain.border == thinking.border
    assert plain.transcript.ids[: plain.border] == thinking.transcript.ids[: plain.border]


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
    mine = dialect(name, template)
    if isinstance(ends, str):
        [end] = mine.tokenizer.encode(ends, parse=True)
        assert mine.stop_ids == {end}
        assert mine._ends == ()
    else:
        assert mine.stop_ids == frozenset()
        assert mine._ends == ends
    request = mine.request(mine.ask([Q.rendered()]), SamplingParams(stop_ids=frozenset({7})))
    assert request.params.stop_ids == mine.tokenizer.stop_ids | mine.stop_ids | {7}
