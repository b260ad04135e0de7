"""Latent attention in whole models: sequences, prefixes and saved states in the latent cache, and variants of files."""

from dataclasses import replace

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.cache.config import CacheConfig
from rwkv_gpu.engine.fit import fit
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import Runner, prefill
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gguf.planes import dequantise_rows
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.hybrid import Experts
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.gguf.parts import Parts, Stored, take_apart
from tests.gguf.writer import F32, STRING, U32, written
from tests.golden_files import golden
from tests.measure.tiny import EVERY, opened_layers

NAME, ARCH = "tiny-deepseek2.gguf", "deepseek2"
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
LATENT, ROTARY = 64, 16
SAME = 1e-4  # rms: float32 sums in another order


def rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b).astype(np.float64) ** 2)))


@pytest.fixture(params=["cpu", "fast"])
def runner(request, adapter):
    """Returns a runner with room for four sequences of 512 tokens."""
    how = {"slots": 4, "chunk_size": 128, "context": 512, "kv": "f32"}
    with GGUFFile.open(golden(NAME)) as file:
        model = load_model(file)
        made: Runner = (
            HostRunner(file, model, **how) if request.param == "cpu" else GpuRunner(Device(adapter), file, model, **how)
        )
    yield made
    made.close()


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 300, count).tolist()


def alone(runner: Runner, ids: list[int]) -> np.ndarray:
    """Returns the logits after the last token, computed in a slot of its own."""
    return prefill(runner, ids, slot=3)[-1]


def test_sequences_of_one_step_equal_each_alone(runner, rounding):
    prompts = {2: ids_of(9, 1), 0: ids_of(130, 2), 1: ids_of(64, 3)}
    for cuts in ({2: 4, 0: 120, 1: 1}, {slot: len(ids) - 1 for slot, ids in prompts.items()}):
        for slot, ids in prompts.items():
            prefill(runner, ids[: cuts[slot]], slot=slot)
        last = runner.step(Batch.of([(slot, cuts[slot], ids[cuts[slot] :]) for slot, ids in prompts.items()]))
        for row, ids in zip(last, prompts.values(), strict=True):
            assert rms(row, alone(runner, ids)) < SAME + rounding


def test_a_shared_prefix_is_copied_if_two_sequences_continue_from_it(runner, rounding):
    ids, first, second = ids_of(100, 1), ids_of(5, 2), ids_of(9, 3)
    prefill(runner, ids, slot=0)
    runner.store.adopt(1, runner.store.keep(0, 100), 100)
    other = prefill(runner, second, slot=1, start=100)[-1]
    mine = prefill(runner, first, slot=0, start=100)[-1]
    assert rms(other, alone(runner, ids + second)) < SAME + rounding
    assert rms(mine, alone(runner, ids + first)) < SAME + rounding


def test_a_saved_state_is_one_row_a_position_and_continues_elsewhere(runner, rounding):
    ids, rest = ids_of(100, 1), ids_of(5, 2)
    prefill(runner, ids, slot=0)
    state = runner.read_state(0)
    assert {array.shape for array in state.values()} == {(100, 1, LATENT + ROTARY)}
    assert all(name.endswith(".kv.keys") for name in state)
    prefill(runner, ids_of(90, 7), slot=0)
    runner.write_state(2, 100, state)
    assert rms(prefill(runner, rest, slot=2, start=100)[-1], alone(runner, ids + rest)) < SAME + rounding


def test_latents_that_are_not_numbers_stay_with_their_sequence(runner, rounding):
    ids = ids_of(70, 1)
    prefill(runner, ids, slot=0)
    spoilt = {name: np.full_like(array, np.nan) for name, array in runner.read_state(0).items()}
    runner.write_state(1, 70, spoilt)
    both = runner.step(Batch.of([(1, 70, [5]), (0, 70, [5])]))
    assert not np.isfinite(both[0]).any()
    assert rms(both[1], alone(runner, [*ids, 5])) < SAME + rounding


def test_a_chat_reuses_its_earlier_messages():
    with rwkv_gpu.load(golden(NAME), device="cpu", context=512) as llm:
        first = llm.generate(ids_of(80, 1), max_tokens=4, temperature=0)
        longer = [*ids_of(80, 1), *first.tokens, *ids_of(20, 2)]
        again = llm.generate(longer, max_tokens=4, temperature=0)
        assert again.stats.reused_tokens == 64  # a whole page
    with rwkv_gpu.load(golden(NAME), device="cpu", context=512) as llm:
        assert llm.generate(longer, max_tokens=4, temperature=0).tokens == again.tokens


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(("name", "heads"), [("glm-4.7-flash-30b", 20 * 512), ("deepseek-v2-lite-16b", 16 * 320)])
def test_the_cache_stores_latents_and_is_many_times_smaller_than_one_of_heads(name, heads):
    with opened_layers(name, EVERY) as file:
        model = load_model(file)
        layers = len(model.caches)
        config = CacheConfig.of(model, context=32768)
        assert config.total(model.caches) == 32768 * layers * 576 * 2
        assert heads / 576 > 8
        assert fit(None, file, model, context=32768).state == config.total(model.caches)


# ---------------------------------------------------------------- files


def parts() -> Parts:
    return take_apart(golden(NAME).read_bytes())


def values_of(one: Stored) -> np.ndarray:
    fmt = FORMATS[one.kind]
    rows = np.frombuffer(one.data, np.uint8).reshape(-1, fmt.row_bytes(one.dims[0]))
    return dequantise_rows(fmt, rows).reshape(one.dims[::-1])


def unsplit(pack) -> Parts:
    """Writes k and v in the form of older converters: the rows of k and of v of each head, head after head."""
    whole = parts()
    stored = {one.name: one for one in whole.tensors}
    for name, one in stored.items():
        if name.endswith(b"attn_k_b.weight"):
            k = values_of(one).transpose(0, 2, 1)  # [H, nope, C]
            v = values_of(stored[name.replace(b"_k_b", b"_v_b")])  # [H, V, C]
            both = np.concatenate([k, v], axis=1).reshape(-1, k.shape[-1])
            kind, data = pack(both)
            whole.tensors.append(Stored(name.replace(b"_k_b", b"_kv_b"), [both.shape[1], len(both)], kind, data))
    whole.tensors = [one for one in whole.tensors if not one.name.endswith((b"attn_k_b.weight", b"attn_v_b.weight"))]
    value, key = (whole.row(f"{ARCH}.attention.{name}_length_mla").value for name in ("value", "key"))
    whole.rows = [row for row in whole.rows if not row.name.endswith(b"_length_mla")]
    whole.set(f"{ARCH}.attention.key_length", U32, key)
    whole.set(f"{ARCH}.attention.value_length", U32, value)
    return whole


def logits(path, **how) -> np.ndarray:
    with rwkv_gpu.load(path, kv="f32", context=64, **how) as llm:
        return llm.logits(ids_of(40, 5))


@pytest.mark.parametrize("opening", ["cpu", "fast"], indirect=True)
def test_a_file_with_keys_and_values_in_one_tensor_is_split_as_it_is_loaded(rounding, tmp_path, opening):
    path = written(tmp_path, unsplit(lambda x: (0, x.astype(np.float32).tobytes())).built())
    assert rms(logits(path, **opening), logits(golden(NAME), device="cpu")) < SAME + rounding


def test_quantised_keys_and_values_are_split_row_by_row(tmp_path):
    """Rows of values stay in their format. Keys are transposed and become float16."""

    def q8_0(x: np.ndarray) -> tuple[int, bytes]:
        blocks = x.reshape(-1, 32)
        d = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
        quants = np.rint(blocks / d.astype(np.float32)).astype(np.int8)
        return BY_NAME["Q8_0"].type, np.concatenate([d.view(np.int8), quants], axis=1).tobytes()

    def same_as_floats(x: np.ndarray) -> tuple[int, bytes]:
        kind, data = q8_0(x)
        rows = np.frombuffer(data, np.uint8).reshape(len(x), -1)
        return 0, dequantise_rows(FORMATS[kind], rows).astype(np.float32).tobytes()

    exact = logits(written(tmp_path, unsplit(same_as_floats).built()), device="cpu")
    assert rms(logits(written(tmp_path, unsplit(q8_0).built()), device="cpu"), exact) < 5e-3


def test_blocks_that_predict_further_tokens_are_not_executed(tmp_path):
    """The last block of the file becomes a drafting block. Its tensors are not moved."""
    fewer = parts()
    blocks = fewer.row(f"{ARCH}.block_count").value
    fewer.set(f"{ARCH}.nextn_predict_layers", U32, 1)
    with GGUFFile.open(written(tmp_path, fewer.built())) as file:
        model = load_model(file)
    assert len(model.caches) == blocks - 1
    assert not any(weight.name.startswith(f"blk.{blocks - 1}.") for weight in model.weights)


def test_without_a_key_files_of_glm_flash_route_by_sigmoid(monkeypatch):
    with opened_layers("glm-4.7-flash-30b", EVERY) as file:
        silent = {key: value for key, value in file.metadata.items() if not key.endswith("gating_func")}
        monkeypatch.setattr(file, "metadata", silent)
        gatings = {one.p.gating.scores for _, one in load_model(file).blocks if isinstance(one, Experts)}
    assert gatings == {"sigmoid"}


def test_mistral_large_3_scales_queries_by_position_as_mistral_4_does(tmp_path):
    """The files use DeepSeek's architecture name. Without the scale only the first positions would be right."""
    record = np.load(golden("tiny-mistral4.npz"))
    whole = take_apart(golden("tiny-mistral4.gguf").read_bytes())
    for row in whole.rows:
        row.name = row.name.replace(b"mistral4.", b"deepseek2.")
    whole.set("general.architecture", STRING, b"deepseek2")
    found = []
    for _ in range(2):
        with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
            found.append(rms(llm.logits(record["tokens"].tolist()), record["exact_logits"]))
        whole.set(f"{ARCH}.attention.temperature_scale", F32, 0.0)
    assert found[0] < 2e-5
    assert found[1] > 0.1


def test_without_a_key_queries_are_scaled_by_the_trained_context(tmp_path):
    whole = take_apart(golden("tiny-mistral4.gguf").read_bytes())
    whole.rows = [row for row in whole.rows if not row.name.endswith(b"temperature_length")]
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        assert {one.p.how.temperature.period for one, _ in load_model(file).blocks} == {256}


# ---------------------------------------------------------------- indexers


@pytest.mark.parametrize("name", ["deepseek32", "glm-dsa"])
def test_an_indexer_that_keeps_all_keys_changes_nothing(name, tmp_path):
    """With 12 keys the logits of llama.cpp differ from these, from the 13th token on."""
    whole, record = take_apart(golden(f"tiny-{name}.gguf").read_bytes()), np.load(golden(f"tiny-{name}.npz"))
    whole.set(f"{name}.attention.indexer.top_k", U32, 48)
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
        every = llm.logits(record["tokens"].tolist())
    for row in whole.rows:
        row.name = row.name.replace(name.encode(), b"deepseek2")
    whole.tensors = [one for one in whole.tensors if b".indexer." not in one.name]
    whole.set("general.architecture", STRING, b"deepseek2")
    whole.set("deepseek2.expert_gating_func", U32, 2)
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
        dense = llm.logits(record["tokens"].tolist())
    assert rms(every, dense) < 2e-5
    assert rms(every[:12], record["exact_logits"][:12]) < 2e-5
    assert rms(every[12:], record["exact_logits"][12:]) > 0.1


@pytest.mark.parametrize("name", ["glm-dsa", "hy_v4"])
def test_keys_that_were_chosen_reach_layers_on_another_device(name):
    """The second layer of the model, which has no indexer, may be the first of a device. Hy4 has several streams."""
    record = np.load(golden(f"tiny-{name}.npz"))
    with rwkv_gpu.load(golden(f"tiny-{name}.gguf"), device="cpu,cpu", split="1,2", kv="f32", context=64) as llm:
        assert rms(llm.logits(record["tokens"].tolist(), chunk_size=7), record["exact_logits"]) < 2e-5


@pytest.mark.parametrize(
    ("name", "key", "kind", "value", "says"),
    [
        ("deepseek32", "attention.indexer.top_k", U32, 0, "from 1 to"),
        ("deepseek32", "attention.indexer.key_length", U32, 4, "a multiple of 8 from 8 to 512"),
        ("deepseek32", "attention.indexer.key_length", U32, 20, "a multiple of 8 from 8 to 512"),
        ("deepseek32", "attention.indexer.head_count", U32, 9, r"'blk.0.indexer.attn_q_b.weight': found the shape"),
        ("glm-dsa", "attention.indexer.types", STRING, b"full", "3 booleans"),
        ("glm-dsa", "attention.indexer.types", U32, 1, "3 booleans"),
        ("hy_v4", "hyper_connection.count", U32, 1, "from 2 to 16"),
        ("hy_v4", "hyper_connection.count", U32, 5, r"'output_hc_scale.weight'|'blk.0.hc_attn_base.weight': found the"),
        ("hy_v4", "hyper_connection.epsilon", F32, float("nan"), "hy_v4.hyper_connection.epsilon"),
        ("hy_v4", "hyper_connection.magnitude", F32, 0.0, "hy_v4.hyper_connection.magnitude"),
        ("hy_v4", "swiglu_clamp_exp", F32, -1.0, "hy_v4.swiglu_clamp_exp"),
    ],
)
def test_a_bad_indexer_is_named(name, key, kind, value, says, tmp_path):
    whole = take_apart(golden(f"tiny-{name}.gguf").read_bytes())
    whole.set(f"{name}.{key}", kind, value)
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(BadFile, match=says) as caught:
        load_model(file)
    assert "\n" not in str(caught.value)


def test_hy4_without_an_indexer_attends_to_all_positions(tmp_path):
    """Some checkpoints have full attention only, and neither keys nor tensors of indexers."""
    whole, record = take_apart(golden("tiny-hy_v4.gguf").read_bytes()), np.load(golden("tiny-hy_v4.npz"))
    whole.rows = [row for row in whole.rows if b".indexer." not in row.name]
    whole.tensors = [one for one in whole.tensors if b".indexer." not in one.name]
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
        every = llm.logits(record["tokens"].tolist())
    assert rms(every[:12], record["exact_logits"][:12]) < 2e-5
    assert rms(every[12:], record["exact_logits"][12:]) > 0.1


def test_without_a_key_the_context_reveals_glm_5_2_and_its_layers_with_an_indexer(tmp_path):
    whole = take_apart(golden("tiny-glm-dsa.gguf").read_bytes())
    whole.rows = [row for row in whole.rows if not row.name.endswith(b"indexer.types")]
    whole.set("glm-dsa.context_length", U32, 1 << 20)
    with (
        GGUFFile.open(written(tmp_path, whole.built())) as file,
        pytest.raises(BadFile, match=r"blk.1.indexer.attn_q_b.weight': found no such tensor"),
    ):
        load_model(file)


def test_copies_of_indexers_in_layers_that_share_one_change_nothing(tmp_path):
    """Some published files of GLM-5.2 have an indexer in each layer, although most layers use an earlier one."""
    whole = take_apart(golden("tiny-glm-dsa.gguf").read_bytes())
    shared = {one.name.replace(b"blk.0.", b"blk.1.") for one in whole.tensors if b"blk.0.indexer." in one.name}
    assert shared and not shared & {one.name for one in whole.tensors}
    ids = [token % 288 for token in ids_of(40, 5)]
    with rwkv_gpu.load(golden("tiny-glm-dsa.gguf"), device="cpu") as llm:
        expected = llm.logits(ids)
    like = {one.name: one for one in whole.tensors}
    whole.tensors += [replace(like[name.replace(b"blk.1.", b"blk.0.")], name=name) for name in shared]
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu") as llm:
        np.testing.assert_array_equal(llm.logits(ids), expected)


def test_yarn_scales_whole_scores_and_not_only_rotated_parts(tmp_path):
    """The file's own factor applies to the rotation only."""
    for factor in (1.0, 1.5):
        scaled = parts()
        scaled.set(f"{ARCH}.rope.scaling.attn_factor", F32, factor)
        with GGUFFile.open(written(tmp_path, scaled.built())) as file:
            how = load_model(file).blocks[0][0].p.how
        assert how.rope.magnitude == factor
        assert how.scale == pytest.approx(48**-0.5 * (1 + 0.1 * np.log(40)) ** 2, rel=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "error", "says"),
    [
        ("expert_gating_func", 5, UnsupportedModel, "expert_gating_func 5"),
        ("expert_group_count", 5, UnsupportedModel, "in 2 of 5 groups"),
        ("attention.key_length_mla", 16, BadFile, "more than the 16 dims that rotate"),
        ("rope.dimension_count", 12, UnsupportedModel, "multiples of 8"),
    ],
)
def test_contradictory_or_unsupported_values_are_named(tmp_path, key, value, error, says):
    changed = parts()
    changed.set(f"{ARCH}.{key}", U32, value)
    with GGUFFile.open(written(tmp_path, changed.built())) as file, pytest.raises(error, match=says):
        load_model(file)
