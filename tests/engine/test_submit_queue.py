"""Steps in one submit give the same results as alone, and any reader in between sees finished steps."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu import builtin_model
from rwkv_gpu.engine.device_sampling import draw_row
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.errors import DeviceLost
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu import native
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.gpu.ready_step import ReadyStep
from rwkv_gpu.gpu.submit_queue import PORTION, SPIN, SubmitQueue
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import DRAW, FROM_SLOT
from tests.golden_files import golden

STEPS = 10
PARAMS = SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.5, seed=7)


def made(adapter, file: GGUFFile) -> GpuRunner:
    options = {"slots": 2, "chunk_size": 2, "context": 256, "look_ahead": STEPS}
    return GpuRunner(Device(adapter), file, load_model(file), **options)


@pytest.fixture(params=["tiny-rwkv7.gguf", "tiny-llama.gguf"])
def runner(request, adapter) -> Iterator[GpuRunner]:
    with GGUFFile.open(golden(request.param)) as file, closing(made(adapter, file)) as opened:
        yield opened


def submitted(runner: GpuRunner, steps: range) -> list:
    """Submits steps of two sequences, each of which feeds the tokens sampled before."""
    pending = []
    for at in steps:
        ids = [5, 9] if at == 0 else [FROM_SLOT | 0, FROM_SLOT | 1]
        batch = runner.prepare(Batch.of([(slot, at, [id]) for slot, id in enumerate(ids)]))
        rows = [draw_row(PARAMS, seed, seed) for seed in (0, 1)]
        for row in rows:
            row["number"] = row["tokens"] = at
        pending.append(runner.submit(batch, SamplingInputs.of(np.array(rows, DRAW))))
    return pending


def said(pending: list) -> list[list[int]]:
    return [[chosen.sampled().token for chosen in one.wait().rows] for one in pending]


def begin(runner: GpuRunner, look_ahead: int, *, busy: bool = True) -> list[int]:
    """Resets the sequences, lets short steps share a submit, and records the number of steps of each submit.

    A GPU that is `busy` has enough to do until a group is full.
    """
    for slot in (0, 1):
        runner.store.forget(slot)
        runner.remember(slot, [], PARAMS)
    runner.queue = queue = SubmitQueue(runner.device, look_ahead)
    queue.measured = lambda seconds: None
    SubmitQueue.measured(queue, 1e-6)
    if busy:
        queue._under_way = 1000
    counts: list[int] = []
    run_steps = Plan.run_steps
    for plan in runner._plans.values():
        plan.run_steps = lambda steps, *rest, plan=plan: (counts.append(steps), run_steps(plan, steps, *rest))[1]
    return counts


def test_steps_give_the_same_tokens_in_a_batch_as_alone(runner):
    alone = [said(submitted(runner, range(at, at + 1)))[0] for at in range(STEPS)]
    counts = begin(runner, 7)
    assert said(submitted(runner, range(STEPS))) == alone
    assert counts == [4, 4, 2]
    assert len({token for row in alone for token in row}) > 4


def test_a_state_is_read_after_all_deferred_steps(runner):
    alone = said(submitted(runner, range(4)))
    want = runner.read_state(0)
    begin(runner, 7)
    pending = submitted(runner, range(3))
    assert not pending[-1].group.submitted
    half = runner.read_state(0)
    assert pending[-1].group.submitted
    pending += submitted(runner, range(3, 4))
    got = runner.read_state(0)
    assert said(pending) == alone
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert any(half[name].tobytes() != want[name].tobytes() for name in want)


@pytest.mark.parametrize("software", [True, False])
def test_steps_with_overlapping_dispatches_are_submitted_one_by_one_except_in_software(adapter, software):
    device = Device(adapter)
    device.capabilities = replace(device.capabilities, software=software)
    with GGUFFile.open(builtin_model()) as file:  # r, k, v and the first halves of LoRAs have different formats
        runner = GpuRunner(device, file, load_model(file), slots=2, chunk_size=2, look_ahead=STEPS)
    begin(runner, STEPS)
    pending = submitted(runner, range(4))
    assert [one.group.steps for one in pending] == ([4] * 4 if software else [1] * 4)
    said(pending)
    runner.close()


def test_deferred_steps_are_lost_with_the_device(runner):
    said(submitted(runner, range(1)))
    begin(runner, 7)
    [pending] = submitted(runner, range(1))
    runner.close()
    with pytest.raises(DeviceLost):
        pending.wait()


def test_an_idle_gpu_gets_pending_steps_without_waiting(runner):
    said(submitted(runner, range(1)))
    counts = begin(runner, 7, busy=False)
    said(submitted(runner, range(STEPS)))
    assert counts == [1, 1, 2, 4, 2]


def test_slow_steps_go_one_by_one(runner):
    queue = SubmitQueue(runner.device, look_ahead=7)
    queue._room = 4
    assert (queue.steps_per_submit, queue.ahead) == (1, 2)  # nothing is known yet
    for part, steps in ((0.7, 1), (2.5, 2), (3.5, 3), (100, 4), (0.1, 1), (100, 4)):
        queue.measured(PORTION / part)
        assert (queue.steps_per_submit, queue.ahead) == (steps, max(2, 2 * steps - 1))
    queue._room = 1
    queue.pace()
    assert (queue.steps_per_submit, queue.ahead) == (1, 2)  # dispatches of such a plan overlap
    queue._room = 4
    queue.pace(look_ahead=1)
    assert (queue.steps_per_submit, queue.ahead) == (1, 1)


def test_the_time_of_a_step_excludes_its_wait_for_others(runner, monkeypatch):
    said(submitted(runner, range(1)))
    begin(runner, 7)
    seen: list[float] = []
    runner.queue.measured = seen.append
    now = iter([10.0, 10.5, 11.0, 14.0])  # two submits, then the results of each
    monkeypatch.setattr("rwkv_gpu.gpu.submit_queue.time.perf_counter", lambda: next(now))
    first, second = submitted(runner, range(4)), submitted(runner, range(4, 8))
    said(first + second)
    assert seen == [(11.0 - 10.0) / 4, (14.0 - 11.0) / 4]


def test_buffers_for_results_are_reused(runner):
    for at in range(STEPS):
        said(submitted(runner, range(at, at + 1)))
    assert len(runner.queue._result_buffers) == 1


def test_steps_of_two_plans_are_submitted_in_the_order_in_which_they_came(runner):
    alone = said(submitted(runner, range(4)))
    begin(runner, 7)
    pending = submitted(runner, range(2))
    batch = runner.prepare(Batch.of([(0, 2, [FROM_SLOT | 0])]))
    row = draw_row(PARAMS, 0, 0)
    row["number"] = row["tokens"] = 2
    single = runner.submit(batch, SamplingInputs.of(np.array([row], DRAW)))
    assert pending[-1].group.submitted and single.group is not pending[-1].group
    assert said(pending) == alone[:2]
    assert said([single]) == [alone[2][:1]]


def test_the_next_step_is_encoded_during_a_step_that_all_wait_for(runner, monkeypatch):
    alone = said(submitted(runner, range(4)))
    encoded = []
    encode = Plan.encode
    monkeypatch.setattr(Plan, "encode", lambda plan, **how: (encoded.append(plan), encode(plan, **how))[1])
    begin(runner, 7, busy=False)
    assert [said(submitted(runner, range(at, at + 1)))[0] for at in range(4)] == alone
    assert encoded, "nothing else was under way"
    encoded.clear()
    begin(runner, 7, busy=False)
    pending = submitted(runner, range(4))
    assert said(pending[:2]) == alone[:2]
    assert not encoded, "other steps were under way"
    assert said(pending[2:]) == alone[2:]


def test_another_thread_encodes_the_next_group_meanwhile(runner, monkeypatch):
    alone = said(submitted(runner, range(8)))
    encoding: list[tuple[int, int]] = []
    encode, run = Plan.encode, native.run
    used: list[bool] = []

    def noted(plan: Plan, steps: int) -> native.Encoded:
        encoding.append((steps, threading.get_ident()))
        return encode(plan, steps=steps)

    monkeypatch.setattr(Plan, "encode", noted)
    monkeypatch.setattr(native, "run", lambda *rest: (used.append(rest[-1] is not None), run(*rest))[1])
    counts = begin(runner, 7)
    assert said(submitted(runner, range(8))) == alone
    assert counts == [4, 4] and used == [False, True]
    runner.device.encoding.shutdown()
    assert [steps for steps, _ in encoding] == [4, 4]
    assert threading.get_ident() not in {thread for _, thread in encoding}
    assert runner.device.unsubmitted  # closing submits the steps that were not collected
    assert said(submitted(runner, range(8, 16))), "without that thread, steps are encoded when they are wanted"


@pytest.mark.parametrize(
    ("seconds", "software", "spins"), [(1e-3, False, True), (2 * SPIN, False, False), (1e-3, True, False)]
)
def test_only_short_steps_of_a_gpu_that_others_wait_for_are_polled_without_sleep(
    runner, monkeypatch, seconds, software, spins
):
    waits: list[float] = []
    wait = native.ResultBuffer.wait
    monkeypatch.setattr(native.ResultBuffer, "wait", lambda *args: (waits.append(args[2]), wait(*args)))
    runner.device.capabilities = replace(runner.device.capabilities, software=software)
    runner.queue.measured(seconds)
    plan = runner.plan_for(Batch.of([(0, 0, [5])]), "logits")
    inputs = runner.prepare(Batch.of([(0, 0, [5])])).arrays()
    ready = runner.queue.ready(plan, (1, 1, 1), inputs, [("logits", 1)], [])
    runner.queue.begin(ready, {}).wait(0)
    assert [one > 0 for one in waits] == [spins]


def ready_and_wanted(runner: GpuRunner) -> tuple[ReadyStep, Batch, np.ndarray]:
    """Returns a prepared step that waits for its ids, its batch, and the expected logits."""
    batch = runner.prepare(Batch.of([(0, 0, [5, 9])]))
    wanted = runner.run(batch, "logits")
    plan = runner.plan_for(batch, "logits")
    return runner.queue.ready(plan, (2, 1, 1), batch.arrays(), [("logits", 1)], ["ids"]), batch, wanted


def begun(runner: GpuRunner, ready: ReadyStep, batch: Batch) -> np.ndarray:
    """Returns the logits of a prepared step."""
    data = runner.queue.begin(ready, {"ids": batch.ids}).wait(0)
    return np.frombuffer(data, np.float32).reshape(1, -1)


def test_a_step_that_is_ready_keeps_its_inputs_while_its_plan_runs_another(adapter):
    with GGUFFile.open(golden("tiny-llama.gguf")) as file, closing(made(adapter, file)) as runner:
        ready, batch, wanted = ready_and_wanted(runner)
        runner.step(Batch.of([(1, 0, [11, 12])]))
        assert np.array_equal(begun(runner, ready, batch), wanted)


@pytest.mark.parametrize(("seconds", "threads"), [(1e-6, 2), (60.0, 1)])
def test_commands_are_finished_by_another_thread_where_recording_takes_as_long_as_a_step(
    adapter, monkeypatch, seconds, threads
):
    found: set[int] = set()
    finish = native.Recording.finish
    monkeypatch.setattr(native.Recording, "finish", lambda one: (found.add(threading.get_ident()), finish(one))[1])
    with (
        GGUFFile.open(golden("tiny-llama.gguf")) as file,
        closing(made(adapter, file)) as runner,
    ):
        runner.queue.measured(seconds)
        ready, batch, wanted = ready_and_wanted(runner)
        assert np.array_equal(begun(runner, ready, batch), wanted)
    assert len(found | {threading.get_ident()}) == threads


def test_buffers_for_inputs_are_reused(runner):
    for _ in range(6):
        ready, batch, _ = ready_and_wanted(runner)
        begun(runner, ready, batch)
    assert len(runner.device.uploads) <= 3


def test_a_prompt_is_submitted_in_parts_if_the_gpu_is_idle(adapter, monkeypatch):
    """The prompt starts with the first layers. A later step runs whole, and answers equal those of whole steps."""
    submits: list[int] = []

    def counted(plan: Plan, steps: int, layers: int = 0, *rest: object) -> int:
        submits.append(layers)
        return run(plan, steps, layers, *rest)

    run = Plan.run_steps
    monkeypatch.setattr(Plan, "run_steps", counted)
    ids = list(range(40))
    rows = np.array([draw_row(PARAMS, 0, 0)], DRAW)
    with GGUFFile.open(golden("tiny-llama.gguf")) as file:
        answers = []
        for parts in (True, False):
            options = {"slots": 2, "chunk_size": 64, "context": 256, "look_ahead": STEPS}
            with closing(GpuRunner(Device(adapter), file, load_model(file), **options)) as runner:
                if not parts:
                    monkeypatch.setattr(SubmitQueue, "_layers_of_part", lambda *_: 0)
                pending = []
                for slot in (0, 1):
                    batch = runner.prepare(Batch.of([(slot, 0, ids)]))
                    pending.append(runner.submit(batch, SamplingInputs.of(rows)))
                    runner.device.flush()
                answers.append(said(pending))
    assert submits == [1, 0, 0, 0]
    assert answers[0] == answers[1]
