"""Selects the cases of a test that run by default, and runs many cases as one test item."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def slow_unless(chosen: Collection[Any] | Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Marks cases that are not chosen as slow: they use paths that others cover, and run with --slow."""
    made = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        runs = chosen(*values) if callable(chosen) else case in chosen
        made.append(case if runs else pytest.param(*values, marks=pytest.mark.slow))
    return made


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test over all cases in one item and names those that fail: for hundreds of cases of a millisecond each.

    With several names a case is a tuple. Cases may skip themselves; where all do, the test is skipped.
    """
    parameters = names if isinstance(names, tuple) else (names,)
    every = [case if isinstance(names, tuple) else (case,) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            ended = [_end(test, fixtures, dict(zip(parameters, values, strict=True))) for values in every]
            if errors := [end for end in ended if isinstance(end, Exception)]:
                raise ExceptionGroup(f"{len(errors)} of {len(every)} cases fail", errors)
            if all(ended):
                raise ended[0]

        # pytest reads here which fixtures a test wants
        signature = inspect.signature(test)
        others = [parameter for parameter in signature.parameters.values() if parameter.name not in parameters]
        over_all.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return over_all

    return decorate


def _end(test: Callable[..., None], fixtures: dict[str, Any], case: dict[str, Any]) -> BaseException | None:
    """Returns the failure or the skip of a case, if any."""
    try:
        test(**fixtures, **case)
    except Exception as error:  # noqa: BLE001  reported with the others
        error.add_note(f"case: {', '.join(map(str, case.values()))}")
        return error
    except pytest.skip.Exception as skipped:
        return skipped
    return None
