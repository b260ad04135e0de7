"""Rows of whole texts: their logits, or the inputs of the head. Steps on a GPU are recorded for few kinds of output."""

from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import FROM_SLOT
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


DECODE = Batch.of([(0, 4, [9]), (1, 5, [9])])
PROMPT = Batch.of([(0, 0, [9, 9]), (1, 5, [9])])
VERIFY = Batch.of([(0, 4, [9, 9])], every=True)


@pytest.mark.parametrize(
    ("batch", "how", "recorded"),
    [
        (DECODE, "plain", "plain"), (PROMPT, "plain", "any"), (VERIFY, "plain", "plain"),
        (DECODE, "adjusted", "adjusted"), (PROMPT, "adjusted", "adjusted"), (DECODE, "any", "any"),
    ],
)  # fmt: skip
def test_steps_with_prompts_are_recorded_once_for_all_kinds_of_sampling(batch, how, recorded):
    runner = GpuRunner.__new__(GpuRunner)
    runner._inputs = lambda _: {}
    found, inputs, outputs = runner._sampled(batch, SamplingInputs(np.zeros((2, 16), np.uint32), how, logits=True))
    assert found == recorded and inputs.keys() == {"draws"}
    assert outputs == [("chosen", len(batch.outputs)), ("logits", len(batch.outputs))]


@pytest.mark.parametrize(
    ("ids", "reads", "late"), [([9], True, ["x"]), ([FROM_SLOT], True, ["x", "ids"]), ([FROM_SLOT], False, ["x"])]
)
def test_ids_arrive_late_if_a_part_reads_ids_that_are_not_sampled_yet(ids, reads, late):
    runner, given = GpuRunner.__new__(GpuRunner), []
    runner._part = SimpleNamespace(last=False, leaves=[SimpleNamespace(name="y")], arrives=[SimpleNamespace(name="x")])
    runner._inputs = lambda _: {}
    runner.plan_for = lambda *_: SimpleNamespace(reads=lambda _: reads)
    runner.queue = SimpleNamespace(ready=lambda *step: given.append(step))
    runner.ready(Batch.of([(0, 4, ids)]), SamplingInputs(np.zeros((1, 16), np.uint32), "plain"))
    [(_, counts, _, outputs, found)] = given
    assert (counts, outputs, found) == ((1, 1, 0), [("y", 1)], late)
