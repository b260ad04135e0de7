"""Families with experts: variants of their files. `tests/test_own_golden.py` compares their logits."""

from dataclasses import replace

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.models.experts import mixture
from rwkv_gpu.models.llama4 import CHUNK
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import Temperature
from tests.gguf.parts import Parts, Stored, take_apart
from tests.gguf.writer import BOOL, F32, U32, written
from tests.golden_files import golden
from tests.models.session import float_weights

SAME = 2e-5  # rms: float32 sums in another order, over logits of deviation 2.5


def parts(name: str, arch: str | None = None) -> Parts:
    """Returns the contents of a golden file under another architecture."""
    whole = take_apart(golden(f"tiny-{name}.gguf").read_bytes())
    old = whole.row("general.architecture").value
    if arch is not None:
        for row in whole.rows:
            row.name = row.name.replace(old + b".", arch.encode() + b".", 1) if row.name.startswith(old) else row.name
        whole.row("general.architecture").value = arch.encode()
    return whole


def record(name: str) -> np.lib.npyio.NpzFile:
    return np.load(golden(f"tiny-{name}.gguf").with_suffix(".npz"))


def logits(tmp_path, whole: Parts, ids: list[int]) -> np.ndarray:
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
        return llm.logits(ids)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def ones(name: str, size: int) -> Stored:
    return Stored(name.encode(), [size], 0, np.ones(size, np.float32).tobytes())


def test_a_block_that_predicts_further_tokens_is_not_executed(tmp_path):
    """The last block drafts tokens. It is skipped, whatever tensors it has."""
    whole = parts("glm4moe")
    whole.set("glm4moe.nextn_predict_layers", U32, 1)
    whole.tensors += [ones("blk.2.nextn.enorm.weight", 72), ones("blk.2.nextn.shared_head_norm.weight", 72)]
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        assert len(load_model(file).caches) == 2
    whole.set("glm4moe.nextn_predict_layers", U32, 0)
    path = written(tmp_path, whole.built())
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModel, match="nextn"):
        load_model(file)


def test_llama4_attends_to_chunks_in_layers_with_rotation_and_to_all_positions_in_every_fourth():
    with GGUFFile.open(golden("tiny-llama4.gguf")) as file:
        hows = [attention.how for attention in load_model(file).attentions]
    assert [how.chunk for how in hows] == [CHUNK, CHUNK, CHUNK, 0]
    assert [how.rope is None for how in hows] == [False, False, False, True]
    assert [how.norms is None for how in hows] == [False, False, False, True]
    assert [how.temperature for how in hows] == [None, None, None, Temperature(0.1, 8192, shift=1)]


def test_gemma4_shares_keys_as_its_file_sets_and_may_have_unused_ones(tmp_path):
    whole = parts("gemma4")
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        model = load_model(file)
    own = len(model.blocks) - whole.row("gemma4.attention.shared_kv_layers").value
    assert len(model.caches) == own < len(model.blocks)
    for layer in model.blocks[own:]:
        shared = model.blocks[own - 2 if layer.attention.how.window else own - 1]
        assert layer.attention.cache is shared.attention.cache
    ids = record("gemma4")["tokens"].tolist()
    wanted = logits(tmp_path, whole, ids)
    whole.tensors += [ones(f"blk.{own}.attn_{name}.weight", 32) for name in ("k", "v", "k_norm")]
    np.testing.assert_array_equal(logits(tmp_path, whole, ids), wanted)


@pytest.mark.parametrize(
    ("key", "kind", "value", "error", "match"),
    [
        ("expert_gating_func", U32, 5, UnsupportedModel, "expert_gating_func 5 is not supported"),
        ("expert_group_count", U32, 4, UnsupportedModel, "cannot be chosen"),
        ("expert_used_count", U32, 7, BadFile, "expert_used_count"),
        ("expert_count", U32, 5, BadFile, "found the shape"),
        ("expert_weights_norm", BOOL, 0, None, ""),
    ],
)
def test_impossible_sizes_are_refused_by_name(tmp_path, key, kind, value, error, match):
    whole = parts("glm4moe")
    whole.set(f"glm4moe.{key}", kind, value)
    path = written(tmp_path, whole.built())
    with GGUFFile.open(path) as file:
        if error is None:
            load_model(file)
        else:
            with pytest.raises(error, match=match):
                load_model(file)


def test_the_last_norm_of_a_layer_of_grok_has_two_names(tmp_path):
    whole, ids = parts("grok"), record("grok")["tokens"].tolist()
    wanted = logits(tmp_path, whole, ids)
    for one in whole.tensors:
        one.name = one.name.replace(b"post_ffw_norm", b"layer_output_norm")
    np.testing.assert_array_equal(logits(tmp_path, whole, ids), wanted)


def test_a_router_of_grok_has_the_cap_of_its_file(tmp_path):
    """llama.cpp reads the key but caps nothing, so there is no record. A very high cap changes nothing."""
    whole, ids = parts("grok"), record("grok")["tokens"].tolist()
    wanted = logits(tmp_path, whole, ids)
    for cap, least, most in ((1e5, 0.0, SAME), (0.5, 1e-2, 10.0)):
        whole.set("grok.router_logit_softcapping", F32, cap)
        assert least <= rms(logits(tmp_path, whole, ids) - wanted) < most


def test_scores_of_grok_grow_beyond_the_length_that_its_file_states(tmp_path):
    """The scale follows the publisher's code; llama.cpp reads the key, but scales nothing."""
    whole, ids = parts("grok"), record("grok")["tokens"].tolist()
    wanted = logits(tmp_path, whole, ids)
    whole.set("grok.attention.temperature_length", U32, 8)
    got = logits(tmp_path, whole, ids)
    np.testing.assert_array_equal(got[:9], wanted[:9])
    assert min(rms(row) for row in (got - wanted)[9:]) > 1e-3


def test_neighbouring_experts_of_grovemoe_share_a_smaller_one_that_has_their_shares():
    """Compared with the publisher's formula in float64. llama.cpp uses other inputs and shares for the smaller
    experts.
    """
    with GGUFFile.open(golden("tiny-grovemoe.gguf")) as file:
        model = load_model(file)
        weights = float_weights(file, model)
    plain, x = model.feeds[0].mixture, np.random.default_rng(3).standard_normal((9, 64)).astype(np.float32)
    assert plain.adjugates.scale == 0, "llama.cpp would give another record"
    batch = Batch.of([(0, 0, [0] * 9)])
    p = replace(plain, adjugates=replace(plain.adjugates, scale=0.4))
    got = mixture(Reference(weights, {}, batch), p, x, None, None)

    def answer(kind: str, e: int, row: np.ndarray) -> np.ndarray:
        gate, up, down = (weights[f"blk.0.ffn_{n}_{kind}.weight"][e].astype(float) for n in ("gate", "up", "down"))
        return down @ (gate @ row / (1 + np.exp(-gate @ row)) * (up @ row))

    twice = 0
    for row, found in zip(x.astype(float), got, strict=True):
        odds = np.exp(weights["blk.0.ffn_gate_inp.weight"].astype(float) @ row)
        chosen = np.argsort(-odds)[:2]
        twice += chosen[0] // 2 == chosen[1] // 2
        shares = odds[chosen] / odds[chosen].sum()
        wanted = sum(
            share * (answer("exps", e, row) + 0.4 * answer("chexps", e // 2, row))
            for share, e in zip(shares, chosen, strict=True)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert 0 < twice < 9


def test_grovemoe_computes_its_smaller_experts_on_every_device_alike(tmp_path, adapter, rounding):
    whole, ids = parts("grovemoe"), record("grovemoe")["tokens"].tolist()
    whole.set("grovemoe.expert_group_scale", F32, 0.4)
    wanted = logits(tmp_path, whole, ids)
    assert rms(wanted - record("grovemoe")["exact_logits"]) > 0.1
    with rwkv_gpu.load(written(tmp_path, whole.built()), device=str(adapter.index), kv="f32", context=64) as llm:
        for chunk in (24, 1):
            assert rms(llm.logits(ids, chunk_size=chunk) - wanted) < SAME + rounding


def test_a_group_of_grovemoe_must_divide_its_experts(tmp_path):
    whole = parts("grovemoe")
    whole.set("grovemoe.experts_per_group", U32, 3)
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(BadFile, match="a divisor of the 4"):
        load_model(file)


def test_a_file_without_its_shared_expert_or_its_biases_is_refused(tmp_path):
    for name, lost in (
        ("glm4moe", b"ffn_up_shexp.weight"),
        ("gpt-oss", b"ffn_up_exps.bias"),
        ("gpt-oss", b"attn_sinks.weight"),
    ):
        whole = parts(name)
        whole.tensors = [one for one in whole.tensors if not one.name.endswith(lost)]
        path = written(tmp_path, whole.built())
        with GGUFFile.open(path) as file, pytest.raises(BadFile, match=lost.decode()):
            load_model(file)


@pytest.mark.parametrize(
    ("name", "by_products"),
    [("gpt-oss", True), ("glm4moe", True), ("gemma4-experts", True), ("llama4", False), ("deepseek2", False)],
)
def test_products_rank_experts_where_an_expert_is_chosen_by_its_own_logit(name, by_products):
    """Products cannot rank experts if experts are in groups, or if products need the shares."""
    can = LIMITS["h200"]
    with GGUFFile.open(golden(f"tiny-{name}.gguf")) as file:
        step = record_step(file, can, default_tuning(can), Step(1, context=64))
    assert any(one.name == "route_into_experts" and one.fired for one in step.passes) == by_products


def test_gemma3n_shares_the_keys_that_its_file_lists(tmp_path):
    """The last layers use the keys of the last window layer, or of the last full layer. 20 layers have keys of their
    own.
    """
    whole = parts("gemma3n")
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        assert len(load_model(file).caches) == 11
    whole.set("gemma3n.attention.shared_kv_layers", U32, 6)
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        model = load_model(file)
    assert [p.attention.cache.name for p in model.blocks[5:]] == [f"blk.{i}.kv" for i in (3, 3, 3, 3, 4, 3)]
    assert len(model.caches) == 5


def test_layer_norms_of_heads_write_where_attention_reads():
    """Compared with two norms, only a copy of values is added."""
    with GGUFFile.open(golden("headed-stablelm.gguf")) as file:
        step = record_step(file, LIMITS["default"], default_tuning(LIMITS["default"]), Step(1))
    kernels = [row.kernel.split(".")[0] for row in step.dispatches if row.layer == 0]
    assert [kernels.count(name) for name in ("ssm/group_norm", "dense/copy_rows")] == [2, 1]


def test_values_that_are_smaller_than_keys_are_padded_where_attention_reads_them():
    """One dispatch pads the values, and one cuts the result. Keys and queries are copied in the same dispatch."""
    with GGUFFile.open(golden("tiny-mimo2.gguf")) as file:
        step = record_step(file, LIMITS["default"], default_tuning(LIMITS["default"]), Step(1))
    kernels = [row.kernel.split(".")[0] for row in step.dispatches if row.layer == 0]
    assert [kernels.count(f"dense/{name}") for name in ("resize_heads", "copy_rows")] == [2, 2]
