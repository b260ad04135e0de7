"""Encoders: every token of several texts in a step, and optional parts of their files."""

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.mixes import KEPT
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import MODELS, is_encoder, load_model
from rwkv_gpu.ops.batch import Batch
from tests.engine import test_split
from tests.gguf.parts import Parts, take_apart
from tests.gguf.writer import BOOL, F32, STRING, U32, written
from tests.golden.record import ENCODERS, LONG_ENCODERS, t5_encoder, twins, write
from tests.golden_files import EMBEDDING, OWN

SAME = 2e-6  # rms: float32 sums in another order, over embeddings of deviation 1
ROPE_ERROR = 3e-5  # llama.cpp rotates positions by float32 angles
SEEN = 0.02  # different computations differ by more
POOLED = {1: lambda rows: rows.mean(axis=0), 2: lambda rows: rows[0], 3: lambda rows: rows[-1]}
OPTIONS = {"slots": 8, "context": 512, "chunk_size": 512, "kv": "f32"}
KEY = "attention.causal"


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def parts(name: str) -> Parts:
    return take_apart((OWN / f"{name}.gguf").read_bytes())


def without(whole: Parts, key: str) -> None:
    """Removes a key of the architecture."""
    whole.rows = [row for row in whole.rows if not row.name.endswith(b"." + key.encode())]


def embedded(path, texts, adapter=None) -> list[np.ndarray]:
    """Returns the embedding of every token of the texts, from one step, in numpy or on a GPU."""
    with GGUFFile.open(path) as file:
        model = load_model(file)
        options = OPTIONS | {"context": min(OPTIONS["context"], model.context)}
        runner = GpuRunner(Device(adapter), file, model, **options) if adapter else HostRunner(file, model, **options)
        try:
            rows = runner.hidden(Batch.of([(slot, 0, text) for slot, text in enumerate(texts)], every=True))
        finally:
            runner.close()
    return np.split(rows, np.cumsum([len(text) for text in texts])[:-1])


def changed(tmp_path, whole: Parts, ids: list[int]) -> np.ndarray:
    return embedded(written(tmp_path, whole.built()), [ids])[0]


def loaded(tmp_path, whole: Parts):
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        return load_model(file)


def record_of(name: str) -> tuple[list[int], np.ndarray]:
    """Returns the tokens of a record, and their embeddings."""
    record = np.load(OWN / f"{name}.npz")
    return record["tokens"].tolist(), record["exact_embeddings"]


def check_all_texts(name: str, adapter=None, bound: float = SAME) -> None:
    """Compares all tokens of the record, and the pooled vectors of several texts in one step."""
    record = np.load(OWN / f"{name}.npz")
    texts = [record["tokens"][first:last].tolist() for first, last in record["texts"]]
    found = embedded(OWN / f"{name}.gguf", [*texts[1:], texts[0]], adapter)
    assert rms(found[-1] - record["exact_embeddings"]) < bound
    pool = POOLED[parts(name).row(f"{arch_of(name)}.pooling_type").value]
    for rows, expected in zip([found[-1], *found[:-1]], record["exact_pooled"], strict=True):
        assert rms(pool(rows) - expected) < bound


def arch_of(name: str) -> str:
    return parts(name).row("general.architecture").value.decode()


@pytest.mark.parametrize("name", EMBEDDING)
def test_texts_of_unlike_lengths_in_a_step_equal_llama_cpp(name):
    check_all_texts(name)


@pytest.mark.parametrize("name", EMBEDDING)
def test_texts_of_unlike_lengths_on_a_gpu_equal_llama_cpp(name, adapter, rounding):
    check_all_texts(name, adapter, SAME + rounding)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("arch", LONG_ENCODERS)
def test_a_text_of_several_pages_equals_llama_cpp(arch, on_gpu, adapter, rounding):
    record = np.load(OWN / f"tiny-{arch}.long.npz")
    texts = [[5, 6, 7], record["tokens"].tolist()]
    rows = embedded(OWN / f"tiny-{arch}.gguf", texts, adapter if on_gpu else None)[1][record["rows"]]
    assert rms(rows - record["exact_embeddings"]) < ROPE_ERROR + (rounding if on_gpu else 0)


@pytest.mark.parametrize("name", EMBEDDING)
def test_they_are_encoders_and_load_no_head(name):
    with GGUFFile.open(OWN / f"{name}.gguf") as file:
        model = load_model(file)
    assert is_encoder(model)
    assert "output.weight" not in {weight.name for weight in model.weights}


def test_every_encoder_is_a_registered_model():
    assert ENCODERS.keys() <= MODELS.keys()


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-modern-bert", "around-qwen2"])
def test_without_a_key_attention_is_causal(name, tmp_path):
    """Like llama.cpp, the loader assumes causal attention: an embedding does not depend on later tokens."""
    (ids, expected), whole = record_of(name), parts(name)
    without(whole, KEY)
    head, alone = changed(tmp_path, whole, ids)[:20], changed(tmp_path, whole, ids[:20])
    assert rms(head - alone) < SAME
    assert rms(head - expected[:20]) > SEEN


def test_embedding_gemma_always_attends_to_both_sides(tmp_path):
    (ids, expected), whole = record_of("tiny-gemma-embedding"), parts("tiny-gemma-embedding")
    whole.set(f"gemma-embedding.{KEY}", BOOL, True)
    assert rms(changed(tmp_path, whole, ids) - expected) < SAME


def test_an_encoder_with_causal_attention_is_still_an_encoder(tmp_path):
    whole = parts("tiny-eurobert")
    without(whole, KEY)
    model = loaded(tmp_path, whole)
    assert model.ends.causal and is_encoder(model)


def test_windows_are_centred_on_the_query(tmp_path):
    """Half of the window is on each side. A window twice as long as the text has no effect."""
    (ids, expected), whole = record_of("tiny-modern-bert"), parts("tiny-modern-bert")
    with GGUFFile.open(OWN / "tiny-modern-bert.gguf") as file:
        hows = [attention.how for attention in load_model(file).attentions]
    assert [how.window for how in hows] == [0, 16, 16, 0]
    assert [how.rope.base for how in hows] == [1e4] * 4
    key = "modern-bert.attention.sliding_window"
    whole.set(key, U32, 17)  # halves are whole numbers
    assert rms(changed(tmp_path, whole, ids) - expected) < SAME
    whole.set(key, U32, 18)
    assert rms(changed(tmp_path, whole, ids) - expected) > SEEN
    whole.set(key, U32, 2 * len(ids))
    wide = changed(tmp_path, whole, ids)
    without(whole, "attention.sliding_window")
    assert rms(changed(tmp_path, whole, ids) - wide) < SAME


@pytest.mark.parametrize(("activation", "same"), [("gelu", True), ("geglu", True), ("silu", False), ("reglu", False)])
def test_modern_bert_uses_the_activation_of_its_file(activation, same, tmp_path):
    (ids, expected), whole = record_of("tiny-modern-bert"), parts("tiny-modern-bert")
    whole.set("modern-bert.hidden_activation", STRING, activation.encode())
    assert (rms(changed(tmp_path, whole, ids) - expected) < SAME) == same


def test_only_the_first_layer_of_modern_bert_may_lack_its_norm(tmp_path):
    whole = parts("tiny-modern-bert")
    whole.tensors = [one for one in whole.tensors if one.name != b"blk.1.attn_norm.weight"]
    with pytest.raises(BadFile, match=r"blk\.1\.attn_norm\.weight"):
        loaded(tmp_path, whole)


def test_texts_use_the_first_token_type(tmp_path):
    (ids, expected), whole = record_of("tiny-bert"), parts("tiny-bert")
    types = next(one for one in whole.tensors if one.name == b"token_types.weight")
    rows = np.frombuffer(types.data, np.float32).reshape(2, -1).copy()
    rows[1] = 7
    types.data = rows.tobytes()
    assert rms(changed(tmp_path, whole, ids) - expected) < SAME
    rows[0] += np.arange(rows.shape[1])
    types.data = rows.tobytes()
    assert rms(changed(tmp_path, whole, ids) - expected) > SEEN


def test_token_types_may_be_float16(tmp_path):
    (ids, expected), whole = record_of("tiny-bert"), parts("tiny-bert")
    types = next(one for one in whole.tensors if one.name == b"token_types.weight")
    types.kind, types.data = 1, np.frombuffer(types.data, np.float32).astype(np.float16).tobytes()
    assert rms(changed(tmp_path, whole, ids) - expected) < 1e-3


def test_rows_of_positions_and_of_types_stay_as_they_are_when_a_file_is_quantised():
    assert KEPT.search("position_embd.weight") and KEPT.search("token_types.weight")


def test_the_lower_limit_of_eps_allows_1e_12_as_rounded_to_float32(tmp_path):
    whole = parts("tiny-bert")
    assert whole.row("bert.attention.layer_norm_epsilon").value < 1e-12
    whole.set("bert.attention.layer_norm_epsilon", F32, 8e-13)
    with pytest.raises(BadFile, match="epsilon"):
        loaded(tmp_path, whole)


def test_embedding_gemma_may_have_one_matrix_at_its_end_or_none(tmp_path):
    ids, _ = record_of("dense-gemma-embedding")
    whole = parts("dense-gemma-embedding")
    last = changed(tmp_path, whole, ids)
    whole.tensors = [one for one in whole.tensors if one.name != b"dense_3.weight"]
    assert changed(tmp_path, whole, ids).shape == (len(ids), 64)
    whole.tensors = [one for one in whole.tensors if one.name != b"dense_2.weight"]
    assert rms(changed(tmp_path, whole, ids) - last) > SEEN


def test_jina_has_gates_in_the_matrix_of_that_width_only(tmp_path):
    """Its first models have no gates."""
    whole, (ids, expected) = parts("tiny-jina-bert-v2"), record_of("tiny-jina-bert-v2")
    whole.tensors = [one for one in whole.tensors if b"ffn_gate" not in one.name]
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        model = load_model(file)
    assert all(feed.gates.name.endswith("ffn_up.weight") for feed in model.feeds)
    assert rms(changed(tmp_path, whole, ids) - expected) > SEEN


def formula_of_t5(path, ids: list[int]) -> np.ndarray:
    """Returns the embeddings of tokens by the publisher's formula in float64."""
    with GGUFFile.open(path) as file:
        w = {name: file.values(one).astype(np.float64) for name, one in file.tensors.items()}
        layers, heads, buckets = (
            file.int(f"t5encoder.{key}")
            for key in ("block_count", "attention.head_count", "attention.relative_buckets_count")
        )
        eps = file.float("t5encoder.attention.layer_norm_rms_epsilon")
    count, half = len(ids), buckets // 2
    distance = np.arange(count)[None] - np.arange(count)[:, None]  # of keys, the second axis
    far = np.log(np.maximum(np.abs(distance), 1) / (half // 2)) / np.log(128 / (half // 2))
    large = np.minimum(half // 2 + (far * (half - half // 2) + 1e-9).astype(int), half - 1)
    bucket = np.where(np.abs(distance) < half // 2, np.abs(distance), large) + half * (distance > 0)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * w[f"{name}.weight"]

    x = w["token_embd.weight"][ids]
    for i in range(layers):
        at = f"enc.blk.{i}"
        h = norm(x, f"{at}.attn_norm")
        q, k, v = ((h @ w[f"{at}.attn_{name}.weight"].T).reshape(count, heads, -1) for name in "qkv")
        table = w.get(f"{at}.attn_rel_b.weight", w["enc.blk.0.attn_rel_b.weight"])
        scores = np.einsum("qhn,khn->hqk", q, k) + table[bucket].transpose(2, 0, 1)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = np.einsum("hqk,khn->qhn", p / p.sum(axis=-1, keepdims=True), v).reshape(count, -1)
        x = x + y @ w[f"{at}.attn_o.weight"].T
        h = norm(x, f"{at}.ffn_norm")
        up = h @ w[f"{at}.ffn_up.weight"].T
        if f"{at}.ffn_gate.weight" in w:
            gate = h @ w[f"{at}.ffn_gate.weight"].T
            up = up * gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            up = np.maximum(up, 0)
        x = x + up @ w[f"{at}.ffn_down.weight"].T
    return norm(x, "enc.output_norm")


@pytest.mark.parametrize("buckets", [4, 6, 32, 256])
def test_t5_with_gates_equals_its_formula(buckets, tmp_path):
    """With texts that are longer than the distances with buckets of their own."""
    (values, keys), ids = t5_encoder(buckets, gated=True, buckets=buckets), list(range(3, 203))
    path = tmp_path / "model.gguf"
    write(path, "t5encoder", keys, twins(values)[0])
    assert rms(embedded(path, [[5, 6], ids])[1] - formula_of_t5(path, ids)) < SAME


def test_the_formula_of_t5_equals_llama_cpp():
    ids, expected = record_of("tiny-t5encoder")
    assert rms(formula_of_t5(OWN / "tiny-t5encoder.gguf", ids) - expected) < SAME


def test_t5_refuses_a_table_of_biases_that_does_not_fit(tmp_path):
    key = "t5encoder.attention.relative_buckets_count"
    for buckets, why in ((3, key), (257, key), (16, "attn_rel_b.weight'.*shape .*convert")):
        whole = parts("tiny-t5encoder")
        whole.set(key, U32, buckets)
        with pytest.raises(BadFile, match=why):
            loaded(tmp_path, whole)
    for name in (b"enc.blk.0.attn_rel_b.weight", b"enc.blk.1.attn_o.weight"):
        whole = parts("tiny-t5encoder")
        whole.tensors = [one for one in whole.tensors if one.name != name]
        with pytest.raises(BadFile, match=f"{name.decode()}.*no such tensor"):
            loaded(tmp_path, whole)
    whole = parts("tiny-t5encoder")
    without(whole, "attention.relative_buckets_count")
    with pytest.raises(BadFile, match=key):
        loaded(tmp_path, whole)


@pytest.mark.parametrize(
    ("arch", "why"), [("gemma3", "limit only earlier positions"), ("lfm2", "attend to later ones")]
)
def test_other_architectures_with_attention_to_both_sides_are_refused(arch, why, tmp_path):
    whole = parts(f"tiny-{arch}")
    whole.set(f"{arch}.{KEY}", BOOL, False)
    with pytest.raises(UnsupportedModel, match=why):
        loaded(tmp_path, whole)


@pytest.mark.parametrize("name", ["tiny-bert", "dense-gemma-embedding", "tiny-t5encoder"])
def test_an_encoder_may_be_split_over_devices(name, monkeypatch):
    monkeypatch.setitem(test_split.OPTIONS, "chunk_size", 64)
    monkeypatch.setitem(test_split.OPTIONS, "context", 64)
    ids, expected = record_of(name)
    with test_split.split(name, test_split.in_three(name)) as runner:
        assert rms(runner.hidden(Batch.of([(0, 0, ids)], every=True)) - expected) < SAME
