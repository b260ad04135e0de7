"""The result of a row does not depend on other rows of its step, except for the order of sums.

The order of sums in a matrix product depends on the number of rows, so results differ by rounding. If a router's
scores nearly tie, this can change the choice of experts. With products that compute each row separately, the whole
model gives identical bits in every batch.
"""

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops import reference
from rwkv_gpu.ops.batch import Batch
from tests.engine.test_engine import drive, tokens
from tests.golden_files import GENERATIVE, OWN, RECOMBINED

MODELS = sorted({*GENERATIVE} - {f"tiny-{arch}" for arch in RECOMBINED})


class RowByRow(np.ndarray):
    """A weight that is multiplied by one row at a time."""

    def __array_ufunc__(self, ufunc, method, *inputs, **more):
        x, *rest = (np.asarray(one) if isinstance(one, RowByRow) else one for one in inputs)
        if ufunc is np.matmul and x.ndim > 1:
            weight = np.broadcast_to(rest[0], (*x.shape[:-2], *rest[0].shape[-2:]))
            rows = [x[at] @ weight[at[:-1]] for at in np.ndindex(x.shape[:-1])]
            return np.reshape(rows, (*x.shape[:-1], weight.shape[-1])) if rows else x @ weight
        return getattr(ufunc, method)(x, *rest, **more)


def attend_row_by_row(inner):
    """Computes attention for one position at a time, over the positions that it sees."""

    def attend(q, keys, values, *more, **named):
        before = len(keys) - len(q)
        ends = range(before + 1, len(keys) + 1)
        return np.concatenate(
            [inner(q[n - before - 1 : n - before], keys[:n], values[:n], *more, **named) for n in ends]
        )

    return attend


@pytest.fixture(params=MODELS)
def runner(request, monkeypatch):
    monkeypatch.setattr(reference, "attend", attend_row_by_row(reference.attend))
    with GGUFFile.open(OWN / f"{request.param}.gguf") as file:
        runner = HostRunner(file, load_model(file), slots=4, chunk_size=32, context=128, kv="f32")
    runner._weights = {
        name: weight.view(RowByRow) if isinstance(weight, np.ndarray) else weight  # a table is only read
        for name, weight in runner._weights.items()
    }
    yield runner
    runner.close()


def test_a_row_has_the_same_bits_in_every_batch(runner):
    """A text is fed at once, in pieces, token by token, and together with another one."""
    ids = np.random.default_rng(7).integers(1, 250, 29).tolist()

    def logits(size, *others):
        rows = []
        for at in range(0, len(ids), size):
            batch = Batch.of([(0, at, ids[at : at + size]), *others], every=True)
            rows.append(runner.step(batch)[: len(ids[at : at + size])])
        for slot in (0, 1):
            runner.store.forget(slot)
        return np.concatenate(rows)

    whole = logits(32)
    assert np.array_equal(logits(1), whole)
    assert np.array_equal(logits(5), whole)
    assert np.array_equal(logits(32, (1, 0, [9, 8, 7])), whole)


def test_an_answer_is_the_same_alone_and_among_others(runner):
    """A prompt may also share a prefix with an earlier one whose prefix is stored."""
    engine, rng = Engine(runner), np.random.default_rng(3)
    prompts = [rng.integers(1, 250, count).tolist() for count in rng.integers(1, 30, 10)]
    prompts += [[*prompt, 5] for prompt in prompts[:3]]
    asked = [Request(ids, SamplingParams(temperature=0, max_tokens=8)) for ids in prompts]
    alone = []
    for request in asked:
        number = engine.add(request)
        alone.append(tokens(drive(engine)[number]))
    numbers = [engine.add(request) for request in asked]
    news = drive(engine)
    assert [tokens(news[number]) for number in numbers] == alone
