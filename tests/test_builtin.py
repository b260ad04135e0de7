"""The model that ships with the package: its greedy answers, and their speed."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

import rwkv_gpu

MODEL = rwkv_gpu.builtin_model()
QUESTIONS = Path(__file__).with_name("builtin_questions.txt")
# One conversation each, as users type it; each answer contains the expression.
TALKS = [
    [("hi", "Hello"), ("my name is Ann", "Ann"), ("what is 3 plus 4", r"\b7\b"), ("what is my name?", r"\bAnn\b")],
    [
        ("who are you?", "model"),
        ("What's rwkv-gpu?", "GGUF"),
        ("how do i use my own model", "rwkv-gpu chat model.gguf"),
    ],
    [("what is a dog", "mammal"), ("and a cow?", "mammal"), ("What is the capital of France?", "Paris")],
    [("tell me a story about a dragon named Fritz", r"(?s)Fritz.{200,}"), ("i am sad today", "sorry|listen|tell")],
    [("what is a glorpfen", "do not know|never heard"), ("what's the weather like tomorrow?", "cannot|no windows")],
]


def conversations() -> Iterator[list[tuple[str, str]]]:
    """Returns the conversations of QUESTIONS: questions, and patterns that right answers match."""
    for part in QUESTIONS.read_text(encoding="utf-8").split("\n\n"):
        lines = [line.split(" => ") for line in part.splitlines() if line and not line.startswith("#")]
        if lines:
            yield [(question.strip(), right.strip()) for question, right in lines]


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        yield llm


def test_the_built_in_model_is_small_and_in_a_mix_of_formats():
    assert MODEL.stat().st_size <= 8_000_000
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(MODEL).tensors}
    assert kinds == {"F32", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0"}


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk[0][0])
def test_the_built_in_model_answers_common_questions(llm, talk):
    chat = llm.chat(temperature=0, max_tokens=200)
    for asked, right in talk:
        said = chat.send(asked)
        assert re.search(right, said.text), f"{asked}: {said.text}"
        assert said.finish_reason == "stop"
        assert re.search(r'[.!?]["`)]?$', said.text), said.text


def test_a_question_in_parts_is_the_same_question(llm):
    parts = [{"type": "text", "text": "how do i use"}, {"type": "text", "text": "my own model"}]
    said = llm.create_chat_completion([{"role": "user", "content": parts}], temperature=0, max_tokens=60)
    assert "rwkv-gpu chat model.gguf" in said["choices"][0]["message"]["content"]


def test_answers_are_the_same_on_a_gpu(llm, adapter):
    talk = ["what is your name?", "what sound does a sheep make"]
    with rwkv_gpu.load(MODEL, device=str(adapter.index)) as gpu:
        chats = [one.chat(temperature=0, max_tokens=40) for one in (llm, gpu)]
        for asked in talk:
            ours, theirs = (chat.send(asked).text for chat in chats)
            assert ours == theirs


@pytest.mark.slow  # measures this machine
def test_the_built_in_model_writes_faster_than_people_read_on_a_cpu(llm):
    start = time.process_time()
    said = llm.generate("User: tell me a story\n\nAssistant:", max_tokens=60, temperature=0)
    # People read six words a second; a second of one core must generate them, whatever the load.
    assert len(said.tokens) / (time.process_time() - start) > 10


@pytest.mark.slow
def test_the_built_in_model_answers_nearly_all_questions(llm):
    wrong, count = [], 0
    for talk in conversations():
        chat = llm.chat(temperature=0, max_tokens=250)
        for question, right in talk:
            answer = chat.send(question).text
            count += 1
            if not re.search(right, answer):
                wrong.append(f"{question}: {answer}")
    assert len(wrong) <= 0.03 * count, wrong
