"""Settings of reasoning: those of a request replace those of a preset, one by one."""

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.reasoning_options import LIMITS, MOST, ReasoningOptions

WHOLE = ReasoningOptions(True, 5, "so", {"a": 1, "b": 2})


def test_settings_that_are_not_set_come_from_the_others():
    assert ReasoningOptions().over(WHOLE) == WHOLE.over(ReasoningOptions()) == WHOLE
    assert ReasoningOptions(think=False).over(WHOLE) == ReasoningOptions(False, 5, "so", {"a": 1, "b": 2})
    assert ReasoningOptions(limit=0).over(WHOLE) == ReasoningOptions(True, 0, "so", {"a": 1, "b": 2})
    assert ReasoningOptions(message="").over(WHOLE) == ReasoningOptions(True, 5, "", {"a": 1, "b": 2})
    assert ReasoningOptions(variables={"b": 3}).over(WHOLE) == ReasoningOptions(True, 5, "so", {"a": 1, "b": 3})


@pytest.mark.parametrize("name", LIMITS)
def test_a_request_sets_the_limit_and_the_message(name):
    fields = {name: 0, "reasoning_budget_message": "", "other": 1}
    assert WHOLE.read(fields) == ReasoningOptions(True, 0, "", {"a": 1, "b": 2})
    assert fields == {"other": 1}
    for none in ({}, {name: None, "reasoning_budget_message": None}, {name: -1}):
        assert WHOLE.read({**none}) == WHOLE
    for wrong in (-2, True, 1.5, "5", MOST):
        with pytest.raises(BadInput, match="the limit of reasoning is"):
            WHOLE.read({name: wrong})
    with pytest.raises(BadInput, match="must be a string of at most"):
        WHOLE.read({"reasoning_budget_message": 3})
