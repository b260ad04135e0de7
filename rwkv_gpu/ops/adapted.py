"""LoRA adapters beside the matrices of a model: every product of an adapted matrix gets y += B (s · (A x)).

All adapters of a matrix lie in one pair A [R, K] and B [M, R], in columns of their own; `scales` [T, R] say how much
each row wants of each column, so that rows of one step may have different adapters. The model knows nothing of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .vocabulary import Activation, AnyNorm, RowRange, Weight


@dataclass(frozen=True)
class LowRank:
    """The two factors for one matrix of a file."""

    a: Weight  # [R, K]
    b: Weight  # [M, R]


class AdaptedOps:
    """The vocabulary, with adapters in `linear` and `linears`; all other ops are those of `ops`."""

    def __init__(self, ops: Any, factors: Mapping[str, LowRank], scales: Any) -> None:
        self._ops = ops
        self._factors = factors  # by the name of the matrix, or of these rows of it
        self._scales = scales

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def pick(self, x: Any) -> Any:
        """What follows is of the picked rows alone, and so are the scales."""
        if any(name.startswith("output") for name in self._factors):
            self._scales = self._ops.pick(self._scales)
        return self._ops.pick(x)

    def linear(
        self,
        x: Any,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Any = None,
        norm: AnyNorm | None = None,
        scale: float = 1.0,
    ) -> Any:
        g = self._ops
        factors = self._factors.get(weight.name)
        if factors is None:
            return g.linear(x, weight, then=then, bias=bias, add=add, norm=norm, scale=scale)
        low = g.mul(g.linear(x, factors.a, norm=norm), self._scales)
        if then == "none":
            return g.linear(
                x, weight, bias=bias, norm=norm, scale=scale, add=g.linear(low, factors.b, add=add, scale=scale)
            )
        y = g.activate(g.linear(x, weight, bias=bias, norm=norm, add=g.linear(low, factors.b)), then)
        y = y if scale == 1.0 else g.scale(y, scale)
        return y if add is None else g.add(y, add)

    def linears(
        self,
        xs: Sequence[Any],
        weights: Sequence[Weight],
        *,
        then: Sequence[Activation] | None = None,
        bias: Sequence[Weight | None] | None = None,
        norm: AnyNorm | None = None,
    ) -> tuple[Any, ...]:
        if not any(weight.name in self._factors for weight in weights):
            ys: tuple[Any, ...] = self._ops.linears(xs, weights, then=then, bias=bias, norm=norm)
            return ys
        none: Sequence[Activation] = ["none"] * len(weights)
        rows = zip(xs, weights, then or none, bias or [None] * len(weights), strict=True)
        return tuple(self.linear(x, w, then=t, bias=b, norm=norm) for x, w, t, b in rows)


def adapted_rows(weight: Weight) -> tuple[str, int, int]:
    """The matrix of the file that a weight is, or has rows of; the first of these, and how many."""
    if isinstance(weight, RowRange):
        return weight.source, weight.first, weight.shape[0]
    return weight.name, 0, weight.shape[0]
