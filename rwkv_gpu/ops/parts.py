"""A model split into parts at layer boundaries. Each part may run on another device or in numpy.

A model function is called once for each part, through `PartOps`. Ops of the part run in its interpreter. Ops of other
parts do not run: they return placeholders with the right shapes. Where an op of the part reads a placeholder, the value
*crosses* the cut: the part that computed it exports it (`leaves`), and this part takes it as an input (`arrives`). All
this happens in the vocabulary, so it is the same for every model and every interpreter. `cut.py` makes the parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

import numpy.typing as npt

from .vocabulary import Cache, Mixed, Routing, State, Weight

Interpreter = Callable[[Any], Any]  # a further wrapper of the vocabulary, such as LoRA adapters


class SplittableModel(Protocol):
    """The interface of a model that can be cut."""

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
class SharedValue:
    """A value that one part computes and other parts read. [T, *shape]"""

    name: str
    shape: tuple[int, ...]  # shape of one row
    dtype: npt.DTypeLike
    source: int  # the part that computes it


@dataclass(frozen=True)
class Call:
    """One call of an op by the model function."""

    parts: frozenset[int]  # parts that run it; the first of them exports the result
    result: Any  # placeholders, structured like the op's result
    reads: Mapping[int, SharedValue]  # crossing values that it reads, by the id of their placeholder
    leaves: Sequence[tuple[int, SharedValue]]  # values of its result that cross, with their index in it


@dataclass(frozen=True)
class Part:
    """One part of a model: the parameters it uses, and the values that cross into and out of it. Usable as a model."""

    number: int
    layers: range
    last: bool  # whether it computes the result of the model's function
    model: SplittableModel
    weights: tuple[Weight, ...]
    states: tuple[State, ...]
    caches: tuple[Cache, ...]
    used: frozenset[str]  # names of all weights that it reads, including those of adapters
    arrives: tuple[SharedValue, ...]
    leaves: tuple[SharedValue, ...]
    calls: Mapping[str, Sequence[Call]]  # by name of the model's function

    @property
    def vocabulary(self) -> int:
        """Number of token ids of the whole model."""
        return self.model.vocabulary

    @property
    def context(self) -> int | None:
        """The context length that the model was trained on."""
        return self.model.context

    def run(
        self, ops: Any, function: str, ids: Any, arrived: Mapping[str, Any], adapted: Interpreter = lambda g: g
    ) -> tuple[Any, dict[str, Any]]:
        """Calls `forward` or `hidden` of the model. Returns its result, valid in the last part, and the exports."""
        g = PartOps(ops, self.number, self.calls[function], arrived)
        result = getattr(self.model, function)(adapted(g), ids)
        return result, g.leaving


class PartOps:
    """The vocabulary for one part; `arrived` holds the values that other parts computed, by name."""

    def __init__(self, ops: Any, part: int, calls: Sequence[Call], arrived: Mapping[str, Any]) -> None:
        self._ops = ops
        self._part = part
        self._calls = iter(calls)
        self._arrived = arrived
        self.leaving: dict[str, Any] = {}

    def layer(self, index: int) -> Any:
        """Enters a layer. In a layer of another part, no op runs."""
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

    def _present(self, reads: Mapping[int, SharedValue], value: Any) -> Any:
        """Returns the value that arrived for a placeholder; returns other values unchanged."""
        crossing = reads.get(id(value))
        return value if crossing is None else self._arrived[crossing.name]


def flat(result: Any) -> list[Any]:
    """The tensors of an op's result as a list, in any interpreter."""
    if isinstance(result, tuple):
        return list(result)
    if isinstance(result, Routing):
        return [result.experts, result.shares]
    return [result]


def mapped(tree: Any, f: Callable[[Any], Any]) -> Any:
    """Applies `f` to every argument of an op that may be a tensor, inside lists and mappings too."""
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(one, f) for one in tree)
    if isinstance(tree, Mapping):
        return {name: mapped(one, f) for name, one in tree.items()}
    if isinstance(tree, Mixed | Routing):
        return type(tree)(*(f(getattr(tree, field.name)) for field in fields(tree)))
    return f(tree)
