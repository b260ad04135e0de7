"""Optional parts of files: biases, fused matrices, blocks and keys, read as by llama.cpp."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import Model, load_model
from rwkv_gpu.ops.vocabulary import LayerNorm, Rms
from tests.gguf.parts import Parts, Stored, take_apart
from tests.gguf.writer import BOOL, F32, STRING, U32, written
from tests.golden_files import OWN

SAME = 2e-5  # rms: float32 sums in another order, over logits of deviation 2.5
IDS = np.random.default_rng(7).integers(3, 250, 24).tolist()
HYBRIDS = "falcon-h1", "granitehybrid", "lfm2", "nemotron_h", "qwen35"
HIDDEN = "attention.layer_norm_rms_epsilon"


def parts(name: str) -> Parts:
    return take_apart((OWN / f"tiny-{name}.gguf").read_bytes())


def arch_of(whole: Parts) -> str:
    return whole.row("general.architecture").value.decode()


def drop(whole: Parts, key: str) -> None:
    """Removes a key of the architecture."""
    whole.rows = [row for row in whole.rows if row.name != f"{arch_of(whole)}.{key}".encode()]


def give(whole: Parts, **keys: float | bool | str) -> None:
    """Sets keys of the architecture; dots are written as two underscores."""
    kinds = {bool: BOOL, int: U32, float: F32, str: STRING}
    for name, value in keys.items():
        stored = value.encode() if isinstance(value, str) else value
        whole.set(f"{arch_of(whole)}.{name.replace('__', '.')}", kinds[type(value)], stored)


def vector(name: str, size: int, value: float = 1.0) -> Stored:
    return Stored(name.encode(), [size], 0, np.full(size, value, np.float32).tobytes())


def model_of(tmp_path, whole: Parts) -> Model:
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        return load_model(file)


def logits(tmp_path, whole: Parts, ids: list[int] = IDS) -> np.ndarray:
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
        return llm.logits(ids)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def matrices(whole: Parts, ending: str) -> list[Stored]:
    return [one for one in whole.tensors if one.name.endswith(ending.encode())]


def join_qkv(whole: Parts, ending: bytes = b"weight") -> None:
    """Combines q, k and v of each attention layer in one tensor, as converters do with --fuse-qkv."""
    for q in matrices(whole, f".attn_q.{ending.decode()}"):
        at = q.name.removesuffix(b"q." + ending)
        found = [one for one in whole.tensors if one.name in (at + x + b"." + ending for x in (b"q", b"k", b"v"))]
        if len(found) < 3 or len({one.kind for one in found}) > 1:  # latent attention, or v in a separate format
            continue
        rows = sorted(found, key=lambda one: b"qkv".index(one.name[len(at) : len(at) + 1]))
        dims = [*q.dims[:-1], sum(one.dims[-1] for one in rows)]
        whole.tensors = [one for one in whole.tensors if one not in found]
        whole.tensors.append(Stored(at + b"qkv." + ending, dims, q.kind, b"".join(one.data for one in rows)))
    assert matrices(whole, f".attn_qkv.{ending.decode()}")


@pytest.mark.parametrize("name", ["lfm2", "nemotron_h", "qwen35", "kimi-linear"])
def test_q_k_and_v_of_a_hybrid_may_be_rows_of_one_matrix(tmp_path, name):
    whole = parts(name)
    wanted = logits(tmp_path, whole)
    join_qkv(whole)
    assert rms(logits(tmp_path, whole) - wanted) < SAME


@pytest.mark.parametrize("opening", ["cpu", "fast"], indirect=True)
def test_biases_of_gated_attention_may_be_one_vector(tmp_path, opening, rounding):
    """The bias of q alternates between query and gate for each head."""
    whole = parts("qwen35")
    drawn = np.random.default_rng(3)
    for name in "qkv":
        for one in matrices(whole, f".attn_{name}.weight"):
            value = drawn.standard_normal(one.dims[1]).astype(np.float32)
            bias = one.name.replace(b"weight", b"bias")
            whole.tensors.append(Stored(bias, [one.dims[1]], 0, value.tobytes()))
    wanted = logits(tmp_path, whole)
    assert rms(wanted - logits(tmp_path, parts("qwen35"))) > 0.1
    join_qkv(whole)
    join_qkv(whole, b"bias")
    with rwkv_gpu.load(written(tmp_path, whole.built()), kv="f32", context=64, **opening) as llm:
        assert rms(llm.logits(IDS) - wanted) < SAME + rounding


@pytest.mark.parametrize("opening", ["cpu", "fast"], indirect=True)
def test_the_last_norm_of_qrwkv_may_have_a_bias(tmp_path, opening, rounding):
    """The bias of the last norm adds the same vector to every row before the head."""
    whole = parts("rwkv6qwen2")
    plain = logits(tmp_path, whole)
    width = whole.row("rwkv6qwen2.embedding_length").value
    whole.tensors.append(vector("output_norm.bias", width, 0.5))
    with rwkv_gpu.load(written(tmp_path, whole.built()), context=64, **opening) as llm:
        added = llm.logits(IDS) - plain
    assert rms(added) > 0.1
    assert rms(added - added.mean(0)) < SAME + rounding


@pytest.mark.parametrize("name", ["qwen35moe", "qwen3next", "nemotron_h_moe"])
def test_without_a_key_experts_are_as_wide_as_their_tensors(tmp_path, name):
    """In these families `feed_forward_length` is the total width of all experts of a row."""
    whole = parts(name)
    wanted = logits(tmp_path, whole)
    drop(whole, "expert_feed_forward_length")
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


@pytest.mark.parametrize("name", HYBRIDS)
def test_attention_of_a_hybrid_may_have_biases(tmp_path, name):
    """Zero biases change nothing, others do. Without positions, a constant added to all keys changes nothing."""
    plain = parts(name)
    wanted = logits(tmp_path, plain)
    for part in ("q", "k", "v", "output"):
        changed = []
        if (name, part) == ("qwen35", "output"):  # llama.cpp reads none
            continue
        for value in (0.0, 0.5):
            whole = parts(name)
            for one in matrices(whole, f".attn_{part}.weight"):
                whole.tensors.append(vector(one.name.decode().replace("weight", "bias"), one.dims[1], value))
            changed.append(rms(logits(tmp_path, whole) - wanted))
        assert changed[0] < SAME, part
        unseen = part == "k" and name in ("granitehybrid", "nemotron_h")
        assert changed[1] < SAME if unseen else changed[1] > 1e-3, part


@pytest.mark.parametrize("name", ["falcon-h1", "lfm2", "nemotron_h"])
def test_feed_forwards_of_a_hybrid_may_have_biases(tmp_path, name):
    wanted = logits(tmp_path, parts(name))
    for part in ("gate", "up", "down") if name != "nemotron_h" else ("up", "down"):
        for value, low, high in ((0.0, 0.0, SAME), (0.5, 1e-2, 10.0)):
            whole = parts(name)
            for one in matrices(whole, f".ffn_{part}.weight"):
                whole.tensors.append(vector(one.name.decode().replace("weight", "bias"), one.dims[1], value))
            assert low <= rms(logits(tmp_path, whole) - wanted) < high, part


@pytest.mark.parametrize("name", ["nemotron_h", "falcon-h1"])
def test_a_file_may_name_its_eps_as_that_of_layer_norms(tmp_path, name):
    whole = parts(name)
    wanted = logits(tmp_path, whole)
    eps = whole.row(f"{arch_of(whole)}.{HIDDEN}").value
    drop(whole, HIDDEN)
    give(whole, attention__layer_norm_epsilon=eps)
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


def test_blocks_of_nemotron_h_that_predict_further_tokens_are_not_executed(tmp_path):
    whole = parts("nemotron_h")
    wanted = logits(tmp_path, whole)
    blocks = whole.row("nemotron_h.block_count").value
    for key in ("feed_forward_length", "attention.head_count_kv"):
        row = whole.row(f"nemotron_h.{key}")
        row.value = [*row.value, 2]
    give(whole, block_count=blocks + 1, nextn_predict_layers=1)
    whole.tensors += [vector(f"blk.{blocks}.{name}.weight", 80) for name in ("attn_norm", "nextn.enorm")]
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


def test_attention_of_lfm2_may_have_a_window(tmp_path):
    window = 8
    whole = parts("lfm2")
    wanted = logits(tmp_path, whole)
    give(whole, attention__sliding_window=window)
    model = model_of(tmp_path, whole)
    assert {cache.window for cache in model.caches} == {window}
    got = logits(tmp_path, whole)
    assert rms(got[:window] - wanted[:window]) < SAME
    assert rms(got[window + 1 :] - wanted[window + 1 :]) > 1e-2


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt-oss", "llama4", "muse-glimmer", "cohere2", "exaone-moe"])
def test_window_layers_rotate_by_their_own_base_if_the_file_has_one(tmp_path, name):
    whole = parts(name)
    before = [p.how.rope for p in model_of(tmp_path, whole).attentions]
    give(whole, rope__freq_base_swa=777.0)
    hows = [p.how for p in model_of(tmp_path, whole).attentions]
    near = [how.rope for how in hows if how.window or how.chunk]
    assert near
    assert {rope.base for rope in near} == {777.0}
    for how, old in zip(hows, before, strict=True):
        if not (how.window or how.chunk):
            assert how.rope == old


def test_yarn_of_gemma3_scales_full_layers_alone(tmp_path):
    whole = parts("gemma3")
    give(whole, rope__scaling__type="yarn", rope__scaling__factor=4.0)
    for p in model_of(tmp_path, whole).attentions:
        assert (p.how.rope.yarn is None) == bool(p.how.window)
        assert (p.how.rope.magnitude == 1.0) == bool(p.how.window)


@pytest.mark.parametrize(("name", "cap"), [("gemma2", 30.0), ("gemma3", 0.0), ("gemma4", 30.0), ("muse-glimmer", 30.0)])
def test_without_a_key_logits_are_capped(tmp_path, name, cap):
    whole = parts(name)
    drop(whole, "final_logit_softcapping")
    assert model_of(tmp_path, whole).ends.softcap == cap


def test_without_a_key_the_window_of_gemma2_is_4096(tmp_path):
    whole = parts("gemma2")
    drop(whole, "attention.sliding_window")
    assert [p.how.window for p in model_of(tmp_path, whole).attentions] == [4096, 0, 4096]


def test_without_a_key_exaone4_of_64_layers_has_windows(tmp_path):
    whole = parts("exaone4")
    first = [one for one in whole.tensors if one.name.startswith(b"blk.0.")]
    for i in range(2, 64):
        names = (one.name.replace(b"blk.0.", b"blk.%d." % i) for one in first)
        whole.tensors += [Stored(name, one.dims, one.kind, one.data) for name, one in zip(names, first, strict=True)]
    give(whole, block_count=64)
    hows = [p.how for p in model_of(tmp_path, whole).attentions]
    assert [how.window for how in hows] == [4096, 4096, 4096, 0] * 16
    assert [how.rope is None for how in hows] == [False, False, False, True] * 16


def test_norms_of_cohere2moe_are_layer_norms_unless_the_file_has_an_eps_of_rms_norms(tmp_path):
    whole = parts("cohere2moe")
    assert isinstance(model_of(tmp_path, whole).ends.last_norm, LayerNorm)
    give(whole, attention__layer_norm_rms_epsilon=1e-5)
    assert isinstance(model_of(tmp_path, whole).ends.last_norm, Rms)


def test_granite_may_have_no_positions(tmp_path):
    whole = parts("granite")
    give(whole, rope__scaling__finetuned=False)
    whole.tensors.append(vector("rope_freqs.weight", 8))  # a tensor that converters write anyway
    assert [p.how.rope for p in model_of(tmp_path, whole).attentions] == [None] * 3
    give(whole, rope__scaling__finetuned=True)
    assert None not in [p.how.rope for p in model_of(tmp_path, whole).attentions]


def test_with_a_window_of_0_all_layers_of_llama4_rotate_and_see_the_whole_context(tmp_path):
    """MobileLLM-R1 has such files, without experts. Norms of heads without weight equal those with weights of one."""
    whole = parts("maincoder")
    norms = [one for one in whole.tensors if one.name.endswith((b"attn_q_norm.weight", b"attn_k_norm.weight"))]
    for one in norms:
        one.data = np.ones(one.dims[0], np.float32).tobytes()
    wanted = logits(tmp_path, whole)
    whole.tensors = [one for one in whole.tensors if one not in norms]
    for row in whole.rows:
        row.name = row.name.replace(b"maincoder.", b"llama4.")
    whole.set("general.architecture", STRING, b"llama4")
    give(whole, attention__sliding_window=0)
    assert rms(logits(tmp_path, whole) - wanted) < SAME
    drop(whole, "attention.sliding_window")
    assert [p.how.chunk for p in model_of(tmp_path, whole).attentions] == [8192, 8192]


def test_arrays_of_experts_have_a_number_for_every_layer_with_experts(tmp_path):
    with GGUFFile.open(OWN / "puzzle-nemotron_h_moe.gguf") as file:
        load_model(file)
    for key, value in (("expert_used_count", [0, 1, 0, 0]), ("expert_feed_forward_length", [0, 32, 0])):
        whole = take_apart((OWN / "puzzle-nemotron_h_moe.gguf").read_bytes())
        whole.row(f"nemotron_h_moe.{key}").value = value
        with pytest.raises(BadFile, match="found none for layer 3"):
            model_of(tmp_path, whole)


def test_there_are_no_shared_experts_where_the_file_counts_none(tmp_path):
    whole = parts("glm4moe")
    give(whole, expert_shared_count=0)
    whole.tensors = [one for one in whole.tensors if b"shexp" not in one.name]
    feeds = model_of(tmp_path, whole).feeds[1:]
    assert [feed.mixture.shared for feed in feeds] == [None] * len(feeds)


@pytest.mark.parametrize("opening", ["cpu", "fast"], indirect=True)
def test_experts_may_read_a_latent(tmp_path, opening, rounding):
    """Larger Nemotron 3 models have such files. An identity gives the same answers, and another matrix does not."""
    whole = parts("nemotron_h_moe")
    wanted = logits(tmp_path, whole)
    width, kept = whole.row("nemotron_h_moe.embedding_length").value, whole.tensors
    for gain, low, high in ((1.0, 0.0, SAME + rounding), (0.5, 1e-2, 10.0)):
        matrix = gain * np.eye(width, dtype=np.float32)
        whole.tensors = [*kept]
        for router in matrices(whole, ".ffn_gate_inp.weight"):
            for name in (b"ffn_latent_down", b"ffn_latent_up"):
                latent = router.name.replace(b"ffn_gate_inp", name)
                whole.tensors.append(Stored(latent, [width, width], 0, matrix.tobytes()))
        with rwkv_gpu.load(written(tmp_path, whole.built()), kv="f32", context=64, **opening) as llm:
            assert low <= rms(llm.logits(IDS) - wanted) < high


def test_scales_of_activations_change_nothing(tmp_path):
    """These scales are for programs that quantise activations, so they are ignored."""
    whole = parts("qwen3")
    wanted = logits(tmp_path, whole)
    whole.tensors = [*whole.tensors, vector("blk.0.attn_q.input_scale", 1, 0.3), vector("blk.0.attn_q.scale", 1)]
    np.testing.assert_array_equal(logits(tmp_path, whole), wanted)


def test_a_head_may_have_a_scale(tmp_path):
    """The logits are multiplied by the scale."""
    whole = parts("qwen3")
    wanted = logits(tmp_path, whole)
    whole.tensors = [*whole.tensors, vector("output.scale", 1, 0.5)]
    np.testing.assert_array_equal(logits(tmp_path, whole), 0.5 * wanted)


def test_a_scale_of_a_matrix_outside_products_is_refused(tmp_path):
    """In older files of latent attention, rows of the matrix are rearranged before they are multiplied."""
    whole = parts("kimi-linear")
    [name] = {one.name for one in matrices(whole, ".attn_k_b.weight")} or [b""]
    whole.tensors = [*whole.tensors, vector(name.decode().replace("weight", "scale"), 1, 0.3)]
    with pytest.raises(UnsupportedModel, match="matrices that are scaled as a whole"):
        model_of(tmp_path, whole)
