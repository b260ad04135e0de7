"""Which cases of a test run by default."""

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
