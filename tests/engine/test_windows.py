"""Windows and ranks have exactly the given length: in the host's sampler, and in the op in numpy and on a device."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rwkv_gpu.engine.device_sampling import draw_row, samples_on_device, window
from rwkv_gpu.engine.penalties import TokenCounts
from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.ops.sampler_state import RING, HostSamplerState, count, ring
from rwkv_gpu.ops.sampling import Drawing, sample
from tests.ops.test_sampling import Both

V = 12
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # other programs use the machine, too
LOGITS = np.arange(V, 0, -1, dtype=np.float32)  # token 0 is the likeliest

tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=40)


def not_in_the_last(ids: list[int], n: int) -> int:
    """Returns the likeliest token that is not among the last n."""
    banned = ids[len(ids) - n :] if n < len(ids) else ids
    return next((token for token in range(V) if token not in banned), 0)


def generated(choose, prompt: list[int], steps: int) -> list[int]:
    """Returns the tokens of an answer, one by one."""
    ids = list(prompt)
    for number in range(steps):
        ids.append(choose(ids, number))
    return ids[len(prompt) :]


def banning(n: int) -> SamplingParams:
    """Returns settings that never repeat one of the last n tokens."""
    return SamplingParams(temperature=0, presence_penalty=100.0, penalty_last_n=n)


def on_host(params: SamplingParams, prompt: list[int]):
    sampler = Sampler(params, V)
    sampler.accept_all(prompt)

    def choose(_ids, _number):
        token = sampler.sample(LOGITS).token
        sampler.accept(token)
        return token

    return choose


def in_the_op(params: SamplingParams, prompt: list[int], run=None):
    state = HostSamplerState(1, V)
    if run is None:
        state.remember(0, prompt, window(params), params.penalty_decay)
    row = draw_row(params, 1, 0)

    def choose(ids, number):
        row["number"], row["tokens"] = number, len(ids)
        words = sample(LOGITS[None], Drawing(state, row[None])) if run is None else run(LOGITS[None], row[None])
        return int(words[0, 0])

    return choose


@given(prompt=tokens, n=st.integers(1, V - 1))
@settings(**PATIENT)
def test_penalties_look_back_on_exactly_the_last_n_tokens(prompt, n):
    expected = generated(lambda ids, _: not_in_the_last(ids, n), prompt, 30)
    assert generated(on_host(banning(n), prompt), prompt, 30) == expected
    assert generated(in_the_op(banning(n), prompt), prompt, 30) == expected


@pytest.mark.parametrize("n", [1, 2, 5, V - 1])
def test_penalties_on_a_device_look_back_on_exactly_the_last_n_tokens(device, n):
    both, prompt = Both(device, V, 1), [3, 0, 1, 1, 0, 2, 4]
    both.sampler_state.remember(0, prompt, n, 1.0)
    expected = generated(lambda ids, _: not_in_the_last(ids, n), prompt, 20)
    assert generated(in_the_op(banning(n), prompt, both.run), prompt, 20) == expected


@given(ids=tokens, n=st.integers(0, V))
@settings(**PATIENT)
def test_counts_are_of_exactly_the_last_n_tokens(ids, n):
    last = ids[-n:] if n else ids
    counts = TokenCounts(n if n else -1, 1.0)
    for token in ids:
        counts.add(token)
    expected = {token: last.count(token) for token in set(last)}
    assert dict(zip(*(array.tolist() for array in counts.seen()), strict=True)) == expected
    words = count(ids, V, n, 1.0)
    stored = {token: float(words[token : token + 1, 0].view(np.float32)[0]) for token in np.flatnonzero(words[:, 1])}
    assert stored == expected


@given(ids=tokens, decay=st.sampled_from([0.0, 0.5, 0.9]))
@settings(**PATIENT)
def test_counts_that_fade_are_sums_of_powers(ids, decay):
    expected = {token: sum(decay**age for age, one in enumerate(ids[::-1]) if one == token) for token in set(ids)}
    counts = TokenCounts(-1, decay)
    for token in ids:
        counts.add(token)
    seen = dict(zip(*(array.tolist() for array in counts.seen()), strict=True))
    assert seen == pytest.approx(expected)
    words = count(ids, V, 0, decay)
    assert {token: float(words[token : token + 1, 0].view(np.float32)[0]) for token in expected} == pytest.approx(
        expected
    )


@given(length=st.integers(1, 3 * RING), shift=st.integers(0, 100))
@settings(max_examples=30, **PATIENT)
def test_the_ring_holds_the_last_tokens_each_at_its_place(length, shift):
    ids = [shift + n for n in range(length)]
    words = ring(ids)
    for at in range(max(0, length - RING), length):
        assert words[at % RING] == ids[at]


@pytest.mark.parametrize("n", [RING - 1, RING, RING + 1])
def test_the_host_handles_windows_longer_than_the_ring(n):
    assert samples_on_device(banning(n)) == (n <= RING)


def test_the_longest_window_of_a_device_is_exact():
    """The token that left the window one step ago is allowed; the one still in it is not."""
    prompt = [0] + [1] * (RING - 1)
    assert generated(in_the_op(banning(RING), prompt), prompt, 3) == [2, 0, 3]


@pytest.mark.long
@given(k=st.integers(1, V), seed=st.integers(0, 2**40))
@settings(max_examples=20, **PATIENT)
def test_top_k_leaves_exactly_the_k_greatest(k, seed):
    """At a high temperature each of them is drawn, and nothing else."""
    params = SamplingParams(temperature=1000.0, top_k=k, seed=seed)
    logits = np.random.default_rng(seed).permutation(LOGITS)
    greatest = set(np.argsort(-logits)[:k].tolist())
    sampler, row, state = Sampler(params, V), draw_row(params, seed, 0), HostSamplerState(1, V)
    drawn_by_host, drawn_by_op = set(), set()
    for number in range(20 * V):
        row["number"] = number
        drawn_by_host.add(sampler.sample(logits).token)
        drawn_by_op.add(int(sample(logits[None], Drawing(state, row[None]))[0, 0]))
    assert drawn_by_host == drawn_by_op == greatest


@pytest.mark.parametrize("k", [1, 2, 7, V - 1, V])
def test_top_k_on_a_device_leaves_exactly_the_k_greatest(device, k):
    rows = 20 * V
    both, params = Both(device, V, rows), SamplingParams(temperature=1000.0, top_k=k)
    draws = np.repeat(draw_row(params, 5, 0)[None], rows)
    draws["number"] = np.arange(rows)
    drawn = both.run(np.tile(LOGITS, (rows, 1)), draws)[:, 0]
    assert set(drawn.tolist()) == set(range(k))
