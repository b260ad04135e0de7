"""No template hangs, fills the memory, crashes or reaches out: each ends soon in a typed error."""

import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadInput, BadTemplate
from rwkv_gpu.text.budget import Budget, Exceeded, Limits
from rwkv_gpu.text.template import ChatTemplate
from tests.text.hostile_templates import ENDLESS, FRAGMENTS, LARGE, MALFORMED, REACHING

MESSAGES = [{"role": "user", "content": "Hi"}]
# The limit of the template, and one operation beyond it, on a machine that has other things to do.
SECONDS = 1.0
PATIENCE = 20.0
MEMORY = 300 << 20  # the budget's 64 MiB of work, four bytes a character at worst, and what Python adds


def refuse(source):
    start = time.monotonic()
    with pytest.raises(BadTemplate) as refused:
        ChatTemplate(source, limits=Limits(seconds=SECONDS)).render(MESSAGES)
    assert time.monotonic() - start < PATIENCE
    assert len(str(refused.value)) < 700
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_templates_end(name):
    refuse(ENDLESS[name])


@pytest.mark.parametrize("name", LARGE)
def test_large_values_are_refused(name):
    refuse(LARGE[name])


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_templates_are_refused(name):
    refuse(MALFORMED[name])


@pytest.mark.parametrize("expression", REACHING)
def test_nothing_but_plain_values_is_in_reach(expression):
    refuse("{{ " + expression + " }}")


@pytest.mark.parametrize("name", ["many copies kept apart", "much text in a macro", "wide characters", "doubling by +"])
def test_memory_stays_within_the_budget(name):
    tracemalloc.start()
    try:
        refuse(LARGE[name])
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
def test_any_template_gives_a_text_or_a_typed_error(source):
    limits = Limits(seconds=SECONDS, work=1 << 20)
    for template in (source, "{{ " + source + " }}", "{% for i in messages %}" + source + "{% endfor %}"):
        with suppress(BadTemplate, BadInput):
            assert isinstance(ChatTemplate(template, limits=limits).render(MESSAGES), str)


def test_messages_are_never_changed():
    messages = [{"role": "user", "content": "Hi", "list": [1]}]
    source = (
        "{{ messages[0].list.append(2) }}{{ messages.append(messages[0]) }}{{ messages.pop(0).list }}{{ messages }}"
    )
    shown = "NoneNone[1, 2][{'role': 'user', 'content': 'Hi', 'list': [1, 2]}]"
    assert ChatTemplate(source).render(messages) == shown
    assert messages == [{"role": "user", "content": "Hi", "list": [1]}]


def test_a_refused_template_can_run_again():
    template = ChatTemplate("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok")
    with pytest.raises(BadTemplate, match="more work"):
        template.render(MESSAGES, n=100000)
    assert template.render(MESSAGES, n=3) == "ok"


def test_the_limits_grow_with_what_is_given():
    long = [{"role": "user", "content": "é" * 3_000_000}]
    assert len(ChatTemplate("chatml").render(long)) > 3_000_000


def test_a_value_weighs_what_its_entries_weigh_each_time():
    budget = Budget(Limits())
    one = ["a" * 1000]
    assert budget.weigh([one, one])[0] > 2 * budget.weigh(one)[0]
    assert budget.weigh([one, one])[1] == 2
    with pytest.raises(Exceeded):
        budget.weigh([one] * 2000)
