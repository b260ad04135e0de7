"""Answers that continue a given prefix."""

import json

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadGrammar, BadInput
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
    """The prompt omits the reasoning block with which a new answer would start."""
    plain = prompt_of(llm, QUESTION, think=False)
    for think in (None, True, False):
        assert prompt_of(llm, QUESTION, BEGUN, continue_final_message=True, think=think) == plain + "theworld"
    text = prompt_of(llm, QUESTION, BEGUN, think=False)
    assert text.endswith("<|im_start|>assistant\n") and "theworld" in text


def test_a_prompt_without_an_opening_ends_with_the_last_message(llm):
    for last in (QUESTION, BEGUN):
        text = prompt_of(llm, QUESTION, last, add_generation_prompt=False)
        assert text.endswith(f"{last['content']}<|im_end|>\n")
    with pytest.raises(BadInput, match="add_generation_prompt"):
        prompt_of(llm, QUESTION, BEGUN, add_generation_prompt=True, continue_final_message=True)


def test_a_beginning_that_the_template_does_not_show_follows_the_opening(tmp_path_factory):
    source = QWEN.replace("{{ m.content }}", "{{ m.content if m.role == 'user' }}")
    data = with_keys(golden("tiny-llama.gguf").read_bytes(), [text_key("tokenizer.chat_template", source)])
    with rwkv_gpu.load(written(tmp_path_factory.mktemp("model"), data), device="cpu") as llm:
        text = prompt_of(llm, QUESTION, BEGUN, continue_final_message=True, think=True)
        assert text.endswith("<think>\n\n</think>\n\ntheworld")


def test_the_answer_has_the_new_text_only(llm):
    whole = llm.create_chat_completion([QUESTION, BEGUN], continue_final_message=True, max_tokens=3, temperature=0)
    assert not whole["choices"][0]["message"]["content"].startswith("theworld")


def test_white_space_between_the_beginning_and_the_answer_belongs_to_the_answer(llm):
    answer = llm.create_chat_completion([QUESTION, BEGUN], continue_final_message=True, regex="theworld {2}ends")
    assert answer["choices"][0]["message"]["content"] == "  ends"


@pytest.mark.parametrize("messages", WRONG)
def test_continuing_needs_a_beginning(llm, messages):
    with pytest.raises(BadInput, match="continue_final_message"):
        llm.create_chat_completion(messages, continue_final_message=True)


def test_a_generation_prompt_contradicts_a_beginning(llm):
    with pytest.raises(BadInput, match="add_generation_prompt"):
        llm.create_chat_completion([QUESTION, BEGUN], continue_final_message=True, add_generation_prompt=True)


ANIMALS = {"type": "array", "items": {"enum": ["fox", "owl"]}, "minItems": 2, "maxItems": 3}


def goes_on(llm, begun, schema=ANIMALS, **more):
    """Returns the continuation of an answer that a schema constrains."""
    shape = {"type": "json_schema", "json_schema": {"name": "animals", "schema": schema}}
    messages = [QUESTION, {**BEGUN, "content": begun}]
    options = {"continue_final_message": True, "response_format": shape, "max_tokens": 60, "temperature": 0, **more}
    return llm.create_chat_completion(messages, **options)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("cut", range(1, 1 + len('["owl","fox"]')))
def test_a_continued_answer_follows_its_schema_from_the_beginning_wherever_it_was_cut(llm, cut):
    begun = '["owl","fox"]'[:cut]
    animals = json.loads(begun + goes_on(llm, begun))
    assert 2 <= len(animals) <= 3 and {*animals} <= {"owl", "fox"}


@pytest.mark.parametrize("begun", ['[ "owl"', '\n["owl",', '[\n  "owl",\n\n  "f'])
def test_a_beginning_may_have_white_space_that_we_would_not_write(llm, begun):
    assert json.loads(begun + goes_on(llm, begun))[0] == "owl"


@pytest.mark.parametrize("begun", ["Here it is: [", '["ant', '["owl"]'])
def test_a_beginning_that_the_schema_does_not_allow_is_refused(llm, begun):
    with pytest.raises(BadGrammar, match="begins with"):
        goes_on(llm, begun)


def test_reasoning_in_the_beginning_is_not_part_of_the_form(llm):
    begun = '<think>\nbirds\n</think>\n\n["ow'
    assert json.loads('["ow' + goes_on(llm, begun))[0] == "owl"
