"""No template hangs, fills the memory, crashes or escapes: each soon ends in a typed error."""

import operator
import sys
import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadInput, BadTemplate
from rwkv_gpu.text import growth
from rwkv_gpu.text.budget import Budget, Exceeded, Limits
from rwkv_gpu.text.template import ChatTemplate
from tests.text.hostile_templates import ENDLESS, FRAGMENTS, LARGE, MALFORMED, REACHING

MESSAGES = [{"role": "user", "content": "Hi"}]
SECONDS = 1.0
CPU_SECONDS = 20.0  # the template's time limit, plus one operation
MEMORY = 300 << 20  # the budget's 64 MiB of work, at most four bytes per character, and Python's overhead


def refuse(source):
    start = time.process_time()
    with pytest.raises(BadTemplate) as refused:
        ChatTemplate(source, limits=Limits(seconds=SECONDS)).render(MESSAGES)
    assert time.process_time() - start < CPU_SECONDS
    assert len(str(refused.value)) < 700
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_templates_are_stopped(name):
    refuse(ENDLESS[name])


@pytest.mark.parametrize("name", LARGE)
def test_large_values_are_refused(name):
    refuse(LARGE[name])


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_templates_are_refused(name):
    refuse(MALFORMED[name])


@pytest.mark.parametrize("expression", REACHING)
def test_templates_reach_plain_values_only(expression):
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
    source = "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok"
    template = ChatTemplate(source, limits=Limits(seconds=3600))  # the limit of work comes first on any machine
    with pytest.raises(BadTemplate, match="more work"):
        template.render(MESSAGES, n=100000)
    assert template.render(MESSAGES, n=3) == "ok"


def test_the_limits_grow_with_the_input():
    long = [{"role": "user", "content": "é" * 3_000_000}]
    assert len(ChatTemplate("chatml").render(long)) > 3_000_000


def nested(depth):
    value = "a"
    for _ in range(depth):
        value = [value]
    return value


LIMITS = {  # templates just within a limit, and just beyond it
    "nesting": (lambda budget: budget.weigh(nested(64)), lambda budget: budget.weigh(nested(65))),
    "bits": (lambda budget: budget.weigh((1 << 4096) - 1), lambda budget: budget.weigh(1 << 4096)),
    "a value": (lambda budget: budget.allow(budget._largest), lambda budget: budget.allow(budget._largest + 1)),
    "work": (lambda budget: budget.spend(budget.left), lambda budget: budget.spend(budget.left + 1)),
    "digits": (lambda budget: growth.rounded(budget, 1.5, -100), lambda budget: growth.rounded(budget, 1.5, 101)),
    "a power": (lambda budget: growth.power(budget, 1, 4096), lambda budget: growth.power(budget, 1, 4097)),
    "a negative power": (lambda budget: growth.power(budget, 3, 2048), lambda budget: growth.power(budget, 3, -2049)),
    "a width": (lambda budget: growth.percent(budget, "%9d", 1), lambda budget: growth.percent(budget, "%*d", 9, 1)),
    "a sum": (lambda budget: growth.summed(budget, [1], start=1), lambda budget: growth.summed(budget, [], start=[])),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_reached_and_not_exceeded(name):
    within, beyond = LIMITS[name]
    within(Budget(Limits(), "given"))
    with pytest.raises(Exceeded):
        beyond(Budget(Limits(), "given"))


CALLS = [  # operations whose results grow with numbers and texts of a template
    *[("center", "ab", [n]) for n in (0, 3, 5000)],
    *[("rjust", "ab", [n, "é"]) for n in (0, 3, 5000)],
    *[("replace", text, [old, "n" * 900]) for text in ("", "a", "abab" * 50) for old in ("", "a", "ab", "x")],
    *[("join", "d" * 700, [["a"] * n]) for n in (0, 1, 2, 30)],
    *[("expandtabs", "a\t" * 40, [n]) for n in (0, 1, 500)],
    *[("format", f"{{:>{n}}}{{}}", ["a", "b" * n]) for n in (1, 30, 4000)],
    *[("*", left, [right]) for left, right in (("ab", 3000), (700, "ab"), ([1, 2], 900), ("ab", -1), (3, 4))],
    *[("+", "a" * n, ["b" * n]) for n in (1, 5000)],
    *[("%", f"%{n}s and %s", ["a" * n]) for n in (1, 30, 4000)],
]
RUN = {"*": operator.mul, "+": operator.add, "%": lambda text, value: text % (value, value)}


def test_the_predicted_size_of_a_result_is_an_upper_bound_and_close():
    for name, value, arguments in CALLS:
        foreseen = {**growth.METHODS, **growth.OPERATORS}[name](Budget(Limits()), value, *arguments)
        made = RUN[name](value, *arguments) if name in RUN else getattr(value, name)(*arguments)
        size = 0 if isinstance(made, int) else sys.getsizeof(made)
        assert size - 100 <= foreseen <= 20 * size + 4000, (name, value, arguments)


def test_a_search_pays_for_the_longest_text_that_is_sought():
    budget = Budget(Limits(), "given")
    before = budget.left
    growth.METHODS["strip"](budget, "t" * 800, "a", "s" * 40)
    assert before - budget.left == 800 * 40 // 8


def test_a_filter_pays_for_its_largest_number():
    sizes = {growth.widened(Budget(Limits()), [1], *given) for given in ((5000,), (5000, 0), (0, 5000))}
    assert len(sizes) == 1 and min(sizes) >= 5000 * sys.getsizeof([])


def test_the_size_of_json_with_line_breaks_and_escapes_is_predicted():
    value = {"a": [{"b": ["é" * 20] * 30}] * 5}
    for options in ({}, {"indent": 9}, {"indent": "tab "}, {"ensure_ascii": True}, {"separators": (" , ", " : ")}):
        budget = Budget(Limits())
        size = sys.getsizeof(growth.tojson(value, **options))
        assert size <= growth.dumped(budget, value, **options) <= 20 * size


def test_the_size_of_a_value_is_the_sum_of_its_entries():
    budget = Budget(Limits())
    one = ["a" * 1000]
    assert budget.weigh([one, one])[0] > 2 * budget.weigh(one)[0]
    assert budget.weigh([one, one])[1] == 2
    with pytest.raises(Exceeded):
        budget.weigh([one] * 2000)


def test_a_growing_list_increases_the_size_of_its_containers():
    grown = "{{ outer|length }}{{ inner.append('a' * 600000) }}{{ [outer, outer]|length }}"
    source = "{% set inner = [] %}{% set outer = [inner] %}" + grown
    with pytest.raises(BadTemplate, match="a value of more than"):
        ChatTemplate(source).render(MESSAGES)
