"""Turns a model's calls into a graph: each op appends a node. Passes choose the kernels later."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..gpu.weights import Weights
from . import nodes
from .graph import Graph, Op, StepShape
from .values import Value, stack
from .vocabulary import (
    Activation,
    AnyNorm,
    Attention,
    Blocks,
    Cache,
    Choosing,
    Columns,
    DeltaRule,
    Gating,
    Glu,
    KeyIndex,
    LatentAttention,
    LayerNorm,
    Mixed,
    NGrams,
    Ops,
    Pairing,
    Rms,
    Rope,
    Routing,
    SlotRows,
    State,
    StateSpace,
    StreamGates,
    Weight,
)

ROW_OF_COLUMNS = 4  # numbers per row that encode its adapter columns
MATRICES = 8  # maximum number of matrices in a dispatch: the size of the shader's table


class Tracer(Ops[Value]):
    """The vocabulary as nodes of a graph. Gives values their shapes and places those that kernels read together."""

    def __init__(self, weights: Weights, shape: StepShape) -> None:
        self.weights = weights
        self.graph = Graph(shape)
        self.rows = shape.rows
        self._picked = False
        self._layer: int | None = None
        self._shifted: dict[tuple[Value, Rms], Value] = {}  # results of norms with a bias, by input and norm
        self._fetched: dict[Value, Value] = {}  # slots of the cached experts, by chosen experts

    def input(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Value:
        """Returns the input of that name, a tensor that every step uploads. Creates it on the first call."""
        return self.graph.input(name, dtype, shape)

    @contextlib.contextmanager
    def layer(self, index: int) -> Iterator[None]:
        self._layer = index
        yield
        self._layer = None

    def embed(self, weight: Weight, ids: Value, *, norm: LayerNorm | None = None, scale: float = 1.0) -> Value:
        y = Value((self.rows, math.prod(ids.shape[1:]) * weight.shape[1]))
        self._append(nodes.Embed(ids, weight, y, scale=scale * weight.scale))
        return self._normed(y, norm)

    def token_numbers(self, ids: Value) -> Value:
        return self._made(nodes.TokenNumbers(ids, Value((self.rows, 4))))

    def ngram_rows(self, numbers: Value, how: NGrams) -> Value:
        return self._made(nodes.NGramRows(numbers, how, Value((self.rows, how.rows), np.uint32)))

    def embed_positions(self, weight: Weight, cache: Cache) -> Value:
        return self._made(
            nodes.Embed(None, weight, Value((self.rows, weight.shape[1])), scale=weight.scale, positions=cache)
        )

    def layer_norm(self, x: Value, weight: Weight | None, bias: Weight | None, eps: float) -> Value:
        return self._normed(x, LayerNorm(weight, bias, eps))

    def rms_norm(
        self, x: Value, weight: Weight | None, eps: float, *, add: Value | None = None, scale: float = 1.0
    ) -> Value:
        return self._made(nodes.Norm(x, Rms(weight, eps), Value(x.shape), add, scale))

    def group_rms_norm(self, x: Value, weight: Weight | None, groups: int, eps: float) -> Value:
        return self._made(nodes.GroupNorm(x, weight, groups, eps, Value(x.shape)))

    def group_layer_norm(self, x: Value, weight: Weight | None, bias: Weight | None, groups: int, eps: float) -> Value:
        return self._made(nodes.GroupNorm(x, weight, groups, eps, Value(x.shape), centred=True, bias=bias))

    def _by_element(
        self,
        f: str,
        x: Value,
        z: Value | Weight | None = None,
        *,
        numbers: tuple[float, ...] = (),
        first: int = 0,
    ) -> Value:
        inputs, vector = ((x,), z) if z is None or isinstance(z, Weight) else ((x, z), None)
        return self._made(nodes.Map(f, inputs, Value(x.shape), numbers, first, vector))

    def excess(self, x: Value, deviations: float) -> Value:
        return self._made(nodes.ByRow("excess", x, Value(x.shape), deviations))

    def match_length(self, x: Value, as_long: Value) -> Value:
        return self._made(nodes.MatchLength(x, as_long, Value(x.shape)))

    def predict_streams(self, xs: Sequence[Value], coefs: Value) -> tuple[Value, ...]:
        _, ys = stack(self.rows, [x.shape[1] for x in xs])
        self._append(nodes.PredictStreams(self._side_by_side(xs), coefs, ys))
        return ys

    def correct_streams(
        self, xs: Sequence[Value], found: Value, coefs: Value, *, add: Value | None = None
    ) -> tuple[Value, ...]:
        _, ys = stack(self.rows, [x.shape[1] for x in xs])
        self._append(nodes.CorrectStreams(self._side_by_side(xs), found, coefs, ys, add))
        return ys

    def stream_gates(self, z: Value, how: StreamGates) -> tuple[Value, ...]:
        _, ys = stack(self.rows, [how.streams] * how.kinds)
        self._append(nodes.MakeStreamGates(z, how, ys))
        if not how.iterations:
            return ys
        return (*ys, self._made(nodes.MakeStreamMatrix(z, how, Value((self.rows, how.streams**2)))))

    def add_to_streams(self, x: Value, found: Value, gates: Value, *, matrix: Value | None = None) -> Value:
        return self._made(nodes.AddToStreams(x, found, gates, Value(x.shape), matrix))

    def concat(self, x: Value, y: Value) -> Value:
        return self._made(nodes.Concat(x, y, Value((self.rows, x.shape[1] + y.shape[1]))))

    def scatter(self, x: Value, columns: Columns) -> Value:
        return self._made(nodes.Scatter(x, columns, Value((x.shape[0], columns.count))))

    def shift_rows(self, x: Value, rows: SlotRows) -> Value:
        y = Value(x.shape)
        self._append(nodes.ShiftRows(x, rows, y))
        return y

    def row_before(self, rows: SlotRows, back: int = 1) -> Value:
        return self._made(nodes.RowBefore(rows, Value((self.rows, rows.shape[-1])), back))

    def keep_rows(self, x: Value, rows: SlotRows) -> None:
        self._append(nodes.KeepRows(x, rows))

    def softmax(self, x: Value) -> Value:
        return self._made(nodes.ByRow("softmax", x, Value(x.shape)))

    def argmax(self, x: Value) -> Value:
        return self._made(nodes.ByRow("argmax", x, Value((self.rows,), np.uint32)))

    def linear(
        self,
        x: Value,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Value | None = None,
        norm: AnyNorm | None = None,
        scale: float = 1.0,
    ) -> Value:
        y = Value((self.rows, weight.shape[0]))
        return self._made(
            nodes.Gemm.of(nodes.Product(self._normed(x, norm), weight, y, then, bias), add=add, scale=scale)
        )

    def linears(
        self,
        xs: Sequence[Value],
        weights: Sequence[Weight],
        *,
        then: Sequence[Activation] | None = None,
        bias: Sequence[Weight | None] | None = None,
        norm: AnyNorm | None = None,
    ) -> tuple[Value, ...]:
        thens = then or ["none"] * len(weights)
        biases = bias or [None] * len(weights)
        normed = {x: self._normed(x, norm) for x in dict.fromkeys(xs)}
        xs = [normed[x] for x in xs]
        groups = self._groups(xs, weights)
        ys: dict[int, Value] = {}
        # Each dispatch writes its own stack, so that dispatches do not wait for each other. But if one matrix has its
        # own dispatch (such as v in another format), all results share one stack, because attention reads q, k and v in
        # one.
        apart = all(len(members) > 1 for members in groups)
        for members in groups if apart else [list(range(len(weights)))]:
            ys.update(zip(members, stack(self.rows, [weights[i].shape[0] for i in members])[1], strict=True))
        for members in groups:
            self._append(
                nodes.Gemm(tuple(nodes.Product(xs[i], weights[i], ys[i], thens[i], biases[i]) for i in members))
            )
        return tuple(ys[i] for i in range(len(weights)))

    def adapter_down(
        self, xs: Sequence[Value], factors: Sequence[Weight], scales: Value, *, norm: AnyNorm | None = None
    ) -> tuple[Value, ...]:
        normed = {x: self._normed(x, norm) for x in dict.fromkeys(xs)}
        lows: dict[int, Value] = {}
        groups: dict[object, list[int]] = {}  # indices of inputs of one width in one buffer
        for index, x in enumerate(xs):
            groups.setdefault((normed[x].root, x.shape[1]), []).append(index)
        for members in groups.values():
            _, (*parts, columns) = stack(self.rows, [scales.shape[1]] * len(members) + [ROW_OF_COLUMNS])
            inputs, own = tuple(normed[xs[i]] for i in members), tuple(factors[i] for i in members)
            self._append(nodes.AdapterDown(inputs, own, scales, tuple(parts), columns))
            lows.update(zip(members, parts, strict=True))
        return tuple(lows[i] for i in range(len(xs)))

    def adapter_up(
        self,
        xs: Sequence[Value],
        lows: Sequence[Value | None],
        factors: Sequence[Weight | None],
        *,
        then: Sequence[Activation],
        scale: float = 1.0,
        add: Value | None = None,
    ) -> tuple[Value, ...]:
        # Results get the layout of the products that they are added to, as some kernels read several products from one
        # stack.
        stacks = {x.root: Value(x.root.shape, size=x.root.size) for x in xs if x.base is not None}
        ys = [replace(x, base=stacks[x.root]) if x.base is not None else Value(x.shape) for x in xs]
        owned = [() if low is None else (low,) for low in lows]
        self._append(nodes.AdapterUp(tuple(map(nodes.Adapted, xs, ys, owned, factors, then)), scale, add))
        return tuple(ys)

    def glu(self, x: Value, weight: Weight, then: Activation, *, norm: AnyNorm | None = None) -> Value:
        y = Value((self.rows, weight.shape[0] // 2))
        return self._made(nodes.Gemm.of(nodes.Product(self._normed(x, norm), weight, y, then), pairs=True))

    def adapter_glu(
        self,
        x: Value,
        weight: Weight,
        lows: Sequence[Value],
        factor: Weight,
        then: Activation,
        *,
        norm: AnyNorm | None = None,
    ) -> Value:
        both, y = Value((self.rows, weight.shape[0])), Value((self.rows, weight.shape[0] // 2))
        self._append(nodes.Gemm((nodes.Product(self._normed(x, norm), weight, both),)))
        self._append(nodes.AdapterUp((nodes.Adapted(both, y, tuple(lows), factor, then),), pairs=True))
        return y

    def norm_shift_mix(
        self, x: Value, weight: Weight, bias: Weight, eps: float, mix: Weight, state: State, *, rows: bool = False
    ) -> tuple[Value, ...]:
        _, ys = stack(self.rows, [mix.shape[1]] * (mix.shape[0] + 2 * rows))
        self._append(nodes.TokenShift(x, LayerNorm(weight, bias, eps), mix, state, ys))
        return ys

    def conv1d(
        self,
        x: Value,
        weight: Weight,
        state: State,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        first: int = 0,
        gated: bool = False,
    ) -> Value:
        return self._made(nodes.Conv1d(x, weight, bias, state, then, first, gated, Value((self.rows, state.shape[1]))))

    def centred_conv1d(self, x: Value, weight: Weight, *, bias: Weight | None = None) -> Value:
        return self._made(nodes.CentredConv1d(x, weight, bias, Value(x.shape)))

    def ssd(self, xbc: Value, projected: Value, parameters: StateSpace, state: State, *, groups: int) -> Value:
        return self._made(
            nodes.Ssd(xbc, projected, parameters, state, groups, Value((self.rows, state.shape[0] * state.shape[1])))
        )

    def selective_scan(
        self, x: Value, dt: Value, bc: Value, projected: Value, parameters: StateSpace, state: State
    ) -> Value:
        return self._made(nodes.SelectiveScan(x, dt, bc, projected, parameters, state, Value(x.shape)))

    def time_mix(self, x: Mixed[Value], vectors: Weight, eps: float, state: State) -> Value:
        y = Value(x.r.shape)
        r, k, v = self._stacked([x.r, x.k, x.v])
        given = [x.w, x.a, x.gate, x.v_gate]
        gates = iter(self._stacked([gate for gate in given if gate is not None]))
        w, a, gate, v_gate = (None if gate is None else next(gates) for gate in given)
        assert w is not None
        assert a is not None
        v_first = x.v_first if v_gate is not None else None
        self._append(nodes.TimeMix(Mixed(r, w, k, v, a, gate, v_gate, v_first), vectors, eps, state, y))
        return y

    def shift(self, x: Value, state: State) -> Value:
        return self._made(nodes.Conv1d(x, None, None, state, "none", 0, False, Value(x.shape)))

    def lerp(
        self, x: Value, before: Value, mix: Weight, *, low: Value | None = None, up: Weight | None = None
    ) -> tuple[Value, ...]:
        _, ys = stack(self.rows, [x.shape[1]] * mix.shape[0])
        self._append(nodes.Lerp(x, before, mix, low, up, ys))
        return ys

    def wkv6(
        self,
        r: Value,
        w: Value,
        k: Value,
        v: Value,
        gate: Value,
        state: State,
        *,
        vectors: Weight | None = None,
        eps: float = 0.0,
    ) -> Value:
        return self._made(
            nodes.Wkv6(
                self._side_by_side([r, k, v, gate]),
                k.shape[1] // state.shape[1],
                w,
                vectors,
                eps,
                state,
                Value(r.shape),
            )
        )

    def wkv4(self, r: Value, k: Value, v: Value, vectors: Weight, state: State) -> Value:
        return self._made(nodes.Wkv4(r, k, v, vectors, state, Value(r.shape)))

    def lightning_attention(self, qkv: Value, decays: Sequence[float], state: State) -> Value:
        return self._made(nodes.LightningAttention(qkv, tuple(decays), state, Value((qkv.shape[0], qkv.shape[1] // 3))))

    def gated_delta_rule(
        self, qkv: Sequence[Value], beta: Value, decay: Value, gate: Value, how: DeltaRule, state: State
    ) -> Value:
        y = Value(gate.shape)
        whole = qkv[0] if len(qkv) == 1 else self._side_by_side(qkv)
        self._append(nodes.GatedDeltaRule(whole, len(qkv) > 1, beta, decay, gate, how, state, y))
        return y

    def scale_rows(self, x: Value, by: Value, *, add: Value | None = None) -> Value:
        return self._made(nodes.ScaleRows(x, by, Value(x.shape), add))

    def mean_parts(self, x: Value, parts: int) -> Value:
        return self._made(nodes.MeanParts(x, parts, Value((self.rows, x.shape[1] // parts))))

    def row_matrix(self, x: Value, m: Value) -> Value:
        return self._made(nodes.RowMatrix(x, m, Value((self.rows, m.shape[1] // x.shape[1]))))

    def route(
        self, x: Value, router: Weight, how: Gating, *, norm: Rms | None = None, logits: Value | None = None
    ) -> Routing[Value]:
        routing = Routing(Value((self.rows, how.used), np.uint32), Value((self.rows, how.used)))
        logits = self.linear(x, router, bias=how.bias, norm=norm) if logits is None else logits
        self._append(nodes.Route(logits, router, how, routing))
        return routing

    def route_known(
        self, x: Value, router: Weight, how: Gating, known: Value, *, norm: Rms | None = None
    ) -> Routing[Value]:
        routing = Routing(Value((self.rows, how.used), np.uint32), Value((self.rows, how.used)))
        self._append(nodes.RouteKnown(self.linear(x, router, norm=norm), known, router, how, routing))
        return routing

    def by_group(self, routing: Routing[Value], size: int, scale: float) -> Routing[Value]:
        grouped = Routing(Value(routing.experts.shape, np.uint32), Value(routing.shares.shape))
        self._append(nodes.GroupChoices(routing, size, scale, grouped))
        return grouped

    def expert_glu(
        self,
        x: Value,
        gate: Weight,
        up: Weight | None,
        routing: Routing[Value],
        then: Glu,
        *,
        norm: Rms | None = None,
        bias: tuple[Weight, Weight] | None = None,
        scales: tuple[Weight, Weight] | None = None,
        scaled: bool = False,
    ) -> Value:
        weights = (gate,) if up is None else (gate, up)
        return self._by_expert(x, weights, routing, then, norm, bias or (), scales or (), scaled=scaled, gated=True)

    def expert_linear(
        self,
        x: Value,
        weight: Weight,
        routing: Routing[Value],
        *,
        then: Activation = "none",
        norm: Rms | None = None,
        bias: Weight | None = None,
        scale: Weight | None = None,
    ) -> Value:
        scales = (scale,) if scale else ()
        return self._by_expert(x, (weight,), routing, then, norm, (bias,) if bias else (), scales)

    def expert_sum(
        self,
        h: Value,
        down: Weight,
        routing: Routing[Value],
        *,
        add: Value | None = None,
        bias: Weight | None = None,
        weighted: bool = True,
    ) -> Value:
        y = Value((self.rows, down.shape[1]))
        routing = self._fetch(routing, down)
        self._append(nodes.ExpertSum(h, down, routing, y, add, bias, weighted))
        return y

    def _by_expert(
        self,
        x: Value,
        weights: tuple[Weight, ...],
        routing: Routing[Value],
        then: Glu,
        norm: Rms | None,
        biases: tuple[Weight, ...],
        scales: tuple[Weight, ...],
        *,
        scaled: bool = False,
        gated: bool = False,
    ) -> Value:
        halves = gated and len(weights) == 1
        routing = self._fetch(routing, weights[0])
        y = Value((self.rows, routing.experts.shape[1], weights[0].shape[1] // (2 if halves else 1)))
        normed = self._normed(x, norm)
        self._append(nodes.ExpertProducts(normed, weights, routing, then, y, biases, scales, scaled, gated))
        return y

    def _fetch(self, routing: Routing[Value], weight: Weight) -> Routing[Value]:
        """Maps experts to slots of the expert cache, if the GPU caches recently used experts of this weight."""
        cache = self.weights.caches.get(weight.name)
        if cache is None:
            return routing
        if routing.experts not in self._fetched:
            self._fetched[routing.experts] = slots = Value(routing.experts.shape, np.uint32)
            self._append(nodes.FetchExperts(routing.experts, cache, slots))
        return Routing(self._fetched[routing.experts], routing.shares)

    def turn(self, x: Value, angles: Value, heads: int, pairing: Pairing, parts: int = 1) -> Value:
        return self._made(nodes.Turn(x, angles, heads, pairing, parts, Value(x.shape)))

    def step_input(self, name: str) -> Value:
        return self.graph.inputs[name]

    def resize_heads(self, x: Value, heads: int, size: int) -> Value:
        return self._made(nodes.ResizeHeads(x, heads, Value((self.rows, heads * size))))

    def attention(
        self,
        q: Value,
        k: Value | None,
        v: Value | None,
        cache: Cache,
        how: Attention,
        *,
        chosen: Value | None = None,
    ) -> Value:
        y = Value((self.rows, how.heads * cache.size))
        bounds = self.step_input(how.limits) if how.limits else None
        if k is None or v is None:
            self._append(nodes.Attend(q, cache, how, y, cached=True, bounds=bounds, chosen=chosen))
            return y
        self._append(nodes.Attend(self._side_by_side([q, k, v]), cache, how, y, bounds=bounds, chosen=chosen))
        return y

    def write_keys(self, k: Value, v: Value, cache: Cache, how: Attention) -> None:
        self._append(nodes.WriteKeys(self._side_by_side([k, v]), cache, how))

    def head_linear(self, x: Value, weight: Weight) -> Value:
        heads, out, _ = weight.shape
        return self._made(nodes.HeadLinear(x, weight, Value((self.rows, heads * out))))

    def latent_attention(
        self,
        q: Value,
        q_rope: Value,
        z: Value,
        cache: Cache,
        how: LatentAttention,
        *,
        chosen: Value | None = None,
    ) -> Value:
        y = Value((self.rows, how.heads * cache.latent))
        r = Value((self.rows, how.heads * (cache.size - cache.latent) or 4))  # not empty, as a kernel binds it
        self._append(nodes.WriteLatent(z, q_rope, cache, how, r))
        self._append(nodes.AttendLatent(q, r, cache, how, y, chosen))
        return y

    def choose_keys(self, q: Value, k: Value | None, weights: Value | None, cache: Cache, how: KeyIndex) -> Value:
        r, chosen = q if k is None else Value(q.shape), Value((self.rows, how.lists, how.width), np.uint32)
        if k is not None:
            self._append(nodes.WriteIndex(k, q, cache, how, r))
        self._append(nodes.ChooseKeys(r, weights, cache, how, chosen))
        return chosen

    def turn_heads(self, x: Value, heads: int, rope: Rope, cache: Cache, *, back: bool = False) -> Value:
        return self._made(nodes.TurnHeads(x, heads, rope, cache, Value(x.shape), back))

    def write_entries(self, x: Value, cache: Cache, rope: Rope | None = None) -> None:
        self._append(nodes.WriteEntries(x, cache, rope))

    def compress(self, cache: Cache, bias: Weight, ratio: int) -> Value:
        width = bias.shape[0] // ratio // (cache.window // ratio)
        return self._made(nodes.Compress(cache, bias, ratio, Value((self.rows, width))))

    def compressed_attention(
        self, q: Value, cache: Cache, entries: Cache | None, how: Attention, *, chosen: Value | None = None
    ) -> Value:
        return self._made(nodes.AttendEntries(q, cache, entries, how, Value(q.shape), chosen))

    def write_latents(self, z: Value, cache: Cache, how: LatentAttention) -> None:
        r = Value((self.rows, cache.size - cache.latent))  # z stands in for queries; nothing reads r
        self._append(nodes.WriteLatent(z, z, cache, replace(how, heads=1), r))

    def pick(self, x: Value) -> Value:
        outputs, one_row = self.graph.shape.max_outputs, self.graph.shape.one_row
        assert x.shape[0] == self.graph.shape.rows, "rows are picked once"
        y = x if one_row else Value((outputs, x.shape[1]))  # a step of one row has no other row to pick
        if not one_row:
            self._append(nodes.Pick(x, y))
        self._picked, self.rows = True, outputs
        return y

    def pick_blocks(self, x: Value, count: int, how: Blocks) -> Value:
        outputs, width = self.graph.shape.max_outputs, x.shape[1]
        y = Value((outputs, width if how == "mean" else count * width))
        self._append(nodes.PickBlocks(x, count, how, y))
        self._picked, self.rows = True, outputs
        return y

    def sample(self, logits: Value, *, how: Choosing = "any") -> Value:
        chosen = Value((logits.shape[0], 4), np.uint32)
        self._append(nodes.Sample(logits, how, chosen))
        return chosen

    def accept(self, ids: Value, chosen: Value) -> None:
        """Counts the right drafts of each sequence; every row of the step was sampled.

        The token sampled after them becomes the last one of the slot. Its position and state are for the next step.
        """
        self._append(nodes.Accept(ids, chosen))

    def _append(self, op: Op) -> None:
        self.graph.append(op, layer=self._layer, rows=self.rows, picked=self._picked)

    def _made(self, op: Op) -> Value:
        """Appends an op and returns its single result."""
        self._append(op)
        [y] = op.writes
        return y

    def _normed(self, x: Value, how: AnyNorm | None) -> Value:
        if how is None:
            return x
        if isinstance(how, Rms) and how.bias:
            if (x, how) not in self._shifted:  # experts and their router read the same normed x
                y = self._normed(x, replace(how, bias=None))
                self._shifted[x, how] = self.shift_columns(y, how.bias)
            return self._shifted[x, how]
        return self._made(nodes.Norm(x, how, Value(x.shape)))

    def _groups(self, xs: Sequence[Value], weights: Sequence[Weight]) -> list[list[int]]:
        """Groups matrices for one dispatch each: same format, weights in one buffer, inputs in one buffer."""
        groups: dict[object, list[int]] = {}
        for index, (x, weight) in enumerate(zip(xs, weights, strict=True)):
            shards = self.weights[weight.name].shards
            # A matrix in several shards gets its own group.
            key = (shards[0].parts, shards[0].slice.buffer, x.root) if len(shards) == 1 else index
            groups.setdefault(key, []).append(index)
        most = range(0, len(weights), MATRICES)
        return [members[at : at + MATRICES] for members in groups.values() for at in most if members[at:]]

    def _stacked(self, values: Sequence[Value]) -> Sequence[Value]:
        """Returns values of one shape as parts of one stack, in any order. Copies them if they are in none yet."""
        base, apart = values[0].base, values[0].part_bytes
        there = base is not None and all(value.base is base and value.offset % apart == 0 for value in values)
        return values if there else self._copied(values)

    def _side_by_side(self, values: Sequence[Value]) -> Value:
        """Returns a stack that begins with these values in this order. Copies them if necessary."""
        _, parts = stack(self.rows, [value.shape[1] for value in values])
        there = values[0].base is not None and all(value.base is values[0].base for value in values)
        if not there or [value.offset for value in values] != [part.offset for part in parts]:
            values = self._copied(values)
        return values[0].root

    def _copied(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Appends copies of the values into a new stack and returns its parts."""
        _, parts = stack(self.rows, [value.shape[1] for value in values])
        for value, part in zip(values, parts, strict=True):
            self._append(nodes.Copy(value, part))
        return parts
