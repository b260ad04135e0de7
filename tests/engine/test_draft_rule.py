"""Tests of the rule that chooses the length of drafts, by the cost of steps and the acceptance rate; no model."""

import itertools
from functools import partial

import numpy as np
import pytest

from rwkv_gpu.engine.speculation.acceptance import CHANCES, MODEL, WEIGHT, Acceptance, DraftState, kind_of
from rwkv_gpu.engine.speculation.costs import (
    FADE,
    GUESS,
    LAST,
    MAX_FADED,
    Candidate,
    Measured,
    StepCosts,
    best_widths,
)
from rwkv_gpu.engine.speculation.gate import BLIND, HOPEFUL, NEW, SPARING, TRIAL, SpeculationGate
from rwkv_gpu.engine.speculation.lookup import LONGEST, RECENT, SHORTEST, NgramIndex, PromptLookup
from rwkv_gpu.engine.speculation.proposer import Offer, Proposer
from rwkv_gpu.engine.speculation.speculation import WINDOW
from rwkv_gpu.engine.speculation.speculator import Speculator, _expected

MOST = 7
# Seconds of a step submitted ahead, and of one that is awaited, by rows: with which drafts gain little or much.
DEVICES = {
    "slow to answer": (1.2, {1: 2.4, 2: 2.7, 4: 4.0, 8: 5.5}),
    "quick to answer": (1.2, {1: 1.5, 2: 1.7, 4: 2.3, 8: 3.2}),
    "rows for nothing": (1.0, {1: 1.1, 2: 1.12, 4: 1.15, 8: 1.2}),
    "every row as dear": (1.0, {1: 1.0, 2: 1.9, 4: 3.5, 8: 6.5}),
    "Llama 8B on an H200": (2.0, {1: 2.55, 2: 3.14, 4: 4.37, 8: 6.1}),
}


def bucket(rows: int) -> int:
    return 1 << (rows - 1).bit_length()


def run(
    device: str,
    right: float,
    tokens: int,
    gate: SpeculationGate,
    costs: StepCosts,
    known: Acceptance,
    seed: int = 0,
    disturbed: float = 0.0,
) -> tuple[float, float]:
    """Simulates one answer with a draft model. Returns tokens per second, and the share of steps without drafts.

    Times vary by 5%. The share `disturbed` of the awaited steps seems to take three times as long.
    """
    ahead, waited = DEVICES[device]
    random = np.random.default_rng(seed)
    speculator = Speculator(MOST, [Proposer()])
    drafting = DraftState(MOST, known)
    drafting.kind = MODEL
    seconds, done, without, steps = 0.0, 0, 0, 0
    while done < tokens:
        steps += 1
        gate.decide([drafting], 1, costs)
        varies = 1 + 0.05 * random.standard_normal()
        if not gate.on:
            seconds += ahead * varies
            done += 1
            without += 1
            gate.undrafted(1, 1)
            if not without % WINDOW:
                costs.measured(1, ahead * varies, ahead=True)
            continue
        [width] = speculator._widths([Candidate(drafting.chance(MODEL), MOST)], 1, 64, costs)
        accepted = sum(itertools.takewhile(bool, random.random(width) < right))
        took = waited[bucket(width + 1)] * varies
        seconds += took
        done += accepted + 1
        drafting.verified(width, accepted)
        gate.verified(accepted + 1, width + 1, 1, costs)
        costs.measured(width + 1, took * (3 if random.random() < disturbed else 1), ahead=False)
    return done / seconds, without / steps


def best(device: str, right: float) -> float:
    """Returns the tokens per second of the best way: without drafts, or with drafts of one length."""
    ahead, waited = DEVICES[device]
    drafts = (sum(right**n for n in range(width + 1)) / waited[bucket(width + 1)] for width in range(MOST + 1))
    return max(1 / ahead, *drafts)


@pytest.mark.long
@pytest.mark.parametrize("right", [1.0, 0.8, 0.7, 0.5, 0.2, 0.0])
@pytest.mark.parametrize("device", DEVICES)
def test_a_long_answer_is_nearly_as_fast_as_with_the_best_drafts(device, right):
    rates = [run(device, right, 4000, SpeculationGate(), StepCosts(), Acceptance(), seed)[0] for seed in range(3)]
    assert np.mean(rates) > 0.92 * best(device, right)
    assert min(rates) > 0.98 / DEVICES[device][0], "nothing is lost where drafts are useless"


@pytest.mark.parametrize("device", DEVICES)
def test_measured_costs_are_used_for_later_answers(device):
    """The cost of learning is paid once, not by each short answer."""
    for right in (1.0, 0.0):
        gate, costs, known = SpeculationGate(), StepCosts(), Acceptance()
        rates = [run(device, right, 200, gate, costs, known, seed)[0] for seed in range(12)]
        assert np.mean(rates[3:]) > 0.92 * best(device, right)


def later(device: str, right: float, tokens: int = 256, disturbed: float = 0.0) -> float:
    """Returns the mean speed-up over answers without drafts, for many engines that have completed one answer."""
    rates = []
    for seed in range(30):
        gate, costs, known = SpeculationGate(), StepCosts(), Acceptance()
        answers = [run(device, right, tokens, gate, costs, known, 3 * seed + n, disturbed)[0] for n in range(3)]
        rates.extend(answers[1:])
    return float(np.mean(rates)) * DEVICES[device][0]


@pytest.mark.long
@pytest.mark.parametrize("tokens", [128, 256, 1000])
@pytest.mark.parametrize(
    ("right", "times"), [(1.0, 2.5), (0.9, 1.75), (0.8, 1.28), (0.7, 1.05), (0.5, 0.97), (0.2, 0.97), (0.0, 0.97)]
)
def test_drafts_that_gain_a_little_outlast_bad_luck_and_others_cost_little(right, times, tokens):
    """The best possible speed-ups are 2.62, 1.87, 1.36, 1.16 and 1."""
    assert later("Llama 8B on an H200", right, tokens) > times


@pytest.mark.long
@pytest.mark.parametrize(("right", "times"), [(0.8, 1.28), (0.7, 1.05)])
def test_a_disturbed_step_does_not_stop_drafts(right, times):
    assert later("Llama 8B on an H200", right, disturbed=0.1) > times


def test_lookup_drafts_stop_soon_and_restart_with_their_simulated_gain():
    gate, costs, drafting = SpeculationGate(watches=True), StepCosts(), [DraftState(MOST)]
    for _ in range(3):  # the first is dropped, and another measurement may be disturbed
        costs.measured(1, 1.0, ahead=True)
        for rows in (1, 8):
            costs.measured(rows, 1 + rows / 4, ahead=False)
    for _ in range(5):
        gate.verified(1, 1, 1, costs)
        gate.decide(drafting, 1, costs)
    assert not gate.on, "each of these steps has lost a quarter"
    for _ in range(100):
        gate.watched(-0.25, 1)
        gate.undrafted(0, 1)
        gate.decide(drafting, 1, costs)
    assert not gate.on
    gate.watched(8 - costs.relative(8, 1), 1)
    gate.decide(drafting, 1, costs)
    assert gate.on, "a draft would have been right"


def gate_of_a_draft_model():
    """Returns a gate that allows drafts, with full credit and known costs."""
    gate, costs, drafting = SpeculationGate(), StepCosts(), [DraftState(MOST)]
    for _ in range(3):  # the first is dropped, and another measurement may be disturbed
        costs.measured(1, 1.0, ahead=True)
        costs.measured(1, 1.2, ahead=False)
        costs.measured(8, 2.0, ahead=False)
        costs.drafted(7, 1, 7 * 0.5)
    for _ in range(9):
        gate.verified(8, 8, 1, costs, drafted=7)
    gate.decide(drafting, 1, costs)
    assert gate.on
    return gate, costs, drafting


def test_steps_of_a_draft_model_are_paid_for():
    gate, costs, drafting = gate_of_a_draft_model()
    assert costs.relative(8, 1, drafted=7) == pytest.approx(5.5, rel=0.01)
    assert costs.relative(1, 1) == pytest.approx(1.2, rel=0.01)
    count = 0
    while gate.on and count < 100:
        gate.verified(4, 8, 1, costs, drafted=7)
        gate.decide(drafting, 1, costs)
        count += 1
    assert count == 11, "each has lost 1.5 of 16"


def test_later_steps_pay_for_the_prompt_that_a_draft_model_reads():
    """Later steps pay for the draft model's reading of a long prompt, so a trial does not end at once."""
    gate, costs, drafting = gate_of_a_draft_model()
    gate.read(60.0, 1, costs)
    for _ in range(3):
        gate.verified(6, 8, 1, costs, drafted=7)
        gate.decide(drafting, 1, costs)
        assert gate.on, "what is saved pays the first"
    for _ in range(10):
        gate.verified(6, 8, 1, costs, drafted=7)
        gate.decide(drafting, 1, costs)
    assert not gate.on, "half a token for a step does not pay"
    for _ in range(300):
        gate.undrafted(1, 1)
        gate.decide(drafting, 1, costs)
    assert not gate.on, "it pays on"


def test_drafts_that_cannot_pay_are_off_at_once_despite_earlier_savings():
    gate, costs, drafting = gate_of_a_draft_model()
    gate.decide(drafting, 1, costs, lambda: False)
    assert not gate.on
    gate.decide(drafting, 1, costs)
    assert gate.on, "nothing was lost"
    speculator = Speculator(MOST, [Proposer()])
    assert speculator.pays(1, 64, costs)
    for _ in range(LAST):
        costs.drafted(7, 1, 7 * 1.1)
    assert not speculator.pays(1, 64, costs), "a step of the draft model takes longer than one of the model"
    for _ in range(10_000):
        costs.measured(1, 1.0, ahead=True)
    assert speculator.pays(1, 64, costs), "after a long time it may have been wrong"
    assert Speculator(MOST, [PromptLookup(), Proposer()]).pays(1, 64, costs)


def test_steps_without_drafts_are_measured_again_after_a_long_time():
    gate, costs, drafting = gate_of_a_draft_model()
    steps = 0
    while gate.on and steps < 10_000:
        costs.measured(8, 2.0, ahead=False)
        gate.verified(8, 8, 1, costs, drafted=7)
        gate.decide(drafting, 1, costs)
        steps += 1
    assert 300 < steps < 1000
    for _ in range(2):
        assert not gate.on, "one may be disturbed"
        costs.measured(1, 1.5, ahead=True)
        gate.decide(drafting, 1, costs)
    assert gate.on
    assert costs.without(1) == 1.5, "those of before are forgotten"


def test_where_texts_are_too_short_to_measure_steps_without_drafts_useless_drafts_end_as_well():
    gate, costs, drafting = SpeculationGate(), StepCosts(), [DraftState(MOST)]
    on = 0
    for _ in range(BLIND + 200):
        gate.decide(drafting, 1, costs)
        on += gate.on
        if gate.on:
            gate.verified(1, 8, 1, costs)
            costs.measured(8, 3.0, ahead=False)
            costs.measured(1, 1.0, ahead=False)
        else:
            gate.undrafted(1, 1)
    assert on < 20


def test_drafts_restart_where_they_gain_again():
    gate, costs, known = SpeculationGate(), StepCosts(), Acceptance()
    assert run("quick to answer", 0.0, 3000, gate, costs, known)[1] > 0.9
    without = run("quick to answer", 1.0, 6000, gate, costs, known)[1]
    assert without < 0.65, "of the steps: those with drafts give eight tokens each"


def widths(candidates, rows, most, seconds, rate):
    """Returns the best widths. Steps with and without drafts are both waited for."""
    return best_widths([Candidate(*one) for one in candidates], rows, most, seconds, rate, seconds(rows))


def test_a_draft_ends_where_more_tokens_would_not_pay():
    def seconds(rows):
        return 1 + 0.1 * (rows - 1)

    assert widths([(0.5, 9)], 1, 64, seconds, 1.0) == [3], "0.5, 0.25, 0.125 are above 0.1, 0.0625 is not"
    assert widths([(0.5, 9)], 1, 64, seconds, 3.0) == [1], "time is dearer"
    assert widths([(0.5, 2)], 1, 64, seconds, 1.0) == [2]
    assert widths([(0.5, 9), (0.9, 3), (0.05, 9)], 3, 64, seconds, 1.0) == [3, 3, 0]
    assert widths([(0.5, 9), (0.9, 3)], 2, 5, seconds, 1.0) == [0, 3], "the likeliest, where there is little room"
    assert widths([], 2, 64, seconds, 1.0) == []
    assert widths([(0.9, 9)], 4, 4, seconds, 1.0) == [0]


def test_a_draft_model_drafts_while_its_shared_steps_pay():
    def seconds(rows):
        return 1 + 0.1 * (rows - 1)

    assert widths([(0.5, 9, 0.1)], 1, 64, seconds, 1.0) == [2], "0.125 is below the 0.2 of a row and a step"
    assert widths([(0.5, 9, 0.1)] * 2, 2, 64, seconds, 1.0) == [2, 2], "together 0.25, below 0.3"
    assert widths([(0.5, 9, 0.03)] * 2, 2, 64, seconds, 1.0) == [3, 3], "together 0.25, above 0.23; alone below 0.13"
    assert widths([(1.0, 9, 0.05)], 1, 64, seconds, 1.0) == [9]
    assert best_widths([Candidate(0.5, 9)], 1, 64, seconds, 1.0, without=0.4) == [0], "three tokens gain 0.875 in 1.3"


def test_of_drafts_that_gain_the_same_the_shortest_is_chosen():
    assert widths([(0.5, 1)], 1, 64, lambda rows: 0.5 + 0.5 * rows, 1.0) == [0]
    assert widths([(1.0, 3)], 1, 64, lambda rows: float(rows), 1.0) == [0]


def test_times_beyond_all_that_are_known_follow_from_the_nearest():
    costs = StepCosts()
    for rows in (4, 4, 4, 8, 8, 8):
        costs.measured(rows, float(rows), ahead=True)
    nearest = [(1, 4), (2, 4), (16, 8), (32, 8)]
    for rows, known in nearest:
        expected = known * (1 + GUESS * (rows - 1)) / (1 + GUESS * (known - 1))
        assert costs.of(rows) == pytest.approx(expected, rel=1e-3), rows


class Exact:
    """Costs of one second for each row."""

    def __init__(self, known: bool = True) -> None:
        self.is_known = known

    def known(self, _sequences: int) -> bool:
        return self.is_known

    def undrafted(self, _sequences: int) -> float:
        return 1.0

    def relative(self, rows: int, _sequences: int, _drafted: int = 0) -> float:
        return float(rows)


def decided(gate: SpeculationGate, costs: Exact) -> bool:
    gate.decide([DraftState(MOST)], 1, costs)
    return gate.on


def test_drafts_are_off_as_soon_as_no_credit_is_left_and_on_as_soon_as_there_is_that_of_a_start():
    gate, costs = SpeculationGate(watches=True), Exact()
    assert decided(gate, costs)
    gate.verified(1, 2, 1, costs)  # loses the credit of one step
    assert not decided(gate, costs)
    gate.watched(-3.0, 1)  # nothing was lost
    gate.watched(0.5, 1)
    assert not decided(gate, costs)
    gate.watched(0.5, 1)
    assert decided(gate, costs)


@pytest.mark.parametrize(("gained", "share"), [(0, NEW), (11, NEW), (12, HOPEFUL), (99, HOPEFUL)])
def test_each_loss_halves_what_a_step_saves_for_a_trial_and_full_credit_restores_it(gained, share):
    gate, costs = SpeculationGate(), Exact()
    gate.verified(1 + gained, 1, 1, costs)
    for steps in (2 * TRIAL / share, 4 * TRIAL / share):
        gate._credit = 0.0
        assert not decided(gate, costs)
        for _ in range(round(steps) - 1):
            gate.undrafted(3, 3)
        assert not decided(gate, costs)
        for _ in range(2):
            gate.undrafted(1, 1)
        assert decided(gate, costs)


def test_a_step_saves_at_least_a_little_and_debt_has_a_limit():
    gate, costs = SpeculationGate(), Exact()
    for _ in range(9):
        gate._credit = 0.0
        assert not decided(gate, costs)
        assert gate._budget >= SPARING
        gate._credit = gate._price
        assert decided(gate, costs)
    assert gate._budget == SPARING
    gate.read(-5.0, 1, costs)  # a clock that goes back
    gate.read(1000.0, 1, costs)
    gate._credit = 0.0
    assert not decided(gate, costs)
    assert (gate._credit, gate._debt) == (-16.0, 0.0)


def test_steps_without_drafts_are_measured_for_a_limited_time():
    gate, costs = SpeculationGate(), Exact(known=False)
    assert [decided(gate, costs) for _ in range(BLIND + 2)] == [False] * BLIND + [True] * 2


def test_a_draft_counts_up_to_its_first_wrong_token():
    for drafted, accepted, compared in ((3, 0, 1), (3, 2, 3), (3, 3, 3), (0, 0, 0)):
        drafting = DraftState(MOST)
        drafting.kind = 2
        drafting.verified(drafted, accepted)
        of_all = (accepted + WEIGHT * CHANCES[2]) / (compared + WEIGHT)
        assert drafting.chance(2) == pytest.approx((accepted + WEIGHT * of_all) / (compared + WEIGHT))


def test_the_latest_places_of_a_pair_are_compared():
    """The longest match is at the oldest place that is still compared, or at the place before that."""
    for others, run in ((RECENT - 1, 4), (RECENT, 2)):
        index = NgramIndex()
        ids = [1, 2, 3, 4, *(token for n in range(others) for token in (100 + n, 3, 4)), 1, 2, 3, 4]
        for length in range(len(ids) + 1):
            index.extend(ids[:length])
        assert index.find(ids, 1) == ([100 if run == 4 else 1], run)


def test_drafts_use_the_free_rows_of_a_plan():
    """A step of 5 rows takes as long as one of 8."""
    assert widths([(0.8, 9)], 1, 64, lambda rows: float(bucket(rows)) ** 0.3, 1.0) == [7]


def test_unknown_costs_lie_between_those_that_are_known():
    costs = StepCosts()
    assert costs.of(8) / costs.of(1) == pytest.approx(1 + 7 * GUESS), "little, so that drafts are tried"
    for _ in range(3):  # the first is dropped, and a single one is not enough
        costs.measured(1, 1.0, ahead=False)
        costs.measured(5, 3.0, ahead=False)
    assert costs.of(8) == costs.of(6) == pytest.approx(3.0, rel=0.01)
    assert costs.of(2) == pytest.approx(1 + 2 / 7, rel=0.01)
    assert 3 < costs.of(16) < 4.5
    assert costs.without(1) is None
    costs.measured(8, 1000.0, ahead=False)
    costs.measured(8, 3.0, ahead=False)
    assert costs.of(8) == 3, "one took long for another reason"
    for _ in range(LAST):
        costs.measured(8, 6.0, ahead=False)
    assert costs.of(8) == 6, "they take longer now"


def test_a_size_is_measured_twice_after_its_first_step():
    """The first step prepares things that later ones reuse, so its time does not count."""
    measured = Measured()
    for seconds, known in ((100.0, {}), (3.0, {}), (2.0, {4: 2.0}), (5.0, {4: 3.0})):
        measured.add(4, seconds)
        assert measured.seconds == known and measured.sure(4) == bool(known)


def test_an_answer_counts_drafted_and_accepted_tokens():
    drafting = DraftState(MOST)
    for drafted, accepted in ((5, 3), (0, 0), (2, 2)):
        drafting.verified(drafted, accepted)
    assert (drafting.drafted, drafting.accepted) == (7, 5)


def test_an_old_measurement_decays_towards_a_lower_bound():
    costs = StepCosts()
    for _ in range(3):
        costs.measured(8, 1.0, ahead=False)
    for _ in range(50_000):
        costs.measured(1, 1.0, ahead=True)
    assert costs.of(8) == pytest.approx(MAX_FADED, rel=0.01)
    assert costs.without(1) == pytest.approx(1.0)


def test_a_draft_is_expected_to_have_as_many_right_tokens_as_its_chances_add_up_to():
    drafting = DraftState(MOST)
    for offer, most, count in ((Offer(2, [5, 6, 7]), 2, 2), (Offer(2, [5]), 2, 1), (Offer(MODEL), 3, 3)):
        chance = CHANCES[offer.kind]
        assert _expected(drafting, offer, most) == pytest.approx(sum(chance**n for n in range(1, count + 1)))


def test_each_measurement_ages_those_of_all_other_sizes():
    costs = StepCosts()
    for rows in (1, 1, 1, 8, 8, 8):
        costs.measured(rows, 1.0, ahead=False)
    for _ in range(3):
        costs.measured(1, 1.0, ahead=False)
    assert costs.of(1) == 1.0
    assert costs.of(8) == pytest.approx(FADE**3)
    for _ in range(2):
        costs.measured(1, 1.0, ahead=True)
    assert costs.of(8) == pytest.approx(FADE**5)


def test_chances_follow_the_accepted_drafts_of_each_kind():
    drafting = DraftState(MOST)
    assert [kind_of(run) for run in (2, 3, 4, 8, 15, 16, 32)] == [0, 0, 1, 2, 2, 3, 3]
    assert drafting.chance(2) == CHANCES[2]
    drafting.kind = 2
    for _ in range(30):
        drafting.verified(3, 0)
    assert drafting.chance(2) < 0.15
    assert drafting.chance(0) == CHANCES[0], "another kind"
    assert DraftState(MOST, drafting.all).chance(2) < 0.2, "of another sequence"
    for _ in range(60):
        drafting.verified(7, 7)
    assert drafting.chance(2) > 0.9
    drafting.forget()
    assert drafting.chance(2) == CHANCES[2]
    assert DraftState(MOST, drafting.all).chance(2) == CHANCES[2]


@pytest.mark.parametrize("length", [SHORTEST, LONGEST - 1, LONGEST, LONGEST + 1, 60])
def test_a_match_counts_as_long_as_it_is_up_to_the_maximum(length):
    text = [*range(100, 100 + length)]
    index, ids = NgramIndex(), [*text, 7, *text]
    index.extend(ids)
    assert index.find(ids, 1) == ([7], min(length, LONGEST))


def test_drafts_by_lookup_are_watched_while_none_are_made():
    """The estimated gain equals the real gain: the same text is replayed with and without drafts."""
    random = np.random.default_rng(0)
    phrase = random.integers(0, 50, 12).tolist()
    text = list(itertools.chain.from_iterable([*phrase, int(random.integers(50, 90))] for _ in range(40)))
    watched, made, index, watched_index = DraftState(MOST), DraftState(MOST), NgramIndex(), NgramIndex()
    widths = []

    def planned(_chance, most):
        widths.append(min(4, most))
        return widths[-1], 1.1 + 0.1 * widths[-1]

    def find(end):
        found, run = watched_index.find(text[:end], MOST)
        return found, kind_of(run)

    seen = sum(watched.watch(text[end - 1], partial(find, end), planned) for end in range(1, len(text) + 1))
    done, gained = 1, 0.0
    while done < len(text):
        found, run = index.find(text[:done], MOST)
        draft, made.kind = found[:4], kind_of(run)
        right = sum(itertools.takewhile(bool, (a == b for a, b in zip(draft, text[done:], strict=False))))
        made.verified(len(draft), right)
        gained += right + 1 - (1.1 + 0.1 * len(draft))
        done += right + 1
    assert widths
    assert watched.drafted == 0, "nobody made them"
    assert seen == pytest.approx(gained, rel=0.02)
    assert [watched.chance(kind) for kind in range(4)] == pytest.approx(
        [made.chance(kind) for kind in range(4)], rel=0.05
    )
