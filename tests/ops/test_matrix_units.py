"""Matrix units are used for prompts and batches, but not if few sequences decode."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.measure.quants import QUANTS
from rwkv_gpu.measure.shapes import sizes, transformer
from rwkv_gpu.measure.synthetic import noise, opened
from rwkv_gpu.ops.lowering.context import Lowering
from tests.golden_files import OWN
from tests.measure.tiny import opened_layers
from tests.ops.matrix_plans import WITH_MATRIX_UNITS, tuning_with_matrix_units

PRODUCTS, EXPERTS, ATTENTION = "linear/gemm_matrix", "moe/expert_gemm_matrix", "attention/attention_matrix"


def kernels_of(file: GGUFFile, rows: int, *, prefill: bool, kv: str = "f16") -> set[str]:
    step = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(rows, prefill=prefill, kv=kv))
    return {row.kernel.partition(".")[0] for row in step.dispatches}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny-llama", {PRODUCTS, ATTENTION}),
        ("tiny-qwen3moe", {PRODUCTS, EXPERTS, ATTENTION}),
        ("tiny-ernie4_5", {PRODUCTS, ATTENTION}),
    ],
)
def test_prompts_are_read_on_matrix_units(name, expected):
    with GGUFFile.open(OWN / f"{name}.gguf") as file:
        assert expected <= kernels_of(file, 512, prefill=True)


def test_heads_round_their_rows_in_prompts_too():
    with opened_layers("glm-4.7-flash-30b-q4_k_m") as file:
        step = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(512, prefill=True))
    names = [row.name.split()[0] for row in step.dispatches if row.layer == 5]
    head = names.index("attn_k_b")
    assert [names[head - 1], *names[head + 1 : head + 4]] == ["attn_q_b", "kv", "kv", "attn_v_b"]


@pytest.mark.parametrize(
    ("width", "rows", "lanes"),
    [(4096, 1, 1024), (192, 256, 1024), (4096, 512, 512), (2560, 512, 320), (192, 10240, 64)],
)
def test_a_row_has_fewer_lanes_if_there_are_too_many_rows_to_run_at_once(width, rows, lanes):
    target = SimpleNamespace(tuning=tuning_with_matrix_units(), can=WITH_MATRIX_UNITS, weights=None)
    lowering = Lowering(SimpleNamespace(shape=None), target, None)
    assert lowering.row_lanes(width, rows) == lanes


@pytest.mark.parametrize("name", ["mamba2-2.7b", "falcon-h1-3.1b", "granite4-h-tiny-7b", "nemotron3-nano-32b"])
def test_prompts_of_mamba2_are_read_on_matrix_units_but_not_token_by_token(name):
    tuning = tuning_with_matrix_units()
    with opened_layers(name) as file:
        prompt, batch = (
            {row.kernel.partition(".")[0] for row in record_step(file, WITH_MATRIX_UNITS, tuning, step).dispatches}
            for step in (Step(512, prefill=True), Step(16))
        )
    assert {"ssm/ssd_scores", "ssm/ssd_matrix"} <= prompt
    assert "ssm/ssd" in batch
    assert "ssm/ssd" not in prompt


def test_prompts_of_rwkv7_are_read_on_matrix_units():
    with opened_layers("rwkv7-0.4b-q4_k_m") as file:
        found = kernels_of(file, 512, prefill=True)
    assert {PRODUCTS, "linear/round_rows"} <= found
    assert "linear/gemm_int8" not in found


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("llama-8b-q4_k_m", 16),
        *((name, rows) for name in ("rwkv7-0.4b-q4_k_m", "qwen3-0.6b-q8_0") for rows in (32, 64)),
    ],
)
def test_batches_decode_on_matrix_units(name, rows):
    with opened_layers(name) as file:
        found = kernels_of(file, rows, prefill=False)
    few = "linear/line_gemm" if name.startswith("llama") else "linear/subgroup_gemm"
    assert {few, "linear/round_rows"} <= found
    assert rows == 16 or "linear/skinny_gemm" not in found  # narrow matrices keep it: those of keys and values
    assert ATTENTION not in found


@pytest.mark.parametrize(
    ("name", "rows", "there"), [("gpt-oss-20b", 8, False), ("gpt-oss-20b", 16, True), ("qwen3-30b-a3b", 32, False)]
)
def test_experts_of_mxfp4_use_matrix_units_for_smaller_batches(name, rows, there):
    """MXFP4 has no integer weights, so other kernels convert them to floats for each choice."""
    with opened_layers(name) as file:
        assert (EXPERTS in kernels_of(file, rows, prefill=False)) == there


def test_gate_and_up_of_phi4_fill_an_h200_with_one_round_of_workgroups():
    """For 35,840 rows, two workgroups of eight subgroups on each of 132 multiprocessors would need a second round."""
    with opened_layers("phi4-14.7b-q4_k_m") as file:
        step = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(16))
    assert {row.workgroups for row in step.dispatches if "ffn_gate_up" in row.name} == {132}


@pytest.mark.parametrize(("coherent", "rows", "count"), [(True, 16, 132), (True, 32, 128), (False, 16, 107)])
def test_columns_are_split_if_rows_do_not_divide_evenly_among_workgroups(coherent, rows, count):
    """5,120 rows are 320 fragments, three for each of 132 multiprocessors. In the last round, 25 would have no work."""
    can = replace(WITH_MATRIX_UNITS, coherent=coherent)
    with opened_layers("phi4-14.7b-q4_k_m") as file:
        step = record_step(file, can, tuning_with_matrix_units(), Step(rows))
    workgroups = {row.workgroups for row in step.dispatches if "ffn_down" in row.name}
    assert workgroups == {count}


def attending(file: GGUFFile, rows: int, context: int, kv: str = "f16") -> set[str]:
    """Returns the kernels of attention in decode."""
    step = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(rows, kv=kv, context=context))
    return {row.kernel.partition(".")[0] for row in step.dispatches if "attention_decode" in row.kernel}


@pytest.mark.parametrize("rows", [1, 16])
def test_heads_that_lanes_would_read_several_times_attend_on_matrix_units_in_long_contexts(rows):
    with opened_layers("tinyllama-1.1b-q4_k_m") as file:  # eight heads of 64 numbers share keys
        assert attending(file, rows, 4096) == {"attention/attention_decode_matrix"}
        assert attending(file, rows, 4096, "q8") == attending(file, 1, 512) == {"attention/attention_decode"}
    with opened_layers("llama-8b-q4_k_m") as file:  # four heads of 128
        assert attending(file, rows, 4096) == {"attention/attention_decode"}


@pytest.mark.parametrize(
    ("size", "there"), [(64, True), (72, True), (128, True), (136, True), (256, True), (264, False)]
)
def test_prompts_attend_on_matrix_units_also_if_zeros_fill_the_last_fragment_of_a_head(size, there):
    shape = transformer("llama", 32000, sizes(1, 576, 1024, 8, 2, size))
    with opened(noise("heads", shape, QUANTS["f16"])) as file:
        assert (ATTENTION in kernels_of(file, 512, prefill=True)) == there


@pytest.mark.parametrize(
    ("rows", "context", "split"), [(64, 32768, True), (128, 32768, True), (512, 32768, False), (64, 512, False)]
)
def test_a_question_far_into_a_conversation_attends_in_runs_that_are_joined(rows, context, split):
    """Otherwise, few workgroups would read the whole context: 64 rows of Llama 8B have 32 of them."""
    with opened_layers("llama-8b-q4_k_m") as file:
        step = record_step(
            file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(rows, prefill=True, context=context)
        )
    kernels = [row.kernel for row in step.dispatches]
    assert any(kernel.startswith(ATTENTION) for kernel in kernels)
    assert any("split_reduce.every_run" in kernel for kernel in kernels) == split


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_few_sequences_decode_without_matrix_units(rows):
    with opened_layers("rwkv7-0.4b-q4_k_m") as file:
        assert PRODUCTS not in kernels_of(file, rows, prefill=False)


@pytest.mark.parametrize("rows", [1, 4])
def test_decode_uses_kernels_without_matrix_units(rows):
    with GGUFFile.open(OWN / "tiny-qwen3moe.gguf") as file:
        assert not kernels_of(file, rows, prefill=False) & {PRODUCTS, EXPERTS, ATTENTION}


def test_keys_and_values_in_float32_are_not_rounded():
    with GGUFFile.open(OWN / "tiny-llama.gguf") as file:
        assert ATTENTION not in kernels_of(file, 512, prefill=True, kv="f32")


def layer_of_a_batch(name: str, rows: int = 16) -> list[str]:
    """Returns the kernels of a layer for a number of sequences."""
    with opened_layers(name) as file:
        step = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(rows))
    return [one.kernel.partition(".")[0] for one in step.dispatches if one.layer == 4]


@pytest.mark.parametrize(("name", "rows"), [("llama-8b-q4_k_m", 16), ("llama-8b-q4_k_m", 5), ("phi4-14.7b-q4_k_m", 16)])
def test_a_layer_takes_five_dispatches_in_a_batch(name, rows):
    """As in a step of one row, each input is rounded by its producer, including the widest input."""
    line = "linear/line_gemm"
    assert layer_of_a_batch(name, rows) == [line, "attention/attention_decode", line, line, line]


def test_few_short_rows_go_to_matrix_units_where_rounding_them_is_free():
    """A token shift is fused with its readers. Their products of few rows are faster without matrix units."""
    assert "linear/subgroup_gemm" in layer_of_a_batch("lfm2-1.2b-q4_k_m", 8)
    layer = layer_of_a_batch("rwkv7-2.9b-q4_k_m", 8)
    shifts = [at for at, kernel in enumerate(layer[:-1]) if kernel == "rwkv/norm_shift_mix"]
    assert {layer[at + 1] for at in shifts} == {"linear/skinny_gemm"}
    assert layer[layer.index("rwkv/time_mix_decode") + 1] == "linear/subgroup_gemm"


def test_experts_in_a_batch_round_their_input_once():
    """Gate and up write the input of down, and the sum of results writes the input of the next layer."""
    layer = layer_of_a_batch("gpt-oss-20b")
    assert layer[-4:] == ["moe/expert_sort", EXPERTS, EXPERTS, "moe/expert_gather"]
    assert layer.count("linear/round_rows") == 1
    assert "dense/rms_norm" not in layer


@pytest.mark.parametrize("name", ["glm-4.7-flash-30b-q4_k_m", "deepseek-v2-lite-16b-q4_k_m"])
def test_head_products_in_a_batch_round_their_input_and_output(name):
    """One kernel computes all rows of a head, so no rounding is needed between attention and its last product.

    Latents are written in the dispatch of the first product.
    """
    layer = layer_of_a_batch(name)
    attention = layer.index("attention/latent_attention_matrix")
    assert layer[attention - 1] == EXPERTS
    assert "attention/latent_write" not in layer
    assert layer[attention : layer.index("linear/subgroup_gemm", attention)] == [
        "attention/latent_attention_matrix",
        "attention/split_reduce",
        EXPERTS,
    ]


@pytest.mark.parametrize("name", ["glm-4.7-flash-30b-q4_k_m", "granite4-h-tiny-7b-q4_k_m"])
def test_a_router_of_a_batch_shares_a_dispatch_with_the_shared_expert(name):
    with opened_layers(name) as file:
        step = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(16))
    [router] = [one.name for one in step.dispatches if one.layer == 5 and "ffn_gate_inp" in one.name]
    assert router == "ffn_gate_up_shexp subgroup_gemm.q4_k & ffn_gate_inp gemv.f32"


def test_short_rows_go_to_matrix_units_where_rounding_them_is_free():
    """Falcon-H1's attention is 1,280 wide. Granite's rows are 1,536 wide, and its experts round them."""
    falcon, granite = (layer_of_a_batch(name) for name in ("falcon-h1-3.1b-q4_k_m", "granite4-h-tiny-7b-q4_k_m"))
    assert falcon.count("linear/subgroup_gemm") == 6
    assert falcon.count("linear/line_gemm") == 1  # v, in Q6_K
    assert "linear/round_rows" not in falcon
    assert granite[0] == "linear/subgroup_gemm"
    assert granite.count("linear/subgroup_gemm") == 1


@pytest.mark.parametrize("name", ["glm-4.7-flash-30b-q4_k_m", "qwen3-30b-a3b-q4_k_m"])
def test_experts_summed_by_their_product_round_the_input_of_the_next_layer(name):
    """The sum also writes float16, so the next products use matrix units without an additional dispatch."""
    layer = layer_of_a_batch(name)
    assert (layer[0], layer[-1]) == ("linear/subgroup_gemm", "moe/expert_sum_gemv_int")
