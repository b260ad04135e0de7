"""Mixtures of experts on the GPU against the reference: routing, products by expert in every shape, sums."""

import itertools

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gguf.planes import dequantise_rows, pack_rows
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.gpu.weights import DeviceWeight, Weights, align, as_shard, layout, write_rows
from rwkv_gpu.kernels.defaults import default_tuning, gpu_tuning
from rwkv_gpu.kernels.expert_config import EXPERT_TILE, ExpertConfig, expert_gemm_lane, expert_gemv, expert_gemv_int
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.moe import max_tiles
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import MIN_SUM, ClampedSwiglu, Gating, Rms, Routing, Weight
from tests.cases import slow_unless
from tests.gguf.blocks import mild_rows
from tests.recording import bare_tuning, gemm_configs, run_plan, tunings

# Sums of some hundred products in another order, in float32: relative to the sum of the terms' magnitudes.
TOLERANCE = 1e-5
# Logits of routers in these tests are near 1, with errors near 1e-6: above this gap no choice depends on them.
GAP = 1e-4
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
F32 = BY_NAME["F32"]
KINDS = ["default", "each", "sorted", "tile", "subgroups", "part of a subgroup", "row", "lane", "lane_sorted"]
OTHER_SIZES = {
    "sorted",
    "subgroups",
    "part of a subgroup",
    "lane_sorted",
}  # of kernels that are in KINDS already


def by_kind(values: list, others: list) -> list:
    """Tests a kernel with all values at one size, and with some at other sizes."""
    return slow_unless(
        lambda kind, *value: kind not in OTHER_SIZES or (value if len(value) > 1 else value[0]) in others,
        ((kind, *(value if isinstance(value, tuple) else (value,))) for kind in KINDS for value in values),
    )


def expert_configs(device) -> dict[str, ExpertConfig]:
    """Returns every kind of kernel that this device can run, at several sizes."""
    can = device.capabilities
    shapes = {
        "each": expert_gemv(64, 64, 4, 1),
        "sorted": expert_gemv(32, 8, 2, 4),
        "tile": EXPERT_TILE,
    }
    if can.subgroup:
        shapes["subgroups"] = expert_gemv(
            4 * can.subgroup_width,
            2 * can.subgroup_width,
            4,
            1,
            subgroup_width=can.subgroup_width,
            summing=(can.subgroup_width, 2),
        )
        shapes["row"] = expert_gemv_int(
            4 * can.subgroup_width,
            can.subgroup_width,
            4,
            subgroup_width=can.subgroup_width,
            summing=(can.subgroup_width // 2, 1),
            max_workgroups=20,  # so that several blocks of rows process many choices each
        )
        shapes["part of a subgroup"] = expert_gemv(
            2 * can.subgroup_width, can.subgroup_width // 2, 2, 4, subgroup_width=can.subgroup_width
        )
    if can.subgroup_size == 8:
        shapes["lane"] = expert_gemm_lane(2, 1)
        shapes["lane_sorted"] = expert_gemm_lane(2, 8)
    return shapes


@pytest.fixture(params=KINDS)
def tuning(request, device):
    shapes = expert_configs(device)
    if request.param == "default":
        return default_tuning(device.capabilities)
    if request.param not in shapes:
        pytest.skip("this device has no subgroups, or not of 8 lanes")
    every = tuple(gemm_configs(device).values())
    return bare_tuning(every[0]).only_experts(shapes[request.param])


@pytest.fixture(params=["each", "sorted"])
def either(request, device):
    """Returns unsorted and sorted choices, for tests that do not depend on the kernel."""
    return default_tuning(device.capabilities).only_experts(expert_configs(device)[request.param])


class Bench:
    """Matrices of experts on the device and in numpy, and plans for one row more than needed."""

    def __init__(self, device, tuning, rows):
        self.device, self.rows = device, rows
        self.weights, self.values = Weights(device), {}
        self.scratch = Scratch(device)
        self.recorder = Recorder(device, self.weights, rows + 1, self.scratch, tuning)

    def together(self, shape: tuple[int, ...], *formats: Format, at: int = 0) -> list[Weight]:
        """Returns weights in one buffer, starting at `at`."""
        rows = int(np.prod(shape[:-1]))
        places = [layout(fmt, rows, shape[-1]) for fmt in formats]
        buffer = self.device.buffer(at + sum(align(where.nbytes) for where in places), "weights")
        made = []
        for fmt, where in zip(formats, places, strict=True):
            name = f"w{len(self.values)}"
            raw = mild_rows(fmt, rows, shape[-1], seed=len(self.values))
            self.place(name, fmt, shape, [(0, rows, as_shard(buffer, at, fmt, 0, rows, where), where)], raw)
            made.append(Weight(name, shape))
            at += align(where.nbytes)
        return made

    def in_shards(self, shape: tuple[int, ...], fmt: Format, experts: int) -> Weight:
        """Returns a weight in buffers of `experts` experts."""
        name, rows = f"w{len(self.values)}", int(np.prod(shape[:-1]))
        raw = mild_rows(fmt, rows, shape[-1], seed=len(self.values))
        parts = []
        for first in range(0, rows, experts * shape[1]):
            count = min(experts * shape[1], rows - first)
            where = layout(fmt, count, shape[-1])
            buffer = self.device.buffer(where.nbytes, "weights")
            parts.append((first, count, as_shard(buffer, 0, fmt, first, count, where), where))
        self.place(name, fmt, shape, parts, raw)
        return Weight(name, shape)

    def place(self, name, fmt, shape, parts, raw):
        for first, count, shard, where in parts:
            write_rows(self.device, shard, where, 0, pack_rows(fmt, raw[first : first + count]))
        self.weights.add(name, DeviceWeight(fmt, shape, tuple(shard for _, _, shard, _ in parts)))
        self.values[name] = dequantise_rows(fmt, raw).reshape(shape)

    def vector(self, name: str, values: np.ndarray) -> Weight:
        """Returns a float32 vector."""
        where = layout(F32, 1, values.size)
        shard = as_shard(self.device.buffer(where.nbytes, "weights"), 0, F32, 0, 1, where)
        self.place(name, F32, (values.size,), [(0, 1, shard, where)], values.view(np.uint8)[None])
        return Weight(name, (values.size,))

    def run(self, says, **inputs):
        """Returns the result of the device."""
        values = {n: self.recorder.input(n, a.dtype, (self.rows + 1, *a.shape[1:])) for n, a in inputs.items()}
        plan = self.recorder.finish(says(self.recorder, **values))
        return plan, run_plan(plan, self.scratch, inputs, self.rows)

    def check(self, says, **inputs):
        """Checks that both interpreters agree on the outputs of `says(ops, **inputs)`."""
        plan, got = self.run(says, **inputs)
        want = says(Reference(self.values), **inputs)
        magnitudes = says(
            Reference({n: np.abs(v) for n, v in self.values.items()}),
            **{n: np.abs(a) if a.dtype == np.float32 else a for n, a in inputs.items()},
        )
        # x of experts_row is off by up to 1/65278 of the largest of its 32, twice.
        # On matrix units x and W are float16, off by up to 1/4096, one up, the other down.
        kernels = {shape.kernel for _, shape in self.recorder.tuning.expert_table}
        allowed = 6e-5 if kernels & {"moe/expert_gemv_int", "moe/expert_gemm_matrix"} else TOLERANCE
        for name in want:
            assert np.isfinite(got[name]).all(), name
            assert np.abs(got[name] - want[name]).max() <= allowed * np.abs(magnitudes[name]).max(), name
        return plan


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def choices(rows: int, experts: int, used: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns different experts for every row, and shares."""
    rng = np.random.default_rng([seed, rows, experts])
    chosen = rng.permuted(np.tile(np.arange(experts, dtype=np.uint32), (rows, 1)), axis=1)[:, :used]
    return {"experts": np.ascontiguousarray(chosen), "shares": rng.random((rows, used), np.float32)}


# ---------------------------------------------------------------- routing


def gaps(x: np.ndarray, router: np.ndarray, used: int) -> float:
    """Returns the smallest distance between logits that affect the choice or its order."""
    logits = np.sort(x.astype(np.float64) @ router.T.astype(np.float64), axis=1)[:, ::-1]
    return np.min(-np.diff(logits[:, : used + 1], axis=1), initial=np.inf)


@pytest.mark.parametrize(("experts", "used"), [(2, 1), (2, 2), (8, 2), (128, 8), (300, 5)])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kind", ["workgroup", "subgroup", "one_subgroup"])
def test_rows_are_routed_to_the_likeliest_experts(device, kind, experts, used, normalise):
    if kind not in tunings(device):
        pytest.skip("this device has no subgroups")
    bench = Bench(device, tunings(device)[kind], 5)
    [router] = bench.together((experts, 48), F32)
    x = next(x for x in (normal(5, 48, seed=s) for s in itertools.count()) if gaps(x, bench.values["w0"], used) > GAP)

    def says(g, x):
        routing = g.route(x, router, Gating(used, normalise=normalise))
        return {"experts": routing.experts, "shares": routing.shares}

    _, got = bench.run(says, x=x)
    want = says(Reference(bench.values), x=x)
    np.testing.assert_array_equal(got["experts"], want["experts"])
    np.testing.assert_allclose(got["shares"], want["shares"], rtol=1e-5)
    if normalise:
        np.testing.assert_allclose(got["shares"].sum(axis=1), 1, rtol=1e-5)


def routed(device, logits: np.ndarray, how: Gating) -> dict[str, np.ndarray]:
    """Returns the choices for exactly these logits: the router is the identity."""
    bench = Bench(device, default_tuning(device.capabilities), len(logits))
    size = logits.shape[1]
    identity, router, where = np.eye(size, dtype=np.float32), Weight("router", (size, size)), layout(F32, size, size)
    shard = as_shard(device.buffer(where.nbytes, "weights"), 0, F32, 0, size, where)
    bench.place(router.name, F32, router.shape, [(0, size, shard, where)], identity.view(np.uint8))

    def says(g, x):
        routing = g.route(x, router, how)
        return {"experts": routing.experts, "shares": routing.shares}

    _, got = bench.run(says, x=logits)
    want = says(Reference(bench.values), x=logits)
    np.testing.assert_array_equal(got["experts"], want["experts"])
    np.testing.assert_allclose(got["shares"], want["shares"], rtol=1e-5)
    return got


def test_of_experts_with_equal_scores_the_lower_comes_first(device):
    logits = np.array([[1, 3, 3, 2, 3, 0], [0, 0, 0, 0, 0, 0], [5, 5, 1, 5, 5, 5]], np.float32)
    got = routed(device, logits, Gating(3))
    np.testing.assert_array_equal(got["experts"], [[1, 2, 4], [0, 1, 2], [0, 1, 3]])


def test_the_sum_of_expert_weights_is_at_least_2_to_the_minus_14(device):
    """One of 2^15 equal experts has a share of 2^-15. Normalised, it is a half, not 1."""
    bench = Bench(device, default_tuning(device.capabilities), 1)
    [router] = bench.together((1 << 15, 4), F32)
    for ops in (Reference(bench.values), None):
        says = lambda g, x: {"shares": g.route(x, router, Gating(1, normalise=True)).shares}  # noqa: E731
        zeros = np.zeros((1, 4), np.float32)
        got = bench.run(says, x=zeros)[1] if ops is None else says(ops, zeros)
        np.testing.assert_allclose(got["shares"], 2.0**-15 / MIN_SUM, rtol=1e-3)


GATINGS = {
    "late softmax": Gating(3, "late_softmax", bias=Weight("bias", (24,))),
    "sigmoid, normalised and scaled": Gating(3, "sigmoid", normalise=True, scale=2.5, logit_scale=0.5),
    "sigmoid, biased": Gating(3, "sigmoid", normalise=True, selection_bias=Weight("bias", (24,))),
    "softmax, biased": Gating(3, selection_bias=Weight("bias", (24,)), scale=1.5),
    "groups": Gating(3, "sigmoid", groups=4, groups_used=2, selection_bias=Weight("bias", (24,))),
    "groups by softmax": Gating(3, groups=8, groups_used=3),
    "groups of one": Gating(3, "sigmoid", groups=24, groups_used=4),
    "answers scaled": Gating(3, normalise=True, answer_scale=Weight("bias", (24,))),
}


@pytest.mark.parametrize("kind", ["workgroup", "subgroup", "one_subgroup"])
@pytest.mark.parametrize("name", GATINGS)
def test_every_gating_equals_the_reference(fast_device, kind, name):
    if kind not in tunings(fast_device):
        pytest.skip("this device has no subgroups")
    bench, how = Bench(fast_device, tunings(fast_device)[kind], 5), GATINGS[name]
    [router] = bench.together((24, 48), F32)
    bench.vector("bias", normal(24))

    def says(g, x):
        routing = g.route(x, router, how)
        return {"experts": routing.experts, "shares": routing.shares}

    x = normal(5, 48)
    _, got = bench.run(says, x=x)
    want = says(Reference(bench.values), x=x)
    np.testing.assert_array_equal(got["experts"], want["experts"])
    np.testing.assert_allclose(got["shares"], want["shares"], rtol=1e-5)


def test_expert_weights_equal_those_computed_by_hand():
    """The logits are ln 1 .. ln 4, so softmax gives tenths. A bias affects the choice, but not the share."""
    logits = np.log(np.arange(1, 5, dtype=np.float32))[None]
    values = {"w": np.eye(4, dtype=np.float32), "b": np.array([1, 0, 0, 0], np.float32), "s": np.full(4, 3, np.float32)}
    g, w, b, s = Reference(values), Weight("w", (4, 4)), Weight("b", (4,)), Weight("s", (4,))
    cases = {
        Gating(2): ([3, 2], [0.4, 0.3]),
        Gating(2, normalise=True): ([3, 2], [4 / 7, 3 / 7]),
        Gating(2, "late_softmax"): ([3, 2], [4 / 7, 3 / 7]),
        Gating(2, "sigmoid"): ([3, 2], [4 / 5, 3 / 4]),
        Gating(2, "sigmoid", scale=2): ([3, 2], [8 / 5, 6 / 4]),
        Gating(2, selection_bias=b): ([0, 3], [0.1, 0.4]),
        Gating(1, answer_scale=s): ([3], [1.2]),
        Gating(2, groups=2, groups_used=1, selection_bias=b): ([0, 1], [0.1, 0.2]),
        Gating(2, bias=b): ([3, 2], [4 / (9 + np.e), 3 / (9 + np.e)]),
    }
    for how, (experts, shares) in cases.items():
        found = g.route(logits, w, how)
        assert found.experts[0].tolist() == experts, how
        np.testing.assert_allclose(found.shares[0], shares, rtol=1e-5, err_msg=str(how))


def test_the_score_of_a_group_is_the_sum_of_its_two_best_experts(fast_device):
    """The score of a group is neither its best expert nor its sum."""
    logits = np.array([[5, 0, 0, 4, 4, -9, 1, 1, 1]], np.float32)
    got = routed(fast_device, logits, Gating(2, "sigmoid", groups=3, groups_used=1))
    assert sorted(got["experts"][0].tolist()) == [3, 4]
    got = routed(fast_device, logits, Gating(3, "sigmoid", groups=3, groups_used=2))
    assert sorted(got["experts"][0].tolist()) == [0, 3, 4]


@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "late_softmax"])
def test_64_of_512_experts_equal_the_reference(fast_device, scores):
    rng = np.random.default_rng(2)
    logits = np.stack([rng.permutation(512) for _ in range(2)]).astype(np.float32) / 64
    got = routed(fast_device, logits, Gating(64, scores, normalise=True))
    np.testing.assert_array_equal(got["experts"], np.argsort(-logits, axis=1)[:, :64])
    np.testing.assert_allclose(got["shares"].sum(axis=1), 1, rtol=1e-5)


def test_a_choice_does_not_depend_on_the_other_rows(fast_device):
    """Equal logits tie in the same way for any number of rows."""
    x = np.round(normal(40, 16) * 2)
    for how in (Gating(3), Gating(3, "sigmoid", groups=4, groups_used=2)):
        whole = routed(fast_device, x, how)["experts"]
        np.testing.assert_array_equal(routed(fast_device, x[:1], how)["experts"], whole[:1])
        np.testing.assert_array_equal(routed(fast_device, x[7:12], how)["experts"], whole[7:12])


# ---------------------------------------------------------------- products


def products(gate: Weight, up: Weight, down: Weight):
    """Runs both ops with given choices. Compilation takes most of the time, so most tests share formats and sizes."""

    def says(g, x, h, experts, shares, add):
        routing = Routing(experts, shares)
        return {
            "h": g.expert_glu(x, gate, up, routing, "silu"),
            "y": g.expert_sum(h, down, routing, add=add),
        }

    return says


def given(rows: int, experts: int, used: int, width: int = 64) -> dict[str, np.ndarray]:
    """Returns inputs of `products`: x [T, K], h [T, used, K], the residual, the choices."""
    h = normal(rows, used, width)
    return {"x": normal(rows, width), "h": h, "add": normal(rows, 27), **choices(rows, experts, used)}


def halves(bench: Bench, experts: int) -> tuple[Weight, Weight, Weight]:
    """Returns gate, up and down in F16. No workgroup divides their rows."""
    gate, up = bench.together((experts, 33, 64), BY_NAME["F16"], BY_NAME["F16"], at=512)
    [down] = bench.together((experts, 27, 64), BY_NAME["F16"])
    return gate, up, down


OF_EIGHT = [(n, 8, 2) for n in (1, 2, 5, 17, 70)]


@pytest.mark.parametrize(
    ("tuning", "rows", "experts", "used"),
    by_kind([(1, 2, 1), (17, 2, 1), *OF_EIGHT, (5, 128, 8), (70, 128, 8)], OF_EIGHT),
    indirect=["tuning"],
)
def test_any_number_of_rows_and_experts_equals_the_reference(device, tuning, rows, experts, used):
    bench = Bench(device, tuning, rows)
    bench.check(products(*halves(bench, experts)), **given(rows, experts, used))


@pytest.mark.parametrize("device", ["checked"], indirect=True, scope="module")
def test_tiles_stay_within_bounds(device):
    """In this mode, the sampled cases of the other tests may not include this kernel."""
    tuning = default_tuning(device.capabilities).only_experts(expert_configs(device)["tile"])
    bench = Bench(device, tuning, 17)
    bench.check(products(*halves(bench, 8)), **given(17, 8, 2))


@pytest.mark.parametrize(  # another test runs F16 with all numbers of rows
    ("tuning", "name"), by_kind(["Q4_K", "Q6_K", "MXFP4"], ["Q6_K"]), indirect=["tuning"]
)
def test_formats_with_runs_of_16_and_32_work_in_every_kernel(device, tuning, name):
    bench = Bench(device, tuning, 5)
    gate, up = bench.together((3, 37, 256), BY_NAME[name], BY_NAME[name])
    [down] = bench.together((3, 27, 256), BY_NAME[name])
    bench.check(products(gate, up, down), **given(5, 3, 2, 256))


# As a GPU runs them. For software devices, test_formats tests every format; here they run one of each decoding.
EACH_WAY = [BY_NAME[name] for name in ("F32", "F16", "BF16", "Q4_K", "Q6_K", "IQ2_S", "MXFP4")]
IN_EVERY_FORMAT = [*((gpu_tuning, 1, fmt) for fmt in FORMATS.values()), *((default_tuning, 3, fmt) for fmt in EACH_WAY)]


@pytest.mark.parametrize(
    ("tuned", "rows", "fmt"), IN_EVERY_FORMAT, ids=[f"{rows}-{fmt.name}" for _, rows, fmt in IN_EVERY_FORMAT]
)
def test_every_format_equals_the_reference(fast_device, tuned, rows, fmt):
    bench = Bench(fast_device, tuned(fast_device.capabilities), rows)
    gate, up = bench.together((3, 37, 256), fmt, fmt)
    [down] = bench.together((3, 27, 256), fmt)
    bench.check(products(gate, up, down), **given(rows, 3, 2, 256))


@pytest.mark.parametrize(("tuning", "width"), by_kind([64, 72], [72]), indirect=["tuning"])
def test_experts_that_norm_their_input_equal_the_reference(device, tuning, width):
    bench = Bench(device, tuning, 5)
    gate, up = bench.together((3, 37, width), F32, F32)
    [gain] = bench.together((1, width), F32)
    norm = Rms(gain, 1e-3)

    def says(g, x, experts, shares):
        return {"h": g.expert_glu(x, gate, up, Routing(experts, shares), "silu", norm=norm)}

    bench.check(says, x=3 * normal(5, width), **choices(5, 3, 2))


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("then", [ClampedSwiglu(7.0, 1.702, 1.0), ClampedSwiglu(2.0, bounds_activation=True)])
def test_biases_and_clamps_equal_the_reference(fast_device, either, rows, then):
    """Gate and up share a dispatch, or are separate because their formats differ."""
    bench = Bench(fast_device, either, rows)
    gate, up, down = halves(bench, 8)
    [other] = bench.together((8, 33, 64), BY_NAME["Q8_0"])
    biases = bench.vector("gate_bias", 5 * normal(264)), bench.vector("up_bias", 5 * normal(264, seed=1))
    scales = bench.vector("gate_scale", 1 + normal(8) / 4), bench.vector("up_scale", 1 + normal(8, seed=1) / 4)
    bias = bench.vector("down_bias", normal(216))

    def says(g, x, h, experts, shares, add):
        routing = Routing(experts, shares)
        return {
            "together": g.expert_glu(x, gate, up, routing, then, bias=biases),
            "apart": g.expert_glu(x, gate, other, routing, then, bias=biases, scales=scales),
            "scaled": g.expert_glu(x, gate, up, routing, then, scales=scales),
            "y": g.expert_sum(h, down, routing, add=add, bias=bias),
        }

    bench.check(says, **given(rows, 8, 2))


@pytest.mark.parametrize("rows", [1, 17])
def test_fused_gates_ungated_experts_and_scaled_inputs_equal_the_reference(fast_device, either, rows):
    """The matrices are in one binding, or in bindings of three experts each."""
    bench = Bench(fast_device, either, rows)
    [both] = bench.together((8, 66, 64), BY_NAME["F16"])
    cut, down = bench.in_shards((8, 66, 64), BY_NAME["F16"], 3), bench.together((8, 27, 64), BY_NAME["F16"])[0]
    bias = bench.vector("bias", normal(528))

    def says(g, x, h, experts, shares, add):
        routing = Routing(experts, shares)
        return {
            "halves": g.expert_glu(x, both, None, routing, "silu"),
            "cut": g.expert_glu(x, cut, None, routing, "silu", scaled=True),
            "ungated": g.expert_linear(x, cut, routing, then="relu2", bias=bias),
            "y": g.expert_sum(h, down, routing, add=add, weighted=False),
        }

    bench.check(says, **given(rows, 8, 2))


@pytest.mark.parametrize(
    ("tuning", "rows", "width"),
    by_kind([(rows, width) for rows in (1, 5, 17) for width in (4, 64)], [(rows, 4) for rows in (1, 5, 17)]),
    indirect=["tuning"],
)
def test_an_input_by_row_or_by_choice_equals_the_reference(device, tuning, rows, width):
    """Adapters of experts have this form: few columns, times the scales of a row, and then many columns."""
    bench = Bench(device, tuning, rows)
    down, up = bench.together((8, width, 64), F32)[0], bench.together((8, 33, width), F32)[0]

    def says(g, h, scales, experts, shares):
        routing = Routing(experts, shares)
        low = g.mul(g.expert_linear(h, down, routing), scales)
        return {
            "low": low,
            "y": g.add(g.expert_linear(low, up, routing, then="silu"), g.expert_linear(low, up, routing)),
        }

    bench.check(says, h=normal(rows, 2, 64), scales=normal(rows, width, seed=3), **choices(rows, 8, 2))


def test_rows_of_2880_numbers_as_in_gpt_oss_equal_the_reference(fast_device):
    bench = Bench(fast_device, default_tuning(fast_device.capabilities), 2)
    gate, up = bench.together((3, 33, 2880), BY_NAME["MXFP4"], BY_NAME["MXFP4"])
    [down] = bench.together((3, 27, 2880), BY_NAME["MXFP4"])
    bench.check(products(gate, up, down), **given(2, 3, 2, 2880))


def test_widths_without_small_divisors_equal_the_reference(fast_device):
    for kind, shape in expert_configs(fast_device).items():
        if kind in OTHER_SIZES:
            continue
        bench = Bench(fast_device, default_tuning(fast_device.capabilities).only_experts(shape), 5)
        gate, up = bench.together((3, 5, 35), F32, F32)
        [down] = bench.together((3, 27, 35), F32)
        bench.check(products(gate, up, down), **given(5, 3, 2, 35))


@pytest.mark.parametrize("rows", [1, 9])
def test_gate_and_up_may_have_two_formats_or_buffers(device, either, rows):
    bench = Bench(device, either, rows)
    gate, up = bench.together((3, 37, 256), BY_NAME["Q8_0"], BY_NAME["F16"])
    [apart] = bench.together((3, 37, 256), BY_NAME["Q8_0"])

    def says(g, x, experts, shares):
        routing = Routing(experts, shares)
        return {
            "formats": g.expert_glu(x, gate, up, routing, "silu"),
            "buffers": g.expert_glu(x, gate, apart, routing, "silu"),
        }

    bench.check(says, x=normal(rows, 256), **choices(rows, 3, 2))


@pytest.mark.parametrize("rows", [1, 9])
def test_shards_of_whole_experts_equal_the_reference(device, either, rows):
    bench = Bench(device, either, rows)
    gate, up = (bench.in_shards((7, 33, 64), BY_NAME["F16"], count) for count in (3, 2))
    down = bench.in_shards((7, 27, 64), BY_NAME["F16"], 4)
    bench.check(products(gate, up, down), **given(rows, 7, 2))


def test_more_experts_than_a_workgroup_has_lanes_equal_the_reference(fast_device):
    """The sort gives each lane several experts, most of which have no choices."""
    tuning = default_tuning(fast_device.capabilities).only_experts(expert_gemv(32, 8, 2, 4))
    bench = Bench(fast_device, tuning, 17)
    [up] = bench.together((600, 3, 32), F32)
    given = choices(17, 600, 2)
    given["experts"][3:9] = 599, 0
    bench.check(
        lambda g, x, experts, shares: {"y": g.expert_linear(x, up, Routing(experts, shares))}, x=normal(17, 32), **given
    )


def test_all_rows_may_choose_one_expert(device, either):
    bench = Bench(device, either, 70)
    one = {"experts": np.full((70, 1), 7, np.uint32), "shares": np.ones((70, 1), np.float32)}
    bench.check(products(*halves(bench, 8)), **given(70, 8, 1) | one)


@pytest.mark.parametrize("rows", [1, 17])
def test_neighbours_share_an_expert(device, either, rows):
    """A row may have an expert twice, through two neighbours."""
    bench, inputs = Bench(device, either, rows), given(rows, 8, 4)
    inputs["experts"][0] = 0, 1, 6, 2
    gate, up, down = halves(bench, 4)

    def says(g, x, h, experts, shares, add):
        grouped = g.by_group(Routing(experts, shares), 2, 0.4)
        return {
            "experts": grouped.experts,
            "shares": grouped.shares,
            "h": g.expert_glu(x, gate, up, grouped, "silu"),
            "y": g.expert_sum(h, down, grouped, add=add),
        }

    bench.check(says, **inputs)


def test_one_plan_serves_any_number_of_rows(device, either):
    """Values of an earlier, longer step must not count."""
    bench = Bench(device, either, 40)
    says, inputs = products(*halves(bench, 8)), given(40, 8, 2)
    plan = bench.check(says, **inputs)
    for rows in (3, 40, 1, 17):
        some = {name: array[:rows] for name, array in inputs.items()}
        got, want = run_plan(plan, bench.scratch, some, rows), says(Reference(bench.values), **some)
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-3, atol=1e-3)


RANKED = {
    "all": (2, Gating(2)),
    "many": (121, Gating(5)),
    "normalised": (100, Gating(8, normalise=True)),
    "late": (32, Gating(4, "late_softmax", scale=1.5)),
    "sigmoid": (64, Gating(4, "sigmoid", normalise=True, answer_scale=Weight("vector", (64,)))),
    "biased": (64, Gating(4, "sigmoid", normalise=True, scale=1.8, selection_bias=Weight("vector", (64,)))),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("rows", [3, 16])
@pytest.mark.parametrize("name", RANKED)
def test_products_rank_experts_themselves(device, name, rows):
    """Experts are ranked by the products of each choice, or by the sort of many rows. Later products read the ranks."""
    shapes = expert_configs(device)
    if "subgroups" not in shapes:
        pytest.skip("this device has no subgroups")
    if rows > 3 and not device.capabilities.subgroup_size:
        pytest.skip("its subgroups may have any size")
    matrices, each = next(iter(gemm_configs(device).values())), shapes["subgroups" if rows == 3 else "sorted"]
    tuning = bare_tuning(matrices, fuses_routing=True).only_experts(each)
    bench, (experts, how) = Bench(device, tuning, rows), RANKED[name]
    used = how.used
    [router] = bench.together((experts, 48), F32)
    bench.vector("vector", normal(experts, seed=5) / 9)
    (gate, up), [down] = bench.together((experts, 8, 48), F32, F32), bench.together((experts, 48, 8), F32)
    every = (normal(rows, 48, seed=s) for s in itertools.count())
    x = next(x for x in every if gaps(x, bench.values["w0"], used) > GAP)

    def says(g, x):
        routing = g.route(x, router, how)
        y = g.expert_sum(g.expert_glu(x, gate, up, routing, "silu"), down, routing, add=x)
        return {"experts": routing.experts, "shares": routing.shares, "y": y}

    plan, got = bench.run(says, x=x)
    want = says(Reference(bench.values), x=x)
    names = [dispatch.name for dispatch in plan.dispatches]
    assert not any("route" in one for one in names)
    assert sum("sort" in one for one in names) == (rows > 3)
    np.testing.assert_array_equal(got["experts"], want["experts"])
    np.testing.assert_allclose(got["shares"], want["shares"], rtol=1e-5)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "width", "row"),
    [
        ("Q8_0", 256, "prefetched"),
        ("Q8_0", 480, "prefetched"),  # lanes have one chunk more than the row
        ("MXFP4", 480, "plain"),  # x stays floats
        ("Q8_0", 4096, "plain"),  # more numbers than the registers of lanes hold
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_are_loaded_while_products_rank_experts(device, name, width, row, rows):
    """The rows are normed while they are read: one row, and several."""
    shapes = expert_configs(device)
    if "row" not in shapes:
        pytest.skip("this device has no subgroups")
    matrices = next(iter(gemm_configs(device).values()))
    tuning = bare_tuning(matrices, fuses_routing=True).only_experts(shapes["row"])
    bench, fmt = Bench(device, tuning, rows), BY_NAME[name]
    [router], gain = bench.together((16, width), F32), bench.vector("gain", 1 + normal(width, seed=5) / 9)
    (gate, up), [down] = bench.together((16, 24, width), fmt, fmt), bench.together((16, 32, 24), F32)
    every = (normal(rows, width, seed=s) for s in itertools.count())
    x = next(x for x in every if gaps(x, bench.values["w0"], 4) > GAP)

    def says(g, x):
        routing = g.route(x, router, Gating(4))
        inner = g.expert_glu(g.rms_norm(x, gain, 1e-3), gate, up, routing, "silu")
        return {"y": g.expert_sum(inner, down, routing)}

    plan = bench.check(says, x=x)
    [ranked] = [name for dispatch in plan.dispatches if ".ranked." in (name := dispatch.pipeline.name)]
    assert (".prefetched." in ranked) == (row == "prefetched")


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize("rows", [1, 300])
def test_the_dispatches_depend_on_neither_experts_nor_rows(fast_device, rows):
    counts = set()
    for experts in (8, 128):
        bench = Bench(fast_device, default_tuning(fast_device.capabilities), rows)
        [router] = bench.together((experts, 32), F32)
        gate, up = bench.together((experts, 8, 32), BY_NAME["Q8_0"], BY_NAME["Q8_0"])
        [down] = bench.together((experts, 32, 8), F32)

        def says(g, x, router=router, gate=gate, up=up, down=down):
            routing = g.route(x, router, Gating(4, normalise=True))
            return {"y": g.expert_sum(g.expert_glu(x, gate, up, routing, "silu"), down, routing, add=x)}

        values = bench.recorder.input("x", np.float32, (rows + 1, 32))
        counts.add(len(bench.recorder.finish(says(bench.recorder, values)).dispatches))
    assert len(counts) == 1
    assert counts.pop() <= 6 + 2 * bool(fast_device.capabilities.fragment)  # these need rounded rows


def test_one_sort_serves_every_format(device):
    tuning = default_tuning(device.capabilities)
    for density in (0.1, 1, 2, 5, 7, 100):
        assert tuning.expert_config(density, 16).tb == tuning.expert_config(density, 32).tb


@pytest.mark.parametrize(("count", "experts", "tb"), [(1, 8, 4), (8, 8, 4), (9, 2, 4), (100, 7, 16), (64, 128, 8)])
def test_tiles_are_enough_for_any_choices(count, experts, tb):
    rng = np.random.default_rng(0)
    for concentration in (0.01, 0.1, 1, 100):
        for _ in range(200):
            counts = rng.multinomial(count, rng.dirichlet([concentration] * experts))
            assert (-(-counts // tb)).sum() <= max_tiles(count, experts, tb)


@pytest.mark.long
def test_workgroups_of_a_batch_have_several_blocks_of_rows_but_not_of_floats():
    """Integer formats, as in Qwen3-30B-A3B, have several blocks; MXFP4 does not, because it would be slower."""
    for name, few in (("qwen3-30b-a3b-q4_k_m", True), ("gpt-oss-20b-q4_k_m", False)):
        with open_synthetic(name) as file:
            step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(16))
        groups = {one.workgroups for one in step.dispatches if "ffn_gate_exps" in one.name}
        assert (max(groups) <= 264) == few
