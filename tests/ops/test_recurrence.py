"""RWKV-6, the gated delta rule and token mixing: the GPU equals the reference, and sequences are independent."""

from typing import Any

import numpy as np
import pytest

from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import DeltaRule, State
from tests.ops.test_recurrent import RAGGED, TOLERANCE, Arrays, Case, batch_of, named, normal

HEADS, KEY_HEADS = 4, 2


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def wkv6_case(size: int, own: bool) -> Case:
    """Returns RWKV-6 with its bonus and norm, or QRWKV with fewer heads of keys."""

    def says(g, parameters, states, /, r, w, k, v, gate):
        how = {"vectors": parameters["vectors"], "eps": 64e-5} if own else {}
        return {"y": g.wkv6(r, w, k, v, gate, states["wkv"], **how)}

    return Case(says, {"vectors": normal(3, HEADS * size)}, [State("wkv", (HEADS, size, size))])


def wkv6_inputs(rows: int, size: int, own: bool) -> Arrays:
    keys = HEADS if own else KEY_HEADS
    inputs = {n: normal(rows, HEADS * size, seed=i) for i, n in enumerate(("r", "gate"))}
    inputs |= {n: normal(rows, keys * size, seed=5 + i) for i, n in enumerate(("k", "v"))}
    return inputs | {"w": np.exp(-np.exp(normal(rows, HEADS * size, seed=9) - 2))}


def delta_case(size: int, kind: str) -> Case:
    """Returns the delta rule of Qwen3.5, Qwen3-Next, Kimi Linear and Ling 3."""
    by_channel, bound = kind.startswith("by channel"), -5.0 if kind == "by channel, bounded" else 0.0
    bias = normal(HEADS * size if by_channel else HEADS, seed=2)
    rate = np.exp(normal(HEADS) - 1)
    weights = {"rate": rate if bound else -rate, "norm": normal(size, seed=1), "bias": bias}

    def says(g, w, s, /, **x):
        how = DeltaRule(
            HEADS if by_channel else KEY_HEADS, kind == "in one", w["bias"], w["rate"], w["norm"], 1e-6,
            "sigmoid" if by_channel else "silu", bound,
        )  # fmt: skip
        qkv = [x["q"], x["k"], x["v"]] if by_channel else [x["qkv"]]
        beta, decay = (x["both"], x["both"]) if "both" in x else (x["beta"], x["decay"])
        return {"y": g.gated_delta_rule(qkv, beta, decay, x["gate"], how, s["delta"])}

    return Case(says, weights, [State("delta", (HEADS, size, size))])


def delta_inputs(rows: int, size: int, kind: str) -> Arrays:
    wide = HEADS * size
    inputs = {"gate": normal(rows, wide, seed=3)}
    if kind.startswith("by channel"):
        inputs |= {n: normal(rows, wide, seed=4 + i) for i, n in enumerate(("q", "k", "v", "decay"))}
    else:
        inputs["qkv"] = normal(rows, 2 * KEY_HEADS * size + wide, seed=4)
    if kind == "in one":
        return inputs | {"both": normal(rows, 2 * HEADS, seed=8)}
    return {"decay": normal(rows, HEADS, seed=9)} | inputs | {"beta": normal(rows, HEADS, seed=8)}


def lightning_case(size: int) -> Case:
    """Returns the recurrence of MiniMax-01."""
    decays = (0.999, 0.9, 0.4, 1e-3)

    def says(g, _, states, /, qkv):
        return {"y": g.lightning_attention(qkv, decays, states["lightning"])}

    return Case(says, {}, [State("lightning", (HEADS, size, size))])


DELTAS = ("by head", "in one", "by channel", "by channel, bounded")
KINDS = ("rwkv6", "qrwkv", "lightning", *DELTAS)


def case_of(kind: str, size: int) -> Case:
    if kind == "lightning":
        return lightning_case(size)
    return delta_case(size, kind) if kind in DELTAS else wkv6_case(size, kind == "rwkv6")


def inputs_of(kind: str, rows: int, size: int) -> Arrays:
    if kind == "lightning":
        return {"qkv": normal(rows, 3 * HEADS * size)}
    return delta_inputs(rows, size, kind) if kind in DELTAS else wkv6_inputs(rows, size, kind == "rwkv6")


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrence_equals_the_reference_over_ragged_segments(device, kind, size):
    batch = batch_of(((3, 0, 70), (0, 5, 1), (1, 9, 17), (5, 1, 2)))
    case_of(kind, size).assert_same(device, [(batch, inputs_of(kind, batch.rows, size))], rows=128)


@pytest.mark.parametrize("kind", KINDS)
def test_token_by_token_steps_of_a_recurrence_equal_one_at_once_to_the_bit(fast_device, kind):
    tuning = default_tuning(fast_device.capabilities).changed(chunk_tokens=0)
    case, inputs, edges = case_of(kind, 32), inputs_of(kind, 100, 32), [0, 1, 2, 33, 34, 100]
    case.assert_same_in_pieces(fast_device, inputs, edges, rows=128, tuning=tuning)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_of_nan_touches_no_other_in_a_recurrence(fast_device, kind):
    case_of(kind, 32).assert_nan_stays_apart(fast_device, inputs_of(kind, 49, 32), rows=128)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrence_stays_finite_and_near_the_reference_over_4096_tokens(fast_device, kind):
    case = case_of(kind, 16)
    steps = [(batch_of([(2, 1024 * i, 1024)]), inputs_of(kind, 1024, 16)) for i in range(4)]
    case.assert_same(fast_device, steps, rows=1024)


def test_the_delta_rule_replaces_the_stored_value_of_a_key():
    """With β = 1 and no decay, S k equals v for any S k before."""
    size, rows = 16, 3
    k = np.tile(normal(1, size), (rows, 1))
    v = normal(rows, size, seed=1)
    inputs = {"q": k, "k": k, "v": v, "beta": np.full((rows, 1), 100, np.float32)}
    weights = {"bias": np.zeros(1, np.float32), "rate": np.zeros(1, np.float32), "norm": np.ones(size, np.float32)}
    how = DeltaRule(1, False, *named(weights).values(), 1e-6, "none")
    states: dict[str, Any] = {"delta": np.zeros((1, 1, size, size), np.float32)}
    ones = {"decay": np.zeros((rows, 1), np.float32), "gate": np.ones((rows, size), np.float32)}
    reference = Reference(weights, states, batch_of([(0, 0, rows)]))
    qkv = [inputs[n] for n in ("q", "k", "v")]
    y = reference.gated_delta_rule(
        qkv, inputs["beta"], ones["decay"], ones["gate"], how, State("delta", (1, size, size))
    )
    np.testing.assert_allclose(states["delta"][0, 0] @ (k[0] / np.linalg.norm(k[0])), v[-1], 1e-4, 1e-4)
    np.testing.assert_allclose(y, v / np.sqrt((v**2).mean(axis=1, keepdims=True)), 1e-3, 1e-3)


class Decoding(Case):
    """Steps of one row for each sequence."""

    single = True


@pytest.mark.parametrize("size", [32, 96])  # vec4s of a head that lanes can share, and that they cannot
@pytest.mark.parametrize("kind", ["by head", "in one"])
def test_a_decode_step_that_convolves_equals_the_reference(device, kind, size):
    """Tested in every mode, with and without enough buffers. Each sequence reads one state and writes another."""
    channels = (2 * KEY_HEADS + HEADS) * size
    rule = delta_case(size, kind)

    def says(g, w, s, /, qkv, **x):
        return rule.says(g, w, s, qkv=g.conv1d(qkv, w["taps"], s["past"], then="silu"), **x)

    states = [*rule.states.values(), State("past", (3, channels))]
    case = Decoding(says, rule.weights | {"taps": normal(channels * 4, seed=11)}, states)
    moves = [{2: (2, 4), 0: (0, 5), 1: (1, 6)}, {2: (4, 2), 0: (5, 0), 1: (6, 1)}, {2: (2, 4), 0: (0, 5), 1: (1, 6)}]
    steps = [
        (
            batch_of([(2, start, 1), (0, 7 + start, 1), (1, 1 + start, 1)]).placed(states=places),
            delta_inputs(3, size, kind),
        )
        for start, places in enumerate(moves)
    ]
    slots = case.slots()
    want, want_after = case.on_cpu(slots, steps)
    got, after = case.on_gpu(device, slots, steps, rows=4)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine["y"], theirs["y"], TOLERANCE, TOLERANCE)
    for name in after:
        np.testing.assert_allclose(after[name], want_after[name], TOLERANCE, TOLERANCE, err_msg=name)
    plan, _, _ = case.record(device, steps[0][1], 4)
    fuses = device.capabilities.max_storage_buffers >= 9
    assert any("conv1d" in dispatch.name for dispatch in plan.dispatches) != fuses
    neighbours = size == 32 and device.capabilities.subgroup_width >= size // 4
    assert any("delta_token" in dispatch.name for dispatch in plan.dispatches) == neighbours


# ---------------------------------------------------------------- the row before, and mixing with it


def mix_case(rank: int = 5) -> Case:
    weights = {"mix": normal(3, 96), "up": normal(3 * 96 * rank, seed=1)}

    def says(g, w, s, /, x, low=None):
        before = g.shift(x, s["shift"])
        how = {} if low is None else {"low": low, "up": w["up"]}
        return {"before": before, **{f"y{i}": y for i, y in enumerate(g.lerp(x, before, w["mix"], **how))}}

    case = Case(says, weights, [State("shift", (1, 96))])
    case.tolerance = 1e-5  # a sum of few products
    return case


@pytest.mark.parametrize("low", [True, False])
def test_rows_are_mixed_with_those_before_as_in_the_reference(device, low):
    batch = batch_of(RAGGED)
    inputs = {"x": normal(batch.rows, 96, seed=2)} | ({"low": normal(batch.rows, 15, seed=3)} if low else {})
    mix_case().assert_same(device, [(batch, inputs)])


@pytest.mark.parametrize("rank", [5, 12, 40])
def test_one_row_of_each_sequence_is_mixed_as_in_the_reference(device, rank):
    """Lanes share rows of whole vec4s. There are fewer or more rows than lanes."""
    batch = batch_of([(slot, slot, 1) for slot in (2, 0, 4, 1, 3)])
    inputs = {"x": normal(5, 96, seed=2), "low": normal(5, 3 * rank, seed=3)}
    case = mix_case(rank)
    case.single = True
    case.assert_same(device, [(batch, inputs)])
