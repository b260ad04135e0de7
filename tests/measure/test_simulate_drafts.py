"""What drafts give by what steps take: the engine with simulated models, by a simulated clock."""

import statistics

import pytest
from click.testing import CliRunner

from benchmarks.lookup import Steps
from benchmarks.simulate_drafts import DraftTimes, Setup, answer, gain, main

LLAMA = Steps(2.0, (2.55, 3.14, 4.37, 5.2, 5.3))  # ms of Llama 8B on an H200
DEVICES = {
    "Llama 8B": LLAMA,
    "no matrix units": Steps(2.0, (2.55, 3.14, 4.37, 6.1)),
    "slow to answer": Steps(1.2, (2.4, 2.7, 4.0, 5.5)),
    "every row as dear": Steps(1.0, (1.0, 1.9, 3.5, 6.5)),
}
DRAFTS = {
    "Llama 1.2B": DraftTimes(0.66, 0.5),
    "tiny": DraftTimes(0.1, 0.3),
    "as large as the model": DraftTimes(2.0, 0.5),
    "free": None,
}


@pytest.mark.parametrize("right", [0.8, 0.5, 0.0])
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("device", DEVICES)
def test_no_draft_model_loses_more_than_3_percent(device, draft, right):
    """By a first answer that is long: it has all that learning costs."""
    setup = Setup(DEVICES[device], DRAFTS[draft], DEVICES[device].most)
    times = [gain(setup, right, 2000, seed=seed, skipped=0).times for seed in range(3)]
    assert statistics.mean(times) > 0.97


@pytest.mark.parametrize(
    ("draft", "right", "least"), [("Llama 1.2B", 0.95, 1.25), ("tiny", 0.9, 1.8), ("tiny", 0.8, 1.25)]
)
def test_a_draft_model_that_pays_is_used(draft, right, least):
    """The best lengths would give 1.42, 2.24 and 1.43."""
    setup = Setup(LLAMA, DRAFTS[draft], LLAMA.most)
    assert statistics.mean(gain(setup, right, 1000, seed=seed).times for seed in range(5)) > least


def test_what_the_draft_model_compiles_is_no_cost_of_drafts():
    engine, machine = Setup(LLAMA, DRAFTS["Llama 1.2B"], 7).engine(0, 0.95)
    answer(engine, machine, 256)
    assert engine.compile_seconds > 2, "of both models"
    assert 0.66e-3 < engine._speculation.costs.draft_step(1) < 0.9e-3
    assert 4.7e-3 < engine._speculation.costs.of(8) < 5.5e-3, "without the steps of the draft model"


def test_steps_without_drafts_that_seemed_slow_are_measured_again():
    """Else drafts that lose would go on for good: nobody would see what steps without them take."""
    engine, machine = Setup(LLAMA, DRAFTS["Llama 1.2B"], 7).engine(0, 0.7)
    for _ in range(3):
        engine._speculation.costs.measured(1, 4.0e-3, ahead=True)
    seconds = [answer(engine, machine, 2000) for _ in range(2)]
    assert seconds[1] < 2.06e-3
    assert engine._speculation.costs.without(1) == pytest.approx(2.0e-3, rel=0.1)


def test_while_no_draft_could_pay_steps_are_submitted_ahead():
    engine, machine = Setup(LLAMA, DraftTimes(5.0, 0.5), 7).engine(0, 1.0)
    answer(engine, machine, 500)
    drafted, credit = engine.drafted, engine._speculation.speculator.gate._credit
    engine._speculation.speculator.gate._credit = 16.0
    assert answer(engine, machine, 500) < 2.04e-3
    assert engine.drafted == drafted
    assert credit < 16


def test_the_table_has_a_row_for_each_chance():
    options = ["--draft", "0.66:0.5", "--right", "0.9,0", "-n", "100", "--engines", "1", "--answers", "1"]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert [line.split("|")[1].strip() for line in result.output.splitlines()[2:]] == ["90%", "0%"]
