"""Dense transformers: the GPU equals the reference for any split into steps, and inconsistent files are refused."""

from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.engine.fit import fit
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.parameters import parameters_of
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.loader import host_weights
from rwkv_gpu.models.registry import Model, load_model
from rwkv_gpu.ops.batch import Batch
from tests.golden_files import golden
from tests.models.session import OnCpu, OnGpu, feed, float_weights
from tests.models.tiny_transformer import LAYERS, VOCABULARY, tiny_tensors, write

ARCHS = ("llama", "qwen2", "qwen3")
TOLERANCE = 1e-3  # two layers of float32 sums in another order; K and V in float16 are compared with float16


def opened(path: Path) -> tuple[Model, dict[str, np.ndarray]]:
    with GGUFFile.open(path) as file:
        model = load_model(file)
        return model, float_weights(file, model)


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).astype(np.uint32)


def logits_of(path: Path) -> np.ndarray:
    model, weights = opened(path)
    return feed(OnCpu(model, weights), tokens(9), [9])


@pytest.mark.parametrize("arch", ARCHS)
def test_the_gpu_equals_the_reference_however_it_is_fed(device, tmp_path, arch):
    model, weights = opened(write(tmp_path, arch, tiny_tensors(arch)))
    ids = tokens(70)
    whole = feed(OnCpu(model, weights), ids, [70])
    for chunks in ([70], [5, 1, 58, 6]):
        got = feed(OnGpu(model, weights, device, max(chunks)), ids, chunks)
        np.testing.assert_allclose(got, whole, rtol=TOLERANCE, atol=TOLERANCE)


def test_batched_on_the_gpu_equals_alone_on_the_cpu(device, tmp_path):
    model, weights = opened(write(tmp_path, "llama", tiny_tensors("llama")))
    prompts = {2: tokens(9), 0: tokens(3, seed=1), 3: tokens(80, seed=2)}
    cuts = {2: 4, 0: 1, 3: 63}
    gpu = OnGpu(model, weights, device, 90)
    gpu.step(Batch.of([(slot, 0, ids[: cuts[slot]]) for slot, ids in prompts.items()]))
    rest = gpu.step(Batch.of([(slot, cuts[slot], ids[cuts[slot] :]) for slot, ids in prompts.items()]))
    for row, ids in zip(rest, prompts.values(), strict=True):
        alone = feed(OnCpu(model, weights), ids, [len(ids)])
        np.testing.assert_allclose(row, alone[-1], rtol=TOLERANCE, atol=TOLERANCE)


# ---------------------------------------------------------------- dispatches and memory


def decode_layer(path: Path, device: Device, position: int = 0, layer: int = 1) -> list[str]:
    """Returns the dispatches of one layer, with one row per sequence."""
    with GGUFFile.open(path) as file:
        runner = GpuRunner(device, file, load_model(file), chunk_size=8)
    plan = runner.plan_for(Batch.of([(0, position, [1])]))
    names = [dispatch.name for dispatch in plan.dispatches if dispatch.name.startswith(f"blk.{layer}/")]
    print(*names, sep="\n")
    return names


@pytest.mark.parametrize("arch", ARCHS)
def test_a_layer_takes_5_dispatches_in_decode_and_one_more_far_into_a_context_if_another_dispatch_reduces_attention(
    adapter, tmp_path, arch
):
    path = write(tmp_path, arch, tiny_tensors(arch))
    with Device(adapter) as device:
        assert len(decode_layer(path, device)) == 5
        far = decode_layer(path, device, position=700)
        assert len(far) == (5 if any("attention_decode" in name for name in far) else 6)


def test_a_layer_whose_values_are_of_another_format_takes_one_more(adapter):
    with Device(adapter) as device:
        for position, most in ((0, 6), (700, 7)):
            assert len(decode_layer(golden("qwen3-small-Q4_K_M.gguf"), device, position, layer=2)) <= most


def test_fit_counts_the_memory_that_is_allocated(adapter, tmp_path):
    with GGUFFile.open(write(tmp_path, "llama", tiny_tensors("llama"))) as file, Device(adapter) as device:
        told = fit(device, file, load_model(file), slots=3, context=500)
        runner = GpuRunner(device, file, load_model(file), slots=3, context=500)
        assert runner.context == 500
        assert told.state == device.memory()["kv"] == 2 * LAYERS * 3 * 512 * 48 * 2


# ---------------------------------------------------------------- files that differ


def test_without_an_output_matrix_the_embedding_is_used(tmp_path):
    tensors = tiny_tensors("llama")
    tensors["output.weight"] = tensors["token_embd.weight"]
    expected = logits_of(write(tmp_path, "llama", tensors))
    del tensors["output.weight"]
    assert np.array_equal(logits_of(write(tmp_path, "llama", tensors)), expected)


def test_gate_and_up_of_two_formats_stay_apart(device, tmp_path):
    tensors = tiny_tensors("llama")
    for i in range(LAYERS):
        gate = f"blk.{i}.ffn_gate.weight"
        tensors[gate] = tensors[gate].astype(np.float16)
    mixed = write(tmp_path, "llama", tensors)
    model, weights = opened(mixed)
    assert "blk.0.ffn_gate.weight" in weights
    expected = feed(OnCpu(model, weights), tokens(9), [9])
    together = write(tmp_path, "llama", {name: array.astype(np.float32) for name, array in tensors.items()})
    assert "blk.0.ffn_gate_up" in opened(together)[1]
    np.testing.assert_allclose(logits_of(together), expected, rtol=1e-5, atol=1e-5)
    got = feed(OnGpu(model, weights, device, 9), tokens(9), [9])
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_number_of_parameters_equals_that_of_the_file(tmp_path, arch):
    with GGUFFile.open(write(tmp_path, arch, tiny_tensors(arch))) as file:
        model = load_model(file)
        loaded, expected = host_weights(file, parameters_of(file, model)), float_weights(file, model)
    assert {weight.name: weight.shape for weight in model.weights} == {name: a.shape for name, a in loaded.items()}
    assert len({weight.name for weight in model.weights}) == len(model.weights)
    for name, array in expected.items():
        assert np.array_equal(loaded[name], array)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_missing_or_misshapen_tensor_is_named(tmp_path, arch):
    for name, array in tiny_tensors(arch).items():
        tensors = tiny_tensors(arch)
        tensors[name] = np.zeros((*array.shape[:-1], 32 + array.shape[-1]), np.float32)
        with pytest.raises(BadFile, match=rf"tensor '{name}': found the shape .*, expected \[.*\]"):
            opened(write(tmp_path, arch, tensors))
        del tensors[name]
        if name == "output.weight" or name.endswith(("attn_q.bias", "attn_k.bias", "attn_v.bias")):  # may be missing
            continue
        with pytest.raises(BadFile, match=rf"tensor '{name}': found no such tensor, expected one"):
            opened(write(tmp_path, arch, tensors))


def test_towers_of_images_and_sounds_are_left_out(tmp_path):
    extra = {name: np.zeros(32, np.float32) for name in ("v.blk.0.ln1.weight", "mm.0.bias", "a.conv1d.1.bias")}
    path = write(tmp_path, "llama", tiny_tensors("llama") | extra)
    assert np.array_equal(logits_of(path), logits_of(write(tmp_path, "llama", tiny_tensors("llama"))))


def test_a_tensor_that_would_be_left_out_is_named(tmp_path):
    tensors = tiny_tensors("llama") | {"blk.1.attn_sinks.weight": np.zeros(4, np.float32)}
    with pytest.raises(UnsupportedModel, match="tensor 'blk.1.attn_sinks.weight': unknown in architecture 'llama'"):
        opened(write(tmp_path, "llama", tensors))


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"attention__head_count_kv": 3}, BadFile, "head_count_kv.*found 3, expected a divisor of the 4 heads"),
        ({"attention__value_length": 32}, BadFile, "attn_v.weight"),
        ({"block_count": 3}, BadFile, "blk.2"),
        ({"block_count": 2**32 - 1}, BadFile, "block_count.*found 4294967295, expected an integer from 1 to"),
        ({"feed_forward_length": 97}, BadFile, "ffn_gate"),
        ({"rope__dimension_count": 26}, BadFile, "dimension_count"),
        ({"rope__dimension_count": 7}, BadFile, "dimension_count.*found 7, expected an even number"),
        ({"rope__scaling__type": "dynamic"}, UnsupportedModel, "rope scaling 'dynamic'.*known: none, linear, yarn"),
        ({"expert_count": 8}, BadFile, "expert_used_count.*is missing"),
        (
            {"attention__key_length": 520, "attention__value_length": 520, "rope__dimension_count": 20},
            UnsupportedModel,
            "heads of size 520 are not supported; known: 4 to 512",
        ),
    ],
)
def test_contradictory_or_unsupported_values_are_named(tmp_path, keys, error, says):
    with pytest.raises(error, match=says):
        opened(write(tmp_path, "llama", tiny_tensors("llama"), **keys))


def test_scaled_positions_change_the_generated_text(tmp_path):
    tensors = tiny_tensors("qwen3")
    plain = logits_of(write(tmp_path, "qwen3", tensors))
    linear = logits_of(write(tmp_path, "qwen3", tensors, rope__scaling__factor=4.0))
    none = logits_of(write(tmp_path, "qwen3", tensors, rope__scaling__factor=4.0, rope__scaling__type="none"))
    keys = {"rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 256}
    yarn = logits_of(write(tmp_path, "qwen3", tensors, rope__scaling__type="yarn", **keys))
    assert np.array_equal(plain, none)
    assert len({logits.tobytes() for logits in (plain, linear, yarn)}) == 3
