"""An answer that goes on with the beginning that it is given."""

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from tests.gguf.writer import text_key, with_keys, written
from tests.golden_files import golden

QUESTION = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "theworld"}
QWEN = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""
WRONG = [[QUESTION], [BEGUN], [QUESTION, {**BEGUN, "content": ""}], [QUESTION, {**QUESTION, "content": "x"}]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    data = with_keys(golden("tiny-llama.gguf").read_bytes(), [text_key("tokenizer.chat_template", QWEN)])
    with rwkv_gpu.load(written(tmp_path_factory.mktemp("model"), data), device="cpu") as llm:
        yield llm


def prompt_of(llm, *messages, **more):
    prepared = llm.prepare_chat_completion([*messages], max_tokens=1, **more)
    [(request, _)] = prepared.requests
    return llm.detokenize(request.ids)


def test_the_prompt_ends_with_the_beginning_of_the_answer(llm):
    plain = prompt_of(llm, QUESTION)
    assert prompt_of(llm, QUESTION, BEGUN, continue_final_message=True) == plain + "theworld"
    assert prompt_of(llm, QUESTION, BEGUN).endswith("<|im_start|>assistant\n") and "theworld" in prompt_of(
        llm, QUESTION, BEGUN
    )


def test_reasoning_that_the_template_has_opened_is_closed_before_it(llm):
    text = prompt_of(llm, QUESTION, BEGUN, continue_final_message=True, think=True)
    assert text.endswith("<think>\n\n</think>\n\ntheworld")


def test_the_answer_has_the_new_text_only(llm):
    whole = llm.create_chat_completion([QUESTION, BEGUN], continue_final_message=True, max_tokens=3, temperature=0)
    assert not whole["choices"][0]["message"]["content"].startswith("theworld")


@pytest.mark.parametrize("messages", WRONG)
def test_there_must_be_a_beginning(llm, messages):
    with pytest.raises(BadInput, match="continue_final_message"):
        llm.create_chat_completion(messages, continue_final_message=True)


def test_a_generation_prompt_contradicts_it(llm):
    with pytest.raises(BadInput, match="add_generation_prompt"):
        llm.create_chat_completion([QUESTION, BEGUN], continue_final_message=True, add_generation_prompt=True)
