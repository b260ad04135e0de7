"""Dispatches whose values have no memory yet: their merging, and the lifetimes of values."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..gpu.cost import ContextCost
from ..gpu.device import Capabilities
from ..gpu.liveness import Lifetime
from ..gpu.merge import lanes, merge
from ..gpu.plan import Slice
from ..gpu.shader import Binding, Linked
from .values import Operand, Value

WRITTEN = "read_write"


@dataclass(frozen=True)
class UnplacedDispatch:
    """A dispatch whose values have no memory yet."""

    name: str
    layer: int | None
    op: str  # the op of the graph, with the names of fused work
    linked: Linked
    bindings: Mapping[int, Binding]
    operands: Mapping[int, Operand]  # by binding number
    groups: int
    fixed_bytes: int
    row_bytes: int
    row_flops: int
    picked: bool  # whether it runs over the picked rows only
    context_cost: ContextCost
    shared_bytes: int | None  # bytes of workgroup memory, if known

    @property
    def written(self) -> set[object]:
        """The values that it writes, as whole stacks."""
        return {_whole(self.operands[n]) for n, binding in self.bindings.items() if n and binding.access == WRITTEN}

    @property
    def bound(self) -> dict[int, tuple[Operand, bool]]:
        """Its operands.

        The flag of each tells whether it is bound as words, because an operand may be bound in both ways.
        """
        return {n: (operand, self.bindings[n].name == "words") for n, operand in self.operands.items()}

    @property
    def read(self) -> set[object]:
        """The values that it reads but does not write, as whole stacks."""
        return {_whole(operand) for operand in self.operands.values()} - self.written


def merged(one: UnplacedDispatch, other: UnplacedDispatch, can: Capabilities) -> UnplacedDispatch | None:
    """Merges two independent dispatches, the one with more bytes first; None if the device cannot bind all."""
    first, second = (one, other) if one.fixed_bytes >= other.fixed_bytes else (other, one)
    if first.shared_bytes is None or second.shared_bytes is None or lanes(first.linked) != lanes(second.linked):
        return None
    if first.written & second.read or second.written & first.read or first.picked != second.picked:
        return None
    bound = {pair: number for number, pair in first.bound.items()}
    same = [(n, bound[pair]) for n, pair in second.bound.items() if pair in bound]
    both = merge(first.linked, second.linked, (first.groups, second.groups), ((0, 0), *same))
    bindings = both.linked.bindings()
    buffers = sum(binding.access != "uniform" for binding in bindings.values())
    shared = first.shared_bytes + second.shared_bytes * both.memory
    if buffers > can.max_storage_buffers or shared > can.max_workgroup_memory:
        return None
    return UnplacedDispatch(
        name=f"{first.name} & {second.name.rpartition('/')[2]}",
        layer=first.layer,
        op=f"{first.op} & {second.op}",
        linked=both.linked,
        bindings=bindings,
        operands={**first.operands, **{both.numbers[n]: operand for n, operand in second.operands.items()}},
        groups=first.groups + second.groups,
        fixed_bytes=first.fixed_bytes + second.fixed_bytes,
        row_bytes=first.row_bytes + second.row_bytes,
        row_flops=first.row_flops + second.row_flops,
        picked=first.picked,
        context_cost=first.context_cost + second.context_cost,
        shared_bytes=shared,
    )


def _whole(operand: Operand) -> object:
    """The whole stack: wgpu tracks uses by buffer, and a dispatch may either read or write one."""
    return operand.buffer if isinstance(operand, Slice) else operand.root if isinstance(operand, Value) else operand


def lifetimes(dispatches: Sequence[UnplacedDispatch], outputs: Iterable[Value]) -> dict[Value, Lifetime]:
    """The lifetime of each intermediate, from its first write to its last read; outputs live to the end."""
    written: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, one in enumerate(dispatches):
        for number, operand in one.operands.items():
            if isinstance(operand, Value):
                last[operand.root] = index
                if one.bindings[number].access == WRITTEN:
                    written.setdefault(operand.root, index)
    last.update(dict.fromkeys((value.root for value in outputs), len(dispatches)))
    free = {i + 1 for i, pair in enumerate(itertools.pairwise(dispatches)) if not _waits(*pair)}
    return {value: Lifetime(value.nbytes, first, last[value], first in free) for value, first in written.items()}


def _waits(one: UnplacedDispatch, other: UnplacedDispatch) -> bool:
    """True if the second dispatch must wait for the first."""
    return bool(one.written & (other.read | other.written) or one.read & other.written)
