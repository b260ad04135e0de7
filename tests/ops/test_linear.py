"""Every matrix kernel, in every format, epilogue and awkward shape, against the reference."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gguf.planes import dequantise_rows
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.weights import DeviceWeight, Weights, as_shard, layout, upload_tensor
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.measure.cases.linear import formats_of
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import ACTIVATIONS, LayerNorm, Rms, Weight
from tests.cases import slow_unless
from tests.gguf.blocks import mild_rows
from tests.recording import KERNEL_OF, bare_tuning, gemm_configs, run_plan

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
EACH_WAY = tuple(BY_NAME[name] for name in ("F32", "F16", "Q4_K", "Q6_K", "IQ2_S"))
FLOATS_AND_RUNS_OF_16 = tuple(BY_NAME[name] for name in ("F32", "Q6_K"))
KINDS = [name for name, kernel in KERNEL_OF.items() if not kernel.integers_only]
FIRST = {kernel.name: name for name, kernel in reversed(KERNEL_OF.items())}  # configuration of each kernel
# Kernels for floats, for integers and for decoding. Tiles compile slowly, and decode formats like gemv or gemv_int.
IN_EVERY_FORMAT = [FIRST[f"linear/{name}"] for name in ("gemv", "gemv_single_pass", "gemv_int")]


def formats(kind: str) -> list[Format]:
    """Returns the tested formats: all of some kernels, and otherwise one for each way to decode."""
    takes = formats_of(KERNEL_OF[kind])
    some = EACH_WAY if kind in FIRST.values() else FLOATS_AND_RUNS_OF_16
    return takes if kind in IN_EVERY_FORMAT else [fmt for fmt in takes if fmt in some]


def by_kind(*values: str) -> list[tuple[str, str]]:
    """Returns test cases: a kernel's first configuration with all of these values, the others with the first."""
    return [(kind, value) for kind in KINDS for value in (values if kind in FIRST.values() else values[:1])]


def by_shape(shapes: Sequence[tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns test cases: a kernel's first configuration with all shapes, others with the last, if it has few rows."""
    last = [(kind, shapes[-1]) for kind in KINDS if kind not in FIRST.values() and "tile" not in kind]
    return [*((kind, shape) for kind in KINDS if kind in FIRST.values() for shape in shapes), *last]


def decodes_alone(kind: str, fmt: Format) -> bool:
    """True for the tested formats; the tests of pairs of gate and up and of awkward shapes have the other ones."""
    if kind in IN_EVERY_FORMAT or kind not in KINDS:
        return True
    return fmt.name in (("Q4_K", "IQ2_S") if kind in FIRST.values() else ("Q6_K",))


def paired_alone(kind: str, name: str) -> bool:
    """True for the formats that `decodes_alone` omits."""
    return name in (("F32", "Q6_K") if kind in FIRST.values() else ("Q4_K",))


def in_turn(kind: str, then: str) -> bool:
    """True for the first activation, and for one of the others per kernel, in turn, because each needs a shader."""
    others, firsts = ACTIVATIONS[1:], [*FIRST.values()]
    return then == ACTIVATIONS[0] or then == others[firsts.index(kind) % len(others)]


DECODED = [(kind, fmt) for kind in KERNEL_OF for fmt in formats(kind)]
DECODED_EACH_WAY = [(kind, fmt) for kind, fmt in DECODED if fmt in EACH_WAY]
NORMED = [
    (kind, name)
    for kind, kernel in KERNEL_OF.items()
    if kernel.fuses_norm
    for name in (("Q4_K", "Q6_K", "F32") if kind in FIRST.values() else ("Q4_K",))
    if BY_NAME[name] in formats_of(kernel)
]
F32, F16 = BY_NAME["F32"], BY_NAME["F16"]
AWKWARD = [(1, (1, 4)), (2, (3, 33)), (17, (33, 95)), (66, (130, 36)), (5, (70, 1))]
# A kernel's first configuration gets every shape, with alternating formats; the others get one shape.
NOT_DIVIDED = slow_unless(
    lambda kind, rows, shape, fmt: (
        (fmt is F16) == bool(AWKWARD.index((rows, shape)) % 2) if kind in FIRST.values() else shape == (33, 95)
    ),
    [
        (kind, *case)
        for kind in KINDS
        for case in (
            [(rows, shape, fmt) for rows, shape in AWKWARD for fmt in (F32, F16)]
            if kind in FIRST.values()
            else [(17, (33, 95), F16), (66, (130, 36), F32)]
        )
    ],
)


@pytest.fixture(params=KINDS)
def tuning(request, device):
    shapes = gemm_configs(device)
    if request.param not in shapes:
        pytest.skip("this device has no subgroups, none of 8 lanes, no f16, or too little workgroup memory")
    return bare_tuning(shapes[request.param], row_lanes=8)


def tolerance(tuning: Tuning) -> float:
    """Returns the tolerance, relative to the sum of the terms' magnitudes."""
    return tuning.gemm_table[0][1].tolerance.terms


class Bench:
    """Matrices of given formats and shapes on the device and in numpy, stored in one buffer each."""

    def __init__(self, device, tuning, rows, spare=1):
        self.device, self.rows, self.bucket = device, rows, rows + spare
        self.weights, self.values = Weights(device), {}
        self.scratch = Scratch(device)
        self.recorder = Recorder(device, self.weights, self.bucket, self.scratch, tuning)

    def matrix(self, name: str, fmt: Format, shape: tuple[int, ...]) -> Weight:
        raw = mild_rows(fmt, shape[0] if len(shape) > 1 else 1, shape[-1], seed=len(self.values))
        self.weights.add(name, upload_tensor(self.device, fmt, raw, shape))
        self.values[name] = dequantise_rows(fmt, raw).reshape(shape)
        return Weight(name, shape)

    def matrices(self, fmt: Format, *shapes: tuple[int, int]) -> list[Weight]:
        """Returns several matrices in one buffer, so that one dispatch can read them."""
        where = [layout(fmt, *shape) for shape in shapes]
        starts = list(itertools.accumulate((-(-one.nbytes // 256) * 256 for one in where), initial=0))
        buffer, found = self.device.buffer(starts[-1], "weights"), []
        for shape, one, start in zip(shapes, where, starts, strict=False):
            found.append(self.matrix(f"w{start}", fmt, shape))
            [alone] = self.weights[found[-1].name].shards
            self.device.copy(alone.slice.buffer, 0, buffer, start, one.nbytes)
            shard = as_shard(buffer, start, fmt, 0, shape[0], one)
            self.weights.add(found[-1].name, DeviceWeight(fmt, shape, (shard,)))
        return found

    def check(self, says, **inputs):
        """Checks that both interpreters agree on the outputs of `says(ops, **inputs)`."""
        values = {n: self.recorder.input(n, np.float32, (self.bucket, a.shape[1])) for n, a in inputs.items()}
        plan = self.recorder.finish(says(self.recorder, **values))
        got = run_plan(plan, self.scratch, inputs, self.rows)
        want = says(Reference(self.values), **inputs)
        magnitudes = says(
            Reference({n: np.abs(v) for n, v in self.values.items()}), **{n: np.abs(a) for n, a in inputs.items()}
        )
        for name in want:
            scale = np.maximum(np.abs(magnitudes[name]).max(), 1e-30)
            assert np.isfinite(got[name]).all(), name
            assert np.abs(got[name] - want[name]).max() <= tolerance(self.recorder.tuning) * scale, name
        return plan


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def small(w: np.ndarray, rows: int) -> np.ndarray:
    """Returns inputs whose products with w do not saturate an activation."""
    return normal(rows, w.shape[1]) / (100 * np.abs(w).mean())


def check_decoding(device: Device, tuning: Tuning, fmt: Format) -> None:
    """Checks a matrix kernel with a format, a bias, a residual and every activation."""
    bench = Bench(device, tuning, 3)
    w, b = bench.matrix("w", fmt, (37, 512)), bench.matrix("b", BY_NAME["F32"], (37,))

    # Kernels of few rows compile a shader for each activation: the test of epilogues has all, except integer kernels.
    config = tuning.gemm_table[0][1]
    first = gemm_configs(device)[FIRST[config.kernel]] == config
    activations = ACTIVATIONS if first and config.entry.integers_only and fmt.name == "Q4_K" else ("silu",)

    def says(g, x, add):
        return {then: g.linear(x, w, then=then, bias=b, add=add) for then in activations}

    bench.check(says, x=small(bench.values["w"], 3), add=normal(3, 37))


def of_format(decoded: list[tuple[str, Format]], *modes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test with these configurations and formats, in these modes only."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        ids = [f"{kind}-{fmt.name}" for kind, fmt in decoded]
        cases = slow_unless(decodes_alone, decoded)
        test = pytest.mark.parametrize(("tuning", "fmt"), cases, indirect=["tuning"], ids=ids)(test)
        return pytest.mark.parametrize("device", modes, indirect=True, scope="module")(test)

    return decorate


@of_format(DECODED, "fast")
def test_every_format_in_every_kernel_equals_the_reference(device, tuning, fmt):
    check_decoding(device, tuning, fmt)


@of_format(DECODED_EACH_WAY, "checked", "portable")  # test_formats decodes every format in these modes
def test_one_format_of_each_decoding_equals_the_reference_in_the_other_modes(device, tuning, fmt):
    check_decoding(device, tuning, fmt)


@pytest.mark.parametrize(
    ("tuning", "rows", "shape", "fmt"),
    NOT_DIVIDED,
    indirect=["tuning"],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_awkward_shapes_equal_the_reference(device, tuning, rows, shape, fmt):
    bench = Bench(device, tuning, rows)
    w = bench.matrix("w", fmt, shape)
    bench.check(lambda g, x: {"y": g.linear(x, w)}, x=normal(rows, shape[1]))


@pytest.mark.parametrize("kind", [name for name, kernel in KERNEL_OF.items() if kernel.needs.matrix_units])
def test_each_row_beyond_the_range_of_float16_is_scaled(fast_device, kind):
    """Rows of magnitude 1e-6 and 6e4 alternate. Each has one column that is a thousand times larger."""
    if kind not in gemm_configs(fast_device):
        pytest.skip("this device is not opened with matrix units, or has too little workgroup memory")
    config = gemm_configs(fast_device)[kind]
    bench = Bench(fast_device, bare_tuning(config, row_lanes=8), 5)
    w = bench.matrix("w", BY_NAME["F16"], (33, 320))
    x = normal(5, 320) * np.array([[1e-6], [6e4], [1], [1e-30], [1e30]], np.float32)
    x[:, 7] *= 1000
    given = bench.recorder.input("x", np.float32, (bench.bucket, 320))
    plan = bench.recorder.finish({"y": bench.recorder.linear(given, w)})
    got, want = run_plan(plan, bench.scratch, {"x": x}, 5)["y"], x @ bench.values["w"].T
    assert (np.abs(got - want).max(axis=1) <= config.tolerance.result * np.abs(want).max(axis=1)).all()


@pytest.mark.parametrize(("bucket", "counts"), [(64, (33, 63, 64)), (128, (65,))])
@pytest.mark.parametrize("kind", ["line_columns", "line_high_parts"])
def test_rows_around_half_a_plan_and_all_of_it_equal_the_reference_in_whole_lines(fast_device, kind, bucket, counts):
    if kind not in gemm_configs(fast_device):
        pytest.skip("this device is not opened with matrix units, or has too little workgroup memory")
    config = gemm_configs(fast_device)[kind]
    assert config.kernel == "linear/line_gemm"
    bench = Bench(fast_device, bare_tuning(config, row_lanes=8), bucket, spare=0)
    w = bench.matrix("w", BY_NAME["Q4_K"], (70, 768))
    given = bench.recorder.input("x", np.float32, (bucket, 768))
    plan = bench.recorder.finish({"y": bench.recorder.linear(given, w)})
    for rows in counts:
        x = normal(rows, 768)
        got, want = run_plan(plan, bench.scratch, {"x": x}, rows)["y"], x @ bench.values["w"].T
        assert (np.abs(got - want).max(axis=1) <= config.tolerance.result * np.abs(want).max(axis=1)).all(), rows


@pytest.mark.parametrize("tuning", ["gemv_int", "single_pass", "skinny", "gemv"], indirect=True)
@pytest.mark.parametrize(("name", "has_small"), [("Q4_K", False), ("Q8_0", True)])
def test_kernels_of_few_rows_bind_small_planes_as_words_where_a_device_can(device, tuning, name, has_small):
    bench = Bench(device, tuning, 1, spare=0)
    w = bench.matrix("w", BY_NAME[name], (40, 512))
    [dispatch] = bench.check(lambda g, x: {"y": g.linear(x, w)}, x=normal(1, 512)).dispatches
    can = device.capabilities.max_storage_buffers >= 16 and not dispatch.name.startswith("w gemv.")
    assert ("words" in {binding.name for binding in dispatch.pipeline.bindings.values()}) == (can and has_small)


@pytest.mark.parametrize(("tuning", "outs"), by_shape([(64,), (64, 96, 7), (33,)]), indirect=["tuning"], ids=str)
def test_a_plan_of_one_row_equals_the_reference(device, tuning, outs):
    """Matrices have whole blocks of rows, several blocks, or a part of one. The shader has the number as a constant."""
    bench = Bench(device, tuning, 1, spare=0)
    ws = [bench.matrix(f"w{i}", BY_NAME["Q4_K"], (out, 512)) for i, out in enumerate(outs)]
    bench.check(lambda g, x: dict(zip("abc", g.linears([x] * len(ws), ws), strict=False)), x=normal(1, 512))


def test_long_rows_of_odd_length_equal_the_reference(fast_device):
    """The shape is (17, 255, 4097) in F16: no tile, run or word divides it."""
    for name, shape in gemm_configs(fast_device).items():
        if shape.integers or name not in FIRST.values():
            continue
        bench = Bench(fast_device, bare_tuning(shape, row_lanes=8), 17)
        w = bench.matrix("w", BY_NAME["F16"], (255, 4097))
        bench.check(lambda g, x, w=w: {"y": g.linear(x, w)}, x=normal(17, 4097))


@pytest.mark.parametrize(("tuning", "then"), slow_unless(in_turn, by_kind(*ACTIVATIONS)), indirect=["tuning"])
def test_epilogues_equal_the_reference(device, request, tuning, then):
    ways = [(True, True)]  # each a shader
    if request.node.callspec.params["tuning"] in FIRST.values() and then == ACTIVATIONS[0]:
        ways += [(True, False), (False, True)]  # test_awkward_shapes_equal_the_reference has neither of them
    for with_bias, with_add in ways:
        bench = Bench(device, tuning, 3)
        w, b = bench.matrix("w", BY_NAME["F32"], (20, 32)), bench.matrix("b", BY_NAME["F32"], (20,))
        bench.check(
            lambda g, x, add, w=w, b=b, with_bias=with_bias, with_add=with_add: {
                "y": g.linear(x, w, then=then, bias=b if with_bias else None, add=add if with_add else None)
            },
            x=normal(3, 32),
            add=normal(3, 20),
        )


@pytest.mark.parametrize(
    ("tuning", "name"),
    slow_unless(paired_alone, by_kind("Q4_K", "Q6_K", "F32", "F16", "IQ2_S")),
    indirect=["tuning"],
)
def test_pairs_of_gate_and_up_equal_the_reference(device, tuning, name):
    bench = Bench(device, tuning, 3)
    w = bench.matrix("w", BY_NAME[name], (2 * 45, 512))
    bench.check(lambda g, x: {"y": g.glu(x, w, "silu")}, x=small(bench.values["w"], 3))


@pytest.mark.parametrize(("tuning", "name"), NORMED, indirect=["tuning"])
def test_a_product_that_norms_its_input_equals_the_reference(device, request, tuning, name):
    """The RMS norm is in the prologue of each kind of product, or before it if the kernel does not see whole rows."""
    in_pairs = request.node.callspec.params["tuning"] in FIRST.values()
    bench = Bench(device, tuning, 3)
    w = bench.matrix("w", BY_NAME[name], (2 * 21, 256))
    norm = Rms(bench.matrix("gain", BY_NAME["F32"], (256,)), 1e-6)
    x = normal(3, 256) * np.array([[1e-3], [1], [30]], np.float32)

    def says(g, x):
        y = {"y": g.linear(x, w, norm=norm)}
        return y | {"z": g.glu(x, w, "silu", norm=norm)} if in_pairs else y

    bench.check(says, x=x)


@pytest.mark.parametrize(
    "tuning",
    [
        "gemv",
        "gemv_subgroups",
        "gemv_int",
        "single_pass",
        "single_pass_two_subgroups",
        "single_pass_three_subgroups",
        "gemm_lane",
    ],
    indirect=True,
)
@pytest.mark.parametrize("name", ["Q4_K", "F32"])
def test_a_product_of_one_row_also_norms_it(device, tuning, name):
    bench = Bench(device, tuning.changed(fuses_token_shift=True), 1, spare=0)
    w = bench.matrix("w", BY_NAME[name], (45, 512))
    gain, shift = (bench.matrix(name, BY_NAME["F32"], (512,)) for name in ("gain", "shift"))
    norm = LayerNorm(gain, shift, 1e-5)
    plan = bench.check(lambda g, x: {"y": g.linear(x, w, norm=norm)}, x=normal(1, 512) * 30 + 7)
    assert len(plan.dispatches) == 1


@pytest.mark.parametrize("resident_lanes", [1 << 18, 1])
@pytest.mark.parametrize("kind", ["tile_split", "int8_split", "matrix_split"])
def test_split_k_products_equal_the_reference(device, kind, resident_lanes):
    """The next step after a sum adds up the parts: of one matrix, of several, and of pairs.

    If a device runs few lanes at once, a lane adds up the parts of four rows. Here, it has only three.
    """
    if kind not in gemm_configs(device):
        pytest.skip("this device has no subgroups")
    shape = gemm_configs(device)[kind]
    tuning = bare_tuning(shape, row_lanes=8, resident_lanes=resident_lanes)
    bench = Bench(device, tuning, 3)
    fmt = BY_NAME["Q4_K"]
    first, second, paired = bench.matrices(fmt, (70, 512), (33, 768), (2 * 66, 1024))
    bias = bench.matrix("bias", BY_NAME["F32"], (70,))

    def says(g, x, z, wide, add):
        one, other = g.linears([x, x], [first, first], then=["none", "tanh"], bias=[None, bias])
        alone = g.linear(x, first, bias=bias, then="silu", add=add)
        return {
            "one": one,
            "other": other,
            "alone": alone,
            "z": g.linear(z, second),
            "glu": g.glu(wide, paired, "silu"),
        }

    plan = bench.check(says, x=normal(3, 512) / 999, z=normal(3, 768), wide=normal(3, 1024) / 99, add=normal(3, 70))
    kernels = [dispatch.name.split()[-1] for dispatch in plan.dispatches]
    rounds = "round_rows" if shape.fragment else "quantise_rows"
    assert [kernel for kernel in kernels if kernel != rounds] == [
        f"{shape.kernel.rpartition('/')[2]}.q4_k",
        "splitk_reduce",
    ] * 4
    assert kernels.count(rounds) == 3 * shape.reads_quantised, "x is rounded once for all that read it"
    reduced = next(dispatch for dispatch in plan.dispatches if dispatch.name.endswith("splitk_reduce"))
    blocks = 2 * -(-70 // tuning.lanes.map_lanes)
    assert math.prod(reduced.grid) == blocks * -(-bench.bucket // (4 if resident_lanes == 1 else 1))
