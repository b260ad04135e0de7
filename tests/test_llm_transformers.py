"""Loaded transformers agree with llama.cpp in any chunks, alone and batched, and report a full context clearly."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import Runner, prefill
from rwkv_gpu.errors import BadInput, CacheFull, ContextFull, OutOfMemory
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.golden_files import golden

MODELS = [
    "llama-bpe-small-Q4_K_M",
    "llama-odd-Q4_1",
    "llama-odd-Q5_0",
    "llama-spm-small-Q4_0",
    "llama-spm-small-Q4_K_M",
    "qwen3-small-IQ4_NL",
    "qwen3-small-Q3_K_M",
    "qwen3-small-Q4_K_M",
    "qwen3-small-Q8_0",
]
# All other models use kernels of these. test_own_golden tests smaller ones in every mode.
ON_GPU = {
    name for name in MODELS if name.endswith(("bpe-small-Q4_K_M", "Q4_1", "IQ4_NL", "qwen3-small-Q4_K_M", "Q8_0"))
}
OPENED = [(name, mode) for name in MODELS for mode in ("cpu", "fast") if mode == "cpu" or name in ON_GPU]
LONG = [("llama-bpe-small-Q4_K_M", "f32"), ("llama-bpe-small-Q4_K_M", "f16"), ("qwen3-small-Q4_K_M", "f32")]
# Logits of deviation 2.5. In float32, another order of sums changes 7e-6, and llama.cpp's late angles 4e-5;
# float16 keys and values are rounded by 5e-4 of their size, which changes 2.5e-3.
RMS = {"f32": 1e-4, "f16": 5e-3}


def rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2)))


@pytest.mark.parametrize(("name", "opening"), OPENED, indirect=["opening"])
def test_logits_equal_those_of_llama_cpp_in_any_chunks(opening, name, rounding):
    record = np.load(golden(f"{name}.npz"))
    ids = record["tokens"].tolist()
    with rwkv_gpu.load(golden(f"{name}.gguf"), kv="f32", **opening) as llm:
        for chunk in (48, 7, 1):
            assert rms(llm.logits(ids, chunk_size=chunk), record["exact_logits"]) < RMS["f32"] + rounding


@pytest.mark.parametrize(("name", "opening"), OPENED, indirect=["opening"])
def test_logits_with_a_float16_kv_cache_are_close(opening, name):
    record = np.load(golden(f"{name}.npz"))
    with rwkv_gpu.load(golden(f"{name}.gguf"), kv="f16", **opening) as llm:
        assert rms(llm.logits(record["tokens"].tolist()), record["exact_logits"]) < RMS["f16"]


@pytest.mark.parametrize("opening", ["cpu", "fast"], indirect=True)  # shorter texts test these kernels in all modes
@pytest.mark.parametrize(("name", "kv"), LONG)
def test_logits_of_a_thousand_tokens_equal_those_of_llama_cpp(opening, name, kv):
    record = np.load(golden(f"{name}.long.npz"))
    with rwkv_gpu.load(golden(f"{name}.gguf"), kv=kv, **opening) as llm:
        logits = llm.logits(record["tokens"].tolist())[record["rows"]]
    assert rms(logits, record["exact_logits"]) < RMS[kv]


@pytest.mark.parametrize(("name", "opening"), OPENED, indirect=["opening"])  # tests of logits cover the modes
def test_greedy_continuation_equals_that_of_llama_cpp(opening, name):
    record = np.load(golden(f"{name}.npz"))
    certain = int(np.argmax(record["exact_margin"] < 0.02)) if (record["exact_margin"] < 0.02).any() else 64
    with rwkv_gpu.load(golden(f"{name}.gguf"), kv="f32", **opening) as llm:
        done = llm.generate(record["tokens"].tolist(), max_tokens=max(certain, 1))
    assert list(done.tokens)[:certain] == record["exact_greedy"][:certain].tolist()


# ---------------------------------------------------------------- several sequences


@pytest.fixture(params=["cpu", "fast"])
def runner(request, adapter):
    """A small model with room for four sequences of 512 tokens."""
    how = {"slots": 4, "chunk_size": 256, "context": 512, "kv": "f32"}
    with GGUFFile.open(golden("quiet-qwen3.gguf")) as file:
        model = load_model(file)
        if request.param == "cpu":
            made: Runner = HostRunner(file, model, **how)
        else:
            made = GpuRunner(Device(adapter), file, model, **how)
    yield made
    made.close()


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 288, count).tolist()


def alone(runner: Runner, ids: list[int]) -> np.ndarray:
    """Returns the logits after the last token, from a slot that has no other use."""
    return prefill(runner, ids, slot=3)[-1]


def test_batched_with_others_equals_alone(runner):
    prompts = {2: ids_of(9, 1), 0: ids_of(130, 2), 1: ids_of(64, 3)}
    cuts = {2: 4, 0: 129, 1: 1}
    runner.step(Batch.of([(slot, 0, ids[: cuts[slot]]) for slot, ids in prompts.items()]))
    last = runner.step(Batch.of([(slot, cuts[slot], ids[cuts[slot] :]) for slot, ids in prompts.items()]))
    for row, ids in zip(last, prompts.values(), strict=True):
        assert rms(row, alone(runner, ids)) < 1e-4


def test_decoding_together_equals_decoding_alone(runner):
    prompts = {2: ids_of(9, 1), 0: ids_of(70, 2), 1: ids_of(64, 3)}
    runner.step(Batch.of([(slot, 0, ids[:-1]) for slot, ids in prompts.items()]))
    last = runner.step(Batch.of([(slot, len(ids) - 1, ids[-1:]) for slot, ids in prompts.items()]))
    for row, ids in zip(last, prompts.values(), strict=True):
        assert rms(row, alone(runner, ids)) < 1e-4


def test_a_copied_sequence_does_not_change_the_original(runner):
    ids, first, second = ids_of(100, 1), ids_of(5, 2), ids_of(9, 3)
    prefill(runner, ids, slot=0)
    runner.store.adopt(1, runner.store.keep(0, 100), 100)
    other = prefill(runner, second, slot=1, start=100)[-1]
    mine = prefill(runner, first, slot=0, start=100)[-1]
    assert rms(other, alone(runner, ids + second)) < 1e-4
    assert rms(mine, alone(runner, ids + first)) < 1e-4


def test_keys_and_values_never_pass_through_the_host(adapter, monkeypatch):
    """When pages are written, shared or copied, no buffer of pages is read back or uploaded."""
    moved = []
    for name in ("read", "write", "upload"):
        real = getattr(Device, name)
        monkeypatch.setattr(
            Device, name, lambda self, what, *a, _real=real: moved.append(what) or _real(self, what, *a)
        )
    with GGUFFile.open(golden("quiet-qwen3.gguf")) as file, Device(adapter) as device:
        runner = GpuRunner(device, file, load_model(file), slots=2, chunk_size=128, context=256)
        prefill(runner, ids_of(100, 1), slot=0)
        runner.store.adopt(1, runner.store.keep(0, 100), 100)
        moved.clear()
        copies = []
        monkeypatch.setattr(Device, "copy_within", lambda self, of, *a: copies.extend(one.purpose for one in of))
        prefill(runner, ids_of(5, 2), slot=1, start=100)
        assert copies and set(copies) == {"kv"}
        assert moved and not any(getattr(what, "purpose", "") == "kv" for what in moved)


def test_a_sequence_read_and_written_back_continues(runner):
    ids, rest = ids_of(100, 1), ids_of(5, 2)
    prefill(runner, ids, slot=0)
    state = runner.read_state(0)
    assert state["blk.0.kv.keys"].shape == (100, 2, 16)
    prefill(runner, ids_of(90, 7), slot=0)
    runner.write_state(2, 100, state)
    assert rms(prefill(runner, rest, slot=2, start=100)[-1], alone(runner, ids + rest)) < 1e-4


def test_a_sequence_may_go_back_and_continue_differently(runner):
    ids, rest = ids_of(100, 1), ids_of(70, 2)
    prefill(runner, ids, slot=0)
    again = prefill(runner, rest, slot=0, start=70)[-1]
    assert rms(again, alone(runner, ids[:70] + rest)) < 1e-4


# ---------------------------------------------------------------- no room


def test_the_error_of_a_full_context_has_both_numbers(runner):
    prefill(runner, ids_of(512, 1), slot=0)
    with pytest.raises(ContextFull, match="513 tokens exceeds the available context size of 512"):
        prefill(runner, [1], slot=0, start=512)


def test_the_error_of_a_full_pool_has_both_numbers(runner):
    for slot in range(4):
        prefill(runner, ids_of(512, slot), slot=slot)
    with pytest.raises(CacheFull, match="needs 1 pages of 64 tokens, but only 0 of 32 are free"):
        runner.step(Batch.of([(7, 0, [1])]))


def test_an_answer_ends_where_the_context_does():
    with rwkv_gpu.load(golden("quiet-qwen3.gguf"), device="cpu", context=20) as llm:
        done = llm.generate(list(range(10)), max_tokens=50)
        assert len(done.tokens) == 10
        assert done.finish_reason == "length"
        with pytest.raises(ContextFull, match="a prompt of 21 tokens exceeds the available context size of 20"):
            llm.generate(list(range(21)))


def test_caches_that_cannot_exist_are_refused_by_name(adapter):
    path = golden("quiet-qwen3.gguf")
    with pytest.raises(BadInput, match="kv is 'f8'; known: f16, f32"):
        rwkv_gpu.load(path, device="cpu", kv="f8")
    with pytest.raises(BadInput, match=r"of at most 1,024 tokens\) do not rotate and cannot be scaled"):
        rwkv_gpu.load(golden("tiny-gpt2.gguf"), device="cpu", context=40000)
    told = "one layer take 268,435,456 bytes .* binds 134,217,728 at most"
    with GGUFFile.open(path) as file, Device(adapter, portable=True) as device, pytest.raises(OutOfMemory, match=told):
        GpuRunner(device, file, load_model(file), slots=2048, context=1024, kv="f32")
