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
        low = g.linear(x, factors.a, norm=norm)
        if then == "none":
            y = g.linear(x, weight, bias=bias, add=add, norm=norm, scale=scale)
            return g.linear(g.mul(low, self._scales), factors.b, add=y, scale=scale)
        y = g.linear(x, weight, bias=bias, norm=norm)
        y = g.activate(g.linear(g.mul(low, self._scales), factors.b, add=y), then)
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
        g = self._ops
        thens: Sequence[Activation] = then or ["none"] * len(weights)
        adapted = {i: self._factors[w.name] for i, w in enumerate(weights) if w.name in self._factors}
        if not adapted:
            ys: tuple[Any, ...] = g.linears(xs, weights, then=then, bias=bias, norm=norm)
            return ys
        # First all that needs only x: the products of the model stay merged, and A x is computed beside them.
        lows = g.linears([xs[i] for i in adapted], [factors.a for factors in adapted.values()], norm=norm)
        plain: list[Activation] = ["none" if i in adapted else one for i, one in enumerate(thens)]
        found = list(g.linears(xs, weights, then=plain, bias=bias, norm=norm))
        scaled = [g.mul(low, self._scales) for low in lows]
        for (i, factors), low in zip(adapted.items(), scaled, strict=True):
            found[i] = g.linear(low, factors.b, add=found[i])
        return tuple(g.activate(y, thens[i]) if i in adapted and thens[i] != "none" else y for i, y in enumerate(found))


def adapted_rows(weight: Weight) -> tuple[str, int, int]:
    """The matrix of the file that a weight is, or has rows of; the first of these, and how many."""
    if isinstance(weight, RowRange):
        return weight.source, weight.first, weight.shape[0]
    return weight.name, 0, weight.shape[0]
