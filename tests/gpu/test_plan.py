"""A plan replays its recording with any row count and either encoder, and gives the same bytes."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.dispatch import encode_public
from rwkv_gpu.errors import UnsupportedDevice
from rwkv_gpu.gpu.plan import Plan, StepBuffer, fold
from rwkv_gpu.gpu.profile import profile_plan, time_replay
from rwkv_gpu.ops import build
from rwkv_gpu.ops.memory import Scratch
from tests.recording import on_cpu, record, run_plan, tunings
from tests.toy import VOCABULARY, toy, toy_weights

ROWS = 16
IDS = {"ids": np.random.default_rng(3).integers(0, VOCABULARY, ROWS).astype(np.uint32)}
# Two layers of float32 sums in another order, on logits of deviation near 6.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def recorded(device) -> tuple[Plan, Scratch]:
    return record(device, toy, toy_weights(), IDS, ROWS)


@pytest.mark.parametrize("way", ["default", "workgroup", "subgroup", "one_subgroup"])
def test_the_toy_model_equals_the_reference_in_every_tuning(device, way):
    if way not in tunings(device):
        pytest.skip("this device has no subgroups")
    plan, scratch = record(device, toy, toy_weights(), IDS, ROWS, tunings(device)[way])
    got, want = run_plan(plan, scratch, IDS, ROWS), on_cpu(toy, toy_weights(), IDS)
    np.testing.assert_allclose(got["logits"], want["logits"], atol=TOLERANCE)
    np.testing.assert_allclose(got["p"], want["p"], atol=TOLERANCE)
    assert np.array_equal(got["best"], want["best"])


@pytest.mark.parametrize("rows", [1, 2, 7, 15, 16])
def test_one_plan_serves_any_row_count_up_to_its_own(recorded, rows):
    plan, scratch = recorded
    want = on_cpu(toy, toy_weights(), {"ids": IDS["ids"][:rows]})
    np.testing.assert_allclose(run_plan(plan, scratch, IDS, rows)["logits"], want["logits"], atol=TOLERANCE)


def test_a_row_does_not_depend_on_its_neighbours(recorded):
    plan, scratch = recorded
    together = run_plan(plan, scratch, IDS, ROWS)["logits"]
    alone = [run_plan(plan, scratch, {"ids": IDS["ids"][t:]}, 1)["logits"][0] for t in range(ROWS)]
    assert np.array_equal(together, np.array(alone))


def test_raw_handles_and_the_public_api_give_the_same_bytes(recorded):
    plan, scratch = recorded
    results = []
    for encode in (Plan.encode, encode_public):
        run_plan(plan, scratch, {"ids": IDS["ids"] * 0}, ROWS)  # another answer in between
        plan.step.write(ROWS, IDS)
        plan.device.submit([encode(plan)])
        results.append({name: plan.read(name, ROWS).tobytes() for name in plan.outputs})
    assert results[0] == results[1]


def test_a_plan_submitted_by_layers_gives_the_same_bytes(recorded):
    plan, scratch = recorded
    whole = run_plan(plan, scratch, IDS, ROWS)
    cuts = [0, *plan.splits, len(plan.dispatches)]
    assert len(plan.splits) == 2
    plan.step.write(ROWS, IDS)
    for first, last in zip(cuts, cuts[1:], strict=False):
        plan.device.submit([plan.encode(first, last)])
    assert plan.read("logits", ROWS).tobytes() == whole["logits"].tobytes()


def test_intermediates_share_memory_where_they_take_much(device, monkeypatch):
    monkeypatch.setattr(build, "SEPARATE_BYTES", 0)
    plan, scratch = record(device, toy, toy_weights(), IDS, ROWS)
    written = {(s.buffer, s.nbytes, n) for n, d in enumerate(plan.dispatches) for s in [d.bound[max(d.bound)]]}
    assert sum(nbytes for _, nbytes, _ in written) > 1.5 * sum(buffer.nbytes for buffer in scratch.buffers)


def test_a_deep_model_needs_no_more_scratch_than_a_shallow_one(fast_device, monkeypatch):
    monkeypatch.setattr(build, "SEPARATE_BYTES", 0)

    def deep(layers):
        def says(g, w, ids):
            x = g.embed(w["embed.weight"], ids)
            for i in range(layers):
                with g.layer(i):
                    h = g.linear(x, w["blk.0.up.weight"], then="tanh")
                    x = g.linear(h, w["blk.0.down.weight"], add=x)
            return {"x": x}

        return sum(b.nbytes for b in record(fast_device, says, toy_weights(), IDS, ROWS)[1].buffers)

    assert deep(50) == deep(3)


def test_plans_share_their_scratch(fast_device):
    plan, scratch = record(fast_device, toy, toy_weights(), IDS, ROWS)
    before = list(scratch.buffers)
    scratch.take([buffer.nbytes for buffer in before])
    assert scratch.buffers == before
    del plan


def test_a_replay_allocates_nothing_by_dispatch(fast_device):
    def chain(length):
        def says(g, w, ids):
            x = g.embed(w["embed.weight"], ids)
            for _ in range(length):
                x = g.activate(x, "tanh")
            return {"x": x}

        plan, _ = record(fast_device, says, toy_weights(), IDS, ROWS)
        plan.run(ROWS, IDS)
        tracemalloc.start()
        encoded = plan.encode()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        plan.device.submit([encoded])  # otherwise it would never be freed
        return peak

    # The slice of the program is 8 bytes a dispatch; a Python object would be 28 or more.
    assert chain(500) - chain(10) < 16 * 490


def test_profile_times_every_step_and_sums_by_name(recorded):
    plan, _ = recorded
    if not plan.device.capabilities.timestamps:
        with pytest.raises(UnsupportedDevice, match="timestamp"):
            profile_plan(plan, ROWS, IDS, replays=1)
        return
    profile = profile_plan(plan, ROWS, IDS, replays=3)
    assert sum(step.calls for step in profile.steps) == len(plan.dispatches)
    [up] = [step for step in profile.steps if step.name.startswith("blk.*/up gem")]
    assert up.calls == 2
    assert up.flops == 2 * ROWS * 2 * 70 * 36
    weights = 70 * 64 * 2 + 96 * 4  # the matrix and the bias, rows padded to whole runs of 32
    assert up.nbytes == 2 * (weights + ROWS * (36 + 70) * 4)
    assert up.seconds > 0
    assert up.gflops > 0
    assert up.name.endswith(".f16")
    assert [one.name for one in profile.timeline] == [dispatch.name for dispatch in plan.dispatches]
    assert all(one.start >= 0 and one.seconds >= 0 for one in profile.timeline)


@pytest.mark.parametrize("stamps", [True, False])
def test_a_lap_runs_the_whole_plan_by_whichever_clock_there_is(recorded, monkeypatch, stamps):
    plan, _ = recorded
    can = plan.device.capabilities
    monkeypatch.setattr(plan.device, "capabilities", replace(can, timestamps=stamps and can.timestamps))
    plan.run(ROWS, IDS)
    wanted = {name: plan.read(name, ROWS) for name in plan.outputs}
    for output in plan.outputs.values():
        plan.device.write(output.place.buffer, np.zeros(output.place.nbytes, np.uint8), output.place.offset)
    assert 0 < time_replay(plan, ROWS, IDS) < 10
    for name, values in wanted.items():
        np.testing.assert_array_equal(plan.read(name, ROWS), values)


def test_profiling_by_passes_counts_the_same_steps(recorded, monkeypatch):
    plan, _ = recorded
    if not plan.device.capabilities.timestamps:
        pytest.skip("this device has no timestamps")
    from dataclasses import replace

    monkeypatch.setattr(plan.device, "capabilities", replace(plan.device.capabilities, timestamps_in_pass=False))
    assert sum(step.calls for step in profile_plan(plan, ROWS, IDS, replays=1).steps) == len(plan.dispatches)


@pytest.mark.parametrize("groups", [1, 65535, 65536, 131070, 131071, 1_000_003])
def test_a_folded_grid_covers_all_groups_under_the_limit(groups):
    x, y, z = fold(groups, 65535)
    assert max(x, y) <= 65535
    assert groups <= x * y * z < groups + x


def test_a_step_buffer_uploads_each_array_that_may_have_changed(fast_device):
    """A read-only array is copied once for each step of a submit, all others every time."""
    step = StepBuffer(fast_device, {"x": (np.uint32, (4,)), "y": (np.uint32, (4, 3))}, 4, steps=2)
    x, y = np.arange(3, dtype=np.uint32), np.arange(4, dtype=np.uint32).reshape(2, 2)
    fixed = np.array([8, 9], np.uint32)
    fixed.flags.writeable = False

    def filled(number, **inputs):
        step.fill(number, 3, {"x": x, "y": y} | inputs, 2, 1)
        views = step._views[number]
        return views["x"].tolist(), views["y"][:2, :2].tolist()

    for number in (0, 1):
        assert filled(number) == ([0, 1, 2, 0], [[0, 1], [2, 3]])
        x[0] = 5
        assert filled(number)[0] == [5, 1, 2, 0], "the same array with other numbers"
        assert filled(number, x=fixed)[0] == [8, 9, 2, 0]
        step._views[number]["x"][0] = 7
        assert filled(number, x=fixed)[0] == [7, 9, 2, 0], "it was there already"
        assert filled(number)[0] == [5, 1, 2, 0]
        assert filled(number, x=fixed)[0] == [8, 9, 2, 0], "another was there meanwhile"
        step._views[number]["x"][:] = x[0] = 0
    header = step.host.view(np.uint32)[:, : 2 * StepBuffer.HEADER // 4].reshape(2, 2, -1)
    assert header[:, :, :4].tolist() == [[[3, 2, 1, 4], [1, 2, 1, 4]]] * 2
