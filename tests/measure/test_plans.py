"""Recorded steps as text: those of tiny models stay what they are, and every pass says what it saves.

A change of a plan that is meant: `python -m tests.measure.test_plans` writes them anew; read the difference.
"""

from collections import Counter
from pathlib import Path

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.plans import RecordedStep, Step, record_step
from rwkv_gpu.measure.synthetic import open_synthetic
from tests.golden_files import OWN

FOLDER = Path(__file__).parent / "plans"
MODELS = ("tiny-rwkv7", "tiny-llama", "tiny-qwen3", "tiny-qwen3moe")
STEPS = (Step(1), Step(4), Step(64, prefill=True))


def recorded(name: str, limits: str, step: Step, without: tuple[str, ...] = ()) -> RecordedStep:
    with GGUFFile.open(OWN / f"{name}.gguf") as file:
        return record_step(file, LIMITS[limits], default_tuning(LIMITS[limits]), step, without)


def text(name: str) -> str:
    """The steps of a model: layer, workgroups, kernel with its parts, and the op."""
    lines = []
    for limits in ("default", "h200"):
        for step in STEPS:
            lines.append(f"# {limits}, {step.rows} row{'s of a prompt' if step.prefill else 's' * (step.rows > 1)}")
            for row in recorded(name, limits, step).dispatches:
                layer = "" if row.layer is None else f"blk.{row.layer} "
                bound = " ".join(f"{role}={what}" for role, what in row.bindings.items())
                lines.append(f"{layer}{row.name} {row.workgroups} [{row.op}] {row.kernel} {bound}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", MODELS)
def test_the_plans_of_tiny_models_stay_what_they_are(name):
    assert text(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "most"), [("mamba2-2.7b", 3), ("nemotron3-nano-32b", 4), ("falcon-h1-3.1b", 5), ("lfm2-1.2b", 4)]
)
def test_a_recurrent_layer_is_few_dispatches_in_decode_on_an_h200(name, most):
    """Its input product with the norm, recurrence, norm by groups, and output product; in Falcon-H1 attention shares
    the dispatch of the recurrence, one product reads both, and two are of the feed-forward; in LFM2 two products, of
    which the second convolves, and two of the feed-forward."""
    with open_synthetic(name) as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    recurrent = {row.layer for row in step.dispatches if "ssd" in row.kernel or "conv1d" in row.op}
    counts = Counter(row.layer for row in step.dispatches if row.layer in recurrent)
    assert len(recurrent) > 9
    assert set(counts.values()) == {most}


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("gemma3-4b", 7),
        ("gemma-4-31b", 7),
        ("phi4-14.7b", 5),
        ("ministral3-8.5b", 5),
        ("tiny-olmo2", 7),
        ("tiny-muse-glimmer", 7),
    ],
)
def test_a_dense_layer_is_few_dispatches_in_decode_on_an_h200_whatever_its_norms(name, most):
    if name.startswith("tiny"):
        step = recorded(name, "h200", Step(1))
    else:
        with open_synthetic(name) as file:
            step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    counts = Counter(row.layer for row in step.dispatches if row.layer is not None)
    assert set(counts.values()) == {most}


def test_a_pass_that_is_left_out_costs_what_it_is_said_to_save():
    whole = recorded("tiny-rwkv7", "h200", Step(1))
    saved = {row.name: row for row in whole.passes}
    for name in ("norm_into_embedding", "token_shift_into_products", "lora_into_time_mix", "merge_gemms"):
        less = recorded("tiny-rwkv7", "h200", Step(1), (name,))
        assert saved[name].fired > 0
        assert saved[name].dispatches == len(less.dispatches) - len(whole.dispatches) > 0
        assert saved[name].nbytes == less.nbytes - whole.nbytes
        assert {row.name: row.left_out for row in less.passes}[name]


def test_a_delta_net_with_its_feed_forward_is_five_dispatches_in_decode_on_an_h200():
    with open_synthetic("qwen3.5-27b-q4_k_m") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    assert [row.layer for row in step.dispatches].count(1) == 5


def test_a_layer_of_rwkv6_is_seven_dispatches_in_decode_on_an_h200():
    """Three before the time mix, as a mix of rows depends on a LoRA of them; it makes its decay; three behind it."""
    with open_synthetic("rwkv6-3b") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    counts = Counter(row.layer for row in step.dispatches if row.layer is not None)
    assert set(counts.values()) == {7}


def test_a_layer_of_rwkv7_is_five_dispatches_in_decode_on_an_h200():
    with open_synthetic("rwkv7-2.9b-q4_k_m") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    layers = [row.layer for row in step.dispatches if row.layer is not None]
    assert {layers.count(layer) for layer in layers} == {5}


def test_more_sequences_than_a_step_can_have_are_refused():
    with pytest.raises(BadInput, match="64 sequences at most; more rows are of a prompt"):
        recorded("tiny-rwkv7", "default", Step(65))


if __name__ == "__main__":
    for model in MODELS:
        (FOLDER / f"{model}.txt").write_text(text(model), encoding="utf-8")


def test_a_product_of_few_rows_whose_width_lanes_do_not_divide_keeps_a_device_busy():
    """Of RWKV-6 3B: 280 chunks by 64 lanes a row."""
    with open_synthetic("rwkv6-3b") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    [groups] = {row.workgroups for row in step.dispatches if row.name.startswith("channel_mix_value")}
    assert groups >= 100
