"""Each sampler is compared with its definition, by statistics on a known distribution and by general laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from rwkv_gpu.engine.device_sampling import draw_row
from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.errors import BadInput, BadNumbers
from rwkv_gpu.ops import truncation
from rwkv_gpu.ops.draw import exponentials
from rwkv_gpu.ops.sampler_state import HostSamplerState
from rwkv_gpu.ops.sampling import DRAW, Drawing, sample

P = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
LOGITS = np.log(P).astype(np.float32) + 3
DRAWS = 4000
# The 0.9999 quantile of chi-square for 1 to 5 degrees of freedom. Seeds are fixed, so the test passes always or never.
CHI_SQUARE = (0.0, 15.14, 18.42, 21.11, 23.51, 25.74)

LOGITS_ANY = stn.arrays(np.float32, st.integers(1, 60), elements=st.floats(-20, 20, width=32))
SHARES = st.floats(0.01, 0.99)


def drawn(logits, n=DRAWS, accepted=(), **settings):
    sampler = Sampler(SamplingParams(seed=7, **settings), len(logits))
    sampler.accept_all(accepted)
    return np.array([sampler.sample(logits).token for _ in range(n)])


def check_statistics(tokens, expected):
    """Runs Pearson's test, and checks that no token of probability 0 is drawn."""
    counts = np.bincount(tokens, minlength=len(expected))
    possible = expected > 0
    assert counts[~possible].sum() == 0
    wanted = expected[possible] / expected.sum() * len(tokens)
    assert ((counts[possible] - wanted) ** 2 / wanted).sum() < CHI_SQUARE[possible.sum() - 1] + 1e-9


def only(*kept):
    return np.where(np.isin(np.arange(len(P)), kept), P, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, P),
        ({"temperature": 2.0}, P**0.5),
        ({"temperature": 0.5}, P**2),
        ({"top_k": 3}, only(0, 1, 2)),
        ({"top_p": 0.6}, only(0, 1)),  # 0.4 is not enough, 0.65 is
        ({"min_p": 0.3}, only(0, 1, 2)),  # 0.3 · 0.4 = 0.12
        # H is 1.53 nats and the surprises are 0.92, 1.39, 1.90, 2.30 ...: 1 is nearest, then 2, then 0
        ({"typical_p": 0.5}, only(0, 1, 2)),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.14}, only(2, 3, 4, 5)),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.2}, P / 2 + only(1, 2, 3, 4, 5) / 0.6 / 2),
        ({"logit_bias": {0: -math.inf, 5: math.log(5)}}, P * [0, 1, 1, 1, 1, 5]),
        ({"top_k": 4, "top_p": 0.7, "temperature": 2.0}, only(0, 1) ** 0.5),  # 0.65 of the remaining 0.9 is 0.72
        ({"top_k": 2, "xtc_probability": 1.0, "xtc_threshold": 0.3}, only(1)),
    ],
    ids=str,
)
def test_draws_follow_the_definition(settings, expected):
    check_statistics(drawn(LOGITS, **settings), np.asarray(expected, float))


def test_the_last_of_several_likely_ones_survives_xtc():
    assert truncation.xtc(np.log(np.array([0.3, 0.3, 0.3, 0.1])), 0.2).tolist() == [2, 3]


def plain_mirostat(p, tau, eta, seed, draws):
    """Mirostat v2 by its definition. Returns the tokens, and the surprise of each among the candidates."""
    mu = 2 * tau
    for number in range(draws):
        kept = [i for i in range(len(p)) if -np.log2(p[i]) <= mu] or [int(p.argmax())]
        shares = p[kept] / p[kept].sum()
        at = int((exponentials(seed, number, np.array(kept)) / shares).argmin())
        surprise = -np.log2(shares[at])
        mu -= eta * (surprise - tau)
        yield kept[at], surprise


@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_mirostat_follows_its_definition_and_reaches_its_target_surprise(tau):
    p = (1 / np.arange(1, 101)) / (1 / np.arange(1, 101)).sum()
    tokens, surprises = zip(*plain_mirostat(p, tau, 0.1, 7, 1000), strict=True)
    # If float32 rounds the edge of the kept tokens, a draw and all later ones may differ; here they do not.
    assert drawn(np.log(p).astype(np.float32), n=1000, mirostat_tau=tau).tolist() == list(tokens)
    assert np.mean(surprises) == pytest.approx(tau, abs=0.1)


def test_the_same_seed_gives_the_same_tokens_and_another_does_not():
    logits = np.zeros(1000, np.float32)
    one, same, other = (Sampler(SamplingParams(seed=seed, top_p=0.9), 1000) for seed in (3, 3, 4))
    draws = [[sampler.sample(logits).token for _ in range(8)] for sampler in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]


def test_a_random_seed_can_be_reused():
    logits = np.zeros(1000, np.float32)
    first, second = (Sampler(SamplingParams(), 1000) for _ in range(2))
    assert first.seed != second.seed
    again = Sampler(SamplingParams(seed=first.seed), 1000)
    assert first.sample(logits) == again.sample(logits)


@given(LOGITS_ANY, st.sampled_from([{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0, "top_k": 1}]))
def test_narrowest_settings_are_greedy(logits, settings):
    assert drawn(logits, n=1, **settings)[0] == logits.argmax()


@given(LOGITS_ANY)
def test_settings_without_effect_leave_the_plain_distribution(logits):
    plain = drawn(logits, n=5)
    assert (drawn(logits, n=5, top_p=1.0, min_p=0.0, typical_p=1.0, top_k=len(logits)) == plain).all()


@given(LOGITS_ANY, st.integers(1, 80))
def test_top_k_keeps_the_k_largest_and_of_ties_the_first(logits, k):
    expected = np.sort(np.argsort(-logits, kind="stable")[:k])
    assert truncation.top_k(logits, k).tolist() == expected.tolist()


@pytest.mark.parametrize("decimals", [7, 1, 0, -2], ids="{} decimals".format)
def test_of_many_logits_the_k_largest_are_found_by_groups(decimals):
    """The logits have no ties, some, many, or are all equal."""
    logits = np.random.default_rng(1).standard_normal(8195).astype(np.float32).round(decimals)
    for k in (1, 3, 8):
        expected = np.sort(np.argsort(-logits, kind="stable")[:k])
        assert truncation.top_k(logits, k).tolist() == expected.tolist()


@given(LOGITS_ANY, SHARES)
def test_top_p_keeps_the_fewest_that_have_the_mass(logits, share):
    kept = truncation.top_p(logits, share)
    p = truncation.softmax(logits.astype(np.float64))
    assert p[kept].sum() >= share - 1e-6  # rounding of float32 exponentials
    assert p[kept].sum() - p[kept].min() < share + 1e-6
    assert np.delete(logits, kept).max(initial=-np.inf) <= logits[kept].min()


@given(LOGITS_ANY, SHARES)
def test_min_p_keeps_tokens_that_are_likely_enough(logits, share):
    kept = truncation.min_p(logits, share)
    ratio = np.exp(logits.astype(np.float64) - logits.max())
    assert logits.argmax() in kept
    assert (ratio[kept] >= share * (1 - 1e-5)).all()
    assert (np.delete(ratio, kept) <= share * (1 + 1e-5)).all()


@given(LOGITS_ANY, SHARES)
def test_every_truncation_keeps_something_once_and_in_order(logits, share):
    for keep in (truncation.top_p, truncation.min_p, truncation.typical, truncation.xtc):
        kept = keep(logits, share)
        assert 0 < len(kept) <= len(logits)
        assert (np.diff(kept) > 0).all()
    assert len(truncation.surprising(logits, share)) > 0


def test_typical_looks_beyond_the_first_few_where_it_must():
    logits = np.zeros(3 * truncation.SORTED_AT_ONCE, np.float32)
    assert len(truncation.typical(logits, 0.9)) == pytest.approx(0.9 * len(logits), abs=2)


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("mass", [0.05, 0.5, 0.95])
def test_typical_keeps_the_nearest_of_many(spread, mass):
    logits = np.random.default_rng(0).standard_normal(5 * truncation.SORTED_AT_ONCE + 1) * spread
    p = truncation.softmax(logits)
    order = np.argsort(np.abs(-np.log(p) + np.sum(p * np.log(p))), kind="stable")
    expected = np.sort(order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1])
    assert truncation.typical(logits, mass).tolist() == expected.tolist()


@given(LOGITS_ANY, st.floats(0, 1, exclude_max=True))
def test_a_draw_is_never_impossible(logits, u):
    logits = logits.copy()
    logits[1:] = -np.inf
    assert Sampler(SamplingParams(seed=int(u * 1e6)), len(logits)).sample(logits).token == 0


def test_log_probabilities_are_the_models_own():
    sampler = Sampler(SamplingParams(temperature=0, logprobs=3, logit_bias={4: 100}), len(P))
    sampled = sampler.sample(LOGITS)
    assert sampled.token == 4
    assert sampled.logprob == pytest.approx(math.log(P[4]), abs=1e-5)
    assert [token for token, _ in sampled.top] == [0, 1, 2]
    assert [value for _, value in sampled.top] == pytest.approx(np.log(P[:3]), abs=1e-5)


def test_probabilities_after_sampling_are_those_among_the_tokens_that_were_drawn_from():
    found = Sampler(SamplingParams(top_k=2, logprobs=3, post_sampling_probs=True, seed=1), len(P)).sample(LOGITS)
    among = {token: math.log(P[token] / P[:2].sum()) for token in (0, 1)}
    assert dict(found.top) == pytest.approx(among, abs=1e-5)
    assert found.logprob == pytest.approx(among[found.token], abs=1e-5)


def test_logits_are_not_changed():
    logits = LOGITS.copy()
    drawn(logits, n=3, accepted=[0, 1], repetition_penalty=2, dry_multiplier=1, logit_bias={1: 2}, mirostat_tau=3)
    assert (logits == LOGITS).all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_nan_are_refused(wrong):
    logits = LOGITS.copy()
    logits[3] = wrong
    with pytest.raises(BadNumbers, match=r"1 of 6 logits.*token 3"):
        drawn(logits, n=1)


def test_logits_that_leave_no_token_are_refused():
    with pytest.raises(BadNumbers, match="no token is possible"):
        drawn(np.full(4, -np.inf, np.float32), n=1)


def test_logits_of_another_size_are_refused():
    with pytest.raises(BadInput, match=r"\(5,\).*\(6,\)"):
        Sampler(SamplingParams(), 6).sample(LOGITS[:5])


def test_logits_processors_see_all_tokens_so_far_and_change_the_logits_in_their_order():
    seen = []

    def ban_two(ids, scores):
        seen.append(ids.tolist())
        scores[2] = -np.inf
        return scores

    def prefer_three(_, scores):
        assert scores[2] == -np.inf
        return [score + (100 if token == 3 else 0) for token, score in enumerate(scores)]

    logits = np.array([0, 1, 5, 0.5, 2], np.float32)
    sampler = Sampler(SamplingParams(temperature=0, logits_processors=(ban_two, prefer_three)), 5)
    sampler.accept_all([4, 0])
    chosen = sampler.sample(logits)
    assert chosen.token == 3 and seen == [[4, 0]]
    assert chosen.logprob == Sampler(SamplingParams(temperature=0), 5).sample(logits).logprob - 4.5
    sampler.accept(3)
    sampler.sample(logits)
    assert seen[1] == [4, 0, 3] and logits[2] == 5


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda ids, scores: scores[:2], "shape"),
        (lambda ids, scores: scores * np.nan, "NaN"),
        (lambda ids, scores: 1 / 0, "ZeroDivisionError"),
        (lambda ids: ids, "TypeError"),
    ],
)
def test_a_logits_processor_that_fails_is_named_with_its_fault(processor, message):
    with pytest.raises(BadInput, match=f"logits processor <lambda> .*{message}"):
        Sampler(SamplingParams(logits_processors=processor), 5).sample(np.zeros(5, np.float32))


def test_params_show_values_that_differ_from_the_defaults():
    assert repr(SamplingParams()) == "SamplingParams()"
    params = SamplingParams(temperature=0.5, stop="x", logit_bias={3: 1}, stop_ids=[4])
    assert repr(params) == "SamplingParams(temperature=0.5, logit_bias={3: 1.0}, stop=('x',), stop_ids={4})"
    assert eval(repr(params)) == params


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_bans_tokens_however_low_the_logits_of_the_others_are(temperature):
    logits = np.full(40, -3e4, np.float32)
    logits[[3, 39]] = 5.0
    mask = np.array([0b10000, 0b10], np.uint32)  # tokens 4 and 33
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1), 40)
    assert sampler.sample(logits, mask).token in (4, 33)
    draws = np.array([draw_row(SamplingParams(temperature=temperature), 1, 0, masked=True)], DRAW)
    words = sample(logits[None], Drawing(HostSamplerState(1, 40), draws, mask[None]))
    assert words[0, 0] in (4, 33)
