"""Every op on the GPU equals the reference, in each mode, tuning and awkward shape."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.ops.elementwise import gelu_erf
from rwkv_gpu.ops.vocabulary import ACTIVATIONS, ClampedSwiglu, LayerNorm, NGrams, StreamGates, Xielu
from tests.recording import POISON, on_cpu, on_gpu, record, run_plan, tunings

# Sums of a few hundred float32 products in another order: relative to the size of the terms, not of the sum.
SUM_TOLERANCE = 2e-5
SHAPES = [(1, 4), (3, 33), (5, 96), (2, 257)]  # (rows, width)


@pytest.fixture(params=["default", "workgroup", "subgroup", "one_subgroup"])
def tuning(request, device: Device):
    ways = tunings(device)
    if request.param not in ways:
        pytest.skip("this device has no subgroups")
    return ways[request.param]


def normal(*shape: int, dtype=np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def assert_same(device, says, arrays, inputs, tuning=None, tolerance=SUM_TOLERANCE):
    rows = len(next(iter(inputs.values())))
    plan, scratch = record(device, says, arrays, inputs, rows + 2, tuning)
    got = run_plan(plan, scratch, inputs, rows)["y"]
    np.testing.assert_allclose(got, on_cpu(says, arrays, inputs)["y"], rtol=tolerance, atol=tolerance)
    beyond = plan.read("y", rows + 2)[rows:]
    assert np.all(beyond.view(np.uint32) == POISON), "wrote rows that this step does not have"


@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_embed_picks_rows_exactly(device, rows, width, dtype):
    arrays = {"w": normal(11, width, dtype=dtype)}
    ids = np.array([10, 0, 7, 7, 1], np.uint32)[:rows]
    assert_same(device, lambda g, w, ids: {"y": g.embed(w["w"], ids)}, arrays, {"ids": ids}, tolerance=0)


@pytest.mark.parametrize("width", [33, 257, 4096])
def test_embeddings_are_normed_in_the_same_dispatch(device, tuning, width):
    arrays = {"w": normal(11, width, dtype=np.float16) * 3 + 1, "weight": normal(width), "bias": normal(width, seed=1)}
    ids = {"ids": np.array([10, 0, 7], np.uint32)}

    def says(g, w, ids):
        return {"y": g.embed(w["w"], ids, norm=LayerNorm(w["weight"], w["bias"], 1e-5))}

    assert_same(device, says, arrays, ids, tuning)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_norms_equal_the_reference(device, tuning, rows, width):
    arrays = {"weight": normal(width), "bias": normal(width, seed=1)}
    x = {"x": normal(rows, width, seed=2) * 3 + 1}
    assert_same(device, lambda g, w, x: {"y": g.rms_norm(x, w["weight"], 1e-6)}, arrays, x, tuning)
    assert_same(device, lambda g, w, x: {"y": g.layer_norm(x, w["weight"], w["bias"], 1e-5)}, arrays, x, tuning)
    assert_same(device, lambda g, w, x: {"y": g.layer_norm(x, w["weight"], None, 1e-5)}, arrays, x, tuning)
    assert_same(device, lambda g, w, x: {"y": g.layer_norm(x, None, None, 1e-5)}, arrays, x, tuning)


def test_norms_of_a_zero_row_are_finite(device):
    arrays = {"weight": normal(32), "bias": normal(32, seed=1)}
    x = {"x": np.zeros((2, 32), np.float32)}
    assert_same(device, lambda g, w, x: {"y": g.rms_norm(x, w["weight"], 1e-6)}, arrays, x)
    assert_same(device, lambda g, w, x: {"y": g.layer_norm(x, w["weight"], w["bias"], 1e-5)}, arrays, x)


def test_a_matrix_may_have_a_scale(device):
    """Several products in one dispatch may have different scales."""
    arrays = {"w": normal(66, 64), "u": normal(66, 64, seed=1), "b": normal(66)}
    x = {"x": normal(3, 64, seed=1)}

    def several(g, w, x):
        scaled = [replace(w["w"], scale=0.3), replace(w["u"], scale=-2.0)]
        return {"y": g.mul(*g.linears([x, x], scaled, then=["silu", "none"], bias=[w["b"], None]))}

    def pairs(g, w, x):
        return {"y": g.glu(x, replace(w["w"], scale=0.3), "silu")}

    assert_same(device, several, arrays, x)
    assert_same(device, pairs, arrays, x)


@pytest.mark.parametrize("shape", [(1, 4), (33, 33), (96, 64), (7, 257), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_linear_equals_the_reference(device, tuning, shape, dtype):
    out, width = shape
    arrays = {"w": normal(out, width, dtype=dtype)}
    assert_same(device, lambda g, w, x: {"y": g.linear(x, w["w"])}, arrays, {"x": normal(3, width, seed=1)}, tuning)


@pytest.mark.parametrize("then", ACTIVATIONS)
def test_linear_epilogues_equal_the_reference(device, then):
    arrays = {"w": normal(9, 20), "bias": normal(9, seed=1)}
    inputs = {"x": normal(3, 20, seed=2), "add": normal(3, 9, seed=3)}
    for bias in (False, True):
        for add in (False, True):
            assert_same(
                device,
                lambda g, w, x, add, with_bias=bias, with_add=add: {
                    "y": g.linear(
                        x, w["w"], then=then, bias=w["bias"] if with_bias else None, add=add if with_add else None
                    )
                },
                arrays,
                inputs,
                tolerance=1e-4,  # squares and exponentials of sums
            )


@pytest.mark.parametrize("then", ACTIVATIONS)
def test_activations_equal_the_reference_at_the_extremes(device, then):
    x = np.array([[0, -0.0, 1e-30, 1, -1, 20, -20, 44, -44, 87, -87, 100, -100, 1000, -1000, 3e4]], np.float32)
    assert_same(device, lambda g, w, x: {"y": g.activate(x, then)}, {}, {"x": x}, tolerance=1e-6)


def test_scales_caps_and_sums_in_norms_equal_the_reference(fast_device):
    arrays = {"w": normal(20, 32), "weight": normal(32, seed=1)}
    inputs = {"ids": np.array([10, 0, 7], np.uint32), "branch": 3 * normal(3, 32, seed=2)}

    def says(g, w, ids, branch):
        x = g.embed(w["w"], ids, scale=5.5)
        weighted = g.rms_norm(branch, w["weight"], 1e-6, add=x)
        plain = g.rms_norm(branch, None, 1e-6, scale=0.25)
        logits = g.linear(weighted, w["w"], scale=0.5)
        return {
            "weighted": weighted,
            "plain": plain,
            "scaled": g.linear(plain, w["w"], add=logits, scale=-2.0),
            "capped": g.softcap(logits, 0.5),
        }

    plan, scratch = record(fast_device, says, arrays, inputs, 3, None)
    got = run_plan(plan, scratch, inputs, 3)
    for name, expected in on_cpu(says, arrays, inputs).items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_sums_and_products_are_exact(device, rows, width):
    inputs = {"x": normal(rows, width), "z": normal(rows, width, seed=1)}
    assert_same(device, lambda g, w, x, z: {"y": g.add(x, z)}, {}, inputs, tolerance=0)
    assert_same(device, lambda g, w, x, z: {"y": g.mul(x, z)}, {}, inputs, tolerance=0)


@pytest.mark.parametrize(
    "then",
    ["silu", ClampedSwiglu(1.0), ClampedSwiglu(1.0, bounds_activation=True), ClampedSwiglu(0.5, alpha=1.7, shift=1.0)],
)
def test_a_gate_bounds_its_values(device, then):
    inputs = {"x": 3 * normal(5, 33), "z": 3 * normal(5, 33, seed=1)}
    assert_same(device, lambda g, w, x, z: {"y": g.gated(x, z, then)}, {}, inputs, tolerance=1e-6)  # an exponential


@pytest.mark.parametrize("width", [36, 34])
def test_altup_predicts_and_corrects_streams(device, width):
    inputs = {f"x{n}": normal(5, width, seed=n) for n in range(4)}
    inputs |= {"coefs": normal(5, 16, seed=5), "found": normal(5, width, seed=6), "add": normal(5, width, seed=7)}

    def predicted(g, w, coefs, found, add, **xs):  # noqa: ARG001
        first, second, third, last = g.predict_streams(list(xs.values()), coefs)
        return {"y": g.add(g.mul(first, second), g.mul(third, last))}

    def corrected(g, w, coefs, found, add, **xs):  # noqa: ARG001
        [alone] = g.correct_streams([xs["x0"]], found, coefs)
        first, second, third, last = g.correct_streams(list(xs.values()), found, coefs, add=add)
        return {"y": g.add(g.mul(g.add(alone, first), second), g.mul(third, last))}

    for says in (predicted, corrected):
        assert_same(device, says, {}, inputs)


@pytest.mark.parametrize("streams", [2, 4, 5])
def test_branches_read_streams_and_add_to_them(device, streams):
    arrays = {"scales": normal(2, seed=3), "bias": normal(2 * streams, seed=4)}
    inputs = {"z": normal(5, 2 * streams), "x": normal(5, 33 * streams, seed=1)}

    def says(g, w, z, x):
        read, write = g.stream_gates(z, StreamGates(streams, w["scales"], w["bias"], 1e-2, 2.5, 0.1))
        return {"y": g.add_to_streams(x, g.row_matrix(read, x), write)}

    assert_same(device, says, arrays, inputs, tolerance=1e-5)  # exponentials


@pytest.mark.parametrize("streams", [2, 4])
def test_a_matrix_mixes_streams(device, streams):
    count = (2 + streams) * streams
    arrays = {"scales": normal(3, seed=3), "bias": normal(count, seed=4)}
    inputs = {"z": normal(5, count), "x": normal(5, 33 * streams, seed=1), "found": normal(5, 33, seed=2)}

    def says(g, w, z, x, found):
        _, write, matrix = g.stream_gates(z, StreamGates(streams, w["scales"], w["bias"], 1e-3, 2.0, iterations=6))
        return {"y": g.add_to_streams(x, found, write, matrix=matrix), "matrix": matrix}

    assert_same(device, says, arrays, inputs, tolerance=1e-5)  # exponentials
    found = on_cpu(says, arrays, inputs)["matrix"].reshape(5, streams, streams)
    for axis in (1, 2):
        np.testing.assert_allclose(found.sum(axis=axis), 1, atol=0.02)  # nearly, after six turns


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_match_length_excess_and_scale_columns_equal_the_reference(device, tuning, rows, width):
    inputs, arrays = {"x": normal(rows, width), "z": 9 * normal(rows, width, seed=1)}, {"w": normal(width, seed=2)}
    assert_same(device, lambda g, w, x, z: {"y": g.match_length(x, z)}, {}, inputs, tuning)
    assert_same(
        device, lambda g, w, x, z: {"y": g.excess(z, 0.5)}, {}, inputs, tuning, tolerance=1e-4
    )  # of a deviation
    assert_same(device, lambda g, w, x, z: {"y": g.scale_columns(x, w["w"])}, arrays, inputs, tuning, tolerance=0)


def test_xielu_equals_the_reference(device):
    how = Xielu(0.7, 1.1, 0.5, -1e-6)
    x = {"x": 3 * normal(5, 33)}
    assert_same(device, lambda g, w, x: {"y": g.xielu(x, how)}, {}, x, tolerance=1e-6)  # an exponential


def test_swish_equals_the_reference(device):
    x = {"x": 9 * normal(5, 33)}
    assert_same(device, lambda g, w, x: {"y": g.swish(x, 1.702)}, {}, x, tolerance=1e-6)  # an exponential


def test_exact_gelu_equals_the_reference_and_erf(device):
    x = {"x": 4 * normal(5, 33)}
    assert_same(device, lambda g, w, x: {"y": g.gelu_erf(x)}, {}, x, tolerance=1e-6)  # an exponential
    exact = [value / 2 * (1 + math.erf(value / 2**0.5)) for value in x["x"].ravel().tolist()]
    assert np.abs(gelu_erf(x["x"]).ravel() - exact).max() < 1e-6


def test_clamped_values_equal_the_reference(device):
    assert_same(device, lambda g, w, x: {"y": g.clamp(x, 0.7)}, {}, {"x": normal(5, 33)}, tolerance=0)


@pytest.mark.parametrize("first", [0, 3, 7])
def test_some_columns_are_a_factor(device, first):
    inputs = {"x": normal(5, 9), "z": normal(5, 16)}
    assert_same(device, lambda g, w, x, z: {"y": g.mul_columns(x, z, first)}, {}, inputs, tolerance=0)


@pytest.mark.parametrize("width", [1, 32, 300])
def test_each_row_is_multiplied_by_its_own_matrix(device, width):
    inputs = {"x": normal(5, 7), "m": normal(5, 7 * width, seed=1)}
    assert_same(device, lambda g, w, x, m: {"y": g.row_matrix(x, m)}, {}, inputs, tolerance=1e-5)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_mean_of_the_parts_of_a_row(device, parts):
    inputs = {"x": normal(5, parts * 31)}
    assert_same(device, lambda g, w, x: {"y": g.mean_parts(x, parts)}, {}, inputs, tolerance=1e-6)
    assert_same(device, lambda g, w, x: {"y": g.signed_root(x, 0.1)}, {}, inputs, tolerance=1e-6)


GRAMS = NGrams(
    3, 2, (2**45 + 12345, 2**44 + 777, 2**63 + 2**62 + 9), (1009, 2**31 - 1, 77, 5), (3, 1009, 7, 2000), end=8
)
# Tokens from the last one on. The second text is shorter; in the last two, a token hides those before it.
TEXTS = (250000, 7, 9), (4, 3, -1), (8, 1, 8), (6, 8, 5)


def test_ngrams_choose_rows_by_products_modulo_2_to_the_64(device):
    """By the definition, in Python's integers."""
    numbers = np.repeat(np.array(TEXTS, np.float32) + 1, 4, axis=1)
    expected = []
    for text in TEXTS:
        seen = [text[0]]
        for token in text[1:]:
            seen.append(GRAMS.end if GRAMS.end in (token, *seen[1:]) or token < 0 else token)
        mixed = [(token * by) % 2**64 for token, by in zip(seen, GRAMS.multipliers, strict=True)]
        sums = [mixed[0] ^ mixed[1]] * 2 + [mixed[0] ^ mixed[1] ^ mixed[2]] * 2
        expected.append([one % n + at for one, n, at in zip(sums, GRAMS.counts, GRAMS.offsets, strict=True)])
    found = on_cpu(lambda g, w, x: {"y": g.ngram_rows(x, GRAMS)}, {}, {"x": numbers})["y"]
    assert found.tolist() == expected
    assert_same(device, lambda g, w, x: {"y": g.ngram_rows(x, GRAMS)}, {}, {"x": numbers}, tolerance=0)


def test_a_row_embeds_several_computed_ids(device):
    arrays, grams = {"w": normal(50, 24, dtype=np.float16)}, NGrams(2, 3, (7, 1000003), (11, 13, 26), (0, 11, 24), 0)
    ids = {"ids": np.array([10, 0, 7, 7, 250000], np.uint32)}

    def says(g, w, ids):
        numbers = g.token_numbers(ids)
        return {"y": g.embed(w["w"], g.ngram_rows(g.concat(numbers, g.scale(numbers, 2.0)), grams))}

    assert_same(device, says, arrays, ids, tolerance=0)
    assert on_cpu(says, arrays, ids)["y"].shape == (5, 72)


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_are_scaled_by_one_number_or_one_per_part(device, parts):
    inputs = {"x": normal(5, 9), "by": normal(5, parts), "add": normal(5, 9, seed=1)}
    assert_same(device, lambda g, w, x, by, add: {"y": g.scale(x, 0.3)}, {}, inputs, tolerance=1e-6)
    assert_same(device, lambda g, w, x, by, add: {"y": g.scale_rows(x, by)}, {}, inputs, tolerance=1e-6)
    assert_same(device, lambda g, w, x, by, add: {"y": g.scale_rows(x, by, add=add)}, {}, inputs, tolerance=1e-6)
    assert_same(device, lambda g, w, x, by, add: {"y": g.scale_rows(x, add, add=x)}, {}, inputs, tolerance=1e-6)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_softmax_equals_the_reference_and_sums_to_one(device, tuning, rows, width):
    x = {"x": normal(rows, width) * 30}
    assert_same(device, lambda g, w, x: {"y": g.softmax(x)}, {}, x, tuning)
    y = on_gpu(device, lambda g, w, x: {"y": g.softmax(x)}, {}, x, rows, tuning)["y"]
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_argmax_is_the_first_of_the_largest(device, tuning, rows, width):
    x = np.round(normal(rows, width) * 2)  # many ties
    x[0] = -5.0  # all equal
    assert_same(device, lambda g, w, x: {"y": g.argmax(x)}, {}, {"x": x}, tuning, tolerance=0)
