"""Earlier tokens change the probability of later ones, by the rule of each penalty."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.engine.penalties import TokenCounts, TokenHistory, break_repetitions, penalise, repetitions
from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.errors import BadInput

TOKENS = st.lists(st.integers(0, 39), max_size=200)
FEW_TOKENS = st.lists(st.integers(0, 2), max_size=40)
NONE = np.zeros(0, np.int64)


def counts_of(tokens, last_n=-1, decay=1.0):
    counts = TokenCounts(last_n, decay)
    for token in tokens:
        counts.add(token)
    return dict(zip(*(array.tolist() for array in counts.seen()), strict=True))


def penalised(tokens, logits, **settings):
    params = SamplingParams(**settings)
    counts = TokenCounts(params.penalty_last_n, params.penalty_decay)
    for token in tokens:
        counts.add(token)
    changed = logits.copy()
    penalise(changed, counts, params)
    return changed


@given(TOKENS, st.integers(-1, 50))
def test_counts_equal_those_of_the_window(tokens, last_n):
    window = tokens if last_n < 0 else tokens[len(tokens) - min(last_n, len(tokens)) :]
    assert counts_of(tokens, last_n) == Counter(window)


@given(TOKENS, st.sampled_from([0.0, 0.5, 0.996]))
def test_fading_counts_equal_those_of_the_plain_rule(tokens, decay):
    plain = {}
    for token in tokens:
        plain = {seen: count * decay for seen, count in plain.items()}
        plain[token] = plain.get(token, 0) + 1
    assert counts_of(tokens, 3, decay) == pytest.approx(plain)


def test_counts_decay_for_ever_without_overflow():
    faded = counts_of([0] + [1] * 5000, decay=0.5)
    assert faded[1] == pytest.approx(2)
    assert faded[0] == pytest.approx(0)


@given(TOKENS, st.floats(1, 5), st.floats(0, 5), st.floats(0, 5))
def test_penalties_lower_only_logits_of_earlier_tokens(tokens, repetition, presence, frequency):
    logits = np.linspace(-8, 8, 40, dtype=np.float32)
    settings = {
        "repetition_penalty": repetition,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
        "penalty_last_n": -1,
    }
    changed = penalised(tokens, logits, **settings)
    said = np.isin(np.arange(40), tokens)
    assert (changed[said] <= logits[said]).all()
    assert (changed[~said] == logits[~said]).all()
    stronger = penalised(tokens, logits, **{**settings, "presence_penalty": presence + 1})
    assert (stronger[said] < changed[said]).all()


def test_each_penalty_follows_its_equation():
    logits = np.array([2.0, -2.0, 1.0], np.float32)
    assert penalised([0, 1, 0], logits, repetition_penalty=2).tolist() == [1, -4, 1]
    assert penalised([0, 1, 0], logits, presence_penalty=0.5).tolist() == [1.5, -2.5, 1]
    assert penalised([0, 1, 0], logits, frequency_penalty=0.5).tolist() == [1, -2.5, 1]
    decaying = penalised([0, 1, 0], logits, presence_penalty=0.25, frequency_penalty=1, penalty_decay=0.5)
    assert decaying.tolist() == [2 - 0.25 - 1.25, -2 - 0.25 - 0.5, 1]


def plain_repetitions(ids, shortest, breakers):
    """Computes the repetition rule directly."""
    found = {}
    for end in range(len(ids) - 1):
        length = 0
        while length <= end and ids[end - length] == ids[-1 - length] and ids[-1 - length] not in breakers:
            length += 1
        following = ids[end + 1]
        if length >= shortest and following not in breakers:
            found[following] = max(found.get(following, 0), length)
    return found


@given(FEW_TOKENS, st.integers(1, 4), st.sets(st.integers(0, 2), max_size=1))
def test_repetitions_equal_those_of_the_plain_rule(tokens, shortest, breakers):
    found = repetitions(np.array(tokens, np.int64), shortest, np.array(sorted(breakers), np.int64))
    assert found == plain_repetitions(tokens, shortest, breakers)


def test_dry_follows_its_equation_and_never_overflows():
    history = TokenHistory()
    for token in [1, 2, 3, 4, 1, 2, 3]:
        history.add(token)
    logits = np.zeros(6, np.float32)
    params = SamplingParams(dry_multiplier=0.5, dry_base=2, dry_allowed_length=2)
    break_repetitions(logits, history, params)
    assert logits.tolist() == [0, 0, 0, 0, -0.5 * 2 ** (3 - 2), 0]
    for _ in range(2000):
        history.add(5)
    break_repetitions(logits, history, SamplingParams(dry_multiplier=1, dry_base=100))
    assert np.isfinite(logits).all() and logits[5] < -1e20


def test_dry_looks_back_no_farther_than_asked():
    history = TokenHistory()
    for token in [1, 2, 3, 9, 9, 9, 1, 2]:
        history.add(token)
    for last_n, hit in ((-1, True), (8, True), (4, False)):
        logits = np.zeros(10, np.float32)
        break_repetitions(logits, history, SamplingParams(dry_multiplier=1, dry_last_n=last_n))
        assert (logits[3] < 0) == hit


def test_a_history_returns_its_last_tokens_at_any_length():
    history = TokenHistory()
    for token in range(1000):
        history.add(token)
    assert history.last(-1).tolist() == list(range(1000))
    assert history.last(3).tolist() == [997, 998, 999]
    assert history.last(0).tolist() == []
    assert repetitions(NONE, 1, NONE) == {}


def test_greedy_with_penalties_generates_another_text():
    logits = np.array([5.0, 4.9, 0.0], np.float32)
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=1), 3)
    said = []
    for _ in range(3):
        said.append(sampler.sample(logits).token)
        sampler.accept(said[-1])
    assert said == [0, 1, 0]


@pytest.mark.parametrize("token", [-1, 3])
def test_a_token_outside_the_vocabulary_is_not_accepted(token):
    with pytest.raises(BadInput, match="vocabulary of 3"):
        Sampler(SamplingParams(), 3).accept(token)
