"""Variants of file formats: a model gives the same logits as its golden file, read as by llama.cpp."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gguf.planes import dequantise_rows
from rwkv_gpu.ops.adapted import adapted_rows
from tests.gguf.parts import Parts, Row, Stored
from tests.gguf.writer import ARRAY, I32, written
from tests.models import test_mixtures as mixtures
from tests.models.test_optional_parts import IDS, SAME, drop, give, logits, matrices, model_of, parts, rms


def as_floats(one: Stored) -> Stored:
    """Returns the tensors as float32."""
    raw = np.frombuffer(one.data, np.uint8).reshape(int(np.prod(one.dims[1:])), -1)
    return Stored(one.name, one.dims, 0, dequantise_rows(FORMATS[one.kind], raw).astype("<f4").tobytes())


def without_biases(whole: Parts) -> Parts:
    endings = tuple(f".attn_{name}.bias".encode() for name in "qkv")
    whole.tensors = [one for one in whole.tensors if not one.name.endswith(endings)]
    return whole


@pytest.mark.parametrize("name", ["gpt-oss", "qwen2", "qwen2moe", "qwen2vl", "seed_oss"])
def test_families_with_biases_may_lack_them(tmp_path, name):
    """Missing biases are zero."""
    zeros = parts(name)
    for one in zeros.tensors:
        if one.name.endswith((b".attn_q.bias", b".attn_k.bias", b".attn_v.bias")):
            one.data = bytes(len(one.data))
    wanted = logits(tmp_path, zeros)
    assert rms(logits(tmp_path, without_biases(parts(name))) - wanted) < SAME


@pytest.mark.parametrize("name", ["qwen2moe", "qwen3moe"])
def test_without_a_key_experts_are_as_wide_as_their_tensors(tmp_path, name):
    """In older files the width of the feed-forward is the total width of the experts of a row."""
    whole = parts(name)
    wanted = logits(tmp_path, whole)
    arch = name
    inner = whole.row(f"{arch}.expert_feed_forward_length").value
    drop(whole, "expert_feed_forward_length")
    give(whole, feed_forward_length=inner * whole.row(f"{arch}.expert_used_count").value)
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


def test_gemma4_may_count_no_experts(tmp_path):
    whole = parts("gemma4")
    wanted = logits(tmp_path, whole)
    give(whole, expert_count=0)
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "gemma4-experts"])
def test_q_k_and_v_of_layers_that_share_keys_may_be_rows_of_one_matrix(tmp_path, name):
    """A layer that reads the keys of another layer uses only the rows of q. A layer without v is not changed."""
    whole = parts(name)
    whole.tensors = [as_floats(one) if b".attn_" in one.name else one for one in whole.tensors]
    wanted, fused = logits(tmp_path, whole), 0
    for q in matrices(whole, ".attn_q.weight"):
        at = q.name.removesuffix(b"q.weight")
        rows = [one for name in (b"q", b"k", b"v") for one in whole.tensors if one.name == at + name + b".weight"]
        if len(rows) == 3:
            dims = [q.dims[0], sum(one.dims[1] for one in rows)]
            whole.tensors = [one for one in whole.tensors if one not in rows]
            whole.tensors.append(Stored(at + b"qkv.weight", dims, 0, b"".join(one.data for one in rows)))
            fused += 1
    assert fused > 0
    assert rms(logits(tmp_path, whole) - wanted) < SAME


def test_a_layer_that_shares_keys_may_have_all_three_in_one_matrix(tmp_path):
    """The k and v of such a layer are not used."""
    whole = parts("gemma4")
    wanted = logits(tmp_path, whole)
    last = model_of(tmp_path, whole).blocks[-1].attention.cache
    q = matrices(whole, f"blk.{whole.row('gemma4.block_count').value - 1}.attn_q.weight")[0]
    of_kv, q.data, q.kind = 2 * last.heads * last.size, as_floats(q).data, 0
    q.name, q.dims = q.name.replace(b"attn_q.", b"attn_qkv."), [q.dims[0], q.dims[1] + of_kv]
    q.data += np.ones(of_kv * q.dims[0], np.float32).tobytes()
    assert rms(logits(tmp_path, whole) - wanted) < SAME


def test_context_scaling_changes_nothing_in_muse_glimmer(tmp_path):
    """Full layers have no rotation, so scaling changes nothing."""
    whole = parts("muse-glimmer")
    wanted = logits(tmp_path, whole)
    give(whole, rope__scaling__type="yarn", rope__scaling__factor=4.0)
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


def test_empty_sections_of_glm4_mean_no_sections(tmp_path):
    whole = parts("glm4")
    wanted = logits(tmp_path, whole)
    whole.rows.append(Row(b"glm4.rope.dimension_sections", ARRAY, [0, 0, 0, 0], I32))
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


def test_heads_of_llama4_are_normed_after_rotation(tmp_path):
    """The norm comes after the rotation, so a factor that changes the length of a head has no effect."""
    whole = parts("llama4")
    wanted = logits(tmp_path, whole)
    give(whole, rope__scaling__attn_factor=0.5)
    assert rms(logits(tmp_path, whole) - wanted) < SAME


def test_yarn_of_a_factor_below_1_changes_no_magnitude(tmp_path):
    whole = parts("llama")
    give(whole, rope__scaling__type="yarn", rope__scaling__factor=0.5)
    assert {p.how.rope.magnitude for p in model_of(tmp_path, whole).attentions} == {1.0}


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gemma4", "muse-glimmer"])
def test_a_cap_of_0_means_no_cap(tmp_path, name):
    whole = parts(name)
    give(whole, final_logit_softcapping=0.0)
    assert model_of(tmp_path, whole).ends.softcap == 0.0


def test_scales_of_granite_may_be_0_for_1(tmp_path):
    """The file also has a scale of scores, in place of the one derived from the head size."""
    whole = parts("granite")
    for key in ("embedding_scale", "residual_scale", "attention.scale"):
        drop(whole, key)
    wanted = logits(tmp_path, whole)
    give(whole, embedding_scale=0.0, residual_scale=0.0, attention__scale=0.0)
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


def test_window_layers_of_plamo3_have_a_default_base(tmp_path):
    """These layers are not scaled."""
    whole = parts("plamo3")
    drop(whole, "rope.freq_base_swa")
    give(whole, rope__freq_base=5e5, rope__scaling__factor=4.0)
    ropes = {p.how.window > 0: p.how.rope for p in model_of(tmp_path, whole).attentions}
    assert (ropes[True].base, ropes[True].scale) == (10000.0, 1.0)
    assert (ropes[False].base, ropes[False].scale) == (5e5, 0.25)


@pytest.mark.parametrize(("name", "arch"), [("granitemoe", "granite"), ("llama-experts", "mistral3")])
def test_dense_families_may_have_experts(tmp_path, name, arch):
    """A dense family with experts gives the same logits as a related family."""
    wanted = logits(tmp_path, mixtures.parts(name))
    np.testing.assert_array_equal(logits(tmp_path, mixtures.parts(name, arch)), wanted)


@pytest.mark.parametrize("opening", ["cpu", "fast"], indirect=True)
def test_early_files_of_qwen3next_have_q_k_v_and_gate_in_one_tensor(tmp_path, opening, rounding):
    """Rows are ordered by key head. An adapter for such a file has rows in the same order."""
    whole = parts("qwen3next")
    whole.tensors = [
        as_floats(one) if b".attn_qkv." in one.name or b".attn_gate." in one.name else one for one in whole.tensors
    ]
    wanted = logits(tmp_path, whole)
    size, key_heads = (whole.row(f"qwen3next.ssm.{key}").value for key in ("state_size", "group_count"))
    for gate in matrices(whole, ".attn_gate.weight"):
        qkv = next(one for one in whole.tensors if one.name == gate.name.replace(b"gate", b"qkv"))
        width, keys = gate.dims[0], size * key_heads
        rows, z = (np.frombuffer(one.data, "<f4").reshape(-1, width) for one in (qkv, gate))
        of_heads = [x.reshape(key_heads, -1, width) for x in (*np.split(rows, [keys, 2 * keys]), z)]
        data = np.concatenate(of_heads, axis=1)
        whole.tensors = [one for one in whole.tensors if one is not qkv and one is not gate]
        name = gate.name.replace(b"attn_gate", b"ssm_in")
        whole.tensors.append(Stored(name, [width, len(rows) + len(z)], 0, data.tobytes()))
        [weight] = [one for one in model_of(tmp_path, whole).weights if one.name.encode() == qkv.name]
        source, numbers = adapted_rows(weight)
        assert source.encode() == name
        np.testing.assert_array_equal(data.reshape(-1, width)[list(numbers)], rows)
    assert matrices(whole, ".ssm_in.weight")
    with rwkv_gpu.load(written(tmp_path, whole.built()), kv="f32", context=64, **opening) as llm:
        assert rms(llm.logits(IDS) - wanted) < SAME + rounding


@pytest.mark.parametrize("name", ["granitehybrid", "jamba", "lfm2"])
def test_without_a_key_hybrids_have_as_many_heads_of_keys_as_of_queries(tmp_path, name):
    """Without the key, all layers attend. Repeated heads equal one head that several queries share."""
    whole = parts(name)
    counts = whole.row(f"{name}.attention.head_count_kv").value
    layer, kv_heads = next((i, count) for i, count in enumerate(counts) if count)
    prefix = f"blk.{layer}.".encode()
    whole.tensors = [one for one in whole.tensors if not one.name.startswith(b"blk.") or one.name.startswith(prefix)]
    for one in whole.tensors:
        one.name = one.name.replace(prefix, b"blk.0.")
    give(whole, block_count=1, attention__head_count_kv=kv_heads)
    wanted, heads = logits(tmp_path, whole), whole.row(f"{name}.attention.head_count").value
    for one in (*matrices(whole, ".attn_k.weight"), *matrices(whole, ".attn_v.weight")):
        rows = np.frombuffer(one.data, np.uint8).reshape(kv_heads, -1)
        one.data, one.dims = (
            np.repeat(rows, heads // kv_heads, axis=0).tobytes(),
            [one.dims[0], one.dims[1] * heads // kv_heads],
        )
    drop(whole, "attention.head_count_kv")
    assert heads > kv_heads
    assert rms(logits(tmp_path, whole) - wanted) < SAME


@pytest.mark.parametrize("opening", ["portable", "fast"], indirect=True)
def test_head_sizes_of_gemma4_need_not_be_multiples_of_8(tmp_path, opening, rounding):
    """Caches have zeros after the head, which norms do not count."""
    whole = parts("gemma4")
    whole.tensors = [
        as_floats(one) if b".attn_" in one.name or one.name == b"rope_freqs.weight" else one for one in whole.tensors
    ]
    flags = whole.row("gemma4.attention.sliding_window_pattern").value
    for one in whole.tensors:
        name = one.name.split(b".")
        if name[0] == b"blk" and name[2].startswith((b"attn_q", b"attn_k", b"attn_v", b"attn_output")):
            old = 24 if flags[int(name[1])] else 48
            cut_heads(one, old, old - 4, -1 if name[2] == b"attn_output" else 0)
        elif name[0] == b"rope_freqs":
            cut_heads(one, 24, 22, 0)
    for ending, size in (("length", 44), ("length_swa", 20)):
        give(whole, **{f"attention__{kind}_{ending}": size for kind in ("key", "value")})
    give(whole, rope__dimension_count=44, rope__dimension_count_swa=20)
    wanted = logits(tmp_path, whole)
    assert {p.attention.cache.size for p in model_of(tmp_path, whole).blocks} == {24, 48}
    with rwkv_gpu.load(written(tmp_path, whole.built()), kv="f32", context=64, **opening) as llm:
        assert rms(llm.logits(IDS) - wanted) < SAME + rounding


def cut_heads(one: Stored, old: int, size: int, axis: int) -> None:
    """Keeps the first numbers of each head, in rows or in columns."""
    x = np.frombuffer(one.data, "<f4").reshape(one.dims[::-1])
    x = np.take(x, [i for i in range(x.shape[axis]) if i % old < size], axis)
    one.data, one.dims = x.tobytes(), list(x.shape[::-1])
