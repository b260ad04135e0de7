"""State space models: the GPU equals the reference, sequences are independent, and chunks do not change results."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import State, StateSpace
from tests.ops.test_recurrent import RAGGED, TOLERANCE, Arrays, Case, batch_of, named, normal

HEADS = [(4, 2, 64, 128), (5, 1, 32, 24), (2, 2, 64, 256), (8, 1, 16, 16)]  # H, G, P, N
CHANNELS, COLUMNS = 75, 16
AVERAGES = 96  # channels of RWKV-4
HALVED = 5e-3  # on matrix units, where what is multiplied is rounded to float16


def ssd_case(heads: int, groups: int, size: int, columns: int) -> Case:
    def says(g, w, s, xbc, projected):
        parameters = StateSpace(w["bias"], w["a"], w["d"])
        return {"y": g.ssd(xbc, projected, parameters, s["ssm"], groups=groups)}

    weights = {"bias": normal(heads), "a": -abs(normal(heads, seed=1)), "d": normal(heads, seed=2)}
    return Case(says, weights, [State("ssm", (heads, size, columns))])


def ssd_inputs(rows: int, heads: int, groups: int, size: int, columns: int) -> Arrays:
    inner = heads * size
    return {
        "xbc": normal(rows, inner + 2 * groups * columns, seed=3) / columns**0.25,
        "projected": normal(rows, inner + 7 + heads, seed=4),  # other columns lie between the parts that are used
    }


def scan_case() -> Case:
    def says(g, w, s, x, dt, bc, projected):
        return {"y": g.selective_scan(x, dt, bc, projected, StateSpace(w["bias"], w["a"], w["d"]), s["ssm"])}

    a = -abs(normal(CHANNELS * COLUMNS, seed=1))
    weights = {"bias": normal(CHANNELS), "a": a, "d": normal(CHANNELS, seed=2)}
    return Case(says, weights, [State("ssm", (CHANNELS, COLUMNS))])


def scan_inputs(rows: int) -> Arrays:
    return {
        "x": normal(rows, CHANNELS, seed=3),
        "dt": normal(rows, CHANNELS, seed=4),
        "bc": normal(rows, 2 * COLUMNS, seed=5),
        "projected": normal(rows, 2 * CHANNELS, seed=6),
    }


class Averages(Case):
    """A case whose states are sums of positive numbers."""

    def slots(self, seed: int = 0) -> Arrays:
        return {name: abs(array) for name, array in super().slots(seed).items()}


def averages_case() -> Case:
    def says(g, w, s, r, k, v):
        return {"y": g.wkv4(r, k, v, w["vectors"], s["ssm"])}

    return Averages(says, {"vectors": normal(2, AVERAGES)}, [State("ssm", (3, AVERAGES))])


def averages_inputs(rows: int) -> Arrays:
    """The exponents are so large that their powers are infinite in float32."""
    return {name: gain * normal(rows, AVERAGES, seed=3 + gain) for name, gain in (("r", 1), ("k", 90), ("v", 2))}


CASES: dict[str, Any] = {
    **{f"ssd {sizes}": (ssd_case(*sizes), lambda rows, sizes=sizes: ssd_inputs(rows, *sizes)) for sizes in HEADS},
    "selective_scan": (scan_case(), scan_inputs),
    "wkv4": (averages_case(), averages_inputs),
}
FEW = ["ssd (5, 1, 32, 24)", "selective_scan", "wkv4"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_ssd_equals_the_formulas_of_the_paper():
    """Computed head by head and token by token, in float64."""
    heads, groups, size, columns = 4, 2, 8, 12
    case, inputs = ssd_case(heads, groups, size, columns), ssd_inputs(6, heads, groups, size, columns)
    states = {"ssm": np.full((1, heads, size, columns), np.nan, np.float32)}
    got = case.says(Reference(case.weights, states, batch_of([(0, 0, 6)])), named(case.weights), case.states, **inputs)
    xbc, projected = (inputs[name].astype(np.float64) for name in ("xbc", "projected"))
    for h in range(heads):
        s, own, group = np.zeros((size, columns)), slice(h * size, (h + 1) * size), h // 2
        for t in range(6):
            x = xbc[t, own]
            b, c = xbc[t, heads * size :].reshape(2, groups, columns)[:, group]
            dt = np.log(1 + np.exp(projected[t, -heads + h] + case.weights["bias"][h]))
            s = s * np.exp(dt * case.weights["a"][h]) + dt * np.outer(x, b)
            z = projected[t, own]
            wanted = (s @ c + case.weights["d"][h] * x) * z * sigmoid(z)
            np.testing.assert_allclose(got["y"][t, own], wanted, 1e-4, 1e-4)
        np.testing.assert_allclose(states["ssm"][0, h], s, 1e-4, 1e-4)


def test_a_selective_scan_equals_the_formulas_of_the_paper():
    case, inputs = scan_case(), scan_inputs(6)
    states = {"ssm": np.full((1, CHANNELS, COLUMNS), np.nan, np.float32)}
    got = case.says(Reference(case.weights, states, batch_of([(0, 0, 6)])), named(case.weights), case.states, **inputs)
    a = case.weights["a"].reshape(CHANNELS, COLUMNS)
    for channel in range(0, CHANNELS, 7):
        s = np.zeros(COLUMNS)
        for t in range(6):
            x, z = float(inputs["x"][t, channel]), float(inputs["projected"][t, CHANNELS + channel])
            dt = np.log(1 + np.exp(inputs["dt"][t, channel] + case.weights["bias"][channel]))
            s = s * np.exp(dt * a[channel]) + dt * x * inputs["bc"][t, :COLUMNS]
            wanted = (s @ inputs["bc"][t, COLUMNS:] + case.weights["d"][channel] * x) * z * sigmoid(z)
            np.testing.assert_allclose(got["y"][t, channel], wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_recurrence_equals_the_reference_over_ragged_segments(device, name):
    case, inputs = CASES[name]
    batch = batch_of(RAGGED)
    by_token = default_tuning(device.capabilities).changed(state_space_on_matrix_units=False)
    case.assert_same(device, [(batch, inputs(batch.rows))], tuning=by_token)


def on_units(device):
    return default_tuning(device.capabilities).changed(state_space_on_matrix_units=True)


@pytest.mark.parametrize("sizes", [(4, 2, 64, 128), (2, 1, 32, 256)])
def test_chunks_on_matrix_units_keep_states_on_the_way_and_rows_of_any_size(fast_device, sizes):
    """Rows of x, B and C differ by orders of magnitude. Two sequences verify drafts while another reads a prompt."""
    if not fast_device.capabilities.fragment:
        pytest.skip("this device has no matrix units; pytest --matrix-units opens those of Mesa 26.2")
    case, batch = ssd_case(*sizes), batch_of([(0, 7, 3), (2, 0, 140), (1, 4, 9)])
    first, prompt, last = batch.segments
    segments = (first._replace(state=(0, 3), kept=(4, 5)), prompt, last._replace(kept=(6, 7, 8, 9, 10, 11, 12, 13)))
    batch, inputs = replace(batch, segments=segments), ssd_inputs(batch.rows, *sizes)
    heads, _, size, _ = sizes
    inputs["xbc"] *= 10.0 ** np.random.default_rng(0).integers(-3, 4, (batch.rows, 1))
    slots = case.slots()
    [want], want_after = case.on_cpu(slots, [(batch, inputs)])
    tuning = on_units(fast_device)
    [got], after = case.on_gpu(fast_device, slots, [(batch, inputs)], rows=256, tuning=tuning)
    plan, _, _ = case.record(fast_device, inputs, 256, tuning)
    assert {dispatch.name.rpartition(" ")[2] for dispatch in plan.dispatches} == {"ssd_scores", "ssd_matrix"}
    mine, theirs = (each["y"].reshape(batch.rows, heads, size) for each in (got, want))
    so_far = np.maximum.accumulate(abs(theirs).max(-1, keepdims=True), 0)  # sets the precision of a state
    assert np.all(abs(mine - theirs) <= HALVED * so_far)
    largest = abs(want_after["ssm"]).max((-2, -1), keepdims=True)
    assert np.all(abs(after["ssm"] - want_after["ssm"]) <= HALVED * largest)


def test_a_sequence_of_nan_touches_no_other_on_matrix_units(fast_device):
    if not fast_device.capabilities.fragment:
        pytest.skip("this device has no matrix units; pytest --matrix-units opens those of Mesa 26.2")
    case, batch = ssd_case(4, 2, 64, 128), batch_of([(3, 1, 70), (2, 1, 9), (4, 0, 30)])
    given, slots = ssd_inputs(109, 4, 2, 64, 128), case.slots()
    sick = {key: array.copy() for key, array in given.items()}
    for array in sick.values():
        array[70:79] = np.nan
    tuning = on_units(fast_device)
    [healthy], after_healthy = case.on_gpu(fast_device, slots, [(batch, given)], rows=128, tuning=tuning)
    [ill], after_ill = case.on_gpu(fast_device, slots, [(batch, sick)], rows=128, tuning=tuning)
    assert np.array_equal(np.delete(ill["y"], range(70, 79), 0), np.delete(healthy["y"], range(70, 79), 0))
    assert np.array_equal(np.delete(after_ill["ssm"], 2, 0), np.delete(after_healthy["ssm"], 2, 0))


@pytest.mark.parametrize("name", FEW)
def test_a_recurrence_of_one_row_each_equals_the_reference(device, name):
    made, inputs = CASES[name]
    case = type(made)(made.says, made.weights, list(made.states.values()))
    case.single = True
    batch = batch_of([(3, 7, 1), (0, 0, 1), (5, 2, 1)])
    case.assert_same(device, [(batch, inputs(3))])


@pytest.mark.parametrize(("sizes", "bias"), [((4, 2, 64, 128), "bias of conv"), ((5, 1, 32, 24), None)])
def test_a_decode_step_that_convolves_equals_the_reference(device, sizes, bias):
    """The convolution has no separate dispatch. Each sequence reads one state and writes another."""
    heads, groups, size, columns = sizes
    rule, inner = ssd_case(*sizes), heads * size
    channels = inner + 2 * groups * columns

    def says(g, w, s, projected):
        taken = w[bias] if bias else None
        xbc = g.conv1d(projected, w["taps"], s["past"], then="silu", bias=taken, first=inner + 1)
        return rule.says(g, w, s, xbc, projected)

    weights = {"taps": normal(channels * 4, seed=5) / 4, "bias of conv": normal(channels, seed=6)}
    case = Case(says, rule.weights | weights, [*rule.states.values(), State("past", (3, channels))])
    case.single = True
    moves = [{3: (3, 4), 0: (0, 1), 5: (5, 6)}, {3: (4, 3), 0: (1, 0), 5: (6, 5)}]
    steps = [
        (
            batch_of([(3, 7 + n, 1), (0, n, 1), (5, 2 + n, 1)]).placed(states=places),
            {"projected": normal(3, inner + 1 + channels + heads, seed=7 + n)},
        )
        for n, places in enumerate(moves)
    ]
    slots = case.slots()
    want, want_after = case.on_cpu(slots, steps)
    got, after = case.on_gpu(device, slots, steps, rows=4)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine["y"], theirs["y"], TOLERANCE, TOLERANCE)
    for name in after:
        np.testing.assert_allclose(after[name], want_after[name], TOLERANCE, TOLERANCE, err_msg=name)
    plan, _, _ = case.record(device, steps[0][1], 4)
    assert not any("conv1d" in dispatch.name for dispatch in plan.dispatches)


@pytest.mark.parametrize("name", FEW)
def test_a_recurrence_in_chunks_equals_one_at_once_to_the_bit(fast_device, name):
    case, inputs = CASES[name]
    case.assert_same_in_pieces(fast_device, inputs(60), [0, 1, 2, 4, 7, 12, 60])


@pytest.mark.parametrize("name", FEW)
def test_the_state_that_a_recurrence_reads_stays_whole_where_it_writes_another(fast_device, name):
    case, inputs = CASES[name]
    case.assert_reads_one_state_and_writes_another(fast_device, inputs(33))


@pytest.mark.parametrize("name", FEW)
def test_a_sequence_of_nan_touches_no_other_in_a_recurrence(fast_device, name):
    case, inputs = CASES[name]
    case.assert_nan_stays_apart(fast_device, inputs(29))


@pytest.mark.parametrize("groups", [1, 3])
def test_a_norm_by_groups_equals_that_of_each_group(device, groups):
    weights = {"gain": normal(96), "shared": normal(96 // groups, seed=2), "bias": normal(96, seed=3)}

    def says(g, w, s, x):  # noqa: ARG001
        return {
            "y": g.group_rms_norm(x, w["gain"], groups, 1e-5),
            "z": g.group_rms_norm(x, None, groups, 1e-5),
            "each": g.group_rms_norm(x, w["shared"], groups, 1e-5),
            "centred": g.group_layer_norm(x, w["gain"], None, groups, 1e-5),
            "shifted": g.group_layer_norm(x, w["gain"], w["bias"], groups, 1e-5),
            "plain": g.group_layer_norm(x, None, None, groups, 1e-5),
        }

    case = Case(says, weights, [])
    case.tolerance = 1e-5
    x = normal(9, 96, seed=1) + 1
    grouped = x.reshape(9, groups, -1)
    wanted = grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + 1e-5)
    got = case.says(Reference(weights, {}, batch_of([(0, 0, 9)])), named(weights), {}, x=x)
    np.testing.assert_allclose(got["z"], wanted.reshape(9, 96), 1e-5, 1e-5)
    np.testing.assert_allclose(got["y"], wanted.reshape(9, 96) * weights["gain"], 1e-5, 1e-5)
    np.testing.assert_allclose(got["each"], (wanted * weights["shared"]).reshape(9, 96), 1e-5, 1e-5)
    apart = grouped - grouped.mean(-1, keepdims=True)
    wanted = (apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5)).reshape(9, 96) * weights["gain"]
    np.testing.assert_allclose(got["shifted"], wanted + weights["bias"], 1e-5, 1e-5)
    case.assert_same(device, [(batch_of([(0, 0, 9)]), {"x": x})])
