"""The device samples the same tokens as the host's sampler."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine.device_sampling import draw_row, remember, samples_on_device, skipped_row
from rwkv_gpu.engine.gpu_runner import GpuPendingStep
from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.engine.sampling_params import SPANS
from rwkv_gpu.engine.step_result import SampledRow, SamplingInputs
from rwkv_gpu.errors import BadNumbers
from rwkv_gpu.ops.sampler_state import HostSamplerState
from rwkv_gpu.ops.sampling import DRAW, Drawing, sample

V = 300
PROMPT = [5, 5, 7, 120, 5, 299, 0]


def rows_of(number):
    return (np.random.default_rng(number).standard_normal(V) * 2).astype(np.float32)


def answers(words):
    return SampledRow.rows(words.tobytes(), len(words))


def test_logits_are_rows_after_the_sampled_tokens():
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    group = SimpleNamespace(wait=lambda _step: bytes(32) + logits.tobytes())
    assert np.array_equal(GpuPendingStep(group, 0, 2, logits=True).wait().logits, logits)
    assert GpuPendingStep(group, 0, 2, logits=False).wait().logits is None


def on_device(params, count, seed, mask=None):
    """Returns the tokens and log probabilities of the op."""
    sampler_state, said, chosen = HostSamplerState(3, V), [], []
    row = draw_row(params, seed, 2, masked=mask is not None)
    remember(sampler_state, 2, PROMPT, params)
    for number in range(count):
        row["number"], row["tokens"] = number, len(PROMPT) + number
        masks = None if mask is None else mask[None]
        [mine] = answers(sample(rows_of(number)[None], Drawing(sampler_state, row[None], masks)))
        chosen.append(mine.sampled())
        said.append(chosen[-1].token)
        assert sampler_state.sampled[2] == said[-1]
    return chosen


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {},
        {"temperature": 0.3, "top_k": 20},
        {"top_p": 0.8, "min_p": 0.02},
        {"top_k": 100, "top_p": 0.9, "min_p": 0.01, "temperature": 1.4},
        {"repetition_penalty": 1.4, "temperature": 0, "penalty_last_n": 4},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "penalty_last_n": -1},
        {"frequency_penalty": 1.5, "penalty_decay": 0.7, "temperature": 0},
        {"frequency_penalty": 1.5, "penalty_decay": 0.7, "penalty_last_n": 2, "temperature": 0},
        {"presence_penalty": 5.0, "penalty_last_n": 0, "temperature": 0},
        {"logit_bias": {299: 3.0, 4: -2.5, 0: -math.inf}},
        {"logit_bias": {5: 6.0, 7: 5.0}, "repetition_penalty": 1.5, "frequency_penalty": 0.3, "top_k": 5},
        {"logit_bias": dict.fromkeys(range(1, V), -math.inf), "temperature": 0},
    ],
    ids=str,
)
def test_the_same_seed_gives_the_same_answer_on_gpu_and_host(settings):
    params = SamplingParams(seed=1 << 40 | 3, **settings)
    assert samples_on_device(params)
    sampler = Sampler(params, V)
    sampler.accept_all(PROMPT)
    for number, got in enumerate(on_device(params, 40, sampler.seed)):
        expected = sampler.sample(rows_of(number))
        assert got.token == expected.token
        assert got.logprob == pytest.approx(expected.logprob, abs=1e-5)  # float32 against float64
        sampler.accept(expected.token)


def test_a_mask_allows_the_same_tokens_on_gpu_and_host():
    params = SamplingParams(seed=9, top_p=0.9)
    mask = np.zeros(-(-V // 32), np.uint32)
    mask[[0, 3, 9]] = 0x80000001, 0xFFFF, 0x800  # 0, 31, 96 to 111, 299
    sampler = Sampler(params, V)
    tokens = [said.token for said in on_device(params, 40, 9, mask)]
    assert tokens == [sampler.sample(rows_of(number), mask).token for number in range(40)]
    assert set(tokens) <= {0, 31, 299, *range(96, 112)}


def test_rows_without_a_token_carry_the_reason():
    draws = np.array([draw_row(SamplingParams(), 1, 0)] * 3, DRAW)
    logits = np.stack([rows_of(0)] * 3)
    logits[0, 7], logits[1] = np.nan, -np.inf
    rows = answers(sample(logits, Drawing(HostSamplerState(1, V), draws)))
    with pytest.raises(BadNumbers, match="NaN"):
        rows[0].sampled()
    with pytest.raises(BadNumbers, match="no token is possible"):
        rows[1].sampled()
    assert rows[2].sampled().token < V


def test_a_row_that_is_skipped_changes_nothing():
    sampler_state = HostSamplerState(1, V)
    sampler_state.put(0, 77)
    rows = answers(sample(rows_of(0)[None], Drawing(sampler_state, skipped_row()[None])))
    assert sampler_state.sampled[0] == 77
    with pytest.raises(AssertionError):
        rows[0].sampled()


@pytest.mark.parametrize(
    ("params", "how"),
    [
        ({}, "plain"),
        ({"temperature": 0, "top_p": 0.5}, "plain"),
        ({"top_p": 0.5}, "any"),
        ({"top_k": 3}, "any"),
        ({"min_p": 0.1}, "any"),
        ({"temperature": 0, "presence_penalty": 0.1}, "any"),
        ({"temperature": 0, "logit_bias": {3: 1.0}}, "any"),
    ],
    ids=str,
)
def test_one_row_with_a_setting_makes_the_step_apply_it(params, how):
    plain, row = draw_row(SamplingParams(), 1, 0), draw_row(SamplingParams(**params), 1, 0)
    assert SamplingInputs.of(np.array([plain, row, skipped_row()], DRAW)).how == how
    assert SamplingInputs.of(np.array([row], DRAW), np.zeros((1, 3), np.uint32)).how == "masked"


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.filterwarnings("error")
def test_extreme_settings_still_choose_a_token_on_a_device(name, end):
    """The device uses float32, in which the smallest numbers of Python may be 0."""
    span = SPANS[name]
    value = getattr(span, end)
    if span.above and end == "low":
        value = math.ulp(0.0)
    params = SamplingParams(**{"seed": 1, name: value})
    if samples_on_device(params):
        assert all(one.token < V for one in on_device(params, 8, 1))
