"""Recorded steps: few dispatches for a layer, the savings of each pass, and the options of `rwkv-gpu plan`."""

from collections import Counter

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.plans import RecordedStep, Step, record_step
from tests.golden_files import OWN
from tests.measure.tiny import opened_layers

MODELS = ("tiny-rwkv7", "tiny-llama", "tiny-qwen3", "tiny-qwen3moe")


def recorded(name: str, limits: str, step: Step, without: tuple[str, ...] = ()) -> RecordedStep:
    with GGUFFile.open(OWN / f"{name}.gguf") as file:
        return record_step(file, LIMITS[limits], default_tuning(LIMITS[limits]), step, without)


@pytest.mark.parametrize(
    ("name", "most"), [("mamba2-2.7b", 3), ("nemotron3-nano-32b", 4), ("falcon-h1-3.1b", 5), ("lfm2-1.2b", 4)]
)
def test_a_recurrent_layer_is_few_dispatches_in_decode_on_an_h200(name, most):
    """Mamba-2 layers take four: the input product with the norm, the recurrence, the norm by groups, and the output
    product.

    In Falcon-H1, attention shares the dispatch of the recurrence, one product reads both, and the feed-forward takes
    two. LFM2 takes two products, the second of which convolves, and two for the feed-forward.
    """
    with opened_layers(name, 26) as file:
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
def test_a_dense_layer_takes_few_dispatches_in_decode_on_an_h200_with_any_norms(name, most):
    if name.startswith("tiny"):
        step = recorded(name, "h200", Step(1))
    else:
        with opened_layers(name) as file:
            step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    counts = Counter(row.layer for row in step.dispatches if row.layer is not None)
    assert set(counts.values()) == {most}


def test_leaving_out_a_pass_costs_its_reported_savings():
    whole = recorded("tiny-rwkv7", "h200", Step(1))
    saved = {row.name: row for row in whole.passes}
    for name in ("norm_into_embedding", "token_shift_into_products", "lora_into_time_mix", "merge_gemms"):
        less = recorded("tiny-rwkv7", "h200", Step(1), (name,))
        assert saved[name].fired > 0
        assert saved[name].dispatches == len(less.dispatches) - len(whole.dispatches) > 0
        assert saved[name].nbytes == less.nbytes - whole.nbytes
        assert {row.name: row.left_out for row in less.passes}[name]


def test_a_delta_net_with_its_feed_forward_is_five_dispatches_in_decode_on_an_h200():
    with opened_layers("qwen3.5-27b-q4_k_m") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    assert [row.layer for row in step.dispatches].count(1) == 5


def test_a_layer_of_rwkv6_is_seven_dispatches_in_decode_on_an_h200():
    """Three come before the time mix, because it mixes rows with a LoRA of them. Three come after it."""
    with opened_layers("rwkv6-3b") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    counts = Counter(row.layer for row in step.dispatches if row.layer is not None)
    assert set(counts.values()) == {7}


def test_a_layer_of_rwkv7_is_five_dispatches_in_decode_on_an_h200():
    with opened_layers("rwkv7-2.9b-q4_k_m") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    layers = [row.layer for row in step.dispatches if row.layer is not None]
    assert {layers.count(layer) for layer in layers} == {5}


def test_more_sequences_than_a_step_can_have_are_refused():
    with pytest.raises(BadInput, match="256 sequences at most; for more rows of one prompt"):
        recorded("tiny-rwkv7", "default", Step(257))
