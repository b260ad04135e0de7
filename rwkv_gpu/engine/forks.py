"""Delays a fork of this process until steps in numpy have ended: OpenBLAS hangs if it is forked during them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_changed = threading.Condition()  # its lock is held during a fork
_computing: set[int] = set()  # ids of threads
_forking: set[int] = set()  # threads that fork, or wait until they may


@contextmanager
def computing() -> Iterator[None]:
    """A context during which no other thread forks this process."""
    me = threading.get_ident()
    with _changed:
        _changed.wait_for(lambda: _forking <= {me})
        _computing.add(me)
    try:
        yield
    finally:
        with _changed:
            _computing.discard(me)
            _changed.notify_all()


def _begin_fork() -> None:
    me = threading.get_ident()  # a signal handler may fork in the middle of a step of its own thread
    _changed.acquire()
    _forking.add(me)
    _changed.wait_for(lambda: _computing <= {me})


def _end_fork() -> None:
    _forking.discard(threading.get_ident())
    _changed.notify_all()
    _changed.release()


def _end_fork_in_child() -> None:
    _forking.clear()  # the child process has no other threads
    _changed.release()


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork_in_child)
