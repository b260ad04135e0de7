"""Simulations that the documentation quotes: what a router finds in caches, and what conversations cost."""

from random import Random

import pytest

from benchmarks import simulate_scale as scale
from benchmarks.simulate_routing import compared, trace

USE = scale.Use()
LINK = 10 * scale.GB / 8


def test_the_router_finds_nine_tenths_of_what_an_all_knowing_one_finds_and_random_far_less():
    found = compared(conversations=400, seconds=600.0, replicas=4, cache=80_000)
    assert found["ours"] >= 0.9 * found["all-knowing"]
    assert found["random"] < 0.8 * found["ours"]
    assert found["all-knowing"] <= found["one cache"] + 0.01


def test_the_trace_is_skewed_and_has_many_turns():
    requests = trace(1000, 600.0, Random(3))
    turns = sorted(
        (sum(one.conversation == conversation for one in requests) for conversation in range(200)), reverse=True
    )
    assert sum(turns[:20]) > 0.3 * sum(turns)
    systems = [one.system for one in requests]
    assert systems.count(0) > 2 * len(systems) / 20


@pytest.mark.parametrize("model", scale.MODELS, ids=lambda model: model.name)
def test_a_simulated_adapter_with_few_conversations_is_as_busy_as_its_rates_say(model):
    """Alone, an answer takes a step for each token, and its question so many tokens of a prompt."""
    conversations = 4
    turn = USE.answer * model.step(1) + USE.question / model.prefill
    outcome = scale.simulate(model, conversations, USE, link=None, moves=0.0, seconds=2000.0)
    assert outcome.busy == pytest.approx(conversations * turn / (USE.pause + turn), rel=0.15)
    assert outcome.cached == 1.0


def test_an_rnn_bends_by_computing_and_a_transformer_by_memory_or_length():
    long = scale.Use(history=8000)
    short = {"seconds": 80.0}
    rnn = [scale.bend(scale.RWKV, use, link=LINK, **short).conversations for use in (USE, long)]
    transformer = [scale.bend(scale.LLAMA, use, link=LINK, **short).conversations for use in (USE, long)]
    assert rnn[1] == pytest.approx(rnn[0], rel=0.1)
    assert transformer[1] < 0.5 * transformer[0]
    assert scale.bend(scale.RWKV, long, link=None, **short).conversations < 0.8 * rnn[1], (
        "the store saves its long conversations"
    )


def test_costs_grow_with_conversations_and_the_store_is_left_where_it_does_not_pay():
    at_bend = scale.simulate(scale.RWKV, 500, USE, link=LINK, seconds=60.0)
    costs = [scale.cost(scale.RWKV, conversations, USE, at_bend, LINK) for conversations in (10, 1_000, 100_000)]
    assert [one.adapters for one in costs] == [1, 3, 250]
    assert costs[2].stored == pytest.approx(100_000 * 2 * 21.6e6)
    slow = scale.simulate(scale.LLAMA, 100, USE, link=LINK / 10, seconds=60.0)
    assert (slow.fetched, scale.cost(scale.LLAMA, 100, USE, slow, LINK / 10).written) == (0.0, 0.0)
