"""Ops in numpy: the meaning of each op, the oracle of every kernel, and what `--device cpu` runs."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .batch import Batch, Segment
from .elementwise import ELEMENTWISE, FUNCTIONS, Array, gated, sigmoid
from .kv_format import format_of
from .paged import attend, factors_of, relative_biases, rotate, turn_pairs, warmth
from .sampling import FROM_SLOT, Drawing, sample
from .state_space import recur_channels, recur_heads, softplus
from .vocabulary import (
    MIN_LOGIT,
    MIN_SUM,
    NO_KEY,
    PAGE,
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
    scales_of_pairs,
)


class Reference(Ops[Array]):
    """Runs each op at once; `weights` and `states` map a name to float32 values, and states are changed in place.

    A state is [states, *shape]. A cache is what a `KVFormat` stores, [pages, PAGE, KV heads, width] each. `batch`
    assigns rows to sequences. States, caches and `batch` are needed only by ops that read earlier rows.
    """

    def __init__(
        self,
        weights: Mapping[str, Array],
        states: Mapping[str, Array] | None = None,
        batch: Batch | None = None,
        caches: Mapping[str, tuple[Array, ...]] | None = None,
        drawing: Drawing | None = None,
        context: int = 0,
    ) -> None:
        self.weights = weights
        self.caches = caches or {}
        self.drawing = drawing
        self.states = states or {}
        self.batch = batch or Batch.of([])
        self.context = context  # positions that a sequence may have

    @contextlib.contextmanager
    def layer(self, index: int) -> Iterator[None]:  # noqa: ARG002 - numpy has no use for names
        yield

    def embed(self, weight: Weight, ids: Array, *, norm: LayerNorm | None = None, scale: float = 1.0) -> Array:
        ids = self._tokens(ids) if ids.ndim == 1 else ids
        rows = self.weights[weight.name][ids].reshape(len(ids), -1)
        return self._normed(rows * np.float32(scale * weight.scale), norm)

    def _tokens(self, ids: Array) -> Array:
        """The tokens of ids, some of which may refer to a slot."""
        if self.drawing is None:
            return ids
        sampled = self.drawing.sampler_state.sampled
        return np.where(ids & FROM_SLOT, sampled[np.where(ids & FROM_SLOT, ids ^ FROM_SLOT, 0)], ids)

    def token_numbers(self, ids: Array) -> Array:
        return np.repeat(self._tokens(ids)[:, None] + 1, 4, axis=1).astype(np.float32)

    def ngram_rows(self, numbers: Array, how: NGrams) -> Array:
        tokens = numbers[:, ::4].astype(np.int64) - 1  # [T, size]
        ended = np.cumsum((tokens < 0) | (tokens == how.end), axis=1)
        ended -= ended[:, :1]  # the token of the row itself ends nothing
        tokens = np.where(ended > 0, how.end, tokens).astype(np.uint64)
        mixed = np.bitwise_xor.accumulate(tokens * np.array(how.multipliers[: how.size], np.uint64), axis=1)
        by_choice = np.repeat(mixed[:, 1:], how.each, axis=1)  # [T, rows]
        found = by_choice % np.array(how.counts, np.uint64) + np.array(how.offsets, np.uint64)
        return found.astype(np.uint32)

    def embed_positions(self, weight: Weight, cache: Cache) -> Array:
        y: Array = self.weights[weight.name][self.batch.places(cache.window)[:, 0]] * np.float32(weight.scale)
        return y

    def layer_norm(self, x: Array, weight: Weight | None, bias: Weight | None, eps: float) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(eps))
        y: Array = centred * scale
        y = y if weight is None else y * self.weights[weight.name]
        return y if bias is None else y + self.weights[bias.name]

    def rms_norm(
        self, x: Array, weight: Weight | None, eps: float, *, add: Array | None = None, scale: float = 1.0
    ) -> Array:
        y: Array = x * (np.float32(scale) / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(eps)))
        y = y if weight is None else y * self.weights[weight.name]
        return y if add is None else y + add

    def group_rms_norm(self, x: Array, weight: Weight | None, groups: int, eps: float) -> Array:
        grouped = x.reshape(len(x), groups, -1)
        scale = 1 / np.sqrt((grouped**2).mean(axis=-1, keepdims=True) + np.float32(eps))
        y: Array = grouped * scale
        if weight is not None:
            gain = self.weights[weight.name]
            y = y * (gain if gain.size == grouped.shape[-1] else gain.reshape(groups, -1))
        return y.reshape(x.shape)

    def group_layer_norm(self, x: Array, weight: Weight | None, bias: Weight | None, groups: int, eps: float) -> Array:
        grouped = x.reshape(len(x), groups, -1)
        centred = (grouped - grouped.mean(axis=-1, keepdims=True)).reshape(x.shape)
        y = self.group_rms_norm(centred, weight, groups, eps)
        return y if bias is None else y + self.weights[bias.name]

    def _normed(self, x: Array, norm: AnyNorm | None) -> Array:
        if isinstance(norm, LayerNorm):
            return self.layer_norm(x, norm.weight, norm.bias, norm.eps)
        if norm is None:
            return x
        y = self.rms_norm(x, norm.weight, norm.eps)
        return y if norm.bias is None else self.shift_columns(y, norm.bias)

    def linear(
        self,
        x: Array,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Array | None = None,
        norm: AnyNorm | None = None,
        scale: float = 1.0,
    ) -> Array:
        x = self._normed(x, norm)
        y = x @ self.weights[weight.name].T
        if weight.scale != 1:
            y = y * np.float32(weight.scale)
        if bias is not None:
            y = y + self.weights[bias.name]
        y = FUNCTIONS[then](y) * np.float32(scale)
        return y if add is None else y + add

    def adapter_up(
        self,
        xs: Sequence[Array],
        lows: Sequence[Array | None],
        factors: Sequence[Weight | None],
        *,
        then: Sequence[Activation],
        scale: float = 1.0,
        add: Array | None = None,
    ) -> tuple[Array, ...]:
        ys = []
        for x, low, b, how in zip(xs, lows, factors, then, strict=True):
            more = np.float32(0) if low is None or b is None else self.linear(low, b)
            y = x + more * np.float32(scale) if how == "none" else FUNCTIONS[how](x + more) * np.float32(scale)
            ys.append(y if add is None else y + add)
        return tuple(ys)

    def glu(self, x: Array, weight: Weight, then: Activation, *, norm: AnyNorm | None = None) -> Array:
        both = self.linear(x, replace(weight, scale=1.0), norm=norm)
        gate, up = (np.float32(scale) for scale in scales_of_pairs(weight))
        y: Array = FUNCTIONS[then](gate * both[:, 0::2]) * (up * both[:, 1::2])
        return y

    def adapter_glu(
        self,
        x: Array,
        weight: Weight,
        lows: Sequence[Array],
        factor: Weight,
        then: Activation,
        *,
        norm: AnyNorm | None = None,
    ) -> Array:
        both = self.linear(x, weight, norm=norm)
        gate, up = (both[:, i::2] + self.linear(low, factor)[:, i::2] for i, low in enumerate(lows))
        y: Array = FUNCTIONS[then](gate) * up
        return y

    def _by_element(
        self,
        f: str,
        x: Array,
        z: Array | Weight | None = None,
        *,
        numbers: tuple[float, ...] = (),
        first: int = 0,
    ) -> Array:
        others = map(np.float32, numbers)
        if z is None:
            return ELEMENTWISE[f].compute(x, *others)
        second = self.weights[z.name] if isinstance(z, Weight) else z[..., first : first + x.shape[-1]]
        if second.ndim == 2 < x.ndim:  # the second is the same for every choice of a row
            second = second[:, None]
        return ELEMENTWISE[f].compute(x, second, *others)

    def excess(self, x: Array, deviations: float) -> Array:
        bound = x.mean(axis=-1, keepdims=True) + np.float32(deviations) * x.std(axis=-1, ddof=1, keepdims=True)
        y: Array = np.maximum(x - bound, np.float32(0))
        return y

    def match_length(self, x: Array, as_long: Array) -> Array:
        lengths = [(one**2).sum(axis=-1, keepdims=True) for one in (as_long, x)]
        y: Array = x * np.sqrt(lengths[0] / lengths[1])
        return y

    def predict_streams(self, xs: Sequence[Array], coefs: Array) -> tuple[Array, ...]:
        amounts = coefs.reshape(len(coefs), len(xs), len(xs), 1)  # [T, S, S, 1]
        return tuple(x + sum(amounts[:, b, a] * xs[a] for a in range(len(xs))) for b, x in enumerate(xs))

    def correct_streams(
        self, xs: Sequence[Array], found: Array, coefs: Array, *, add: Array | None = None
    ) -> tuple[Array, ...]:
        more = np.float32(0) if add is None else add
        ys = [x + (1 + coefs[:, s, None]) * (found - xs[0]) for s, x in enumerate(xs)]
        return (ys[0], *(y + more for y in ys[1:]))

    def stream_gates(self, z: Array, how: StreamGates) -> tuple[Array, ...]:
        scales, bias, count = self.weights[how.scales.name], self.weights[how.bias.name], how.streams
        sums = [
            z[:, p * count : (p + 1) * count] * scales[p] + bias[p * count : (p + 1) * count] for p in range(how.kinds)
        ]
        read, *write = (sigmoid(one) for one in sums)
        written = [np.float32(how.magnitude) * one + np.float32(how.write_eps) for one in write]
        gates = (read + np.float32(how.eps), *written)
        if not how.iterations:
            return gates
        m = self.softmax((z[:, 2 * count :] * scales[2] + bias[2 * count :]).reshape(-1, count, count))
        m = m + np.float32(how.eps)
        for i in range(how.iterations):
            if i:
                m = m / (m.sum(axis=2, keepdims=True) + np.float32(how.eps))
            m = m / (m.sum(axis=1, keepdims=True) + np.float32(how.eps))
        return (*gates, m.reshape(len(z), -1))

    def add_to_streams(self, x: Array, found: Array, gates: Array, *, matrix: Array | None = None) -> Array:
        if matrix is not None:
            count = gates.shape[1]
            x = np.einsum("tad,tab->tbd", x.reshape(len(x), count, -1), matrix.reshape(-1, count, count))
        y: Array = (x.reshape(len(x), gates.shape[1], -1) + gates[:, :, None] * found[:, None]).reshape(len(x), -1)
        return y

    def softmax(self, x: Array) -> Array:
        e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
        y: Array = e / e.sum(axis=-1, keepdims=True)
        return y

    def argmax(self, x: Array) -> Array:
        return np.asarray(x.argmax(axis=-1), np.uint32)

    def norm_shift_mix(
        self, x: Array, weight: Weight, bias: Weight, eps: float, mix: Weight, state: State, *, rows: bool = False
    ) -> tuple[Array, ...]:
        xx = self.layer_norm(x, weight, bias, eps)
        before = np.zeros_like(xx)
        before[1:] = xx[:-1]
        last = self.states[state.name]  # [states, D]
        for segment in self.batch.steps:
            known = segment.start > 0
            before[segment.first] = last[segment.source] if known else 0
            last[segment.target] = xx[segment.first + segment.count - 1]
        ys = tuple(xx + (before - xx) * mu for mu in self.weights[mix.name])
        return (*ys, xx, before) if rows else ys

    def conv1d(
        self,
        x: Array,
        weight: Weight,
        state: State,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        first: int = 0,
        gated: bool = False,
    ) -> Array:
        before, channels = state.shape
        x = x[:, first:]
        gate = x[:, channels : 2 * channels] if gated else np.float32(1)
        x = x[:, :channels] * x[:, 2 * channels : 3 * channels] if gated else x[:, :channels]
        w = self.weights[weight.name].reshape(channels, before + 1)
        y = np.empty_like(x)
        for segment in self.batch.steps:
            states = self.states[state.name]  # [states, W - 1, C]
            past = states[segment.source] if segment.start else np.zeros_like(states[0])
            rows = segment.rows
            seen = np.concatenate([past, x[rows]])  # [W - 1 + rows, C]
            y[rows] = sum(seen[i : i + segment.count] * w[:, i] for i in range(before + 1))
            states[segment.target] = seen[segment.count :]
        y = FUNCTIONS[then](y if bias is None else y + self.weights[bias.name])
        return y * gate

    def centred_conv1d(self, x: Array, weight: Weight, *, bias: Weight | None = None) -> Array:
        w = self.weights[weight.name].reshape(x.shape[1], -1)
        y, half = np.empty_like(x), w.shape[1] // 2
        for segment in self.batch.steps:
            seen = np.pad(x[segment.rows], ((half, half), (0, 0)))
            y[segment.rows] = sum(seen[i : i + segment.count] * w[:, i] for i in range(w.shape[1]))
        return y if bias is None else y + self.weights[bias.name]

    def ssd(self, xbc: Array, projected: Array, parameters: StateSpace, state: State, *, groups: int) -> Array:
        heads, size, columns = state.shape
        inner = heads * size
        dt_bias, a, d = (self.weights[p.name] for p in (parameters.dt_bias, parameters.a, parameters.d))
        x, b, c = np.split(xbc, [inner, inner + groups * columns], axis=1)
        x = x.reshape(-1, heads, size)
        b, c = (np.repeat(given.reshape(-1, groups, columns), heads // groups, axis=1) for given in (b, c))
        dt = softplus(projected[:, -heads:] + dt_bias)
        y = np.empty_like(x)
        for segment in self.batch.steps:
            rows = segment.rows
            with self._advancing(state, segment) as s:
                y[rows] = recur_heads(s, x[rows], b[rows], c[rows], dt[rows], a)
        y = (y + d[:, None] * x).reshape(-1, inner)
        gated: Array = y * FUNCTIONS["silu"](projected[:, :inner])
        return gated

    def selective_scan(
        self, x: Array, dt: Array, bc: Array, projected: Array, parameters: StateSpace, state: State
    ) -> Array:
        channels, columns = state.shape
        dt_bias, a, d = (self.weights[p.name] for p in (parameters.dt_bias, parameters.a, parameters.d))
        dt, b, c, a = softplus(dt + dt_bias), bc[:, :columns], bc[:, columns:], a.reshape(channels, columns)
        y = np.empty_like(x)
        for segment in self.batch.steps:
            rows = segment.rows
            with self._advancing(state, segment) as s:
                y[rows] = recur_channels(s, x[rows], b[rows], c[rows], dt[rows], a)
        gated: Array = (y + d * x) * FUNCTIONS["silu"](projected[:, -channels:])
        return gated

    @contextlib.contextmanager
    def _advancing(self, state: State, segment: Segment) -> Iterator[Array]:
        """The state that a segment reads, as float32 or wider; at the end, stores it as the state that it writes."""
        states = self.states[state.name]
        wide = np.result_type(states, np.float32)
        s = states[segment.source].astype(wide) if segment.start else np.zeros(state.shape, wide)
        yield s
        states[segment.target] = s

    def time_mix(self, x: Mixed[Array], vectors: Weight, eps: float, state: State) -> Array:
        heads, size, _ = state.shape
        k_k, k_a, r_k, *norm = self.weights[vectors.name].reshape(-1, heads, size)
        r, w, k, v, a = (given.reshape(-1, heads, size) for given in (x.r, x.w, x.k, x.v, x.a))
        kk = k * k_k
        kk = kk / np.maximum(np.sqrt((kk**2).sum(axis=-1, keepdims=True)), np.float32(1e-12))
        k = k * (1 + (a - 1) * k_a)
        if x.v_gate is not None and x.v_first is not None:
            v = v + (x.v_first.reshape(v.shape) - v) * x.v_gate.reshape(v.shape)
        y = self._recurrence(state, r, w, k, v, -kk, kk * a)
        if norm:
            y = _centred_heads(y, norm[0], norm[1], eps)
        y = y + (r * k * r_k).sum(axis=-1, keepdims=True) * v
        gate = 1 if x.gate is None else x.gate.reshape(y.shape)
        gated: Array = (y * gate).reshape(x.r.shape)
        return gated

    def shift(self, x: Array, state: State) -> Array:
        y = np.zeros_like(x)
        y[1:] = x[:-1]
        last = self.states[state.name][:, 0]  # [states, D]
        for segment in self.batch.steps:
            y[segment.first] = last[segment.source] if segment.start else 0
            last[segment.target] = x[segment.first + segment.count - 1]
        return y

    def concat(self, x: Array, y: Array) -> Array:
        return np.concatenate([x, y], axis=1)

    def scatter(self, x: Array, columns: Columns) -> Array:
        y = np.full((len(x), columns.count), MIN_LOGIT, np.float32)
        y[:, columns.ids] = x
        return y

    def shift_rows(self, x: Array, rows: SlotRows) -> Array:
        y = np.zeros_like(x)
        y[1:] = x[:-1]
        before = self.row_before(rows)
        firsts = [segment.first for segment in self.batch.segments]
        y[firsts] = before[firsts]
        self.keep_rows(x, rows)
        return y

    def row_before(self, rows: SlotRows, back: int = 1) -> Array:
        kept = self.states[rows.name]  # [slots, count, D]
        y = np.zeros((len(self.batch.ids), kept.shape[2]), np.float32)
        for segment in self.batch.segments:
            y[segment.first] = (
                kept[segment.slot, (segment.start - back) % kept.shape[1]] if segment.start >= back else 0
            )
        return y

    def keep_rows(self, x: Array, rows: SlotRows) -> None:
        kept = self.states[rows.name]
        for segment in self.batch.segments:
            for row in range(segment.count)[-kept.shape[1] :]:
                kept[segment.slot, (segment.start + row) % kept.shape[1]] = x[segment.first + row]

    def lerp(
        self, x: Array, before: Array, mix: Weight, *, low: Array | None = None, up: Weight | None = None
    ) -> tuple[Array, ...]:
        amounts = self.weights[mix.name].reshape(-1, 1, x.shape[1])  # [n, T or 1, D]
        if low is not None and up is not None:
            matrices = self.weights[up.name].reshape(len(amounts), x.shape[1], -1)  # [n, D, R]
            lows = low.reshape(len(x), len(amounts), -1).swapaxes(0, 1)  # [n, T, R]
            amounts = amounts + lows @ matrices.swapaxes(1, 2)
        return tuple(x + (before - x) * amount for amount in amounts)

    def wkv6(
        self,
        r: Array,
        w: Array,
        k: Array,
        v: Array,
        gate: Array,
        state: State,
        *,
        vectors: Weight | None = None,
        eps: float = 0.0,
    ) -> Array:
        heads, size, _ = state.shape
        r, w, gate = (given.reshape(-1, heads, size) for given in (r, w, gate))
        k, v = (np.repeat(given.reshape(len(r), -1, size), heads * size // given.shape[1], axis=1) for given in (k, v))
        if vectors is None:
            s_r = self._recurrence(state, r, w, k * (1 - w), v)
            return (s_r * np.float32(size**-0.5) * gate).reshape(len(r), -1)
        first, weight, bias = self.weights[vectors.name].reshape(3, heads, size)
        y = self._recurrence(state, r, w, k, v, old=True) + (r * first * k).sum(axis=-1, keepdims=True) * v
        gated: Array = (_centred_heads(y, weight, bias, eps) * gate).reshape(len(r), -1)
        return gated

    def wkv4(self, r: Array, k: Array, v: Array, vectors: Weight, state: State) -> Array:
        decay, bonus = self.weights[vectors.name].reshape(2, -1)
        y = np.empty_like(r)
        for segment in self.batch.steps:
            with self._advancing(state, segment) as s:
                if not segment.start:
                    s[2] = -1e30
                for t in range(segment.rows.start, segment.rows.stop):
                    a, b, _ = _averaged(s, k[t] + bonus, v[t])
                    y[t] = r[t] * a / b
                    s[2] -= np.exp(decay)
                    s[:] = _averaged(s, k[t], v[t])
        return y

    def lightning_attention(self, qkv: Array, decays: Sequence[float], state: State) -> Array:
        heads, size, _ = state.shape
        q, k, v = np.moveaxis(qkv.reshape(len(qkv), heads, 3, size), 2, 0)
        w = np.broadcast_to(np.array(decays, np.float32)[:, None], q.shape)
        return self._recurrence(state, q, w, k, v).reshape(len(qkv), -1)

    def gated_delta_rule(
        self, qkv: Sequence[Array], beta: Array, decay: Array, gate: Array, how: DeltaRule, state: State
    ) -> Array:
        heads, size, _ = state.shape
        keys, each = how.key_heads * size, heads // how.key_heads
        q, k, v = np.split(qkv[0], [keys, 2 * keys], axis=1) if len(qkv) == 1 else qkv
        q, k, v = (given.reshape(len(beta), -1, size) for given in (q, k, v))
        if beta is decay:
            beta, decay = np.moveaxis(beta.reshape(-1, how.key_heads, 2, each), 2, 0)
        q, k = (x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + np.float32(how.eps)) for x in (q, k))
        shared = np.arange(heads) // each if how.grouped else np.arange(heads) % how.key_heads
        q, k = q[:, shared] * np.float32(size**-0.5), k[:, shared]  # [T, H, N]
        a = (decay.reshape(len(v), -1) + self.weights[how.bias.name]).reshape(len(v), heads, -1)
        rate = self.weights[how.rate.name].reshape(heads, 1)
        w = np.exp(np.float32(how.bound) * sigmoid(a * rate) if how.bound else np.logaddexp(a, np.float32(0)) * rate)
        k_beta = k * sigmoid(beta.reshape(len(v), heads, 1))
        y = self._recurrence(state, q, np.broadcast_to(w, v.shape), k_beta, v, -(w * k), k_beta)
        y = self.rms_norm(y, how.norm, how.eps) * FUNCTIONS[how.then](gate.reshape(y.shape))
        return y.reshape(len(v), -1)

    def _recurrence(
        self,
        state: State,
        r: Array,
        w: Array,
        k: Array,
        v: Array,
        a: Array | None = None,
        b: Array | None = None,
        *,
        old: bool = False,
    ) -> Array:
        """Applies `_recur` to every segment, starting from its state."""
        y = np.empty_like(v)  # [T, H, N]
        for segment in self.batch.steps:
            rows = segment.rows
            removal = None if a is None or b is None else (a[rows], b[rows])
            with self._advancing(state, segment) as s:  # [H, N, N]
                y[rows] = _recur(s, r[rows], w[rows], k[rows], v[rows], removal, old)
        return y

    def scale_rows(self, x: Array, by: Array, *, add: Array | None = None) -> Array:
        parts = by.shape[1]
        y: Array = (x.reshape(len(x), parts, -1) * by[:, :, None]).reshape(x.shape)
        return y if add is None else y + add

    def mean_parts(self, x: Array, parts: int) -> Array:
        mean: Array = x.reshape(len(x), parts, -1).mean(axis=1)
        return mean

    def row_matrix(self, x: Array, m: Array) -> Array:
        y: Array = np.einsum("ti,tid->td", x, m.reshape(*x.shape, -1))
        return y

    def route(
        self, x: Array, router: Weight, how: Gating, *, norm: Rms | None = None, logits: Array | None = None
    ) -> Routing[Array]:
        logits = self.linear(x, router, bias=how.bias, norm=norm) if logits is None else logits
        logits = logits * np.float32(how.logit_scale)
        scores = self._scores(logits, how)
        chosen_by = scores if how.by_score else logits  # logits have the same order as scores
        if how.selection_bias:
            chosen_by = chosen_by + self.weights[how.selection_bias.name]
        chosen_by = _of_best_groups(chosen_by, how)
        experts = np.argsort(-chosen_by, axis=1, kind="stable")[:, : how.used]
        if how.scores == "late_softmax":
            shares = self.softmax(np.take_along_axis(logits, experts, axis=1))
        else:
            shares = np.take_along_axis(scores, experts, axis=1)
        return Routing(experts.astype(np.uint32), self._shares(shares, experts, how))

    def _scores(self, logits: Array, how: Gating) -> Array:
        if how.scores == "sqrt_softplus":
            roots: Array = np.sqrt(np.logaddexp(np.float32(0), logits))
            return roots
        return sigmoid(logits) if how.scores == "sigmoid" else self.softmax(logits)

    def _shares(self, shares: Array, experts: Array, how: Gating) -> Array:
        if how.normalise:
            shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), np.float32(MIN_SUM))
        shares = shares * np.float32(how.scale)
        return shares * self.weights[how.answer_scale.name][experts] if how.answer_scale else shares

    def route_known(
        self, x: Array, router: Weight, how: Gating, known: Array, *, norm: Rms | None = None
    ) -> Routing[Array]:
        experts = known[:, : how.used].astype(np.uint32)
        scores = self._scores(self.linear(x, router, norm=norm), how)
        return Routing(experts, self._shares(np.take_along_axis(scores, experts.astype(int), axis=1), experts, how))

    def by_group(self, routing: Routing[Array], size: int, scale: float) -> Routing[Array]:
        return Routing(routing.experts // np.uint32(size), routing.shares * np.float32(scale))

    def expert_glu(
        self,
        x: Array,
        gate: Weight,
        up: Weight | None,
        routing: Routing[Array],
        then: Glu,
        *,
        norm: Rms | None = None,
        bias: tuple[Weight, Weight] | None = None,
        scales: tuple[Weight, Weight] | None = None,
        scaled: bool = False,
    ) -> Array:
        spread = self._spread(self._normed(x, norm), routing)
        if scaled:
            spread = spread * routing.shares[..., None]
        if up is None:
            assert scales is None, "both in one matrix have no scales of their own"
            first, second = np.split(self._by_expert(spread, gate, None, routing), 2, axis=-1)
        else:
            every = zip((gate, up), bias or (None, None), scales or (None, None), strict=True)
            first, second = (self._by_expert(spread, w, b, routing, s) for w, b, s in every)
        return gated(then, first, second)

    def expert_linear(
        self,
        x: Array,
        weight: Weight,
        routing: Routing[Array],
        *,
        then: Activation = "none",
        norm: Rms | None = None,
        bias: Weight | None = None,
        scale: Weight | None = None,
    ) -> Array:
        spread = self._spread(self._normed(x, norm), routing)
        return FUNCTIONS[then](self._by_expert(spread, weight, bias, routing, scale))

    def expert_sum(
        self,
        h: Array,
        down: Weight,
        routing: Routing[Array],
        *,
        add: Array | None = None,
        bias: Weight | None = None,
        weighted: bool = True,
    ) -> Array:
        answers = self._by_expert(h, down, bias, routing)
        y: Array = (answers * routing.shares[..., None] if weighted else answers).sum(axis=1)
        return y if add is None else y + add

    def _spread(self, x: Array, routing: Routing[Array]) -> Array:
        """Repeats each row for each of its experts, [T, used, D]"""
        if x.ndim == 3:
            return x
        return np.broadcast_to(x[:, None], (*routing.experts.shape, x.shape[1]))

    def _by_expert(
        self, x: Array, weight: Weight, bias: Weight | None, routing: Routing[Array], scale: Weight | None = None
    ) -> Array:
        """y[t, j] = s_e W_e x[t, j] + b_e, e = experts[t, j]"""
        y = np.empty((*routing.experts.shape, weight.shape[1]), np.float32)
        for expert in np.unique(routing.experts):
            chosen = routing.experts == expert
            y[chosen] = x[chosen] @ self.weights[weight.name][expert].T
            if scale is not None:
                y[chosen] *= self.weights[scale.name][expert]
            if bias is not None:
                y[chosen] += self.weights[bias.name].reshape(-1, weight.shape[1])[expert]
        return y

    def resize_heads(self, x: Array, heads: int, size: int) -> Array:
        old = x.reshape(len(x), heads, -1)
        y = np.zeros((len(x), heads, size), np.float32)
        kept = min(size, old.shape[2])
        y[:, :, :kept] = old[:, :, :kept]
        return y.reshape(len(x), -1)

    def turn(self, x: Array, angles: Array, heads: int, pairing: Pairing, parts: int = 1) -> Array:
        by_head = np.tile(angles.reshape(len(x), parts, -1), (1, heads // parts, 1))
        cos, sin = np.split(by_head, 2, axis=2)
        return turn_pairs(x.reshape(len(x), heads, -1), cos, sin, pairing).reshape(len(x), -1)

    def step_input(self, name: str) -> Array:
        return self.batch.extra_inputs[name]

    def attention(
        self,
        q: Array,
        k: Array | None,
        v: Array | None,
        cache: Cache,
        how: Attention,
        *,
        chosen: Array | None = None,
    ) -> Array:
        size, norms = cache.size, how.norms
        positions = self.batch.places(cache.window)[:, 0]
        fmt = format_of(self.caches[cache.name][0], size)
        keys, values = (pages.reshape(-1, cache.heads, fmt.width(size)) for pages in self.caches[cache.name])  # views
        q = self._head(q.reshape(-1, how.heads, size), how, norms.q if norms else None, positions)
        q = q * np.float32(how.scale)
        if how.temperature:
            q = q * warmth(how.temperature, positions)[:, None, None]
        if k is not None and v is not None:
            self.write_keys(k, v, cache, how)
        sinks = self.weights[how.sinks.name] if how.sinks else None
        biases = relative_biases(self.weights[how.biases.name], how.heads, causal=how.causal) if how.biases else None
        y = np.empty_like(q)
        bounds = self.batch.extra_inputs[how.limits] if how.limits else None
        for segment in self.batch.segments:
            mine = segment.rows
            past = segment.past(cache.window)
            seen = fmt.load(keys[past], size), fmt.load(values[past], size)
            if chosen is None:
                y[mine] = attend(q[mine], *seen, how, sinks, None if bounds is None else bounds[mine], biases)
                continue
            for t in range(mine.start, mine.stop):
                y[t] = _attend_to_chosen(q[t], *seen, chosen[t], sinks)
        return y.reshape(len(q), -1)

    def write_keys(self, k: Array, v: Array, cache: Cache, how: Attention) -> None:
        size, norms = cache.size, how.norms
        positions, rows = self.batch.places(cache.window).T
        fmt = format_of(self.caches[cache.name][0], size)
        keys, values = (pages.reshape(-1, cache.heads, fmt.width(size)) for pages in self.caches[cache.name])  # views
        v = v.reshape(-1, cache.heads, size)
        keys[rows] = fmt.store(self._head(k.reshape(v.shape), how, norms.k if norms else None, positions))
        values[rows] = fmt.store(self._head_norm(v, None, norms.eps, how) if norms and norms.v else v)

    def _head(self, x: Array, how: Attention, weight: Weight | None, positions: Array) -> Array:
        """Returns heads of q or k [T, H, N], normed and rotated."""
        norms = how.norms if how.norms and how.norms.qk else None
        if norms and not norms.turned:
            x = self._head_norm(x, weight, norms.eps, how)
        if how.rope is not None:
            factors = factors_of(how.rope, self.context)
            x = rotate(x, how.rope, positions, self.weights[factors.name] if factors else None)
        if norms and norms.turned:
            x = self._head_norm(x, weight, norms.eps, how)
        return x

    def _head_norm(self, x: Array, weight: Weight | None, eps: float, how: Attention) -> Array:
        y = np.zeros_like(x)
        count = how.head or x.shape[-1]  # the rest is padding
        y[..., :count] = self.rms_norm(x[..., :count], weight, eps)
        return y

    def head_linear(self, x: Array, weight: Weight) -> Array:
        heads, _, width = weight.shape
        by_head = x.reshape(len(x), heads, -1)[:, :, :width].transpose(1, 0, 2)  # [H, T, K]
        y: Array = by_head @ self.weights[weight.name].transpose(0, 2, 1)
        return y.transpose(1, 0, 2).reshape(len(x), -1)

    def latent_attention(
        self,
        q: Array,
        q_rope: Array,
        z: Array,
        cache: Cache,
        how: LatentAttention,
        *,
        chosen: Array | None = None,
    ) -> Array:
        inner, rotary = cache.latent, cache.size - cache.latent  # 0 if keys have no positions
        positions = self.batch.places(cache.window)[:, 0]
        self.write_latents(z, cache, how)
        latents = self.caches[cache.name][0].reshape(-1, cache.size)  # a view
        size = q_rope.shape[1] // how.heads
        r = self._rotated(q_rope.reshape(len(z), how.heads, -1)[:, :, size - rotary :], how, positions)
        q = np.concatenate([q.reshape(len(z), how.heads, inner), r], axis=-1) * np.float32(how.scale)
        if how.temperature:
            q = q * warmth(how.temperature, positions)[:, None, None]
        y = np.empty((len(z), how.heads, inner), np.float32)
        windowed = Attention(how.heads, None, how.scale, cache.window)
        sinks = self.weights[how.sinks.name] if how.sinks else None
        for segment in self.batch.segments:
            mine = segment.rows
            keys = latents[segment.past(cache.window)].astype(np.float32)[:, None]  # [L, 1, C + R]
            if chosen is None:
                y[mine] = attend(q[mine], keys, keys[..., :inner], windowed, sinks)
                continue
            for t in range(mine.start, mine.stop):
                y[t] = _attend_to_chosen(q[t], keys, keys[..., :inner], chosen[t], sinks)
        return y.reshape(len(z), -1)

    def choose_keys(self, q: Array, k: Array | None, weights: Array | None, cache: Cache, how: KeyIndex) -> Array:
        positions, rows = self.batch.places(cache.window).T
        stored = self.caches[cache.name][0].reshape(-1, cache.size)  # a view
        back, r = 0 if how.by_head else how.block - 1, q.reshape(len(q), how.heads, -1)
        if k is not None:
            stored[rows] = self._rotated(k[:, None], how, np.maximum(positions, back) - back)[:, 0]
            r = self._rotated(r, how, positions)
        chosen = np.full((len(q), how.lists, how.width), NO_KEY, np.uint32)
        for segment in self.batch.segments:
            keys = stored[segment.entries(cache)].astype(np.float32)
            for t, position in zip(range(segment.first, segment.first + segment.count), segment.positions, strict=True):
                length = (position + 1) // cache.stride
                by_head = _block_scores(r[t] @ keys[:length].T, how)
                if not how.by_head:
                    by_head = (np.ones(how.heads) if weights is None else weights[t])[None] @ np.maximum(by_head, 0)
                for i, scores in enumerate(by_head):
                    best = np.sort(np.argsort(-scores, kind="stable")[: how.count])
                    own = (best[:, None] * how.block + np.arange(how.block)).ravel()
                    rest = [] if how.by_head else range(len(scores) * how.block, length)
                    own = np.concatenate([own[own < length], rest])
                    chosen[t, i, : len(own)] = own
        return chosen

    def turn_heads(self, x: Array, heads: int, rope: Rope, cache: Cache, *, back: bool = False) -> Array:
        positions = self.batch.places(cache.window)[:, 0].astype(np.int64)
        return self._last_turned(x.reshape(len(x), heads, -1), rope, -positions if back else positions).reshape(x.shape)

    def write_entries(self, x: Array, cache: Cache, rope: Rope | None = None) -> None:
        positions, rows = self.batch.places(cache.window).T.astype(np.int64)
        whole = (positions + 1) % cache.stride == 0
        x, positions, rows = x[whole], positions[whole], rows[whole]
        if rope:
            x = self._last_turned(x[:, None], rope, positions + 1 - cache.stride)[:, 0]
        stored = self.caches[cache.name][0].reshape(-1, cache.size)  # a view
        stored[rows // PAGE * (PAGE // cache.step) + rows % PAGE // cache.stride] = x

    def _last_turned(self, x: Array, rope: Rope, positions: Array) -> Array:
        first = x.shape[-1] - rope.dims
        factors = factors_of(rope, self.context)
        turned = rotate(x[..., first:], rope, positions, self.weights[factors.name] if factors else None)
        return np.concatenate([x[..., :first], turned], axis=-1)

    def compress(self, cache: Cache, bias: Weight, ratio: int) -> Array:
        biases, stored = self.weights[bias.name].reshape(ratio, -1), self.caches[cache.name][0].reshape(-1, cache.size)
        width, blocks = biases.shape[1], cache.window // ratio
        size = width // blocks
        y = np.zeros((self.batch.rows, size), np.float32)
        for segment in self.batch.segments:
            past = segment.past(cache.window)
            for t, position in zip(range(segment.first, segment.first + segment.count), segment.positions, strict=True):
                if (position + 1) % ratio:
                    continue
                values, gates = [], []
                for block in range(blocks):
                    first = position + 1 - (blocks - block) * ratio
                    if first < 0:
                        continue
                    rows, columns = stored[past[first : first + ratio]].astype(np.float32), slice(block * size, None)
                    values.append(rows[:, :width][:, columns][:, :size])
                    gates.append((rows[:, width:] + biases)[:, columns][:, :size])
                p = self.softmax(np.concatenate(gates).T)
                y[t] = (p * np.concatenate(values).T).sum(axis=1)
        return y

    def compressed_attention(
        self, q: Array, cache: Cache, entries: Cache | None, how: Attention, *, chosen: Array | None = None
    ) -> Array:
        q = q.reshape(len(q), how.heads, -1) * np.float32(how.scale)
        sinks = self.weights[how.sinks.name] if how.sinks else None
        y = np.empty_like(q)
        for segment in self.batch.segments:
            near = self.caches[cache.name][0].reshape(-1, cache.size)[segment.past(cache.window)]
            for t, position in zip(range(segment.first, segment.first + segment.count), segment.positions, strict=True):
                keys = near[max(0, position + 1 - cache.window) : position + 1]
                if entries is not None:
                    far = self.caches[entries.name][0].reshape(-1, entries.size)[segment.entries(entries)]
                    far = far[: (position + 1) // entries.stride]
                    if chosen is not None:
                        far = far[chosen[t][chosen[t] != NO_KEY]]
                    keys = np.concatenate([keys, far])
                own = keys.astype(np.float32)[:, None]
                y[t] = attend(q[t : t + 1], own, own, None, sinks)
        return y.reshape(len(q), -1)

    def write_latents(self, z: Array, cache: Cache, how: LatentAttention) -> None:
        positions, rows = self.batch.places(cache.window).T
        c = self.rms_norm(z[:, : cache.latent], how.norm, how.eps)
        p = self._rotated(z[:, None, cache.latent :], how, positions)
        latents = self.caches[cache.name][0].reshape(-1, cache.size)  # a view
        latents[rows] = np.concatenate([c, p[:, 0]], axis=-1)

    def _rotated(self, x: Array, how: LatentAttention | KeyIndex, positions: Array) -> Array:
        if how.rope is None:
            return x
        factors = factors_of(how.rope, self.context)
        first = x.shape[-1] - how.rope.dims if isinstance(how, KeyIndex) and how.last else 0
        turned = rotate(x[..., first:], how.rope, positions, self.weights[factors.name] if factors else None)
        return np.concatenate([x[..., :first], turned], axis=-1)

    def pick(self, x: Array) -> Array:
        return x[list(self.batch.outputs)]

    def pick_blocks(self, x: Array, count: int, how: Blocks) -> Array:
        blocks = x[np.array(self.batch.outputs, int)[:, None] + np.arange(count)]  # [R, count, D]
        if how == "mean":
            mean: Array = blocks.mean(axis=1)
            return mean
        return (blocks.swapaxes(1, 2) if how == "by_column" else blocks).reshape(len(blocks), -1)

    def sample(self, logits: Array, *, how: Choosing = "any") -> Array:
        assert self.drawing is not None, "sampling needs the sampler state and draws"
        assert how != "masked" or self.drawing.masks is not None, "masked rows need masks"
        return sample(logits, self.drawing)


def _of_best_groups(scores: Array, how: Gating) -> Array:
    """The scores [T, E], with -inf for experts that are in none of the best groups."""
    if how.groups == 1:
        return scores
    grouped = scores.reshape(len(scores), how.groups, -1)
    two_best = np.sort(grouped, axis=2)[..., -2:].sum(axis=2)
    best = np.argsort(-two_best, axis=1, kind="stable")[:, : how.groups_used]
    kept = np.zeros(two_best.shape, bool)
    np.put_along_axis(kept, best, True, axis=1)
    return np.where(kept[..., None], grouped, -np.inf).reshape(scores.shape)


def _block_scores(scores: Array, how: KeyIndex) -> Array:
    """The score of each block, given those of all keys [H, L]; of complete blocks if heads choose together."""
    if not how.by_head:
        return scores[:, how.block - 1 :: how.block]
    padded = np.pad(scores, ((0, 0), (0, -scores.shape[1] % how.block)), constant_values=-np.inf)
    most: Array = padded.reshape(how.heads, -1, how.block).max(axis=2)
    most[:, max(0, most.shape[1] - how.recent) :] = np.inf
    return most


def _attend_to_chosen(q: Array, keys: Array, values: Array, chosen: Array, sinks: Array | None) -> Array:
    """Attention of one row to the positions chosen for each KV head, or for all: q [H, N], keys [L, KV, N]: [H, V]"""
    kv = keys.shape[1]
    grouped, by_head = q.reshape(kv, -1, q.shape[1]), None if sinks is None else sinks.reshape(kv, -1)
    found = []
    for head, of_head in enumerate(grouped):
        own = chosen[head % len(chosen)]
        own = own[own != NO_KEY]
        sink = None if by_head is None else by_head[head]
        found.append(attend(of_head[None], keys[own, head : head + 1], values[own, head : head + 1], None, sink)[0])
    return np.concatenate(found)


def _averaged(s: Array, k: Array, v: Array) -> Array:
    """The sums of `wkv4` after adding v with the weight e^k; [3, D]"""
    most = np.maximum(s[2], k)
    old, new = np.exp(s[2] - most), np.exp(k - most)
    return np.stack([s[0] * old + v * new, s[1] * old + new, most])


def _centred_heads(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """A layer norm of each head; x [T, H, N]"""
    x = x - x.mean(axis=-1, keepdims=True)
    y: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(eps)) * weight + bias
    return y


def _recur(
    s: Array, r: Array, w: Array, k: Array, v: Array, removal: tuple[Array, Array] | None, old: bool = False
) -> Array:
    """y[t] = S r[t] after (or before) the update S = S diag(w[t]) + v[t] k[t]ᵀ + (S a[t]) b[t]ᵀ, by head.

    S [H, N, N] is changed in place. `removal` is a and b.
    """
    y = np.empty_like(v)
    for t in range(len(r)):
        if old:
            y[t] = (s @ r[t, :, :, None])[..., 0]
        new = s * w[t, :, None, :] + v[t, :, :, None] * k[t, :, None, :]
        s[:] = new + (s @ removal[0][t, :, :, None]) * removal[1][t, :, None, :] if removal else new
        if not old:
            y[t] = (s @ r[t, :, :, None])[..., 0]
    return y
