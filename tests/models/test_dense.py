"""Dense families: fused matrices, and keys with a value for each layer."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.fields import Fields
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.models.dense import DenseFile, Form, by_layer
from rwkv_gpu.models.dense_families import baichuan, refact
from rwkv_gpu.models.registry import load_model
from tests.gguf.writer import BOOL, array_key, number, number_key, with_keys, written
from tests.golden_files import OWN
from tests.models.test_transformer import logits_of
from tests.models.tiny_transformer import LAYERS, tiny_tensors, write


def fused(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the model with q, k and v in one matrix, and gate and up in another."""
    made = dict(tensors)
    for i in range(LAYERS):
        for at, names, whole in ((f"blk.{i}.attn", "qkv", "qkv"), (f"blk.{i}.ffn", ("gate", "up"), "up")):
            for kind in ("weight", "bias"):
                parts = [made.pop(f"{at}_{name}.{kind}") for name in names if f"{at}_{name}.{kind}" in made]
                if parts:
                    made[f"{at}_{whole}.{kind}"] = np.concatenate(parts)
    return made


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_rows_of_one_matrix_give_the_logits_of_separate_matrices(tmp_path, arch):
    tensors = tiny_tensors(arch)
    expected = logits_of(write(tmp_path, arch, tensors))
    assert np.array_equal(logits_of(write(tmp_path, arch, fused(tensors))), expected)


def test_rows_are_read_from_the_file_as_they_are(tmp_path):
    path = write(tmp_path, "llama", fused(tiny_tensors("llama")))
    with GGUFFile.open(path) as file:
        names = {weight.name for weight in load_model(file).weights}
    assert {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"} <= names
    assert "blk.0.attn_qkv.weight" not in names


def test_the_larger_baichuan_equals_refact_and_the_smaller_llama():
    """llama.cpp distinguishes them by their number of layers."""
    with GGUFFile.open(OWN / "tiny-baichuan.gguf") as file:
        source = DenseFile(file, "baichuan")
        assert baichuan(source) == Form()
        source.hyper = replace(source.hyper, layers=40)
        assert baichuan(source) == Form(ropes=[None] * 40, alibi=8.0) == refact(source)


@pytest.mark.parametrize("step", [Step(1), Step(4), Step(64, prefill=True)])
def test_clamped_values_are_written_where_attention_reads_them(step):
    def kernels(*without: str) -> Counter[str]:
        with GGUFFile.open(OWN / "tiny-olmo.gguf") as file:
            recorded = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), step, without)
        return Counter(row.kernel.partition(".")[0] for row in recorded.dispatches)

    with_copies, fused = kernels("write_into_stack"), kernels()
    assert (with_copies["dense/copy_rows"], fused["dense/copy_rows"]) == (6, 0)
    assert with_copies["dense/map_unary"] == fused["dense/map_unary"] == 6


def windows(path) -> list[int]:
    with GGUFFile.open(path) as file:
        return [p.how.window for p in load_model(file).attentions]


def test_a_file_lists_the_layers_with_a_window(tmp_path):
    data = (OWN / "tiny-gemma2.gguf").read_bytes()
    key = "gemma2.attention.sliding_window_pattern"
    assert windows(OWN / "tiny-gemma2.gguf") == [77, 0, 77]
    pattern = array_key(key, BOOL, [number(BOOL, one) for one in (0, 1, 1)])
    assert windows(written(tmp_path, with_keys(data, [pattern]))) == [0, 77, 77]
    with pytest.raises(BadFile, match="sliding_window_pattern.*found 2 entries, expected one for each of 3"):
        windows(written(tmp_path, with_keys(data, [array_key(key, BOOL, [number(BOOL, 1)] * 2)])))


def test_a_number_may_be_given_per_layer_or_once():
    numbers = {"once": 3, "each": np.array([3, 1, 2], np.uint32), "odd": np.array([3, 0, 1], np.int32)}
    fields = Fields("model.gguf", numbers)
    fields.path = "model.gguf"
    assert by_layer(fields, "once", 3, 8) == (3, 3, 3)
    assert by_layer(fields, "each", 3, 8) == (3, 1, 2)
    assert by_layer(fields, "none", 3, 8, default=(1, 1, 1)) == (1, 1, 1)
    for key, layers in (("each", 4), ("odd", 3)):
        with pytest.raises(UnsupportedModel, match=rf"metadata key '{key}': found \[3, .*for each of {layers} layers"):
            by_layer(fields, key, layers, 8)


def test_layers_that_run_twice_give_the_logits_of_twice_as_many(tmp_path):
    """The record is of Nanbeige without the norm in between."""
    tensors = tiny_tensors("llama")
    names = {name: name.split(".", 2) for name in tensors if name.startswith("blk.")}
    again = {f"blk.{LAYERS + int(i)}.{rest}": tensors[name] for name, (_, i, rest) in names.items()}
    expected = logits_of(write(tmp_path, "llama", tensors | again, block_count=2 * LAYERS))
    path = write(tmp_path, "nanbeige", tensors, num_loops=2)
    normed = logits_of(path)
    with GGUFFile.open(path) as file:
        assert len(load_model(file).caches) == 2 * LAYERS
    plain = with_keys(path.read_bytes(), [number_key("nanbeige.skip_loop_final_norm", BOOL, 1)])
    assert np.array_equal(logits_of(written(tmp_path, plain)), expected)
    assert np.abs(normed - expected).max() > 0.1


def test_too_many_passes_over_the_layers_are_refused(tmp_path):
    path = write(tmp_path, "nanbeige", tiny_tensors("llama"), num_loops=257)
    with (
        GGUFFile.open(path) as file,
        pytest.raises(UnsupportedModel, match="257 times 2 layers are too many; known: up to 512"),
    ):
        load_model(file)
