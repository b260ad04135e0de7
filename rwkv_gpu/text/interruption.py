"""Ends work on a long text when its result is no longer needed, as after a client has disconnected."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

MASK = (1 << 12) - 1  # steps between checks, minus one

_is_over: ContextVar[Callable[[], bool] | None] = ContextVar("is_over", default=None)


class Interrupted(Exception):
    """The result of the work is no longer needed."""


@contextmanager
def interruptible(is_over: Callable[[], bool]) -> Iterator[None]:
    """Within the block, `check` and `steps` raise Interrupted once `is_over` returns true."""
    token = _is_over.set(is_over)
    try:
        yield
    finally:
        _is_over.reset(token)


def check() -> None:
    """Raises Interrupted if the work is over."""
    is_over = _is_over.get()
    if is_over is not None and is_over():
        raise Interrupted


def steps(items: Iterable[T]) -> Iterator[T]:
    """Yields the items, with a check at regular intervals."""
    is_over = _is_over.get()
    return iter(items) if is_over is None else _checked(items, is_over)


def _checked(items: Iterable[T], is_over: Callable[[], bool]) -> Iterator[T]:
    for number, item in enumerate(items):
        if not number & MASK and is_over():
            raise Interrupted
        yield item
