"""Keys and values in 8 and 4 bits: logits and perplexity stay near those of float32, in every kind of cache."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rwkv_gpu
from rwkv_gpu.engine.cache.kv import Compact, names, neighbours
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.ops.vocabulary import Cache
from tests.engine.test_engine import drive, ids_of, small, tokens
from tests.golden_files import golden

# A cache of all positions, windows, sinks, a hybrid; and two that stay float16: heads of 80, and latents.
KINDS = ("llama", "qwen3", "gemma3", "gpt-oss", "falcon-h1", "phi3", "deepseek2")
# Tolerances relative to the spread of a row's logits, for most rows: in mixtures, a row may use other experts.
# In each layer q8 errs by up to 0.4% of a block's largest number, and q4 by up to 6%.
NEAR = {"q8": 0.02, "q4": 0.25}
SENSITIVE = {"gpt-oss": 3}  # its random mixture also amplifies the rounding of float16


@pytest.mark.parametrize("kind", ["q8", "q4"])
@pytest.mark.parametrize("name", KINDS)
def test_logits_are_near_those_of_float32(name, kind):
    ids = ids_of(150)
    exact, found = (prefill(small(f"tiny-{name}.gguf", kv=kv), ids, every=True) for kv in ("f32", kind))
    rms = float(np.median(np.sqrt(((found - exact) ** 2).mean(axis=1)) / exact.std(axis=1)))
    assert rms < NEAR[kind] * SENSITIVE.get(name, 1)
    pages = small(f"tiny-{name}.gguf", kv=kind)
    if any(pages.cache_config.format_of(cache).quantised for cache in pages.model.caches):
        assert rms > 0, "something was rounded"


def test_a_compact_state_has_the_size_that_was_announced_and_no_other_arrays_change():
    cache, random = Cache("kv", 2, 64), np.random.default_rng(0)
    states = {name: random.normal(size=(5, 2, 64)).astype(np.float16) for name in names(cache)}
    states["state"] = np.ones((3, 4), np.float32)
    compact = Compact([cache, Cache("odd", 1, 80)])
    found = compact(states)
    assert compact.nbytes(states) == sum(array.nbytes for array in found.values())
    assert sum(found[name].nbytes for name in names(cache)) < 0.6 * sum(states[name].nbytes for name in names(cache))
    assert found["state"] is states["state"]


@given(st.lists(st.integers(0, 9), max_size=12))
def test_pages_are_grouped_into_the_longest_ranges(pages):
    found = [*neighbours(pages)]
    assert [page for one in found for page in one] == pages
    assert all(len(one) for one in found)
    assert not any(one.stop == other.start for one, other in itertools.pairwise(found))


@pytest.mark.parametrize(("kind", "most"), [("q8", 0.002), ("q4", 0.02)])
def test_perplexity_on_text_is_near_that_of_float32(kind, most):
    name, text = str(golden("quiet-llama.gguf")), (rwkv_gpu.__doc__ or "") + "The sea was calm. " * 20
    found = []
    for kv in ("f32", kind):
        with rwkv_gpu.load(name, device="cpu", kv=kv) as llm:
            found.append(llm.perplexity(text[:400]))
    assert abs(np.log(found[1] / found[0])) < most


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_a_prompt_in_chunks_equals_the_prompt_at_once(kind):
    """A row reads its own quantised key from the page, so the split into steps does not change results."""
    ids = ids_of(90)
    whole = prefill(small("tiny-llama.gguf", kv=kind, chunk_size=128), ids)
    pieces = prefill(small("tiny-llama.gguf", kv=kind), ids, chunk_size=1)
    np.testing.assert_allclose(pieces, whole, rtol=2e-2, atol=2e-2)  # may be rounded to either of two quants


def test_a_saved_state_continues_in_its_format_and_in_another():
    ids = ids_of(40)
    asked = Request(ids, SamplingParams(temperature=0, max_tokens=6), keep=True)
    engine = Engine(small("tiny-llama.gguf", kv="q8"))
    number = engine.add(asked)
    answer = tokens(drive(engine)[number])
    length, arrays = engine.export([*ids, *answer])
    assert arrays[next(iter(arrays))].dtype == np.uint32
    for kind in ("q8", "f16", "f32", "q4"):
        other = Engine(small("tiny-llama.gguf", kv=kind))
        other.restore([*ids, *answer][:length], arrays)
        number = other.add(Request([*ids, *answer, 5], SamplingParams(temperature=0, max_tokens=3)))
        assert drive(other)[number][-1].reused == length


def test_compact_states_have_the_promised_bytes_and_continue():
    """Recurrent states stay as they are, and so do keys of heads that q8 cannot store."""
    for name, smaller in (("falcon-h1", True), ("phi3", False)):
        runner, ids = small(f"tiny-{name}.gguf"), ids_of(40)
        prefill(runner, ids)
        state = runner.read_state(0)
        compact, others = Compact(runner.model.caches), {one.name for one in runner.model.states}
        found = compact(state)
        assert compact.nbytes(state) == sum(array.nbytes for array in found.values())
        assert all(found[other] is state[other] for other in others)
        assert all((found[key].nbytes < state[key].nbytes) == smaller for key in state.keys() - others)
        assert runner.fitted(40, found) is not None


def test_on_the_gpu_the_logits_equal_those_of_numpy(adapter):
    ids = ids_of(70)
    runner, twin = small("tiny-qwen3.gguf", adapter, kv="q8"), small("tiny-qwen3.gguf", kv="q8")
    for one in (runner, twin):
        prefill(one, ids[:-1])
    found, expected = (prefill(one, ids[-1:], start=len(ids) - 1) for one in (runner, twin))
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)  # as above
    arrays, same = runner.read_state(0), twin.read_state(0)
    assert all(np.mean(arrays[name] != same[name]) < 0.02 for name in same)
    runner.close()
