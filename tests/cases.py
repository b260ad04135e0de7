"""Which cases of a test run by default, and cases that run as one item."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def slow_unless(chosen: Collection[Any] | Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """The cases; those that are not chosen take paths that others take, and run with --slow."""
    made = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        runs = chosen(*values) if callable(chosen) else case in chosen
        made.append(case if runs else pytest.param(*values, marks=pytest.mark.slow))
    return made


def each(name: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test over all cases in one item and names those that fail: for hundreds of cases of a millisecond each."""
    every = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            errors = [error for case in every if (error := _failure(test, {**fixtures, name: case}, case))]
            if errors:
                raise ExceptionGroup(f"{len(errors)} of {len(every)} cases fail", errors)

        # pytest reads here which fixtures a test wants
        signature = inspect.signature(test)
        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        over_all.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return over_all

    return decorate


def _failure(test: Callable[..., None], arguments: dict[str, Any], case: Any) -> Exception | None:
    try:
        test(**arguments)
    except Exception as error:  # noqa: BLE001  reported with the others
        error.add_note(f"case: {case}")
        return error
    return None
