"""Sizes of caches follow from the options, and every limit allows exactly its number."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rwkv_gpu.engine.cache.config import CacheConfig, within_bindings
from rwkv_gpu.engine.device_sampling import samples_on_device
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.errors import BadInput, OutOfMemory
from rwkv_gpu.ops.sampler_state import BIASES, RING
from rwkv_gpu.ops.vocabulary import PAGE, Cache, State

KV = Cache("kv", 1, 64)
STATE = State("state", (8,))
MODEL = SimpleNamespace(context=2048, caches=(KV,), states=(STATE,))


def device(limit: int, more: int = 0) -> SimpleNamespace:
    """Returns a device that binds `limit` bytes, of buffers that may be larger."""
    return SimpleNamespace(capabilities=SimpleNamespace(max_binding=limit, max_buffer=limit + more))


def test_a_context_has_one_token_to_the_number_of_the_training():
    for context in (1, 2048):
        assert CacheConfig.of(MODEL, context=context).context == context
    assert CacheConfig.of(replace_context(None), context=4096).context == 4096
    for context in (0, 2049):
        with pytest.raises(BadInput, match=f"context is {context:,}"):
            CacheConfig.of(MODEL, context=context)


def replace_context(context: int | None) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(MODEL), "context": context})


def test_by_default_the_context_is_that_of_the_training_up_to_a_limit():
    for trained, context in ((2048, 2048), (4096, 4096), (4097, 4096), (None, 0)):
        assert CacheConfig.of(replace_context(trained)).context == context


def test_the_pool_of_tokens_holds_at_least_one_context():
    assert CacheConfig.of(MODEL, context=100, tokens=100).pages == 2
    with pytest.raises(BadInput, match="room for 99 tokens"):
        CacheConfig.of(MODEL, context=100, tokens=99)
    recurrent = SimpleNamespace(context=None, caches=(), states=(STATE,))
    assert CacheConfig.of(recurrent, context=100, tokens=99).context == 100


@pytest.mark.parametrize(("name", "least"), [("cache_bytes", 0), ("look_ahead", 0), ("checkpoint_interval", 1)])
def test_an_option_has_a_minimum(name, least):
    assert getattr(CacheConfig.of(MODEL, **{name: least}), name) == least
    with pytest.raises(BadInput, match=f"{name} is {least - 1}"):
        CacheConfig.of(MODEL, **{name: least - 1})


@pytest.mark.parametrize(
    ("look_ahead", "drafts", "rewind", "slack", "history", "spacing"),
    [
        (0, 0, 0, 0, 2, 1), (1, 0, 0, 1, 3, 1), (2, 0, 0, 2, 4, 1), (3, 0, 0, 3, 4, 2), (15, 0, 0, 15, 4, 14),
        (3, 9, 0, 9, 4, 2), (3, 0, 9, 9, 11, 1), (3, 0, 1, 3, 4, 1),
    ],
)  # fmt: skip
def test_a_sequence_keeps_what_it_needs_to_go_back(look_ahead, drafts, rewind, slack, history, spacing):
    config = CacheConfig(64, 3, "f16", look_ahead=look_ahead, drafts=drafts, rewind=rewind, checkpoints=5, initial=1)
    assert (config.slack, config.history, config.spacing) == (slack + PAGE, history, spacing)
    assert config.states == 3 * (history + drafts) + 6


def test_a_window_has_pages_of_its_own_if_they_are_fewer_than_those_of_a_context():
    config = CacheConfig(0, 2, "f16", look_ahead=0, chunk_size=PAGE)
    window, needed = PAGE, 5  # window, slack, chunk, and two that are cut
    assert config.window_pages(window) == needed and config.window_pages(window + 1) == needed + 1
    cache = replace(KV, window=window)
    for pages in (needed, needed + 1):
        some = replace(config, context=pages * PAGE)
        own = pages > needed
        assert some.windows([cache]) == (window,) * own
        assert some.pages_of(window) == (min(2 * pages, 2 * 2 * needed) if own else 2 * pages)
        for length in (window - 2, window - 1, window, window + 1):
            assert some.kept(cache, length) == (min(length, window - 1) if own else length)
    many = replace(config, context=3 * needed * PAGE)
    assert many.pages_of(window) == 2 * 2 * needed and many.pages_of(0) == 2 * 3 * needed


def test_caches_and_states_fill_a_binding_to_its_last_byte():
    config = CacheConfig(128, 1, "f16", look_ahead=2, checkpoints=0)
    whole = config.nbytes(KV)
    only = SimpleNamespace(caches=(KV,), states=())
    for more in (0, 100):
        assert within_bindings(device(whole, more), only, config) == config
        with pytest.raises(OutOfMemory, match="the keys of one layer"):
            within_bindings(device(whole - 1, more), only, config)
    each, states = STATE.nbytes("f32"), SimpleNamespace(caches=(), states=(STATE,))
    for count in range(2, 5):  # a step in flight takes one more
        assert within_bindings(device(count * each), states, config).look_ahead == count - 2
        assert within_bindings(device(count * each - 1 + each), states, config).look_ahead == count - 2
    for limit, whole in ((2 * each - 1, True), (4 * each - 1, False)):
        with pytest.raises(OutOfMemory, match="the states of one layer"):
            within_bindings(device(limit), states, config, whole=whole)
    assert within_bindings(device(4 * each), states, config, whole=False) == config


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ({"logit_bias": dict.fromkeys(range(BIASES), 1.0)}, {"logit_bias": dict.fromkeys(range(BIASES + 1), 1.0)}),
        ({"presence_penalty": 1.0, "penalty_last_n": RING}, {"presence_penalty": 1.0, "penalty_last_n": RING + 1}),
        ({"penalty_last_n": RING + 1}, {"typical_p": 0.99}),
        ({"logprobs": 1}, {"logprobs": 1, "post_sampling_probs": True}),
        ({"post_sampling_probs": True}, {"min_tokens": 1}),
        ({"presence_penalty": 1.0, "penalty_last_n": -1}, {"xtc_probability": 0.01}),
        ({"temperature": 0.5, "top_k": 1, "min_p": 0.1}, {"mirostat_tau": 0.1}),
        ({}, {"dry_multiplier": 0.1}),
    ],
)
def test_the_device_samples_with_all_but_rare_settings(within, beyond):
    assert samples_on_device(SamplingParams(**within))
    assert not samples_on_device(SamplingParams(**beyond))
