"""Tests of which cases run by default."""

import inspect
import itertools
from types import SimpleNamespace

import pytest

from tests.cases import each, slow_unless
from tests.conftest import HERE, LONG, MODES, pytest_itemcollected, repeated, sampled_out


class Case(SimpleNamespace):
    """A test case with the attributes that pytest gives it."""

    __hash__ = object.__hash__

    def get_closest_marker(self, name):
        return pytest.mark.covering(self.count).mark if name == "covering" else None


def cases(count: int, **values: int) -> list[Case]:
    """Returns a case for each combination of this many values of each parameter, in every mode."""
    every = itertools.product(MODES, *(range(n) for n in values.values()))
    return [
        Case(
            count=count,
            nodeid=f"test_file.py::test_law[{mode}-{chosen}]",
            callspec=SimpleNamespace(
                params={"device": mode}, indices=dict(zip(values, chosen, strict=True)) | {"device": 0}
            ),
        )
        for mode, *chosen in every
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_covering_cases_contain_all_values_in_every_mode(count):
    every = cases(count, a=2, b=3, c=5)
    left = set(every) - set(repeated(every))
    assert (len(left) < len(every)) == (count < 3)
    for mode, names in itertools.product(MODES, itertools.combinations("abc", count)):
        of_mode = [one.callspec.indices for one in left if one.callspec.params["device"] == mode]
        found = {tuple(indices[name] for name in names) for indices in of_mode}
        assert len(found) == len({tuple(one.callspec.indices[name] for name in names) for one in every})


def test_each_mode_has_a_case_of_each_test():
    every = cases(1, a=2)
    left = set(every) - sampled_out(every)
    assert {one.callspec.params["device"] for one in left} == MODES.keys()


def test_cases_that_are_not_chosen_are_marked_slow():
    for chosen in (("a", 1), lambda value: value in ("a", 1)):
        made = slow_unless(chosen, ["a", "b", 1])
        assert made[0] == "a" and made[2] == 1
        assert made[1].values == ("b",) and [mark.name for mark in made[1].marks] == ["slow"]
    [pair] = slow_unless([], [("a", 1)])
    assert pair.values == ("a", 1)


def test_a_loop_over_cases_names_each_that_fails():
    ran = []

    @each("number", [1, 2, 3])
    def is_odd(number, limit):
        ran.append(number)
        assert number % 2
        assert number < limit

    with pytest.raises(ExceptionGroup, match="2 of 3 cases fail") as raised:
        is_odd(limit=3)
    assert ran == [1, 2, 3]
    assert [error.__notes__ for error in raised.value.exceptions] == [["case: 2"], ["case: 3"]]
    is_odd_parameters = inspect.signature(is_odd).parameters
    assert [*is_odd_parameters] == ["limit"], "pytest gives fixtures for all but the cases"


def test_a_test_with_cases_is_skipped_if_all_cases_are_skipped():
    @each(("a", "b"), [(1, 2), (3, 4)])
    def small(a, b, limit):
        if a + b > limit:
            pytest.skip(f"{a} + {b}")

    small(limit=3)
    with pytest.raises(pytest.skip.Exception, match=r"1 \+ 2"):
        small(limit=0)


@pytest.mark.parametrize(
    ("fixtures", "params", "marks", "added"),
    [
        ([], {}, [], {"quick"}),
        ([], {}, ["slow"], set()),
        ([], {}, ["long"], set()),
        ([], {}, ["gpu"], {"gpu"}),
        (["adapter"], {}, [], {"gpu"}),
        (["adapter"], {}, ["quick"], {"gpu"}),
        (["adapter"], {"opening": "cpu"}, [], {"quick"}),
        (["adapter"], {"opening": "fast"}, [], {"gpu"}),
    ],
)
def test_make_test_runs_marked_tests_and_tests_that_need_no_gpu(fixtures, params, marks, added):
    found = set()
    callspec = SimpleNamespace(params=params)
    item = SimpleNamespace(
        fixturenames=fixtures,
        callspec=callspec,
        keywords=dict.fromkeys(marks),
        add_marker=found.add,
        path=HERE / "test_any.py",
    )
    pytest_itemcollected(item)
    assert found == added


def test_files_that_make_test_leaves_out_are_there():
    assert all((HERE / name).exists() for name in LONG)
