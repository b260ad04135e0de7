"""The plans that a GPU runner records for steps of any size, without a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner, Size
from rwkv_gpu.engine.plan_sizes import outputs_for
from rwkv_gpu.engine.runner import DraftOutput
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import FROM_SLOT

CHUNK, SLOTS, VOCABULARY = 12, 3, 50


def bare(caches: tuple = (), lanes: int = 0, part: object = None) -> GpuRunner:
    """Returns a runner without a device or a model."""
    runner = GpuRunner.__new__(GpuRunner)
    runner.chunk_size, runner.slots, runner.vocabulary = CHUNK, SLOTS, VOCABULARY
    runner.model, runner.contents, runner._part = SimpleNamespace(), SimpleNamespace(caches=caches), part
    runner.tuning = SimpleNamespace(recurrence=SimpleNamespace(state_lanes_per_row=lanes))
    runner._plans, runner._plan_of = {}, {}
    return runner


DRAFT = DraftOutput("any", 0)


@pytest.mark.parametrize(
    ("rows", "outputs", "what", "recorded"),
    [
        (1, 1, "logits", (1, 1)), (5, 3, "logits", (8, 4)), (9, 9, "hidden", (12, 12)), (12, 2, "logits", (12, 2)),
        (5, 3, "crossing", (8, 1)), (5, 1, "any", (8, 1)), (5, 2, "masked", (8, outputs_for(8, 2, SLOTS))),
        (3, 3, DRAFT, (4, 4)),
    ],
)  # fmt: skip
def test_a_plan_takes_the_next_size_and_is_recorded_once(rows, outputs, what, recorded):
    runner, keys = bare(), []
    runner._record = lambda key: keys.append(key) or SimpleNamespace(compile=lambda: None)
    size = Size(rows, outputs, True, 1, False, True, what, ())
    assert runner._plan_for(size) is runner._plan_for(size)
    [key] = keys
    assert (key.rows, key.outputs) == recorded
    assert key.follows == (what is not DRAFT), "no head drafts"
    with pytest.raises(AssertionError, match="at most 12 rows, this one 13"):
        runner._plan_for(size._replace(rows=13))


@pytest.mark.parametrize(
    ("caches", "lanes", "asked", "single"),
    [((), 0, True, False), (("keys",), 0, True, True), ((), 4, True, True), (("keys",), 4, False, False)],
)
def test_steps_of_decode_have_plans_of_their_own_if_attention_or_a_recurrence_gains(caches, lanes, asked, single):
    runner, keys = bare(caches, lanes), []
    runner._record = lambda key: keys.append(key) or SimpleNamespace(compile=lambda: None)
    runner._plan_for(Size(2, 2, asked, 1, False, False, "any", ()))
    assert [key.single for key in keys] == [single]


@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        (None, ["any", "plain", "masked"]),
        (SimpleNamespace(last=True), ["any", "plain", "masked"]),
        (SimpleNamespace(last=False), ["crossing"]),
    ],
)
def test_a_warm_up_pauses_after_each_new_plan_and_grammars_come_last(part, kinds):
    runner, seen = bare(part=part), []

    def plan_for(batch, what):
        seen.append((what, batch.single))
        runner._plans.setdefault((batch.rows, what))

    runner.plan_for = plan_for
    assert len([*runner.warm_up()]) == len(runner._plans) < len(seen)
    assert {what for what, single in seen if single} == {*kinds}
    assert {what for what, single in seen if not single} == {*kinds} - {"plain"}
    assert [*dict.fromkeys(what for what, _ in seen)][-1] == kinds[-1]


def test_a_step_without_outputs_has_no_logits():
    runner = bare()
    runner._inputs = lambda _: {}
    runner.queue = SimpleNamespace(trace=None, layers_per_submit=0)
    runner.plan_for = lambda *_: SimpleNamespace(run=lambda *_: None)
    assert runner.run(Batch.of([(0, 0, [9, 9])], wanted=[0]), "logits").shape == (0, VOCABULARY)


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
