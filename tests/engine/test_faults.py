"""If any part below the engine raises at any time, only requests end, and no memory is lost."""

from dataclasses import replace

import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import SamplingParams
from tests.engine.test_engine import drive, ids_of, small, tokens

# Faults below the engine: a plan that cannot be recorded, an empty pool, exhausted memory.
PLACES = {
    "runner": ("submit", "remember"),
    "store": ("place", "keep", "adopt"),
    "prefixes": ("find", "store"),
}
PARTS = [(part, method) for part, methods in PLACES.items() for method in methods]


class Injected(Exception):
    """The exception that a test raises."""


def asked():
    """Makes prompts that share prefixes. One stores its state, and the host chooses the tokens of another."""
    shared = ids_of(40)
    rows = [
        [*shared, 7],
        ids_of(9, 3),
        ids_of(3, 1),
        ids_of(20, 2),
        [*shared[:20], 5],
        [*shared, 9, 11],
        [*shared, 7, 4],
    ]
    most = [SamplingParams(max_tokens=6 + n, temperature=0) for n in range(len(rows))]
    most[2] = replace(most[2], logprobs=1, typical_p=0.9, temperature=1.0, seed=1)
    return [Request(ids, params, keep=n % 2 == 0) for n, (ids, params) in enumerate(zip(rows, most, strict=True))]


def failing_once(engine: Engine, part: str, method: str, at: int) -> list[int]:
    """Makes one call of a method raise. Returns the list of calls so far."""
    owner = {"runner": engine._runner, "store": engine._store, "prefixes": engine.prefixes}[part]
    inner, calls = getattr(owner, method), []

    def call(*arguments, **more):
        calls.append(len(calls))
        if len(calls) == at + 1:
            raise Injected(f"{part}.{method}, call {at}")
        return inner(*arguments, **more)

    setattr(owner, method, call)
    return calls


@pytest.mark.parametrize(("part", "method"), PARTS, ids=[".".join(one) for one in PARTS])
@pytest.mark.parametrize("name", ["tiny-rwkv7.gguf", "tiny-llama.gguf"])
def test_an_error_below_the_engine_ends_requests_alone_and_nothing_is_lost(name, part, method):
    runner = small(name)
    engine = Engine(runner, look_ahead=1)
    free, slots = engine._store.free, sorted(engine._slots.free)

    def answers() -> list[tuple[list[int], str | None]]:
        ids = [engine.add(request) for request in asked()]
        news = drive(engine)
        engine.prefixes.clear()
        return [(tokens(news[id]), news[id][-1].finish_reason) for id in ids]

    right = answers()
    assert all(reason == "length" for _, reason in right)
    at = 0
    while True:
        calls = failing_once(engine, part, method, at)
        got = answers()
        for layer in (engine._runner, engine._store, engine.prefixes):
            vars(layer).pop(method, None)
        assert all(one == whole or one[1] == "error" for one, whole in zip(got, right, strict=True)), at
        assert (engine._store.free, sorted(engine._slots.free), len(engine._slots.sequences)) == (free, slots, 0), at
        if len(calls) <= at:
            break
        assert any(reason == "error" for _, reason in got), "it is told"
        at += 1
    assert at > 0, "it was called"
    assert answers() == right, "the engine works on"
    engine.close()
