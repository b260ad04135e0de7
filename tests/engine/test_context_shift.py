"""If the context is full, an answer continues without its middle. A model without attention has no such limit."""

from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.engine.speculation.lookup import PromptLookup
from tests.engine.test_engine import alone, drive, ids_of, small, tokens
from tests.engine.test_speculation import speculator

CONTEXT, KEEP = 64, 10


def shifted(ids: list[int]) -> list[int]:
    """Returns the tokens that remain after a full context is shifted."""
    return ids[:KEEP] + ids[KEEP + (CONTEXT - KEEP + 1) // 2 :]


@pytest.mark.parametrize("name", ["llama", "gemma3", "falcon-h1"])
def test_an_answer_continues_as_from_the_text_without_its_middle(name):
    """There are three shifts. After each, the answer equals one computed from the remaining tokens alone."""
    runner, twin = (small(f"tiny-{name}.gguf", context=context, slots=2) for context in (CONTEXT, 2 * CONTEXT))
    ids, expected, most = ids_of(20), [], 140
    while len(expected) < most:
        count = min(CONTEXT + 1 - len(ids), most - len(expected))
        answer = alone(twin, Request(ids, SamplingParams(temperature=0, max_tokens=count)))
        expected += answer
        ids = shifted([*ids, *answer])
        twin.store.forget(0)
    engine = Engine(runner, context_shift=KEEP)
    number = engine.add(Request(ids_of(20), SamplingParams(temperature=0, max_tokens=most)))
    updates = drive(engine)[number]
    assert tokens(updates) == expected
    assert updates[-1].finish_reason == "length"


def test_without_context_shift_an_answer_ends_with_the_context():
    engine = Engine(small("tiny-llama.gguf", context=CONTEXT))
    number = engine.add(Request(ids_of(20), SamplingParams(temperature=0, max_tokens=100)))
    assert len(tokens(drive(engine)[number])) == CONTEXT - 20


def test_context_shift_works_with_other_requests_penalties_and_drafts():
    """Sequences that shift at different times get the same answers as alone."""
    how = [
        SamplingParams(temperature=0, repetition_penalty=1.2, max_tokens=90),
        SamplingParams(seed=3, max_tokens=110),
        SamplingParams(seed=4, typical_p=0.9, max_tokens=70),
    ]
    asked = [Request(ids_of(10 + 15 * n, n), params) for n, params in enumerate(how)]

    def answers(requests, drafts=False):
        runner = small("tiny-llama.gguf", context=CONTEXT, drafts=3)
        engine = Engine(runner, context_shift=KEEP, speculator=speculator(PromptLookup(), most=3) if drafts else None)
        numbers = [engine.add(request) for request in requests]
        news = drive(engine)
        return [tokens(news[number]) for number in numbers]

    single = [answers([request])[0] for request in asked]
    assert [len(answer) for answer in single] == [90, 110, 70]
    assert answers(asked) == single
    assert answers(asked, drafts=True) == single


@pytest.mark.parametrize("look_ahead", [1, 4])
def test_on_a_gpu_steps_that_are_submitted_ahead_end_with_the_context(adapter, look_ahead):
    asked = [Request(ids_of(12 + n, n), SamplingParams(temperature=0, max_tokens=110)) for n in range(3)]

    def answers(where, **options):
        runner = small("tiny-llama.gguf", where, context=CONTEXT, **options)
        engine = Engine(runner, context_shift=KEEP)
        numbers = [engine.add(request) for request in asked]
        news = drive(engine)
        runner.close()
        return [tokens(news[number]) for number in numbers]

    found = answers(adapter, look_ahead=look_ahead)
    assert [len(answer) for answer in found] == [110] * 3
    assert found == answers(None)


def test_marks_are_kept_whole():
    request = Request(ids_of(30), SamplingParams(temperature=0, max_tokens=60), keep=True, marks=(17,))
    engine = Engine(small("tiny-llama.gguf", context=CONTEXT), context_shift=0)
    sequence = engine.accept(request)
    engine.add(sequence)
    drive(engine)
    assert sequence.cut
    assert sequence.ids[:17] == list(request.ids[:17])


def test_a_context_shift_keeps_the_tokens_of_an_initial_state_too():
    request = Request(ids_of(30), SamplingParams(max_tokens=60), keep=True, marks=(7,))
    for begun in (0, 1):
        for keep, kept in ((KEEP, KEEP), (0, 7)):
            sequence = TokenSequence(request, 300, CONTEXT, shifts=True, begun=begun)
            sequence.ids += range(100, 100 + CONTEXT + 1 - len(sequence.ids))
            before = list(sequence.ids)
            sequence.cut_middle(keep)
            assert sequence.ids == before[: begun + kept] + before[begun + kept + sequence.cut :]
            assert sequence.ids[begun + kept] != before[begun + kept]


def test_memory_and_steps_of_a_model_without_attention_do_not_grow_with_the_text():
    """The text is ten times a transformer's context. It needs no page, no more states, and the same rows per step."""
    runner = small("tiny-rwkv7.gguf", cache_bytes=0)
    engine, free = Engine(runner), []
    engine.add(Request(ids_of(9), SamplingParams(temperature=0, max_tokens=2560)))
    while engine.busy:
        engine.step()
        free.append(runner.store.free)
    assert set(free[50:500]) == set(free[-500:-50])
    assert np.mean([pages for pages, _ in free]) == 0


@pytest.mark.parametrize("name", ["falcon-h1", "minimax-01", "llama"])
def test_text_after_a_cut_is_an_answer_even_if_the_prompt_was_longer(name, adapter):
    """States are stored while a known prompt is computed, but not during drafts or steps submitted ahead."""
    ids = ids_of(8) * 10
    asked = [Request(ids, SamplingParams(temperature=0, max_tokens=90)), Request(ids, SamplingParams(max_tokens=90))]
    ahead = small(f"tiny-{name}.gguf", adapter, context=96, checkpoint_interval=8)
    drafting = small(f"tiny-{name}.gguf", context=96, checkpoint_interval=8, drafts=4)
    for runner, drafts in ((ahead, None), (drafting, speculator(PromptLookup(), most=4))):
        engine = Engine(runner, context_shift=KEEP, speculator=drafts)
        numbers = [engine.add(request) for request in asked]
        news = drive(engine)
        assert [news[number][-1].error for number in numbers] == [None] * len(asked)
        assert [len(tokens(news[number])) for number in numbers] == [90] * len(asked)
        engine.close()


def test_an_answer_is_truncated_to_its_new_tokens_though_its_middle_was_cut():
    for count in (44, 45, 46, 70):
        engine = Engine(small("tiny-llama.gguf", context=CONTEXT), context_shift=KEEP)
        sequence = engine.accept(Request(ids_of(20), SamplingParams(temperature=0, max_tokens=200)))
        number = engine.add(sequence)
        while sequence.length < 20 + 75:
            engine.step()
        assert sequence.cut
        engine.stop(number, tokens=count)
        assert sequence.length == 20 + count, count
        assert sequence.finish_reason == "stop"
        engine.close()


def test_a_sequence_is_full_only_when_nothing_of_it_is_under_way():
    idle = {"in_flight": 0, "work": None, "finish_reason": None, "context": 4, "ids": range(5)}
    for change in ({}, {"in_flight": 1}, {"work": object()}, {"finish_reason": "stop"}, {"ids": range(4)}):
        assert TokenSequence.full.fget(SimpleNamespace(**{**idle, **change})) == (not change), change


def test_the_host_must_know_each_token_for_any_of_three_reasons():
    plain = {"on_host": False, "request": SimpleNamespace(grammar=None), "drafting": None}
    drafts = {"drafting": SimpleNamespace(on=True)}
    for change in ({}, {"on_host": True}, {"request": SimpleNamespace(grammar=object())}, drafts):
        assert TokenSequence.synchronous.fget(SimpleNamespace(**{**plain, **change})) == bool(change), change
