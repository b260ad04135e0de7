"""Constrained answers have the required form, whatever an untrained model would generate."""

import json
import re

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import BadGrammar, BadInput
from rwkv_gpu.text.grammar import Form
from tests.golden_files import golden

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
HOW = {"temperature": 1.0, "seed": 3, "max_tokens": 200}


@pytest.fixture(scope="module", params=["builtin", "rwkv7-mini-Q8_0.gguf", "qwen3-small-Q8_0.gguf"])
def llm(request):
    path = builtin_model() if request.param == "builtin" else golden(request.param)
    with rwkv_gpu.load(path, device="cpu") as llm:
        yield llm


def person(text):
    said = json.loads(text)
    return set(said) == {"name", "age"} and len(said["name"]) <= 5 and 0 <= said["age"] <= 99


def test_a_schema_gives_json_that_it_describes(llm):
    done = llm.generate("A person: ", schema=PERSON, **HOW)
    assert person(done.text)
    assert done.finish_reason == "stop"


def test_an_answer_is_all_that_a_regex_matches_and_no_end_of_turn(llm):
    for ask in (llm.generate, llm.chat(think=False).send):
        done = ask("Number?", regex="[0-9]{3}-[ab]+!", **HOW)
        assert re.fullmatch("[0-9]{3}-[ab]+!", done.text)
        assert done.finish_reason == "stop"


def test_chats_and_chat_completions_follow_a_schema(llm):
    chat = llm.chat(schema=PERSON, think=False, **HOW)
    assert person(chat.send("Who?").text)
    assert person(chat.messages[-1]["content"])
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    asked = [{"role": "user", "content": "Who?"}]
    how = {**HOW, "chat_template_kwargs": {"enable_thinking": False}}
    reply = llm.create_chat_completion(asked, response_format=shape, **how)
    assert person(reply["choices"][0]["message"]["content"])
    chunks = llm.create_chat_completion(asked, response_format=shape, stream=True, **how)
    assert person("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks))
    assert llm.create_chat_completion(asked, response_format={"type": "text"}, max_tokens=2)["choices"]


@pytest.mark.parametrize(("think", "free"), [(True, True), (False, False), (None, True)])
def test_reasoning_is_unconstrained_and_an_answer_is_not(think, free):
    with rwkv_gpu.load(golden("rwkv7-mini-Q8_0.gguf"), device="cpu") as llm:
        asked = llm.chat_format.prompt([{"role": "user", "content": "Is it?"}], (), think)
        if think is None:
            asked = llm.chat_format.prompt([{"role": "user", "content": "Is it?"}])
        grammar = llm.chat_format.request(asked, rwkv_gpu.SamplingParams(), Form.of(regex="yes|no")).grammar
        may = np.unpackbits(grammar.mask().view(np.uint8), bitorder="little").sum()
        assert may > 4000 if free else may < 10


def test_a_saved_chat_keeps_its_form(llm, tmp_path):
    chat = llm.chat(schema=PERSON, think=False, **HOW)
    chat.save(tmp_path / "talk")
    assert person(llm.load_chat(tmp_path / "talk").send("Who?").text)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"regex": "("}, BadGrammar, "regular expression"),
        ({"schema": "{"}, BadGrammar, "JSON schema"),
        ({"regex": "a", "schema": True}, BadInput, "schema and regex are both given"),
        ({"regex": 7}, BadInput, "regex is 7"),
    ],
)
def test_a_form_that_is_wrong_is_named(llm, given, error, message):
    with pytest.raises(error, match=message):
        llm.generate("a", **given)
    with pytest.raises(error, match=message):
        llm.chat().send("a", **given)


def test_a_response_format_that_is_wrong_is_named(llm):
    for wrong in ("json", {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 1}):
        with pytest.raises(BadInput, match="response_format is"):
            llm.create_chat_completion([{"role": "user", "content": "a"}], response_format=wrong)
