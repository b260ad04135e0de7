"""Convolutions over the rows of a sequence: the GPU equals the reference for any chunks, and sequences are
independent.
"""

from typing import Any

import numpy as np
import pytest

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import State
from tests.ops.test_recurrent import (
    RAGGED,
    Arrays,
    Case,
    PackedCase,
    batch_of,
    every_mixer,
    mixing,
    named,
    normal,
)

CHANNELS, FIRST = 76, 6


def conv_case(width: int, then: str = "silu", bias: bool = True) -> Case:
    weights = {"w": normal(CHANNELS * width), "b": normal(CHANNELS, seed=1)}

    def says(g, w, s, x):
        return {"y": g.conv1d(x, w["w"], s["past"], then=then, bias=w["b"] if bias else None, first=FIRST)}

    case = Case(says, weights, [State("past", (width - 1, CHANNELS))])
    case.tolerance = 1e-5  # sums of five products in another order
    return case


def rows_of(count: int) -> Arrays:
    return {"x": normal(count, CHANNELS + FIRST + 9, seed=3)}


@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_convolution_equals_that_of_numpy_over_the_whole_sequence(width):
    case, inputs = conv_case(width, "none"), rows_of(20)
    states: dict[str, Any] = {"past": np.full((1, width - 1, CHANNELS), np.nan, np.float32)}
    y = case.says(Reference(case.weights, states, batch_of([(0, 0, 20)])), named(case.weights), case.states, **inputs)[
        "y"
    ]
    x = inputs["x"][:, FIRST : FIRST + CHANNELS]
    for c in range(0, CHANNELS, 17):
        wanted = np.convolve(x[:, c], case.weights["w"].reshape(CHANNELS, width)[c, ::-1])[:20] + case.weights["b"][c]
        np.testing.assert_allclose(y[:, c], wanted, 1e-4, 1e-4)
    assert np.array_equal(states["past"][0], x[20 - (width - 1) :])


@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_convolution_equals_the_reference_over_ragged_segments(device, width):
    batch = batch_of(RAGGED)
    conv_case(width).assert_same(device, [(batch, rows_of(batch.rows))])


@pytest.mark.parametrize("width", [1, 5, 9])
def test_a_centred_convolution_sees_rows_on_both_sides_of_its_segment_only(device, width):
    weights = {"w": normal(CHANNELS * width), "b": normal(CHANNELS, seed=1)}
    case = Case(lambda g, w, s, x: {"y": g.centred_conv1d(x, w["w"], bias=w["b"])}, weights, [])
    case.tolerance = 1e-5
    batch, inputs = batch_of(RAGGED), {"x": normal(batch_of(RAGGED).rows, CHANNELS, seed=3)}
    case.assert_same(device, [(batch, inputs)])
    y = case.says(Reference(weights, {}, batch), named(weights), {}, **inputs)["y"]
    for segment in batch.steps:
        for c in range(0, CHANNELS, 17):
            taps, x = weights["w"].reshape(CHANNELS, width)[c, ::-1], inputs["x"][segment.rows, c]
            wanted = np.convolve(x, taps)[width // 2 :][: segment.count] + weights["b"][c]
            np.testing.assert_allclose(y[segment.rows, c], wanted, 1e-4, 1e-4)


def test_a_gated_convolution_is_one_of_a_product_times_a_gate(device):
    """In LFM2, f and h are multiplied before the convolution, and g after it."""
    state = State("past", (2, CHANNELS))
    weights = {"w": normal(CHANNELS * 3)}

    def says(g, w, s, x):
        return {"y": g.conv1d(x, w["w"], s["past"], gated=True)}

    case, batch = Case(says, weights, [state]), batch_of([(3, 0, 9), (0, 5, 1), (1, 1, 2)])
    case.tolerance = 1e-5
    x, slots = normal(12, 3 * CHANNELS, seed=4), case.slots()
    [gated], after = case.on_cpu(slots, [(batch, {"x": x})])
    f, gate, h = np.split(x, 3, axis=1)

    def plain(g, w, s, x):
        return {"y": g.conv1d(x, w["w"], s["past"])}

    [wanted], after_wanted = Case(plain, weights, [state]).on_cpu(slots, [(batch, {"x": f * h})])
    np.testing.assert_allclose(gated["y"], wanted["y"] * gate, 1e-5, 1e-5)
    np.testing.assert_array_equal(after["past"], after_wanted["past"])
    case.assert_same(device, [(batch, {"x": x})])


def test_a_convolution_does_without_bias_and_activation(device):
    batch = batch_of([(3, 0, 9), (0, 5, 1), (1, 1, 2)])
    conv_case(4, "none", bias=False).assert_same(device, [(batch, rows_of(batch.rows))])


def test_a_convolution_in_chunks_equals_one_at_once_to_the_bit(fast_device):
    conv_case(4).assert_same_in_pieces(fast_device, rows_of(60), [0, 1, 2, 4, 7, 12, 60])


def test_the_state_that_a_convolution_reads_stays_whole_where_it_writes_another(fast_device):
    conv_case(4).assert_reads_one_state_and_writes_another(fast_device, rows_of(33))


def test_a_sequence_of_nan_touches_no_other_in_a_convolution(fast_device):
    conv_case(4).assert_nan_stays_apart(fast_device, rows_of(29))


# ---------------------------------------------------------------- in the product that reads it


def in_product_case(taps: int, width: int = 192, packed: bool = False) -> PackedCase:
    """Returns a layer of LFM2: gates, a convolution and a product that adds. Rows of W fill no block."""
    weights = {"taps": normal(width * taps), "w": normal(70, width, seed=1) / 8}

    def says(g, w, s, x, add):
        return {"y": g.linear(g.conv1d(x, w["taps"], s["past"], gated=True), w["w"], add=add)}

    return PackedCase(says, weights, [State("past", (taps - 1, width))], ("w",) if packed else ())


def single_rows(steps: list[tuple[int, int, int]], width: int = 192) -> list[tuple[Batch, Arrays]]:
    """Returns steps of one row, each with its position, the state that it reads, and another that it writes."""
    batches = [
        batch_of([(written, start, 1)]).placed(states={written: (read, written)}) for start, read, written in steps
    ]
    inputs = [{"x": normal(1, 3 * width, seed=50 + i), "add": normal(1, 70, seed=60 + i)} for i in range(len(steps))]
    return list(zip(batches, inputs, strict=True))


# A sequence that begins where memory may hold NaN, and a fork of it.
TALK = [(0, 2, 3), (1, 3, 5), (2, 5, 3), (3, 3, 6), (3, 3, 4), (4, 4, 3)]


@every_mixer
@pytest.mark.parametrize("packed", [False, True], ids=["floats", "integers"])
@pytest.mark.parametrize("taps", [2, 3, 4])
def test_a_convolution_in_a_product_equals_the_reference(device, mixers, taps, packed):
    case, steps = in_product_case(taps, packed=packed), single_rows(TALK)
    for tuning in mixing(device, mixers):
        case.assert_same(device, steps, rows=1, tuning=tuning)
        plan, _, _ = case.record(device, steps[0][1], 1, tuning)
        assert len(plan.dispatches) == 1, "the convolution has a dispatch of its own"


def test_a_convolution_in_a_product_keeps_nan_out_of_other_sequences(fast_device):
    """The old contents of a slot, and all rows of one sequence, are NaN."""
    case, steps = in_product_case(3), single_rows([(0, 2, 3), (7, 6, 5), (1, 3, 4)])
    slots = case.slots()
    sick_slots, sick_steps = {"past": slots["past"].copy()}, [(b, dict(x)) for b, x in steps]
    sick_slots["past"][[2, 3, 6]] = np.nan
    sick_steps[1][1]["x"] = np.full_like(steps[1][1]["x"], np.nan)
    for tuning in mixing(fast_device):
        healthy, after_healthy = case.on_gpu(fast_device, slots, steps, rows=1, tuning=tuning)
        sick, after_sick = case.on_gpu(fast_device, sick_slots, sick_steps, rows=1, tuning=tuning)
        for step in (0, 2):
            assert np.array_equal(sick[step]["y"], healthy[step]["y"])
        assert np.array_equal(after_sick["past"][[3, 4]], after_healthy["past"][[3, 4]])
        assert np.isnan(sick[1]["y"]).all()


@pytest.mark.parametrize(
    "change",
    [{"gated": False}, {"then": "silu"}, {"bias": True}, {"twice": True}, {"pairs": True}, {"output": True}],
    ids=lambda change: next(iter(change)),
)
def test_a_product_does_not_fuse_a_convolution_that_it_cannot_compute(fast_device: Device, change):
    """The convolution has no gates, or has an activation, a bias or other readers; or the product has gate and up."""
    how = {"gated": True} | change
    width = 64
    twice, pairs, output, bias = (how.pop(name, False) for name in ("twice", "pairs", "output", "bias"))
    weights = {"taps": normal(3 * width), "b": normal(width, seed=1), "w": normal(70, width, seed=1) / 8}

    def says(g, w, s, x):
        y = g.conv1d(x, w["taps"], s["past"], bias=w["b"] if bias else None, **how)
        first = g.glu(y, w["w"], "silu") if pairs else g.linear(y, w["w"])
        return {"y": first} | ({"again": g.linear(y, w["w"])} if twice else {}) | ({"conv": y} if output else {})

    case = Case(says, weights, [State("past", (2, width))])
    steps = [(batch, {"x": normal(1, 3 * width if how["gated"] else width)}) for batch, _ in single_rows([(4, 3, 5)])]
    [tuning] = mixing(fast_device, ["gemv"])
    case.assert_same(fast_device, steps, rows=1, tuning=tuning)
    plan, _, _ = case.record(fast_device, steps[0][1], 1, tuning)
    assert any("conv1d" in dispatch.name for dispatch in plan.dispatches)
