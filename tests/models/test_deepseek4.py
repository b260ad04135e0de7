"""DeepSeek-V4: sequences, prefixes and saved states with caches of several strides, and variants of files."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.cache.config import CacheConfig
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import Runner, prefill
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.vocabulary import PAGE
from tests.gguf.parts import Parts, take_apart
from tests.gguf.writer import ARRAY, F32, U32, written
from tests.golden_files import OWN

PATH = OWN / "tiny-deepseek4.gguf"
SAME = 1e-4  # rms: float32 sums in another order


def rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b).astype(np.float64) ** 2)))


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 260, count).tolist()


@pytest.fixture(params=["cpu", pytest.param("fast", marks=pytest.mark.long)])
def runner(request, adapter):
    """Returns a runner with room for four sequences of 512 tokens."""
    how = {"slots": 4, "chunk_size": 128, "context": 512, "kv": "f32"}
    with GGUFFile.open(PATH) as file:
        model = load_model(file)
        made: Runner = (
            HostRunner(file, model, **how) if request.param == "cpu" else GpuRunner(Device(adapter), file, model, **how)
        )
    yield made
    made.close()


def alone(runner: Runner, ids: list[int]) -> np.ndarray:
    """Returns the logits after the last token, computed in a slot of its own."""
    return prefill(runner, ids, slot=3)[-1]


def test_sequences_of_one_step_equal_each_alone(runner, rounding):
    """The longest has an entry of 128 positions; steps end within entries, and complete them."""
    prompts = {2: ids_of(9, 1), 0: ids_of(180, 2), 1: ids_of(64, 3)}
    for cuts in ({2: 4, 0: 126, 1: 1}, {slot: len(ids) - 1 for slot, ids in prompts.items()}):
        for slot, ids in prompts.items():
            prefill(runner, ids[: cuts[slot]], slot=slot)
        last = runner.step(Batch.of([(slot, cuts[slot], ids[cuts[slot] :]) for slot, ids in prompts.items()]))
        for row, ids in zip(last, prompts.values(), strict=True):
            assert rms(row, alone(runner, ids)) < SAME + rounding


@pytest.mark.parametrize("length", [130, 255])
def test_two_sequences_continue_from_a_shared_prefix_within_an_entry(runner, rounding, length):
    ids, first, second = ids_of(length, 1), ids_of(5, 2), ids_of(9, 3)
    prefill(runner, ids, slot=0)
    runner.store.adopt(1, runner.store.keep(0, length), length)
    other = prefill(runner, second, slot=1, start=length)[-1]
    mine = prefill(runner, first, slot=0, start=length)[-1]
    assert rms(other, alone(runner, ids + second)) < SAME + rounding
    assert rms(mine, alone(runner, ids + first)) < SAME + rounding


@pytest.mark.parametrize("length", [130, 255])
def test_a_saved_state_continues_elsewhere_within_an_entry(runner, rounding, length):
    ids, rest = ids_of(length, 1), ids_of(5, 2)
    prefill(runner, ids, slot=0)
    state = runner.read_state(0)
    rows = {name: len(array) for name, array in state.items()}
    assert rows["blk.1.attn_compressor_entries.keys"] == -(-length // 4)
    assert rows["blk.2.attn_compressor_entries.keys"] == -(-length // PAGE)  # one row in each page
    prefill(runner, ids_of(90, 7), slot=0)
    runner.write_state(2, length, state)
    assert rms(prefill(runner, rest, slot=2, start=length)[-1], alone(runner, ids + rest)) < SAME + rounding


def test_a_chat_reuses_its_earlier_messages():
    with rwkv_gpu.load(PATH, device="cpu", context=512) as llm:
        first = llm.generate(ids_of(80, 1), max_tokens=4, temperature=0)
        longer = [*ids_of(80, 1), *first.tokens, *ids_of(20, 2)]
        again = llm.generate(longer, max_tokens=4, temperature=0)
        assert again.stats.reused_tokens >= 64  # a whole page
    with rwkv_gpu.load(PATH, device="cpu", context=512) as llm:
        assert llm.generate(longer, max_tokens=4, temperature=0).tokens == again.tokens


def test_layers_may_be_on_several_devices():
    record = np.load(PATH.with_suffix(".npz"))
    with rwkv_gpu.load(PATH, device="cpu,cpu", split="2,2", kv="f32", context=64) as llm:
        assert rms(llm.logits(record["tokens"].tolist(), chunk_size=7), record["exact_logits"]) < 2e-5


def test_a_cache_of_entries_has_a_row_for_each():
    with GGUFFile.open(PATH) as file:
        model = load_model(file)
    config = CacheConfig.of(model, context=1 << 10, slots=1, kv="f16")
    nbytes = {cache.name: config.nbytes(cache) for cache in model.caches}
    assert nbytes["blk.1.attn_compressor_entries"] == (1 << 10) // 4 * 32 * 2
    assert nbytes["blk.1.indexer_compressor_entries"] == (1 << 10) // 4 * 64 * 2
    assert nbytes["blk.2.attn_compressor_entries"] == (1 << 10) // PAGE * 32 * 2


# ---------------------------------------------------------------- files


def parts() -> Parts:
    return take_apart(PATH.read_bytes())


def refused(whole: Parts, folder, error, says: str) -> None:
    with pytest.raises(error, match=says) as caught, rwkv_gpu.load(written(folder, whole.built()), device="cpu"):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "kind", "value", "error", "says"),
    [
        ("attention.compress_ratios", ARRAY, [0, 4, 8, 4], UnsupportedModel, "blocks of 8 compressed keys"),
        ("attention.compress_ratios", ARRAY, [0, 4, 128], BadFile, "compress_ratios.*4 integers"),
        ("attention.compress_rope_freq_base", F32, float("nan"), BadFile, "compress_rope_freq_base"),
        ("attention.output_group_count", U32, 3, BadFile, "output_group_count"),
        ("attention.output_lora_rank", U32, 25, BadFile, "blk.0.attn_output_a.weight': found the shape"),
        ("attention.sliding_window", U32, 0, BadFile, "sliding_window"),
        ("attention.key_length", U32, 36, UnsupportedModel, "36"),
        ("attention.indexer.key_length", U32, 4, BadFile, "a multiple of 8 from 8 to 512"),
        ("attention.indexer.top_k", U32, 0, BadFile, "from 1 to"),
        ("hash_layer_count", U32, 5, BadFile, "hash_layer_count"),
        ("hash_layer_count", U32, 2, BadFile, "blk.1.ffn_gate_tid2eid.weight': found no such tensor"),
        ("hyper_connection.sinkhorn_iterations", U32, 0, BadFile, "sinkhorn_iterations"),
        ("hyper_connection.count", U32, 5, BadFile, "found the shape"),
    ],
)
def test_a_bad_value_is_named(key, kind, value, error, says, tmp_path):
    whole = parts()
    if kind == ARRAY:
        whole.row(f"deepseek4.{key}").value = value
    else:
        whole.set(f"deepseek4.{key}", kind, value)
    refused(whole, tmp_path, error, says)


def test_ratios_beyond_the_last_layer_are_allowed(tmp_path):
    """Published files list those of blocks that predict further tokens, too."""
    whole, record = parts(), np.load(PATH.with_suffix(".npz"))
    row = whole.row("deepseek4.attention.compress_ratios")
    row.value = [*row.value, 0, 0, 0]
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
        assert rms(llm.logits(record["tokens"].tolist()), record["exact_logits"]) < 2e-5


@pytest.mark.parametrize("expert", [-1, 4])
def test_a_table_that_names_an_expert_which_does_not_exist_is_refused(expert, tmp_path):
    whole = parts()
    [table] = [one for one in whole.tensors if one.name.endswith(b"tid2eid.weight")]
    table.data = table.data[:-4] + np.array([expert], "<i4").tobytes()
    refused(whole, tmp_path, BadFile, f"tid2eid.weight': found {expert}, expected experts from 0 to 3")


def test_a_table_of_another_type_is_refused(tmp_path):
    whole = parts()
    [table] = [one for one in whole.tensors if one.name.endswith(b"tid2eid.weight")]
    table.kind = 0
    refused(whole, tmp_path, BadFile, "expected I32 of the shape")


def test_biases_for_tokens_of_images_are_allowed(tmp_path):
    """Files of the vision variant have them."""
    whole, record = parts(), np.load(PATH.with_suffix(".npz"))
    [bias] = [one for one in whole.tensors if one.name == b"blk.1.exp_probs_b.bias"]
    whole.tensors.append(type(bias)(b"blk.1.exp_probs_b_vl.bias", bias.dims, bias.kind, bias.data))
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu", kv="f32", context=64) as llm:
        assert rms(llm.logits(record["tokens"].tolist()), record["exact_logits"]) < 2e-5
