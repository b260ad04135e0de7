"""The replay of known answers through prompt lookup, which docs/engine.md quotes."""

from benchmarks.lookup import Steps, steps, times_faster


def test_a_text_that_repeats_its_prompt_takes_few_steps_and_one_that_is_new_takes_one_a_token():
    text = list(range(60))
    count, drafted, accepted = steps(text, text)
    assert count < len(text) / 5
    assert accepted <= drafted
    new = list(range(100, 160))
    assert steps(text, new) == (len(new), 0, 0)


def test_an_answer_is_sooner_by_what_steps_take():
    text = list(range(200))
    assert times_faster(text, text, Steps(1.0, (1.0, 1.0, 1.0, 1.0))) > 5
    assert times_faster(text, text, Steps(1.0, (9.0, 9.0, 9.0, 9.0))) > 0.9, "drafts that lose are turned off"
