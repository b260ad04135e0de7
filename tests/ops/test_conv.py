"""Convolutions over the rows of a sequence: GPU equals the reference, sequences stay apart, and chunks do not show."""

from typing import Any

import numpy as np
import pytest

from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import State
from tests.ops.test_recurrent import RAGGED, Arrays, Case, batch_of, named, normal, part

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
def test_a_convolution_is_that_of_numpy_over_the_whole_sequence(width):
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


def test_a_gated_convolution_is_one_of_a_product_times_a_gate(device):
    """As in LFM2: f and h are multiplied before it, and g after it."""
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
    case, inputs, edges = conv_case(4), rows_of(60), [0, 1, 2, 4, 7, 12, 60]
    [whole], after_whole = case.on_gpu(fast_device, case.slots(), [(batch_of([(3, 0, 60)]), inputs)])
    pairs = list(zip(edges[:-1], edges[1:], strict=True))
    steps = [(batch_of([(3, a, b - a)]), part(inputs, slice(a, b))) for a, b in pairs]
    chunks, after = case.on_gpu(fast_device, case.slots(seed=9), steps)
    assert np.array_equal(np.concatenate([chunk["y"] for chunk in chunks]), whole["y"])
    assert np.array_equal(after["past"][3], after_whole["past"][3])


def test_the_state_that_a_convolution_reads_stays_whole_where_it_writes_another(fast_device):
    case, slots = conv_case(4), conv_case(4).slots()
    batch: Batch = batch_of([(3, 1, 31), (2, 1, 2)])
    apart = batch.placed(states={3: (3, 6), 2: (2, 0)})
    [there], after_there = case.on_gpu(fast_device, slots, [(batch, rows_of(33))])
    [other], after_other = case.on_gpu(fast_device, slots, [(apart, rows_of(33))])
    assert np.array_equal(other["y"], there["y"])
    assert np.array_equal(after_other["past"][[6, 0]], after_there["past"][[3, 2]])
    assert np.array_equal(after_other["past"][[1, 2, 3, 4, 5]], slots["past"][[1, 2, 3, 4, 5]])


def test_a_sequence_of_nan_touches_no_other_in_a_convolution(fast_device):
    case, batch = conv_case(4), batch_of([(3, 1, 10), (2, 1, 9), (4, 0, 10)])
    inputs, slots = rows_of(29), case.slots()
    sick_inputs, sick_slots = {"x": inputs["x"].copy()}, {"past": slots["past"].copy()}
    sick_inputs["x"][10:19] = np.nan
    sick_slots["past"][[2, 4]] = np.nan  # 4 begins, so that it does not see its state
    [healthy], after_healthy = case.on_gpu(fast_device, slots, [(batch, inputs)])
    [sick], after_sick = case.on_gpu(fast_device, sick_slots, [(batch, sick_inputs)])
    assert np.array_equal(np.delete(sick["y"], range(10, 19), 0), np.delete(healthy["y"], range(10, 19), 0))
    assert np.array_equal(np.delete(after_sick["past"], 2, 0), np.delete(after_healthy["past"], 2, 0))
