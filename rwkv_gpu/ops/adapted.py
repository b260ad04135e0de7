"""LoRA adapters for any model: every product of an adapted matrix becomes y += B (s · (A x)).

All adapters of a matrix share one pair A [R, K] and B [M, R], each in its own columns. `scales` [T, R] hold the weight
of each column for each row, so that rows of one step may use different adapters. Models are not aware of adapters.
Matrices of experts have pairs A [E, R, K] and B [E, M, R], used with the same routing.
An embedding adds B (s · A[id]) to the row of a token, with A [V, R]; a tied output head is not adapted.
A matrix of which one row is added to every token adds B s to that row, with B [D, R].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .vocabulary import (
    Activation,
    AnyNorm,
    Gating,
    Glu,
    HeadRows,
    HeadSlice,
    LayerNorm,
    Rms,
    Routing,
    RowRange,
    Weight,
)


@dataclass(frozen=True)
class LowRank:
    """The two factors for one matrix of a file."""

    a: Weight  # [R, K]; for a table [V, R]; for experts [E, R, K]
    b: Weight  # [M, R]; for experts [E, M, R]
    second: Weight | None = None  # A of the second of two alternating matrices; the rows of b alternate too
    table: bool = False  # whether rows are looked up by token ids


class AdaptedOps:
    """The vocabulary with adapters in embeddings, biases and products; passes all other ops on to `ops`."""

    def __init__(self, ops: Any, factors: Mapping[str, LowRank], scales: Any) -> None:
        self._ops = ops
        self._factors = factors  # by name of the matrix, or of its rows
        self._scales = scales

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def pick(self, x: Any) -> Any:
        """Picks rows of x, and the same rows of the scales for later ops."""
        if any(name.startswith("output") for name in self._factors):
            self._scales = self._ops.pick(self._scales)
        return self._ops.pick(x)

    def _pair(self, weight: Weight, *, table: bool = False) -> LowRank | None:
        found = self._factors.get(weight.name)
        return found if found is not None and found.table == table else None

    def embed(self, weight: Weight, ids: Any, *, norm: LayerNorm | None = None, scale: float = 1.0) -> Any:
        g = self._ops
        factors = self._pair(weight, table=True)
        if factors is None:
            return g.embed(weight, ids, norm=norm, scale=scale)
        low = g.mul(g.embed(factors.a, ids), self._scales)
        y = g.linear(low, factors.b, scale=scale, add=g.embed(weight, ids, scale=scale))
        return y if norm is None else g.layer_norm(y, norm.weight, norm.bias, norm.eps)

    def shift_columns(self, x: Any, weight: Weight) -> Any:
        g = self._ops
        factors, y = self._pair(weight), g.shift_columns(x, weight)
        return y if factors is None else g.linear(self._scales, factors.b, add=y)

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
        factors = self._pair(weight)
        if factors is None:
            return g.linear(x, weight, then=then, bias=bias, add=add, norm=norm, scale=scale)
        lows = g.adapter_down([x], [factors.a], self._scales, norm=norm)
        plain = then == "none"  # the sum of products is the result
        y = g.linear(x, weight, bias=bias, norm=norm, add=add if plain else None, scale=scale if plain else 1.0)
        [y] = g.adapter_up([y], lows, [factors.b], then=[then], scale=scale, add=None if plain else add)
        return y

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
        adapted = {i: pair for i, weight in enumerate(weights) if (pair := self._pair(weight))}
        if not adapted:
            plain: tuple[Any, ...] = g.linears(xs, weights, then=then, bias=bias, norm=norm)
            return plain
        # Ops that need only x come first, so that the products of the model stay merged.
        found = g.adapter_down([xs[i] for i in adapted], [one.a for one in adapted.values()], self._scales, norm=norm)
        lows = dict(zip(adapted, found, strict=True))
        factors_b = [adapted[i].b if i in adapted else None for i in range(len(xs))]
        ys: tuple[Any, ...] = g.linears(xs, weights, bias=bias, norm=norm)
        ys = g.adapter_up(ys, [lows.get(i) for i in range(len(xs))], factors_b, then=thens)
        return ys

    def glu(self, x: Any, weight: Weight, then: Activation, *, norm: AnyNorm | None = None) -> Any:
        g, factors = self._ops, self._pair(weight)
        if factors is None:
            return g.glu(x, weight, then, norm=norm)
        lows = g.adapter_down([x, x], [factors.a, factors.second], self._scales, norm=norm)
        return g.adapter_glu(x, weight, lows, factors.b, then, norm=norm)

    def route(self, x: Any, router: Weight, how: Gating, *, norm: Rms | None = None, logits: Any = None) -> Any:
        if logits is None and self._pair(router):
            logits = self.linear(x, router, bias=how.bias, norm=norm)
        return self._ops.route(x, router, how, norm=norm, logits=logits)

    def expert_glu(
        self,
        x: Any,
        gate: Weight,
        up: Weight | None,
        routing: Routing[Any],
        then: Glu,
        *,
        norm: Rms | None = None,
        bias: tuple[Weight, Weight] | None = None,
        scales: tuple[Weight, Weight] | None = None,
        scaled: bool = False,
    ) -> Any:
        g = self._ops
        if up is None or not (self._pair(gate) or self._pair(up)):
            return g.expert_glu(x, gate, up, routing, then, norm=norm, bias=bias, scales=scales, scaled=scaled)
        assert not scaled, "experts that scale what they read are not adapted"
        (b, b_up), (s, s_up) = bias or (None, None), scales or (None, None)
        others = self.expert_linear(x, up, routing, norm=norm, bias=b_up, scale=s_up)
        if not isinstance(then, str):
            return g.gated(self.expert_linear(x, gate, routing, norm=norm, bias=b, scale=s), others, then)
        return g.mul(self.expert_linear(x, gate, routing, then=then, norm=norm, bias=b, scale=s), others)

    def expert_linear(
        self,
        x: Any,
        weight: Weight,
        routing: Routing[Any],
        *,
        then: Activation = "none",
        norm: Rms | None = None,
        bias: Weight | None = None,
        scale: Weight | None = None,
    ) -> Any:
        g, factors = self._ops, self._pair(weight)
        if factors is None:
            return g.expert_linear(x, weight, routing, then=then, norm=norm, bias=bias, scale=scale)
        low = g.mul(g.expert_linear(x, factors.a, routing, norm=norm), self._scales)
        plain = g.expert_linear(x, weight, routing, norm=norm, bias=bias, scale=scale)
        y = g.add(plain, g.expert_linear(low, factors.b, routing))
        return y if then == "none" else g.activate(y, then)

    def expert_sum(
        self,
        h: Any,
        down: Weight,
        routing: Routing[Any],
        *,
        add: Any = None,
        bias: Weight | None = None,
        weighted: bool = True,
    ) -> Any:
        g, factors = self._ops, self._pair(down)
        y = g.expert_sum(h, down, routing, add=add, bias=bias, weighted=weighted)
        if factors is None:
            return y
        low = g.mul(g.expert_linear(h, factors.a, routing), self._scales)
        return g.expert_sum(low, factors.b, routing, add=y, weighted=weighted)


def adapted_rows(weight: Weight) -> tuple[str, Sequence[int]]:
    """The matrix of the file that a weight comes from, and the rows of it."""
    if isinstance(weight, RowRange):
        count = weight.shape[0] if len(weight.shape) > 1 else 1  # vectors have no adapters
        return weight.source, range(weight.first, weight.first + count)
    if isinstance(weight, HeadSlice) and len(weight.shape) == 2:
        name, whole = adapted_rows(weight.parts[0])
        return name, [whole[n] for rows in (weight.rows, *weight.more) for n in _numbers(rows)]
    return weight.name, range(weight.shape[0])


def _numbers(rows: HeadRows) -> list[int]:
    """The index of a range of rows in its matrix."""
    starts = range(rows.first, rows.heads * rows.each, rows.each)
    return [start + n for start in starts for n in range(rows.count) for _ in range(rows.repeats)]
