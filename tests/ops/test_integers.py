"""Products of integers: x rounded once, every packed format, epilogue and awkward shape, against the reference."""

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.ops.vocabulary import ACTIVATIONS, Rms
from tests.ops.test_linear import BY_NAME, EACH_WAY, Bench, normal, small
from tests.recording import bare_tuning, gemm_configs

PACKED = [fmt for fmt in FORMATS.values() if "formats/packed" in fmt.parts]


def tuning_of(device, kind):
    if kind not in gemm_configs(device):
        pytest.skip("this device has no subgroups, or too little workgroup memory")
    return bare_tuning(gemm_configs(device)[kind], row_lanes=8)


@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
def test_every_packed_format_with_every_epilogue_equals_the_reference(fast_device, fmt):
    bench = Bench(fast_device, tuning_of(fast_device, "int8"), 3)
    w, b = bench.matrix("w", fmt, (38, 512)), bench.matrix("b", BY_NAME["F32"], (38,))

    def says(g, x, add):
        every = {then: g.linear(x, w, then=then, bias=b, add=add) for then in ACTIVATIONS}
        every |= {"plain": g.linear(x, w)}
        return every | {"pairs": g.glu(x, w, "silu")} if fmt in EACH_WAY else every  # another shader

    plan = bench.check(says, x=small(bench.values["w"], 3), add=normal(3, 38))
    assert {d.name.split()[-1].split(".")[0] for d in plan.dispatches} == {"quantise_rows", "gemm_int8"}


@pytest.mark.parametrize(("rows", "shape"), [(1, (1, 256)), (17, (33, 512)), (66, (130, 1280)), (5, (70, 768))])
@pytest.mark.parametrize("kind", ["int8_bytes", "int8_wide"])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_awkward_shapes_equal_the_reference(device, name, kind, rows, shape):
    bench = Bench(device, tuning_of(device, kind), rows)
    w = bench.matrix("w", BY_NAME[name], shape)
    bench.check(lambda g, x: {"y": g.linear(x, w)}, x=normal(rows, shape[1]))


@pytest.mark.parametrize("name", ["Q8_0", "F16"])
def test_a_product_that_norms_its_input_equals_the_reference(fast_device, name):
    """Float formats have a kernel that norms, too."""
    bench = Bench(fast_device, tuning_of(fast_device, "int8_bytes"), 3)
    ws = bench.matrices(BY_NAME[name], (42, 288), (7, 288))
    norm = Rms(bench.matrix("gain", BY_NAME["F32"], (288,)), 1e-6)
    x = normal(3, 288) * np.array([[1e-3], [1], [30]], np.float32)

    def says(g, x):
        one, other = g.linears([x, x], ws, norm=norm)
        return {"one": one, "other": other, "pairs": g.glu(x, ws[0], "silu", norm=norm)}

    bench.check(says, x=x)


def test_one_dispatch_rounds_all_inputs_of_a_merged_dispatch(device):
    """The matrices share a buffer, but each has its own x, as r, k and v of RWKV."""
    bench = Bench(device, tuning_of(device, "int8"), 5)
    ws = bench.matrices(BY_NAME["Q4_K"], (256, 256), (256, 256), (33, 256), (7, 256))

    def says(g, x):
        one, other = g.linears([x, x], ws[:2])
        return dict(zip("ab", g.linears([other, one], ws[2:]), strict=True))

    plan = bench.check(says, x=normal(5, 256))
    assert [d.name.split()[-1].split(".")[0] for d in plan.dispatches] == ["quantise_rows", "gemm_int8"] * 2


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize("kind", ["skinny_copied", "skinny_quantises"])
def test_skinny_gemm_quantises_rows_in_pieces_or_whole(device, name, kind):
    """The row is quantised in pieces, or as a whole."""
    bench = Bench(device, tuning_of(device, kind), 6)
    w, b = bench.matrix("w", BY_NAME[name], (37, 768)), bench.matrix("b", BY_NAME["F32"], (37,))
    bench.check(
        lambda g, x, add: {"y": g.linear(x, w, then="relu2", bias=b, add=add)},
        x=small(bench.values["w"], 6),
        add=normal(6, 37),
    )


def test_a_product_writes_integers_for_one_that_reads_them(device):
    """It also writes floats for other readers."""
    bench = Bench(device, tuning_of(device, "skinny_quantises"), 5)
    w, v = bench.matrix("w", BY_NAME["Q4_K"], (96, 256)), bench.matrix("v", BY_NAME["Q8_0"], (33, 96))

    def says(g, x):
        h = g.linear(x, w, then="relu2")
        return {"y": g.linear(h, v), "h": h}

    plan = bench.check(says, x=normal(5, 256))
    assert [d.name.split()[-1].split(".")[0] for d in plan.dispatches] == [
        "quantise_rows",
        "skinny_gemm",
        "skinny_gemm",
    ]
