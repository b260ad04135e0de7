"""Layers with a window store only the pages of the window. Answers are the same as if all pages were stored."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.cache.config import CacheConfig
from rwkv_gpu.engine.fit import fit
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import Runner, fitted, prefill
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.vocabulary import PAGE
from tests.gguf.writer import U32, number_key, with_keys, written
from tests.golden_files import OWN, golden

WINDOW, LENGTH, CHUNK = 100, 600, 64
HOW = {"slots": 3, "chunk_size": CHUNK, "context": 1024, "kv": "f32"}
SAME = 1e-4  # rms: float32 sums in another order


@pytest.fixture
def path(tmp_path):
    data = golden("tiny-llama.gguf").read_bytes()
    return written(tmp_path, with_keys(data, [number_key("llama.attention.sliding_window", U32, WINDOW)]))


def made(path, device: Device | None = None, **more) -> Runner:
    with GGUFFile.open(path) as file:
        model, how = load_model(file), HOW | more
        return HostRunner(file, model, **how) if device is None else GpuRunner(device, file, model, **how)


@pytest.fixture
def keeping_all(path):
    """Returns a numpy runner that releases no page. Its steps may have as many rows as the context."""
    runner = made(path, chunk_size=1024)
    assert runner.store.rewinds
    yield runner
    runner.close()


@pytest.fixture(params=["cpu", "fast"])
def runner(request, path, adapter):
    runner = made(path, None if request.param == "cpu" else Device(adapter))
    assert not runner.store.rewinds
    yield runner
    runner.close()


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 280, count).tolist()


def rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b).astype(np.float64) ** 2)))


def test_logits_are_the_same_in_chunks_in_steps_and_of_several_sequences(runner, keeping_all, rounding):
    ids = {0: ids_of(LENGTH, 1), 2: ids_of(LENGTH - 90, 2)}
    last = {}
    for slot, some in ids.items():
        assert rms(prefill(runner, some, slot=slot), prefill(keeping_all, some, slot=slot)) < SAME + rounding
        last[slot] = len(some)
    for step in range(3):
        batch = Batch.of([(slot, at + step, [5 + step]) for slot, at in last.items()])
        assert rms(runner.step(batch), keeping_all.step(batch)) < SAME + rounding
    [window] = runner.store.windows.values()
    assert len(window.pager.held(0).pages) <= -(-(WINDOW + runner.cache_config.slack + CHUNK) // PAGE) + 1


def test_a_prefix_a_fork_and_a_saved_state_continue_as_if_all_had_been_kept(runner, keeping_all, rounding):
    ids, rest = ids_of(LENGTH, 1), ids_of(40, 3)
    expected = prefill(keeping_all, ids + rest)[-1]
    prefill(runner, ids, slot=0)
    handle = runner.store.keep(0, LENGTH)
    assert 0 < handle.oldest < LENGTH
    runner.store.adopt(1, handle, LENGTH)
    state = runner.read_state(0)
    assert state["blk.0.kv.keys"].shape[0] == WINDOW - 1
    prefill(runner, ids_of(50, 9), slot=0, start=LENGTH)  # continues differently
    assert rms(prefill(runner, rest, slot=1, start=LENGTH)[-1], expected) < SAME + rounding
    runner.write_state(2, LENGTH, state)
    assert rms(prefill(runner, rest, slot=2, start=LENGTH)[-1], expected) < SAME + rounding
    shorter = handle.oldest + 3
    runner.store.adopt(1, handle, shorter)
    again = prefill(runner, rest, slot=1, start=shorter)[-1]
    assert rms(again, prefill(keeping_all, ids[:shorter] + rest, slot=1)[-1]) < SAME + rounding


def test_a_state_saved_with_all_positions_continues_with_a_window_and_vice_versa(path, keeping_all):
    """An older file may have been saved with a shorter context, in which everything was stored."""
    ids, rest = ids_of(LENGTH, 1), ids_of(40, 3)
    windowed = made(path)
    expected = prefill(keeping_all, ids + rest, slot=2)[-1]
    for source, target in ((keeping_all, windowed), (windowed, keeping_all)):
        prefill(source, ids, slot=0)
        state = fitted(target.model, target.cache_config, LENGTH, source.read_state(0))
        target.write_state(1, LENGTH, state)
        assert rms(prefill(target, rest, slot=1, start=LENGTH)[-1], expected) < SAME
    shorter = {name: array[:-1] for name, array in windowed.read_state(0).items()}
    assert windowed.fitted(LENGTH, shorter) is None


def test_a_context_has_at_least_one_token_and_at_most_the_trained_length(path):
    with GGUFFile.open(path) as file:
        model = load_model(file)
    for context in (1, model.context):
        assert CacheConfig.of(model, context=context).context == context
    for context in (0, model.context + 1):
        with pytest.raises(BadInput, match=f"context is {context:,}"):
            CacheConfig.of(model, context=context)


def test_states_of_another_model_do_not_fit():
    with GGUFFile.open(OWN / "tiny-rwkv7.gguf") as file:
        runner = HostRunner(file, load_model(file))
    prefill(runner, ids_of(4, 1))
    state = runner.read_state(0)
    assert runner.fitted(4, state) is not None
    name, array = next(iter(state.items()))
    half = runner.fitted(4, {**state, name: array.astype(np.float16)})
    assert half is not None
    assert half[name].dtype == np.float32
    for wrong in (array[..., :-1], array.astype(np.float64), array.astype(np.int32)):
        assert runner.fitted(4, {**state, name: wrong}) is None
    assert runner.fitted(4, {other: array for other, array in state.items() if other != name}) is None


@pytest.mark.parametrize("context", [1024, 256])  # with pages of the window, and with all
def test_a_sequence_cannot_go_back_before_its_restored_state(path, context):
    """A saved state has only the positions that the next row of a window layer sees."""
    length, least = 220, 192
    ids = ids_of(length, 1)
    runner = made(path, context=context)
    prefill(runner, ids, slot=0)
    runner.write_state(1, length, fitted(runner.model, runner.cache_config, length, runner.read_state(0)))
    handle = runner.store.keep(1, length)
    assert handle.oldest == length
    runner.store.adopt(2, handle, length)
    prefill(runner, ids_of(30, 2), slot=2, start=length)
    assert runner.store.keep(2, least) is None
    assert runner.store.truncate(2, length) == length
    assert runner.store.truncate(2, least) == 0
    runner.close()


def test_chats_and_common_prefixes_reuse_stored_pages(path):
    """Tested with a whole prompt, one that continues its answer, and one that branches at a stored state."""
    with rwkv_gpu.load(path, device="cpu", context=1024, checkpoint_interval=128, chunk_size=CHUNK) as llm:
        shared, said = ids_of(400, 4), []
        for question in (ids_of(30, 5), ids_of(30, 6), ids_of(30, 7)):
            said.append(llm.generate(shared + question, max_tokens=5, temperature=0))
        longer = [*shared, *ids_of(30, 5), *said[0].tokens, 3, 4]
        said.append(llm.generate(longer, max_tokens=5, temperature=0))
    assert [one.stats.reused_tokens >= 384 for one in said] == [False, True, True, True]
    for prompt, one in zip((*(shared + ids_of(30, n) for n in (5, 6, 7)), longer), said, strict=True):
        with rwkv_gpu.load(path, device="cpu", context=1024) as llm:
            assert llm.generate(prompt, max_tokens=5, temperature=0).tokens == one.tokens


def test_fit_counts_pages_of_the_window_and_short_contexts_keep_everything(path):
    with GGUFFile.open(path) as file:
        model = load_model(file)
        near, far = (CacheConfig.of(model, context=context, chunk_size=CHUNK) for context in (256, 1024))
        assert near.windows(model.caches) == ()
        assert far.windows(model.caches) == (WINDOW,)
        assert far.total(model.caches) == 3 * near.total(model.caches)  # 12 pages instead of 4; 16 hold all
        assert fit(None, file, model, context=1024, chunk_size=CHUNK).state == far.total(model.caches)
