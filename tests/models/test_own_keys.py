"""Keys that one family has: bad values are refused in one line that names the key or the tensor."""

import numpy as np
import pytest

from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from tests.gguf.parts import take_apart
from tests.gguf.writer import F32, STRING, U32, written
from tests.golden_files import OWN
from tests.models.session import OnCpu, feed, float_weights

SWITCH = "graniteswitch"


@pytest.mark.parametrize(
    ("name", "key", "kind", "value", "says"),
    [
        ("kimi-k3", "attn_res.block_size", U32, 0, "kimi-k3.attn_res.block_size"),
        ("kimi-k3", "activation.situ_beta", F32, 0.0, "kimi-k3.activation.situ_beta"),
        ("kimi-k3", "activation.situ_linear_beta", F32, float("nan"), "kimi-k3.activation.situ_linear_beta"),
        ("kimi-k3", "kda.gate_lower_bound", F32, 1.0, "kimi-k3.kda.gate_lower_bound"),
        ("glm5next", "attention.indexer.kpool", U32, 0, "glm5next.attention.indexer.kpool"),
        ("glm5next", "attention.indexer.kpool", U32, 5, "'blk.1.indexer_compressor_ape.weight': found the shape"),
        ("glm5next", "attention.indexer.top_k", U32, 3, "glm5next.attention.indexer.top_k"),
        ("glm5next", "attention.indexer.key_length", U32, 32, "'blk.1.indexer.attn_q_b.weight': found the shape"),
        ("glm5next", "rope.dimension_count", U32, 8, "glm5next.rope.dimension_count"),
        ("glm5next", "kda.gate_lower_bound", F32, 1.0, "glm5next.kda.gate_lower_bound"),
        ("glm5next", "hyper_connection.sinkhorn_iterations", U32, 0, "hyper_connection.sinkhorn_iterations"),
        ("dots3note", "attention.key_length_mla_swa", U32, 8, "more than the 8 dims that rotate"),
        ("dots3note", "attention.kv_lora_rank_swa", U32, 48, "found the shape"),
        ("dots3note", "attention.sliding_window_pattern", U32, 1, "3 booleans"),
        ("minimax-m3", "attention.indexer.head_count", U32, 4, "expected 2, as KV heads of layer 0"),
        ("minimax-m3", "attention.indexer.block_size", U32, 0, "minimax-m3.attention.indexer.block_size"),
        ("minimax-m3", "attention.indexer.key_length", U32, 64, "'blk.0.indexer.q_proj.weight': found the shape"),
        ("qwen4exp", "hyper_connection.count", U32, 1, "qwen4exp.hyper_connection.count"),
        ("qwen4exp", "hyper_connection.low_rank", U32, 25, "'blk.0.hc_attn_down.weight': found the shape"),
        ("qwen4exp", "ple.ngram_size", U32, 4, "qwen4exp.ple.layer_multipliers.*4 numbers from 0 on"),
        ("qwen4exp", "ple.heads_per_ngram", U32, 3, "qwen4exp.ple.head_vocab_sizes.*6 numbers from 0 on"),
        ("qwen4exp", "ple.eos_token_id", U32, 288, "qwen4exp.ple.eos_token_id"),
        ("qwen4exp", "ple.conv_kernel", U32, 4, "'blk.1.ple_conv1d.weight': found the shape"),
        ("qwen4exp", "embedding_length_per_layer_input", U32, 24, "'per_layer_token_embd.weight': found the shape"),
        ("qwen4exp", "attention.indexer.key_length", U32, 4, "heads of size 4"),
        (SWITCH, "adapters.count", U32, 2, "expected 2 tokens below 288"),
        (SWITCH, "adapters.lora_rank", U32, 9, "'blk.0.attn_q.lora_a': found the shape"),
        (SWITCH, "adapters.router_gain", F32, 0.0, "graniteswitch.adapters.router_gain"),
    ],
)
def test_a_bad_value_is_named(name, key, kind, value, says, tmp_path):
    whole = take_apart((OWN / f"tiny-{name}.gguf").read_bytes())
    whole.set(f"{name}.{key}", kind, value)
    with (
        GGUFFile.open(written(tmp_path, whole.built())) as file,
        pytest.raises((BadFile, UnsupportedModel), match=says) as caught,
    ):
        load_model(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["activate", "substitute"])
def test_control_tokens_outside_the_vocabulary_are_refused(name, tmp_path):
    whole = take_apart((OWN / f"tiny-{SWITCH}.gguf").read_bytes())
    [row] = [row for row in whole.rows if row.name.decode().endswith(f"token_ids_{name}")]
    row.value = [*row.value[:-1], 288]
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(BadFile, match="3 tokens below 288"):
        load_model(file)


@pytest.mark.parametrize(
    ("key", "values", "says"),
    [
        ("ple.head_offsets", [0, 101, 204, 312], "rows 312 to 401, expected some of the 400 rows"),
        ("ple.head_offsets", [0, 2**63, 204, 301], "integers below 2.63"),
        ("ple.head_vocab_sizes", [101, 0, 97, 89], "rows 101 to 101"),
        ("ple.head_vocab_sizes", [101, 103, 97], "4 numbers from 0 on"),
        ("ple.layers", [3], "n-grams in layers \\[3\\]"),
        ("ple.layers", [0, 1], "n-grams in layers \\[0, 1\\]"),
        ("attention.compress_ratios", [0, 0], "3 integers from 0 to 16"),
    ],
)
def test_rows_of_a_table_of_ngrams_must_exist(key, values, says, tmp_path):
    whole = take_apart((OWN / "tiny-qwen4exp.gguf").read_bytes())
    [row] = [row for row in whole.rows if row.name.decode() == f"qwen4exp.{key}"]
    row.value = values
    with (
        GGUFFile.open(written(tmp_path, whole.built())) as file,
        pytest.raises((BadFile, UnsupportedModel), match=says) as caught,
    ):
        load_model(file)
    assert "\n" not in str(caught.value)


def test_a_control_token_is_read_as_its_substitute_with_its_adapter():
    with GGUFFile.open(OWN / f"tiny-{SWITCH}.gguf") as file:
        model, weights = load_model(file), float_weights(file, load_model(file))
        [control, *_] = file.ints(f"{SWITCH}.adapters.token_ids_activate")
        [substitute, *_] = file.ints(f"{SWITCH}.adapters.token_ids_substitute")
    text, control, substitute = [40, 41, 42, 43], int(control), int(substitute)
    found, other, plain = (
        feed(OnCpu(model, weights), ids, [len(ids)])
        for ids in ([*text, control, 44], [*text, substitute, 44], [*text, control])
    )
    np.testing.assert_allclose(found[:4], other[:4], atol=1e-5)
    assert np.abs(found[4:] - other[4:]).max() > 0.1
    np.testing.assert_allclose(found[4], plain[4], atol=1e-5)
    without = dict(weights) | {name: 0 * w for name, w in weights.items() if name.endswith(".lora_b")}
    same = (
        feed(OnCpu(model, without), [*text, control, 44], [6]),
        feed(OnCpu(model, without), [*text, substitute, 44], [6]),
    )
    np.testing.assert_allclose(*same, atol=1e-5)


def test_an_architecture_with_two_names_loads_by_either(tmp_path):
    """Files of GLM-5.3-Flash have the name, and prefix of keys, of either converter."""
    whole = take_apart((OWN / "tiny-glm5next.gguf").read_bytes())
    for row in whole.rows:
        row.name = row.name.replace(b"glm5next.", b"glm5-next.")
    whole.set("general.architecture", STRING, b"glm5-next")
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        assert len(load_model(file).weights) > 100
