"""LoRA adapters in steps of few rows: their additional dispatches, and rows with different adapters."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu.engine.adapters import Adapter, Adapters
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning, gpu_tuning
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.quantising import MAX_COLUMNS
from tests.engine.test_adapters import adapted, write
from tests.measure.tiny import opened_layers
from tests.ops.matrix_plans import WITH_MATRIX_UNITS, tuning_with_matrix_units

QUERIES, ALL = ("attn_q", "attn_v"), ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
# Additional dispatches of a layer: one for each x that adapters read.
MORE = {"queries": (QUERIES, 1), "all": (ALL, 4)}


def open_llama() -> GGUFFile:
    """Opens eight layers of Llama 8B. The format of v is Q4_K in the second layer, and Q6_K in the fourth."""
    return opened_layers("llama-8b", 8)


def adapters_for(file: GGUFFile, names: tuple[str, ...], count: int = 4) -> Adapters:
    """Returns adapters of zeros for matrices by name."""
    factors = {
        name: (np.zeros((16, tensor.shape[1]), np.float32), np.zeros((tensor.shape[0], 16), np.float32))
        for name, tensor in file.tensors.items()
        if name.removesuffix(".weight").rpartition(".")[2] in names
    }
    return Adapters([Adapter(f"a{n}", 1.0, 16, factors) for n in range(count)])


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("what", MORE)
def test_adapters_take_one_dispatch_for_each_input(what, rows):
    names, more = MORE[what]
    can, steps = LIMITS["h200"], []
    for some in ((), names):
        with open_llama() as file:
            adapters = adapters_for(file, some) if some else Adapters(())
            steps.append(record_step(file, can, default_tuning(can), Step(rows), adapters=adapters))
    layers = [[one for one in step.dispatches if one.layer == 1] for step in steps]
    assert len(layers[1]) - len(layers[0]) == more


def test_on_matrix_units_rows_are_rounded_by_their_producer_or_with_adapters():
    """Only the dispatches of the adapters are added."""
    layers = []
    for names in ((), ALL):
        with open_llama() as file:
            adapters = adapters_for(file, names) if names else Adapters(())
            found = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), Step(16), adapters=adapters)
        kernels = [one.kernel for one in found.dispatches if one.layer == 3]
        layers.append(Counter(kernel.partition(".")[0] for kernel in kernels))
    assert layers[1] - layers[0] == {"adapters/down": 4}
    adding = [sum("columns" in one.kernel.split(".") for one in found.dispatches if one.layer == i) for i in (3, 1)]
    assert adding == [5, 4]  # q and k; v, which has another format in layer 3; output; gate and up; down
    assert all(layer["linear/round_rows"] == 0 for layer in layers)


def test_on_matrix_units_a_prompt_has_one_product_with_all_a_for_each_input_and_none_with_b():
    """B is added as columns of the adapted matrices. A layer has 4 more dispatches instead of 24."""
    layers = []
    for names in ((), ALL):
        with open_llama() as file:
            adapters = adapters_for(file, names, 1) if names else Adapters(())
            step = Step(512, prefill=True)
            found = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), step, adapters=adapters)
        layers.append([one for one in found.dispatches if one.layer == 5])
    assert len(layers[1]) - len(layers[0]) == 4
    assert sum("adapter_columns" in one.kernel for one in layers[1]) == 4
    assert sum("columns" in one.kernel.split(".") for one in layers[1]) == 4


@pytest.mark.parametrize(("count", "products"), [(MAX_COLUMNS // 16, 1), (MAX_COLUMNS // 16 + 1, 0)])
def test_more_columns_than_a_matrix_takes_are_products_of_their_own(count, products):
    with open_llama() as file:
        step = Step(512, prefill=True)
        adapters = adapters_for(file, QUERIES, count)
        found = record_step(file, WITH_MATRIX_UNITS, tuning_with_matrix_units(), step, adapters=adapters)
    assert sum("adapter_columns" in one.kernel for one in found.dispatches if one.layer == 5) == products


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("rows", [1, 4, 16, 64, 200])
def test_every_step_with_adapters_can_be_recorded(limits, rows):
    """Tested on devices that bind few buffers, and with steps of many rows, which use other products."""
    can = LIMITS[limits]
    with opened_layers("qwen3-0.6b") as file:
        step = Step(rows, prefill=rows > 64)
        found = record_step(file, can, default_tuning(can), step, adapters=adapters_for(file, ALL, 1))
    assert sum("lora_a" in one.name for one in found.dispatches)


@pytest.mark.parametrize("model", ["llama", "rwkv6", "rwkv7"])
def test_rows_of_a_step_have_adapters_of_their_own_on_the_gpu(adapter, model, tmp_path):
    """Rows use no adapter, one, another of a different rank, and both. The result equals numpy's, with all fusions."""
    specs = [write(tmp_path, model, name, rank=rank, seed=rank) for name, rank in (("first", 4), ("second", 7))]
    logits = []
    for where in (adapter, None):
        runner = adapted(model, specs, where)
        if where is not None:
            runner.retune(gpu_tuning(runner.device.capabilities))
        sets = ({}, {"first": 1.0}, {"second": -0.5}, {"first": 0.3, "second": 0.7})
        scales = np.stack([runner.adapters.scales(one) for one in sets])
        steps = [Batch.of([(slot, start, [slot + 5]) for slot in range(4)]) for start in range(3)]  # decay needs a past
        logits.append([runner.step(replace(batch, adapters=scales)) for batch in steps][-1])
        if where is not None:
            runner.close()
    np.testing.assert_allclose(*logits, rtol=4e-3, atol=4e-3)  # float32 sums in another order, over the layers
    assert all(np.abs(one - logits[0][0]).max() > 0.1 for one in logits[0][1:])
