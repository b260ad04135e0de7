"""Rows of whole texts: their logits, or the inputs of the head."""

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.evaluation import checked
from rwkv_gpu.errors import BadNumbers, RwkvGpuError
from tests.engine.test_engine import small

IDS = [5, 6, 7]


def test_an_encoder_has_rows_and_no_logits():
    engine = Engine(small("ranking-bert.gguf", context=64))
    with pytest.raises(RwkvGpuError, match="encoder"):
        next(engine.evaluate(IDS))
    [rows] = engine.evaluate(IDS, hidden=True)
    assert len(rows) == len(IDS)


def test_a_decoder_has_rows_and_logits_in_chunks():
    engine = Engine(small("tiny-llama.gguf", chunk_size=2))
    assert [len(rows) for rows in engine.evaluate(IDS)] == [2, 1]
    assert [len(rows) for rows in engine.evaluate(IDS, hidden=True)] == [2, 1]


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [((8, 8, 1), [[8, 8], [1]]), ((8, 9), [[8], [9]]), ((17, 2, 2), [[16], [1], [2, 2]]), ((1,) * 5, [[1] * 4, [1]])],
)
def test_texts_share_steps_as_far_as_rows_and_slots_allow(lengths, steps):
    runner = small("tiny-llama.gguf", chunk_size=16, slots=4)
    engine, hidden, found = Engine(runner), runner.hidden, []
    runner.hidden = lambda batch: (found.append([one.count for one in batch.segments]), hidden(batch))[1]
    texts = [[5 + at] * length for at, length in enumerate(lengths)]
    rows: dict[int, list[np.ndarray]] = {}
    for at, some in engine.hidden(texts):
        rows.setdefault(at, []).append(some)
    assert found == steps
    for at, text in enumerate(texts):  # other sums of float32 in steps of another size
        np.testing.assert_allclose(
            np.concatenate(rows[at]), np.concatenate([*engine.evaluate(text, hidden=True)]), atol=1e-4
        )
    assert engine.activity.free_pages == 16 and len(engine._slots.free) == 4


def test_numbers_that_leave_the_engine_are_finite_except_impossible_logits():
    for value, logits, hidden in (
        (1.0, True, True),
        (-np.inf, True, False),
        (np.inf, False, False),
        (np.nan, False, False),
    ):
        rows = np.array([[0.0, value]], np.float32)
        for kind, passes in ((False, logits), (True, hidden)):
            if passes:
                assert checked(rows, hidden=kind) is rows
            else:
                with pytest.raises(BadNumbers, match="hidden states" if kind else "logits"):
                    checked(rows, hidden=kind)
    assert not len(checked(np.zeros((0, 4), np.float32), hidden=True))
