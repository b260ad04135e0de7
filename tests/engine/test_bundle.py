"""Steps that go to the GPU together give what each would give alone, and whoever looks in between finds them done."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu import builtin_model
from rwkv_gpu.engine.device_sampling import draw_row
from rwkv_gpu.engine.runner import GpuRunner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.errors import DeviceLost
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.bundle import PORTION, Pace
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import DRAW, SAID
from tests.golden_files import golden

STEPS = 10
PARAMS = SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.5, seed=7)


@pytest.fixture(params=["tiny-rwkv7.gguf", "tiny-llama.gguf"])
def runner(request, adapter) -> Iterator[GpuRunner]:
    with GGUFFile.open(golden(request.param)) as file:
        options = {"slots": 2, "chunk_size": 2, "context": 256, "look_ahead": STEPS}
        made = GpuRunner(Device(adapter), file, load_model(file), **options)
    yield made
    made.close()


def submitted(runner: GpuRunner, steps: range) -> list:
    """Steps of two sequences that feed what they said before."""
    pending = []
    for at in steps:
        ids = [5, 9] if at == 0 else [SAID | 0, SAID | 1]
        batch = runner.prepare(Batch.of([(slot, at, [id]) for slot, id in enumerate(ids)]))
        rows = [draw_row(PARAMS, seed, seed) for seed in (0, 1)]
        for row in rows:
            row["number"] = row["tokens"] = at
        pending.append(runner.submit(batch, SamplingInputs(np.array(rows, DRAW))))
    return pending


def said(pending: list) -> list[list[int]]:
    return [[chosen.sampled().token for chosen in one.wait().chosen] for one in pending]


class Steady(Pace):
    """So many at a time, however long they take."""

    steps = enough = property(lambda self: self.most)


class Quick(Pace):
    """As many at a time as may be."""

    steps = property(lambda self: self.most)


def begin(runner: GpuRunner, pace: Pace) -> list[int]:
    """Forgets the sequences, and notes from here on how many steps each submit has."""
    for slot in (0, 1):
        runner.store.forget(slot)
        runner.remember(slot, [], PARAMS)
    runner._pace = pace
    counts: list[int] = []
    run_turns = Plan.run_turns
    for plan in runner._plans.values():
        plan.run_turns = lambda turns, *rest, plan=plan: (counts.append(turns), run_turns(plan, turns, *rest))[1]
    return counts


def test_steps_say_the_same_together_as_alone(runner):
    alone = [said(submitted(runner, range(at, at + 1)))[0] for at in range(STEPS)]
    counts = begin(runner, Steady(look_ahead=7))
    assert said(submitted(runner, range(STEPS))) == alone
    assert counts == [4, 4, 2]
    assert len({token for row in alone for token in row}) > 4


def test_a_state_is_read_after_all_that_was_held_back(runner):
    alone = said(submitted(runner, range(4)))
    want = runner.read_state(0)
    begin(runner, Steady(look_ahead=7))
    pending = submitted(runner, range(3))
    assert runner._bundle is not None and not runner._bundle.sent
    half = runner.read_state(0)
    assert runner._bundle.sent
    pending += submitted(runner, range(3, 4))
    got = runner.read_state(0)
    assert said(pending) == alone
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert any(half[name].tobytes() != want[name].tobytes() for name in want)


@pytest.mark.parametrize("software", [True, False])
def test_steps_whose_dispatches_overlap_go_alone_but_in_software(adapter, software):
    device = Device(adapter)
    device.capabilities = replace(device.capabilities, software=software)
    with GGUFFile.open(builtin_model()) as file:  # r, k, v and the first halves of LoRAs have formats of their own
        runner = GpuRunner(device, file, load_model(file), slots=2, chunk_size=2, look_ahead=STEPS)
    begin(runner, Steady(look_ahead=STEPS))
    pending = submitted(runner, range(4))
    assert runner._bundle.steps == (4 if software else 1)
    said(pending)
    runner.close()


def test_what_is_held_back_is_lost_with_the_device(runner):
    said(submitted(runner, range(1)))
    begin(runner, Steady(look_ahead=7))
    [pending] = submitted(runner, range(1))
    runner.close()
    with pytest.raises(DeviceLost):
        pending.wait()


def test_an_idle_gpu_is_given_what_there_is(runner):
    said(submitted(runner, range(1)))
    counts = begin(runner, Quick(look_ahead=7))
    said(submitted(runner, range(STEPS)))
    assert counts == [1, 1, 2, 4, 2]


def test_slow_steps_go_one_by_one(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    pace = Pace(look_ahead=7)
    pace.turns = 4
    assert (pace.steps, pace.ahead) == (1, 2)  # nothing is known yet
    for part, steps in ((0.7, 1), (2.5, 2), (3.5, 3), (100, 4), (0.1, 1)):
        begun, now = now, now + PORTION / part
        pace.arrived(begun, 1)
        assert (pace.steps, pace.ahead) == (steps, max(2, 2 * steps - 1))
    pace.arrived(now - 5 * PORTION, 1)  # submitted long ago, but it had to wait for others
    assert pace.steps == 4
    pace.turns = 1
    assert (pace.steps, pace.ahead) == (1, 2)  # dispatches of such a plan overlap
    pace.turns, pace.look_ahead = 4, 1
    assert (pace.steps, pace.ahead) == (1, 1)
