"""A dispatch that is held back, because what reads it may do its work on the way."""

from collections.abc import Callable
from dataclasses import dataclass

from ..gpu.plan import Slice
from .values import Value


@dataclass(frozen=True, eq=False)
class Held:
    """What a dispatch would write, and how to record it as it is.

    Whoever can do its work finds it by a value that it writes (`Recording.held`) and takes it. Else it is recorded:
    before the first dispatch that reads what it writes, or that replaces a state which it reads and replaces, or at
    the end of its layer.
    """

    record: Callable[[], None]
    writes: Value  # a root
    state: Slice | None = None
