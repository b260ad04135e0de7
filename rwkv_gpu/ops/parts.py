"""A model in parts, cut at layer boundaries: each part runs elsewhere, on another device or in numpy.

A model function is called once for each part, through `PartOps`. Ops of the part run in its interpreter. Ops of other
parts do not run: they give placeholders with the right shapes. Where an op of the part reads a placeholder, the value
*crosses* the cut: the part that computed it gives it (`leaves`), and this part takes it as an input (`arrives`). All
this happens in the vocabulary, so it is the same for every model and every interpreter. `cut.py` makes the parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

import numpy.typing as npt

from .vocabulary import Cache, Mixed, Routing, State, Weight

Interpreter = Callable[[Any], Any]  # what else wraps the vocabulary of a model: LoRA adapters


class Cuttable(Protocol):
    """A model, as far as cutting it needs to know."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def weights(self) -> Sequence[Weight]: ...
    @property
    def states(self) -> Sequence[State]: ...
    @property
    def caches(self) -> Sequence[Cache]: ...
    @property
    def context(self) -> int | None: ...
    def forward(self, g: Any, ids: Any) -> Any: ...
    def hidden(self, g: Any, ids: Any) -> Any: ...


@dataclass(frozen=True)
class Crossing:
    """A value that one part computes and others read. [T, *shape]"""

    name: str
    shape: tuple[int, ...]  # of a row
    dtype: npt.DTypeLike
    source: int  # the part that computes it


@dataclass(frozen=True)
class Call:
    """A call of the vocabulary by the model function."""

    parts: frozenset[int]  # that run it; the first of them gives its result to others
    result: Any  # placeholders, in the form of the op's own result
    reads: Mapping[int, Crossing]  # by the id of the placeholder that stands for it
    leaves: Sequence[tuple[int, Crossing]]  # values of its result that cross, by their number in it


@dataclass(frozen=True)
class Part:
    """What one part of a model uses, and what crosses into it and out of it. Has the fields of a model."""

    number: int
    layers: range
    last: bool  # whether it gives the result of the model's function
    model: Cuttable
    weights: tuple[Weight, ...]
    states: tuple[State, ...]
    caches: tuple[Cache, ...]
    used: frozenset[str]  # names of all weights that it reads, also of adapters
    arrives: tuple[Crossing, ...]
    leaves: tuple[Crossing, ...]
    calls: Mapping[str, Sequence[Call]]  # of each function of the model

    @property
    def vocabulary(self) -> int:
        """Token ids of the whole model."""
        return self.model.vocabulary

    @property
    def context(self) -> int | None:
        """The context length that the model was trained on."""
        return self.model.context

    def run(
        self, ops: Any, function: str, ids: Any, arrived: Mapping[str, Any], adapted: Interpreter = lambda g: g
    ) -> tuple[Any, dict[str, Any]]:
        """Calls `forward` or `hidden` of the model: its result, if this is the last part, and the values that leave."""
        g = PartOps(ops, self.number, self.calls[function], arrived)
        result = getattr(self.model, function)(adapted(g), ids)
        return result, g.leaving


class PartOps:
    """The vocabulary as one part runs it; `arrived` has the values that other parts computed, by name."""

    def __init__(self, ops: Any, part: int, calls: Sequence[Call], arrived: Mapping[str, Any]) -> None:
        self._ops = ops
        self._part = part
        self._calls = iter(calls)
        self._arrived = arrived
        self.leaving: dict[str, Any] = {}

    def layer(self, index: int) -> Any:
        """Layers of other parts are entered too: nothing runs there."""
        return self._ops.layer(index)

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, getattr(self._ops, name))

    def _call(self, op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call = next(self._calls)
        if self._part not in call.parts:
            return call.result
        if call.reads:
            args, options = mapped((args, options), partial(self._present, call.reads))
        result = op(*args, **options)
        if call.leaves and self._part == min(call.parts):
            values = flat(result)
            self.leaving.update((crossing.name, values[at]) for at, crossing in call.leaves)
        return result

    def _present(self, reads: Mapping[int, Crossing], value: Any) -> Any:
        """What arrived, in the place of a placeholder; other values as they are."""
        crossing = reads.get(id(value))
        return value if crossing is None else self._arrived[crossing.name]


def flat(result: Any) -> list[Any]:
    """The tensors of an op's result, in any interpreter."""
    if isinstance(result, tuple):
        return list(result)
    if isinstance(result, Routing):
        return [result.experts, result.shares]
    return [result]


def mapped(tree: Any, f: Callable[[Any], Any]) -> Any:
    """The arguments of an op with f(x) for each x that may be a tensor."""
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(one, f) for one in tree)
    if isinstance(tree, Mapping):
        return {name: mapped(one, f) for name, one in tree.items()}
    if isinstance(tree, Mixed | Routing):
        return type(tree)(*(f(getattr(tree, field.name)) for field in fields(tree)))
    return f(tree)
