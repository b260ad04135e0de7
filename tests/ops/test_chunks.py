"""Recurrences by chunks of tokens: numpy's chunked form and the GPU's equal the recurrence token by token."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning, in_chunks
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.ops.chunked import Form, chunk_shape
from rwkv_gpu.ops.graph import StepShape
from rwkv_gpu.ops.reference import _recur
from tests.ops.chunked import recur_in_chunks
from tests.ops.test_recurrence import case_of, inputs_of
from tests.ops.test_recurrent import TOLERANCE, Arrays, Case, batch_of, mix_case, mix_inputs, normal

RAGGED = ((3, 0, 37), (0, 5, 1), (6, 0, 16), (1, 9, 17), (5, 1, 2))  # slot, start, tokens


def tuned(device: Device, **how: int) -> Tuning:
    return default_tuning(device.capabilities).changed(
        **{"chunk_tokens": 8, "chunk_min_rows": 1, "chunks_without_removal": True, **how}
    )


def case_in_chunks(kind: str, size: int) -> Case:
    return mix_case(3, size) if kind == "time mix" else case_of(kind, size)


def inputs_in_chunks(kind: str, rows: int, size: int) -> Arrays:
    return mix_inputs(rows, 3, size) if kind == "time mix" else inputs_of(kind, rows, size)


# ---------------------------------------------------------------- the form, in numpy


def hard_inputs(rows: int, size: int, decays: str) -> tuple[np.ndarray, ...]:
    """Returns keys of length one, some of them equal, with decays from 1e-6 to 1 by channel."""
    r, k, v, kappa = (normal(rows, size, seed=i) for i in range(4))
    kappa[1::3] = kappa[::3][: len(kappa[1::3])]
    kappa /= np.linalg.norm(kappa, axis=1, keepdims=True)
    low = {"hard": -6.0, "mild": -0.1, "none": 0.0}[decays]
    w = (10 ** (low * np.random.default_rng(1).random((rows, size)))).astype(np.float32)
    if decays == "hard":
        w[:, ::5] = np.float32(1e-6)
        w[::4, 1::5] = 0
    rate = np.random.default_rng(2).random((rows, 1)).astype(np.float32) if decays != "none" else np.float32(1)
    return r, w, k, v, -kappa, kappa * rate


@pytest.mark.parametrize("tokens", [8, 16, 32])
@pytest.mark.parametrize("decays", ["hard", "mild", "none"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 70])
def test_the_chunked_form_equals_the_recurrence_token_by_token(rows, decays, tokens):
    """Float32 results agree to 1e-5 of the largest value, because sums of 64 products have another order."""
    inputs = hard_inputs(rows, 64, decays)
    r, w, k, v, a, b = (x[:, None] for x in inputs)
    s = normal(1, 64, 64, seed=9)
    in_chunks = s[0].copy()
    y = _recur(s, r, w, k, v, (a, b))[:, 0]
    np.testing.assert_allclose(recur_in_chunks(in_chunks, *inputs, tokens), y, 0, 1e-5 * np.abs(y).max())
    np.testing.assert_allclose(in_chunks, s[0], 0, 1e-5 * np.abs(s).max())


# ---------------------------------------------------------------- the kernels


@pytest.mark.parametrize(
    ("kind", "size"),
    [("time mix", 32), ("by head", 128), ("by channel", 32), ("rwkv6", 32), ("qrwkv", 32)],
)
def test_chunks_of_unlike_sequences_equal_the_reference(fast_device, kind, size):
    batch = batch_of(RAGGED)
    case = case_in_chunks(kind, size)
    steps = [(batch, inputs_in_chunks(kind, batch.rows, size))]
    case.assert_same(fast_device, steps, rows=80, tuning=tuned(fast_device))
    plan, _, _ = case.record(fast_device, steps[0][1], 80, tuned(fast_device))
    names = [d.name.rpartition(" ")[2].partition(".")[0] for d in plan.dispatches]
    assert [name for name in names if name.startswith("chunk")] == [
        "chunk_solve",
        "chunk_walk",
        "chunk_output",
    ]


def test_a_device_without_subgroups_goes_token_by_token():
    """The tuning does not matter: FXC, which compiles for such devices on Windows, never finishes these kernels."""
    with_subgroups = replace(LIMITS["default"], subgroup=True, subgroup_width=32)
    form, shape = Form(2, 64), StepShape(64, decode=False, max_segments=1, max_outputs=1)
    for can in (LIMITS["default"], with_subgroups):
        tuning = default_tuning(can).changed(chunk_tokens=8, chunk_min_rows=8)
        target = SimpleNamespace(can=can, tuning=tuning)
        assert (chunk_shape(form, shape, target) is not None) == can.subgroup
        assert bool(in_chunks(can)) == can.subgroup


@pytest.mark.parametrize("kind", ["time mix", "by channel"])
def test_sequences_of_1_to_70_tokens_and_those_that_continue_equal_the_reference(fast_device, kind):
    case, lengths = case_in_chunks(kind, 32), [*range(1, 34), 47, 48, 49, 63, 64, 65, 70]
    steps = []
    for start in (0, 3):
        steps += [
            (batch_of([(2, start, rows), (4, 0, 70 - rows + 1)]), inputs_in_chunks(kind, 71, 32)) for rows in lengths
        ]
    case.assert_same(fast_device, steps, rows=80, tuning=tuned(fast_device))


@pytest.mark.parametrize(
    "how", [{"chunk_rows_per_lane": 2, "chunk_lanes_per_row": 8}, {"chunk_tokens": 16}, {"reduce": "workgroup"}]
)
def test_a_state_is_spread_over_lanes_in_several_ways(fast_device, how):
    tuning = tuned(fast_device).changed(**how)
    batch = batch_of(RAGGED)
    mix_case(3, 32).assert_same(fast_device, [(batch, mix_inputs(batch.rows, 3, 32))], rows=80, tuning=tuning)


def test_chunks_keep_a_state_that_continues_for_4096_tokens_near_the_reference(fast_device):
    case = mix_case(3, 32)
    steps = [(batch_of([(2, 1024 * i, 1024)]), mix_inputs(1024, 3, 32, seed=i)) for i in range(4)]
    case.assert_same(fast_device, steps, rows=1024, tuning=tuned(fast_device))


@pytest.mark.parametrize("kind", ["time mix", "by channel"])
def test_a_sequence_of_nan_touches_no_other_in_chunks(fast_device, kind):
    inputs, how = inputs_in_chunks(kind, 49, 32), {"rows": 64, "tuning": tuned(fast_device)}
    case_in_chunks(kind, 32).assert_nan_stays_apart(fast_device, inputs, **how)


@pytest.mark.parametrize("kind", ["time mix", "by channel"])
def test_decays_from_0_to_1_neither_over_nor_underflow(fast_device, kind):
    inputs = inputs_in_chunks(kind, 64, 32)
    if kind == "time mix":
        inputs["w"][:, ::3] = 1e-6
        inputs["w"][::4, 1::3] = 0
        inputs["w"][:, 2::3] = 1
    else:
        inputs["decay"][:, ::3] = 30
        inputs["decay"][:, 1::3] = -30
    steps = [(batch_of([(2, 0, 64)]), inputs)]
    case_in_chunks(kind, 32).assert_same(fast_device, steps, rows=64, tuning=tuned(fast_device))


def test_steps_that_end_at_chunk_boundaries_give_the_same_result(fast_device):
    how = {"rows": 96, "tuning": tuned(fast_device)}
    mix_case(3, 32).assert_same_in_pieces(fast_device, mix_inputs(96, 3, 32), [0, 16, 64, 96], **how)


@pytest.mark.parametrize(("kind", "tokens"), [("time mix", 16), ("time mix", 8), ("by channel", 8), ("rwkv6", 8)])
def test_states_saved_on_the_way_equal_those_after_each_row(fast_device, kind, tokens):
    """Some sequences verify drafts, and another one reads its prompt."""
    batch = batch_of([(0, 7, 3), (2, 0, 20), (1, 4, 9)])
    first, prompt, last = batch.segments
    segments = (first._replace(state=(0, 3), kept=(4, 5)), prompt, last._replace(kept=(6, 7, 8, 9, 10, 11, 12, 13)))
    batch, case = replace(batch, segments=segments), case_in_chunks(kind, 32)
    inputs, slots = inputs_in_chunks(kind, batch.rows, 32), case.slots()
    [want], want_after = case.on_cpu(slots, [(batch, inputs)])
    tuning = tuned(fast_device, chunk_tokens=tokens)
    [got], after = case.on_gpu(fast_device, slots, [(batch, inputs)], rows=64, tuning=tuning)
    np.testing.assert_allclose(got["y"], want["y"], TOLERANCE, TOLERANCE)
    for name in after:
        np.testing.assert_allclose(after[name], want_after[name], TOLERANCE, TOLERANCE, err_msg=name)
