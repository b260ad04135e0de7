"""Settings of reasoning: those of a request replace those of a preset, one by one."""

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.thoughts import LIMITS, MOST, Thoughts

WHOLE = Thoughts(True, 5, "so", {"a": 1, "b": 2})


def test_settings_that_are_not_set_come_from_the_others():
    assert Thoughts().over(WHOLE) == WHOLE.over(Thoughts()) == WHOLE
    assert Thoughts(think=False).over(WHOLE) == Thoughts(False, 5, "so", {"a": 1, "b": 2})
    assert Thoughts(limit=0).over(WHOLE) == Thoughts(True, 0, "so", {"a": 1, "b": 2})
    assert Thoughts(message="").over(WHOLE) == Thoughts(True, 5, "", {"a": 1, "b": 2})
    assert Thoughts(variables={"b": 3}).over(WHOLE) == Thoughts(True, 5, "so", {"a": 1, "b": 3})


@pytest.mark.parametrize("name", LIMITS)
def test_a_request_sets_the_limit_and_the_message(name):
    fields = {name: 0, "reasoning_budget_message": "", "other": 1}
    assert WHOLE.read(fields) == Thoughts(True, 0, "", {"a": 1, "b": 2})
    assert fields == {"other": 1}
    for none in ({}, {name: None, "reasoning_budget_message": None}, {name: -1}):
        assert WHOLE.read({**none}) == WHOLE
    for wrong in (-2, True, 1.5, "5", MOST):
        with pytest.raises(BadInput, match="the limit of reasoning is"):
            WHOLE.read({name: wrong})
    with pytest.raises(BadInput, match="must be a string of at most"):
        WHOLE.read({"reasoning_budget_message": 3})
