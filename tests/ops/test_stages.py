"""The table in docs/fusion.md of kernels and the stages that they accept; and the properties of stages.

python -m tests.ops.test_stages    # writes the table
"""

import re
from pathlib import Path

import pytest

from rwkv_gpu.errors import ShaderError
from rwkv_gpu.kernels.gemm import SPLITK_REDUCE
from rwkv_gpu.kernels.gemm_config import GemmKernel
from rwkv_gpu.kernels.parts import ADD_RESIDUAL, PAIRS, QUANTISED_SUMS, RMS_NORM, SUMS
from rwkv_gpu.kernels.registry import KERNELS, link
from rwkv_gpu.ops.nodes import Gemm, Product
from rwkv_gpu.ops.nodes.epilogue import EPILOGUES, AddResidual, GatePairs, Multiply, Scale
from rwkv_gpu.ops.nodes.linear import STAGES
from rwkv_gpu.ops.nodes.prologue import PROLOGUES, NormRows, ReadQuantised
from rwkv_gpu.ops.values import Quantised, Value
from rwkv_gpu.ops.vocabulary import Rms, Weight

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fusion.md"
HEAD = "| stage | form |"
PRODUCTS = [kernel for kernel in KERNELS.values() if isinstance(kernel, GemmKernel)]
ALL = [*PRODUCTS, SPLITK_REDUCE]
WHOLE_ROWS = [kernel for kernel in PRODUCTS if kernel.accepts(NormRows.fusions["layer norm"])]


def named(kernels) -> str:
    """Returns the names of kernels, shortened if they are all, nearly all, or those that see whole rows of x."""
    left = [kernel for kernel in ALL if kernel not in kernels]
    if len(left) < 4:
        return "all" + (" but " + _names(left) if left else "")
    if all(kernel in kernels for kernel in WHOLE_ROWS):
        return ", ".join(["whole rows", *filter(None, [_names([one for one in kernels if one not in WHOLE_ROWS])])])
    return _names(kernels)


def _names(kernels) -> str:
    return ", ".join(f"`{kernel.name.rpartition('/')[2]}`" for kernel in kernels)


def table() -> str:
    """Returns the table of stages by kernels. Kernels that read quantised rows have them normed earlier."""
    lines = [f"{HEAD} kernels |", "|---|---|---|"]
    for stage in STAGES:
        forms: dict[str, list[str]] = {}
        for form, parts in stage.fusions.items():
            accepted = [kernel for kernel in ALL if kernel.accepts(parts)]
            before = [one for one in PRODUCTS if form == "RMS norm" and one not in accepted and one.fuses_norm]
            more = f"; before: {_names(before)}" if before else ""
            forms.setdefault(named(accepted) + more, []).append(form)
        lines += [f"| {stage.__name__} | {'; '.join(each)} | {kernels} |" for kernels, each in forms.items()]
    return "\n".join(lines)


def written() -> str:
    return re.search(rf"^{re.escape(HEAD)}.*(?:\n\|.*)*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[0]


def test_the_table_of_kernels_and_stages_equals_that_of_the_docs():
    """A kernel that gained or lost a fusion changes the table; the head of this file says how to write it."""
    assert written() == table()


def test_every_kernel_of_products_has_a_row_in_the_docs():
    rows = (PAGE.parent / "kernels.md").read_text(encoding="utf-8")
    assert [kernel.name for kernel in PRODUCTS if f"\n| `{kernel.name}` |" not in rows] == []


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_some_kernel_accepts_each_form_of_a_stage(stage):
    for form, parts in stage.fusions.items():
        assert any(kernel.accepts(parts) for kernel in PRODUCTS), form


def test_stages_are_prologues_or_epilogues_each_once():
    assert len(set(STAGES)) == len(STAGES) == len(PROLOGUES) + len(EPILOGUES)
    assert all(stage.__doc__ for stage in STAGES)


def product() -> Gemm:
    x, weight = Value((4, 64)), Weight("w", (32, 64))
    return Gemm.of(Product(x, weight, Value((4, 32))))


def test_a_product_reads_and_writes_the_values_of_its_stages():
    residual, by = Value((4, 32)), Value((4, 32))
    plain = product()
    gemm = plain.plus(AddResidual(residual), Multiply(by))
    assert gemm.reads == (*plain.reads, by, residual)
    assert gemm.buffers(4) == plain.buffers(4) + 2
    assert gemm.minus(Multiply, AddResidual) == plain


def test_the_order_of_stages_does_not_depend_on_when_they_are_added():
    stages = [Scale(2.0), GatePairs(), NormRows(Rms(None, 1e-6))]
    plain = product()
    assert plain.plus(*stages) == plain.plus(*reversed(stages))


def test_quantised_rows_have_been_normed():
    rows = Quantised(Value((4, 16)), {0: 0}, 2, by_rows=True)
    gemm = product().plus(NormRows(Rms(None, 1e-6))).reading(rows)
    assert gemm.reads == (rows.value,)
    assert gemm.only(ReadQuantised)


FORMAT = ("formats/q8_0", "formats/signed", "formats/vec4s", "formats/runs", "linear/table", "linear/table/constant")


def test_a_stage_that_a_kernel_has_no_hole_for_is_refused():
    """The stage is never omitted silently."""
    with pytest.raises(ShaderError, match="gemm_tile has no hole for linear/prologue/rms_norm"):
        KERNELS["linear/gemm_tile"].check(
            KERNELS["linear/gemm_tile"].complete(
                [*FORMAT, "lib/lanes/plain", "lib/rows/vec4", "linear/prologue/plain", RMS_NORM]
            )
        )
    with pytest.raises(ShaderError, match="the hole 'residual' is filled by"):
        link("linear/splitk_reduce", [PAIRS, ADD_RESIDUAL, "linear/table", "linear/table/constant", "lib/lanes/plain"])


def test_holes_that_a_kernel_calls_have_defaults():
    reduce = KERNELS["linear/splitk_reduce"]
    assert SUMS in reduce.complete([])
    assert {"linear/epilogue/no_bias", "linear/epilogue/no_residual"} <= set(reduce.complete([]))
    assert "linear/epilogue/no_residual" not in reduce.complete([PAIRS])
    assert not reduce.takes(QUANTISED_SUMS)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(written(), table()), encoding="utf-8")
