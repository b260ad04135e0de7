"""The ops that models are written in: each op's maths, independent of how it is computed.

`Reference` computes an op in numpy, `Recorder` turns it into dispatches. A model is written once, for both.
T rows, D model width, K in, M out, V vocabulary. Activations are [T, D] float32, ids are [T] uint32.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt

Activation = Literal["none", "relu2", "silu", "sigmoid", "tanh", "decay", "decay6", "gelu", "softplus", "relu"]

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
Scores = Literal["softmax", "sigmoid", "sqrt_softplus", "late_softmax"]
StateType = Literal["f32", "f16"]
STATE_TYPES: tuple[StateType, ...] = get_args(StateType)
NUMBER = {name: number for number, name in enumerate(ACTIVATIONS)}  # the number of each activation in shaders
Pairing = Literal["normal", "neox"]
Blocks = Literal["joined", "by_column", "mean"]
Whole = Literal["", "all", "windows"]  # layers in which rows of an image see all of it: none, all, those with windows

PAGE = 64  # positions in a page of the KV cache
NUMBERS = {name.upper(): number for name, number in NUMBER.items()}
MIN_SUM = 2.0**-14  # lower bound of the sum that normalises the shares of experts
MIN_LOGIT = -1e30  # logit of tokens that are never sampled
NO_KEY = 0xFFFFFFFF  # fills a list of chosen positions that is longer than the context
UNBOUNDED = 3e38  # larger than any value in a model


@dataclass(frozen=True)
class ClampedSwiglu:
    """s(min(gate, limit)) · (up within ±limit + shift), s(a) = a · sigmoid(alpha · a): a clamped gate"""

    f: ClassVar = "glu"  # its row in ELEMENTWISE
    limit: float
    alpha: float = 1.0
    shift: float = 0.0
    bounds_activation: bool = False  # min(s(gate), limit) in place of s(min(gate, limit))

    @property
    def numbers(self) -> tuple[float, ...]:
        """limit, alpha, shift, the upper bound of the gate, and the upper bound of s(gate)."""
        bounds = (UNBOUNDED, self.limit) if self.bounds_activation else (self.limit, UNBOUNDED)
        return self.limit, self.alpha, self.shift, *bounds


@dataclass(frozen=True)
class Situ:
    """s(gate, limit) · sigmoid(gate) · s(up, up_limit), s(x, l) = l · tanh(x / l): gate and up within limits"""

    f: ClassVar = "situ"
    limit: float
    up_limit: float

    @property
    def numbers(self) -> tuple[float, ...]:
        """Both limits."""
        return self.limit, self.up_limit


Glu = Activation | ClampedSwiglu | Situ


@dataclass(frozen=True)
class Xielu:
    """positive · x² + beta · x above 0, and negative · (exp(min(x, eps)) - 1 - x) + beta · x below"""

    positive: float
    negative: float
    beta: float
    eps: float


class Shaped(Protocol):
    """A tensor as models see it: a shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Tensor = TypeVar("Tensor", bound=Shaped)
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Weight:
    """A named parameter. Each interpreter stores its values in its own way."""

    name: str
    shape: tuple[int, ...]  # [M, K] for a matrix, [E, M, K] for one matrix per expert, [D] for a vector
    scale: float = field(default=1.0, kw_only=True)  # factor of W x in products, or of a row in embeddings


@dataclass(frozen=True)
class StackedVectors(Weight):
    """Several vectors stacked into one [n, D] float32 parameter; the name is that of the stack."""

    parts: tuple[Weight, ...] = ()  # [D] each, or [n, D]


@dataclass(frozen=True)
class Alternating(Weight):
    """Two matrices of one format with interleaved rows: gate, up, gate, up ...; the name is that of the result."""

    parts: tuple[Weight, ...] = ()  # gate and up, [M, K] each


def scales_of_pairs(weight: Weight) -> tuple[float, float]:
    """The scales of gate and up in a weight with alternating rows."""
    first, *others = weight.parts if isinstance(weight, Alternating) else (weight,)
    return first.scale, (others[0] if others else first).scale


@dataclass(frozen=True)
class RowRange(Weight):
    """A contiguous range of rows of a matrix in the file, [M, K], with its own name."""

    source: str = ""  # the matrix
    first: int = 0  # row


@dataclass(frozen=True)
class HeadRows:
    """A selection of rows from each head of a matrix [H · each, K], head by head."""

    heads: int
    each: int  # rows of a head in the matrix
    first: int
    count: int
    transposed: bool = False  # [H, K, count] in place of [H, count, K]
    repeats: int = 1  # consecutive copies of each row


@dataclass(frozen=True)
class HeadSlice(Weight):
    """Selected rows of each head of a tensor in the file, with its own name."""

    parts: tuple[Weight, ...] = ()  # the source tensor, one element
    rows: HeadRows = HeadRows(1, 1, 0, 1)
    more: tuple[HeadRows, ...] = ()  # further rows of the same heads, none of them transposed


@dataclass(frozen=True)
class ComputedWeight(Weight):
    """A float32 parameter that the host computes from tensors of the file, with its own name."""

    parts: tuple[Weight, ...] = ()  # the tensors
    make: Callable[..., npt.NDArray[Any]] = field(default=np.zeros, compare=False)  # from their values


@dataclass(frozen=True)
class State:
    """Recurrent state that a sequence carries from step to step. Each interpreter stores one slot per sequence."""

    name: str
    shape: tuple[int, ...]  # shape of one slot

    def dtype(self, kind: StateType) -> type[np.generic]:
        """The type of its numbers if the user chose `kind`: only matrices of heads, [H, P, N], may be float16."""
        return np.float16 if kind == "f16" and len(self.shape) == 3 else np.float32

    def nbytes(self, kind: StateType = "f32") -> int:
        """Bytes of one slot."""
        return math.prod(self.shape) * np.dtype(self.dtype(kind)).itemsize


@dataclass(frozen=True)
class SlotRows(State):
    """The last rows of each sequence, [count, D] by slot: the row at position p is number p % count.

    Unlike a state, it is neither stored with a prefix nor rolled back, because later steps write these rows again.
    """


@dataclass(frozen=True)
class Columns:
    """The columns of a small vocabulary in a large one."""

    name: str  # unique in a model
    ids: npt.NDArray[np.uint32] = field(compare=False)  # [A]
    count: int  # number of tokens in the large vocabulary


@dataclass(frozen=True)
class Cache:
    """The KV cache of one layer. Each interpreter stores it in pages: [pages, PAGE, KV heads, N] for keys and values.

    In a latent cache a value is the first part of its key, so only keys are stored.
    """

    name: str
    heads: int  # number of KV heads
    size: int  # N, the size of a head
    latent: int = 0  # leading dims of a key that are its value; 0 if values are stored separately
    window: int = 0  # attention window including the query's position, older positions may be dropped; 0: unlimited
    stride: int = 1  # positions of an entry, which is complete with the last of them: a power of two

    @property
    def step(self) -> int:
        """Positions of a row of a page; a page has at least one row."""
        return min(self.stride, PAGE)

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of the arrays that are stored."""
        return ("keys",) if self.latent else ("keys", "values")


@dataclass(frozen=True)
class Yarn:
    """Parameters of YaRN: high frequencies are kept, low frequencies are scaled, with a ramp in between."""

    context: int  # context length of the original training
    fast: float = 32.0  # pairs with at least this many turns in that context keep their frequency
    slow: float = 1.0  # pairs with at most this many turns are fully scaled


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: rotates pair i of a head by position · frequency[i] and scales it by `magnitude`."""

    pairing: Pairing  # "normal" pairs (2i, 2i + 1), "neox" pairs (i, i + dims / 2)
    dims: int  # leading dims of a head that are rotated; the rest stay
    base: float
    scale: float = 1.0  # factor of every frequency, or of those that YaRN scales
    yarn: Yarn | None = None
    factors: Weight | None = None  # [dims / 2], divisors of the frequencies
    long_factors: Weight | None = None  # divisors if the model is opened with more than `short` positions
    short: int = 0
    magnitude: float = 1.0  # factor of the rotated values

    def frequencies(self) -> tuple[float, ...]:
        """The frequency of each pair, before division by `factors`."""
        plain = [self.base ** (-2 * i / self.dims) for i in range(self.dims // 2)]
        return tuple(f * (self.scale + (1 - self.scale) * self._kept(i)) for i, f in enumerate(plain))

    def _kept(self, pair: int) -> float:
        """The share of a frequency that YaRN leaves unscaled, from 0 to 1."""
        if self.yarn is None:
            return 0.0
        low = max(0, math.floor(self._pair_of(self.yarn.fast, self.yarn.context)))
        high = min(self.dims - 1, math.ceil(self._pair_of(self.yarn.slow, self.yarn.context)))
        return 1 - min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))

    def _pair_of(self, turns: float, context: int) -> float:
        """The (fractional) index of the pair that makes `turns` full rotations within the context."""
        return self.dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(self.base))


@dataclass(frozen=True)
class Temperature:
    """Scales the query of a position by 1 + scale · ln(1 + floor((position + shift) / period))."""

    scale: float
    period: int
    shift: int = 0


@dataclass(frozen=True)
class LateTemperature:
    """Scales the query of a position beyond `start` by ln(position) / ln(start)."""

    start: int  # 2 or more


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of q, k and v, by head over its N numbers."""

    eps: float
    q: Weight | None = None  # [N]; None is a norm without weight
    k: Weight | None = None
    turned: bool = False  # q and k are normed after rotation, not before
    v: bool = False  # v is normed as well, without weight
    qk: bool = True  # q and k are normed


@dataclass(frozen=True)
class Attention:
    """Parameters of a layer's attention."""

    heads: int  # H, a multiple of the KV heads
    rope: Rope | None  # None: no rotation
    scale: float  # factor of the scores
    window: int = 0  # positions that a query sees, including its own; 0: all
    norms: HeadNorms | None = None
    chunk: int = 0  # chunk length: a query sees only its own chunk; 0: no chunks
    softcap: float = 0.0  # c: scores become c · tanh(score / c) before the mask; 0: none
    alibi: float = 0.0  # B: penalty per position of distance, 2^(-B / P) in the first head to 2^-B in the P-th
    # [B, H] as one vector: what the scores of each head gain, by the bucket of a key's position relative to the query
    # (see `relative_biases` in ops/paged.py).
    biases: Weight | None = None
    sinks: Weight | None = None  # [H]: an extra score of each head in its softmax, without a value
    head: int = 0  # numbers of a head without padding; 0: all N
    temperature: Temperature | LateTemperature | None = None
    after_first: bool = False  # whether only the query at the first position sees that position
    causal: bool = True  # if not, a query sees its whole text, which one step holds, half of the window on each side
    ahead: bool = False  # if not causal: a query sees all later positions, and the window bounds only earlier ones
    # If `ahead`: name of an input [T, 1] of the step, the position after the last that each query sees. It never falls
    # from row to row of a sequence. "": all positions of the step.
    ends: str = ""
    # Name of an input [T, 2] of the step: the first position that each query sees, and the one after the last. Both
    # never fall from row to row, and the step has one text. "": none; else it is not causal and has no window.
    bounds: str = ""

    @property
    def limits(self) -> str:
        """The name of the input of the step that limits what queries see; "" without one."""
        return self.bounds or self.ends


@dataclass(frozen=True)
class LatentAttention:
    """Parameters of attention over latents that all heads share (MLA)."""

    heads: int  # H
    rope: Rope | None  # for the last dims of queries and keys; None: no rotation
    scale: float  # factor of the scores
    norm: Weight  # [C], norm of each latent
    eps: float
    temperature: Temperature | None = None
    sinks: Weight | None = None  # [H]: an extra score of each head in its softmax, without a value
    block: int = 1  # neighbouring positions that are chosen together, if positions are chosen


@dataclass(frozen=True)
class KeyIndex:
    """Parameters of an indexer, which scores the keys of a sequence and chooses those that attention sees."""

    heads: int  # H
    rope: Rope | None  # for the first dims of queries and keys; None: no rotation
    count: int  # blocks that a row sees
    last: bool = False  # True if the last dims rotate, not the first
    block: int = 1  # B, the neighbouring positions that are chosen together
    by_head: bool = False  # each head chooses for itself, and a block has the largest score of its keys
    recent: int = 0  # the last blocks, which a row always sees; only where each head chooses

    @property
    def lists(self) -> int:
        """Lists of positions for each row."""
        return self.heads if self.by_head else 1

    @property
    def width(self) -> int:
        """The largest number of positions in a list."""
        return self.count * self.block + (0 if self.by_head else self.block - 1)


@dataclass(frozen=True)
class StreamGates:
    """Parameters of gates of S residual streams (hyper-connections)."""

    streams: int  # S
    scales: Weight  # [P], of the P kinds of gates: those that read, and, if any, those that write; [3] with a matrix
    bias: Weight  # [P · S]; [(2 + S) · S] with a matrix
    eps: float  # is added to gates that read
    magnitude: float = 1.0  # of gates that write
    write_eps: float = 0.0  # is added to gates that write
    iterations: int = 0  # of the matrix between streams; 0 without this matrix, which has scales[2] and further biases

    @property
    def kinds(self) -> int:
        """The number of kinds of gates."""
        return min(2, self.scales.shape[0])


@dataclass(frozen=True)
class NGrams:
    """How the last tokens of a row choose rows of a table: for each length of 2 and more, `each` rows."""

    size: int  # the longest length
    each: int
    multipliers: tuple[int, ...]  # [size], 64 bits, the first for the token of the row
    counts: tuple[int, ...]  # number of rows of the table that each choice is one of, shorter lengths first
    offsets: tuple[int, ...]  # the first of these rows
    end: int  # token that stands for all tokens before a text

    @property
    def rows(self) -> int:
        """The number of choices of a row."""
        return (self.size - 1) * self.each


@dataclass(frozen=True)
class Mixed(Generic[Tensor]):
    """The inputs of the RWKV-7 recurrence, computed from the layer's input: all [T, D]."""

    r: Tensor  # receptance
    w: Tensor  # decay, between 0 and 1
    k: Tensor
    v: Tensor
    a: Tensor  # in-context learning rate, between 0 and 1
    gate: Tensor | None = None
    v_gate: Tensor | None = None  # the share of v_first that is mixed in, between 0 and 1
    v_first: Tensor | None = None  # v of the first layer


@dataclass(frozen=True)
class DeltaRule:
    """Parameters of a gated delta net. The number of heads H and their size N are those of its state."""

    key_heads: int  # KH, heads of q and k, a divisor of H
    grouped: bool  # whether value head j reads key head j // (H / KH), or j % KH
    bias: Weight  # [H], or [H · N] with one decay per channel of the key
    rate: Weight  # [H], A: negative, or positive where decays are bounded
    norm: Weight  # [N]
    eps: float  # for the norm, and for the lengths of q and k
    then: Activation  # activation of the gate
    bound: float = 0.0  # lower bound of the logarithm of decays, negative; 0: none


@dataclass(frozen=True)
class StateSpace:
    """Parameters of a state space recurrence: per head in Mamba-2, per channel in Mamba."""

    dt_bias: Weight  # [H], or [D]
    a: Weight  # negative; [H], or [D · N]
    d: Weight  # [H], or [D]


@dataclass(frozen=True)
class Gating:
    """How the logits of a router select the experts of a row and their shares."""

    used: int  # experts per row
    scores: Scores = "softmax"  # over all logits; "late_softmax": over the chosen ones only
    normalise: bool = False  # whether shares are divided by max(sum, 2^-14)
    scale: float = 1.0  # factor of the shares, after normalisation
    logit_scale: float = 1.0
    groups: int = 1  # number of expert groups; only experts of the best groups are chosen
    groups_used: int = 1  # number of groups that may be chosen from; a group's score is the sum of its two best
    bias: Weight | None = None  # [E], of the logits
    selection_bias: Weight | None = None  # [E], added to the scores for selection, not to the shares
    answer_scale: Weight | None = None  # [E], factor of each expert's share

    @property
    def by_score(self) -> bool:
        """True if experts must be chosen by their scores, because the order of the logits is not sufficient."""
        return self.selection_bias is not None or self.groups > 1


@dataclass(frozen=True)
class Routing(Generic[Tensor]):
    """The experts of each row, and the weight (share) of each in the sum."""

    experts: Tensor  # [T, used], uint32
    shares: Tensor  # [T, used]


@dataclass(frozen=True)
class Rms:
    """An RMS norm that an op applies to its input."""

    weight: Weight | None  # [K]; None is a norm without weight
    eps: float
    bias: Weight | None = None  # [K], added after the norm


@dataclass(frozen=True)
class LayerNorm:
    """A layer norm that an op applies to its input or result."""

    weight: Weight | None  # [D]; None is a norm without weight
    bias: Weight | None  # [D]; None is a norm without bias
    eps: float


AnyNorm = Rms | LayerNorm


# Sampling options that the rows of a step may use: "plain" none that change logits, "any" all but masks, "masked" all.
Choosing = Literal["plain", "any", "masked"]


class Ops(Protocol[Tensor]):
    """The ops of models. An op with a body here is composed of other ops, or is a row of ELEMENTWISE."""

    def _by_element(
        self,
        f: str,
        x: Tensor,
        z: Tensor | Weight | None = None,
        *,
        numbers: tuple[float, ...] = (),
        first: int = 0,
    ) -> Tensor:
        """y = f(x, z, numbers), a row of ELEMENTWISE in elementwise.py; z [T, ..] is read from column `first` on"""

    def layer(self, index: int) -> AbstractContextManager[None]:
        """Labels the ops recorded inside with block `index`; a plan may be split between blocks."""

    def embed(self, weight: Weight, ids: Tensor, *, norm: LayerNorm | None = None, scale: float = 1.0) -> Tensor:
        """y[t] = norm(scale · W[ids[t]]); an id with bit 31 set is what the slot of that number sampled last

        If ids are [T, n], computed by another op, a row has those n rows of W, one after the other.
        """

    def token_numbers(self, ids: Tensor) -> Tensor:
        """y[t] = 1 + the token of t, four times; [T, 4]"""

    def ngram_rows(self, numbers: Tensor, how: NGrams) -> Tensor:
        """Rows of a table, chosen by the last tokens: c_j mod counts[i] + offsets[i] for choice i. uint32 [T, rows]

        A row of numbers [T, 4 · size] has those of its token and of the tokens before it, the next first, as
        `token_numbers` returns them; 0 for none. c_j = xor over s <= j of multipliers[s] · token_s, modulo 2^64, for
        j = 1 .. size - 1, `each` choices for each. Tokens before an `end`, and that one, count as `end`, and so do
        missing ones.
        """

    def embed_positions(self, weight: Weight, cache: Cache) -> Tensor:
        """y[t] = W[position of t in its sequence]"""

    def layer_norm(self, x: Tensor, weight: Weight | None, bias: Weight | None, eps: float) -> Tensor:
        """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, by row; weight defaults to 1, bias to 0"""

    def rms_norm(
        self, x: Tensor, weight: Weight | None, eps: float, *, add: Tensor | None = None, scale: float = 1.0
    ) -> Tensor:
        """y = scale · x / sqrt(mean(x²) + eps) · weight + add, by row; weight defaults to ones"""

    def group_rms_norm(self, x: Tensor, weight: Weight | None, groups: int, eps: float) -> Tensor:
        """y = x / sqrt(mean(x²) + eps) * weight, by row and group of D / groups columns; weight defaults to ones

        A weight of D / groups numbers applies to every group.
        """

    def group_layer_norm(
        self, x: Tensor, weight: Weight | None, bias: Weight | None, groups: int, eps: float
    ) -> Tensor:
        """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, by row and group of D / groups columns"""

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Tensor | None = None,
        norm: AnyNorm | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """y[t] = scale · then(W norm(x[t]) + bias) + add[t]"""

    def linears(
        self,
        xs: Sequence[Tensor],
        weights: Sequence[Weight],
        *,
        then: Sequence[Activation] | None = None,
        bias: Sequence[Weight | None] | None = None,
        norm: AnyNorm | None = None,
    ) -> tuple[Tensor, ...]:
        """y_i[t] = then_i(W_i norm(x_i[t]) + bias_i), in one dispatch if the formats agree"""
        thens, biases = then or ["none"] * len(weights), bias or [None] * len(weights)
        every = zip(xs, weights, thens, biases, strict=True)
        return tuple(self.linear(x, weight, then=f, bias=b, norm=norm) for x, weight, f, b in every)

    def adapter_down(
        self, xs: Sequence[Tensor], factors: Sequence[Weight], scales: Tensor, *, norm: AnyNorm | None = None
    ) -> tuple[Tensor, ...]:
        """low_i[t] = s[t] · (A_i norm(x_i[t])), by element: the first half of LoRA adapters"""
        return tuple(self.mul(self.linear(x, a, norm=norm), scales) for x, a in zip(xs, factors, strict=True))

    def adapter_up(
        self,
        xs: Sequence[Tensor],
        lows: Sequence[Tensor | None],
        factors: Sequence[Weight | None],
        *,
        then: Sequence[Activation],
        scale: float = 1.0,
        add: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """y_i = scale · then_i(x_i + B_i low_i) + add; if then_i is none, x_i must be scaled already"""

    def glu(self, x: Tensor, weight: Weight, then: Activation, *, norm: AnyNorm | None = None) -> Tensor:
        """y[t] = then(G h[t]) · (U h[t]), h = norm(x), where the rows of G and U alternate in W"""

    def adapter_glu(
        self,
        x: Tensor,
        weight: Weight,
        lows: Sequence[Tensor],
        factor: Weight,
        then: Activation,
        *,
        norm: AnyNorm | None = None,
    ) -> Tensor:
        """y[t] = then(G h[t] + B_G low_0[t]) · (U h[t] + B_U low_1[t]), where rows of both B alternate in the factor"""

    def activate(self, x: Tensor, then: Activation) -> Tensor:
        """y = then(x): see FUNCTIONS in elementwise.py"""
        return self._by_element(then, x)

    def signed_root(self, x: Tensor, least: float) -> Tensor:
        """y = sign(x) · sqrt(max(|x|, least))"""
        return self._by_element("signed_root", x, numbers=(least,))

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """y = cap · tanh(x / cap)"""
        return self._by_element("softcap", x, numbers=(cap,))

    def clamp(self, x: Tensor, limit: float) -> Tensor:
        """y = min(max(x, -limit), limit)"""
        return self._by_element("clamp", x, numbers=(limit,))

    def clip(self, x: Tensor, low: float, high: float) -> Tensor:
        """y = min(max(x, low), high)"""
        return self._by_element("clip", x, numbers=(low, high))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y"""
        return self._by_element("add", x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """x · y, by element; y [T, D] is the same for every choice of x [T, used, D]"""
        return self._by_element("mul", x, y)

    def mul_columns(self, x: Tensor, y: Tensor, first: int) -> Tensor:
        """x · y[:, first : first + D], by element, x [T, D]"""
        return self._by_element("mul", x, y, first=first)

    def gated(self, gate: Tensor, up: Tensor, then: Glu) -> Tensor:
        """then(gate) · up, by element, or a `ClampedSwiglu` or `Situ` of both"""
        if not isinstance(then, str):
            return self._by_element(then.f, gate, up, numbers=then.numbers)
        return self.mul(self.activate(gate, then), up)

    def xielu(self, x: Tensor, how: Xielu) -> Tensor:
        """y = xielu(x) with the parameters in `how`, by element"""
        return self._by_element("xielu", x, numbers=(how.positive, how.negative, how.beta, how.eps))

    def swish(self, x: Tensor, by: float) -> Tensor:
        """y = x · sigmoid(by · x); with `by` 1.702, the fast approximation of GELU"""
        return self._by_element("swish", x, numbers=(by,))

    def gelu_erf(self, x: Tensor) -> Tensor:
        """y = x / 2 · (1 + erf(x / √2)), the exact form of GELU"""
        return self._by_element("gelu_erf", x)

    def scale_columns(self, x: Tensor, weight: Weight) -> Tensor:
        """x · w, by column"""
        return self._by_element("scale_columns", x, weight)

    def shift_columns(self, x: Tensor, weight: Weight) -> Tensor:
        """x + w, by column"""
        return self._by_element("shift_columns", x, weight)

    def excess(self, x: Tensor, deviations: float) -> Tensor:
        """y = max(x - mean(x) - deviations · std(x), 0), by row; the square of std is sum (x - mean)² / (D - 1)"""

    def match_length(self, x: Tensor, as_long: Tensor) -> Tensor:
        """y = x · |as_long| / |x|, by row"""

    def predict_streams(self, xs: Sequence[Tensor], coefs: Tensor) -> tuple[Tensor, ...]:
        """y_b[t] = x_b[t] + sum over a of coefs[t, S · b + a] · x_a[t], of S streams"""

    def correct_streams(
        self, xs: Sequence[Tensor], found: Tensor, coefs: Tensor, *, add: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """y_s[t] = x_s[t] + (1 + coefs[t, s]) · (found[t] - x_0[t]) + add[t]; y_0 without add"""

    def stream_gates(self, z: Tensor, how: StreamGates) -> tuple[Tensor, ...]:
        """y_p[t, s] = m_p · sigmoid(scales[p] · z[t, p · S + s] + bias[p · S + s]) + eps_p, for each kind p, [T, S]

        m_p is 1 for gates that read, and the magnitude for those that write. With iterations, a last result is the
        matrix m [T, S · S] between streams: m[t, a · S + b] begins as the softmax over b of scales[2] · z + bias, plus
        eps, in the columns from 2 · S on. Then its columns (over a) and rows are divided by their sums + eps in turns,
        the columns `iterations` times.
        """

    def add_to_streams(self, x: Tensor, found: Tensor, gates: Tensor, *, matrix: Tensor | None = None) -> Tensor:
        """y[t, s · D + d] = x[t, s · D + d] + gates[t, s] · found[t, d], of S streams in one row: y [T, S · D]

        With a matrix, the streams are mixed first: sum over a of m[t, a · S + s] · x[t, a · D + d] replaces x.
        """

    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        """z[t] = [x[t] | y[t]]"""

    def scatter(self, x: Tensor, columns: Columns) -> Tensor:
        """y[:, columns.ids[i]] = x[:, i], the logits of known tokens; those of others are MIN_LOGIT"""

    def shift_rows(self, x: Tensor, rows: SlotRows) -> Tensor:
        """y[t] = x[t - 1] of the same sequence.

        The row before a segment's first one is in `rows`, or zeros at the start of a sequence. Then `rows` has x of
        the segment's last rows.
        """

    def row_before(self, rows: SlotRows, back: int = 1) -> Tensor:
        """y[t] = the row `back` positions before t in `rows`, or zeros before the start; one row of each sequence"""

    def keep_rows(self, x: Tensor, rows: SlotRows) -> None:
        """`rows` has x of the last rows of each segment."""

    def scale(self, x: Tensor, by: float) -> Tensor:
        """by · x"""
        return self._by_element("scale", x, numbers=(by,))

    def softmax(self, x: Tensor) -> Tensor:
        """y = exp(x - max(x)) / sum(exp(x - max(x))), by row"""

    def argmax(self, x: Tensor) -> Tensor:
        """The index of the largest element by row, the first of equals; uint32 [T]"""

    def norm_shift_mix(
        self, x: Tensor, weight: Weight, bias: Weight, eps: float, mix: Weight, state: State, *, rows: bool = False
    ) -> tuple[Tensor, ...]:
        """y_i[t] = xx[t] + (xx[t - 1] - xx[t]) · mix_i, with xx = layer_norm(x), for each row of mix [n, D]

        With `rows`, xx[t] and xx[t - 1] are two further results.

        The row before a segment's first one is the state: the sequence's last x, [D]. Before the first token of the
        sequence xx is zero. The state becomes x of the segment's last row.
        """

    def conv1d(
        self,
        x: Tensor,
        weight: Weight,
        state: State,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        first: int = 0,
        gated: bool = False,
    ) -> Tensor:
        """y[t, c] = then(sum over i of w[c, i] · x[t - W + 1 + i, first + c] + bias[c]): a causal depthwise convolution

        If `gated`, a row of x holds f, g and h [C]: f · h is convolved, and the result is multiplied by g.
        The state [W - 1, C] defines the width W; w is one vector, [C · W], and y is [T, C]. The rows before the first
        row of a segment are those of the state, the oldest first, or zeros at the start of a sequence. The state
        becomes the last W - 1 rows of x.
        """

    def centred_conv1d(self, x: Tensor, weight: Weight, *, bias: Weight | None = None) -> Tensor:
        """y[t, c] = sum over i of w[c, i] · x[t - W // 2 + i, c] + bias[c], W odd

        Rows before and after those of the segment count as zeros. w is one vector, [C · W].
        """

    def ssd(self, xbc: Tensor, projected: Tensor, parameters: StateSpace, state: State, *, groups: int) -> Tensor:
        """Mamba-2's recurrence by segment and head, over S [P, N]; y is [T, H · P], and the state [H, P, N].

        A row of xbc holds x [H · P], then B and C [groups · N] each; head h reads B and C of group h // (H / groups).
        The first H · P columns of `projected` are z, the last H are dt.

        dt = log(1 + exp(dt + dt_bias))
        S = S exp(dt A) + dt x Bᵀ                       from the state, from zeros before the first token
        y = (S C + D x) · silu(z)
        """

    def selective_scan(
        self, x: Tensor, dt: Tensor, bc: Tensor, projected: Tensor, parameters: StateSpace, state: State
    ) -> Tensor:
        """Mamba's recurrence by segment and channel, over a row S [N]; x, dt and y are [T, D], and the state [D, N].

        A row of bc [T, 2 · N] holds B, then C. The last D columns of `projected` are z.

        dt = log(1 + exp(dt + dt_bias))
        S = S exp(dt A) + dt x B                        from the state, from zeros before the first token
        y = (S · C + D x) · silu(z)
        """

    def time_mix(self, x: Mixed[Tensor], vectors: Weight, eps: float, state: State) -> Tensor:
        """The recurrence of RWKV-7 by segment and head, over S [N, N] = [value, key]; `vectors` [5, D] holds
        k_k, k_a, r_k and the weight and bias of the norm; with the first three alone there is no norm.

        κ = k · k_k / max(|k · k_k|, 1e-12)             k = k · (1 + (a - 1) · k_a)
        v = v + (v_first - v) · v_gate                  where there is a v_gate
        S = S diag(w) + v kᵀ - (S κ) (κ · a)ᵀ           from the state, [H, N, N], from zeros before the first token
        y = (norm(S r) · weight + bias + (sum r · k · r_k) · v) · gate       norm over the head, with eps
        """

    def shift(self, x: Tensor, state: State) -> Tensor:
        """y[t] = x[t - 1] of the same sequence.

        The row before a segment's first one is the state, [1, D], or zeros at the start of a sequence. The state
        becomes x of the segment's last row.
        """

    def lerp(
        self, x: Tensor, before: Tensor, mix: Weight, *, low: Tensor | None = None, up: Weight | None = None
    ) -> tuple[Tensor, ...]:
        """y_i[t] = x[t] + (before[t] - x[t]) · (mix_i + U_i low_i[t]) for each row of mix [n, D]

        U_i low_i is added only if `low` [T, n · R] is given; U [n, D, R] is one vector.
        """

    def wkv6(
        self,
        r: Tensor,
        w: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        state: State,
        *,
        vectors: Weight | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """The recurrence of RWKV-6 by segment and head, over S [N, N] = [value, key] from the state, [H, N, N], or from
        zeros before the first token. r, the decay w and the gate are [T, H · N]; k and v may have fewer heads, KH:
        head h reads h · KH / H.

        With `vectors` [3, H · N], which hold u and the weight and bias of the norm over the head:
        y = (norm(S r + (sum r · u · k) v) · weight + bias) · gate, and then S = S diag(w) + v kᵀ.
        Without: S = S diag(w) + v (k · (1 - w))ᵀ, and then y = S r / sqrt(N) · gate.
        """

    def wkv4(self, r: Tensor, k: Tensor, v: Tensor, vectors: Weight, state: State) -> Tensor:
        """RWKV-4's average of values by segment and channel; r, k, v and y are [T, D].

        `vectors` [2, D] hold the logarithm of the decay w, and the bonus u. The state [3, D] holds the sums A and B of
        the tokens before, divided by e^m, and m. They begin as zeros.

        y = r · (A + e^(u + k) v) / (B + e^(u + k)), and then A = e^-w A + e^k v, B = e^-w B + e^k
        """

    def lightning_attention(self, qkv: Tensor, decays: Sequence[float], state: State) -> Tensor:
        """Linear attention by segment and head, over S [N, N] = [value, key], from the state, [H, N, N], or from zeros
        before the first token. A row of qkv holds q, k and v of each head, one head after the other. y is [T, H · N].

        S = S · decays_h + v kᵀ, and then y = S q
        """

    def gated_delta_rule(
        self, qkv: Sequence[Tensor], beta: Tensor, decay: Tensor, gate: Tensor, how: DeltaRule, state: State
    ) -> Tensor:
        """The gated delta rule by segment and value head, over S [N, N] = [value, key], from the state, [H, N, N], or
        from zeros before the first token.

        q = q / sqrt(sum q² + eps) / sqrt(N)            k = k / sqrt(sum k² + eps)
        w = exp(softplus(decay + bias) · A)             per head, or per channel of the key; with a bound,
        w = exp(bound · sigmoid((decay + bias) · A))
        S = S diag(w), and then S = S + (v - S k) sigmoid(beta) kᵀ
        y = rms_norm(S q) · norm · then(gate)           normed over the head

        q, k and v are three tensors, or the columns of one. beta is [T, H], decay [T, H] or [T, H · N]; both may be one
        tensor [T, 2 · H], where each key head has the betas of its value heads and then their decays.
        """

    def scale_rows(self, x: Tensor, by: Tensor, *, add: Tensor | None = None) -> Tensor:
        """y[t] = x[t] · by[t] + add[t], by [T, H], one number for each of H equal parts of a row"""

    def mean_parts(self, x: Tensor, parts: int) -> Tensor:
        """y[t, d] = mean over i of x[t, i · D + d], of equal parts of a row"""

    def row_matrix(self, x: Tensor, m: Tensor) -> Tensor:
        """y[t, d] = sum over i of x[t, i] · m[t, i · D + d]: x [T, K] by a matrix [K, D] of each row, y [T, D]"""

    def route(
        self, x: Tensor, router: Weight, how: Gating, *, norm: Rms | None = None, logits: Tensor | None = None
    ) -> Routing[Tensor]:
        """The experts e with the largest p_e + selection_bias_e, the largest first; ties go to the lower index

        l = logit_scale · (W norm(x[t]) + bias); p = softmax(l), sigmoid(l), or the softmax of the chosen l alone. If
        there are groups, only experts of the best groups take part. A share is p, normalised, scaled, and multiplied
        by answer_scale_e. `logits` are W norm(x) + bias, if already computed.
        """

    def route_known(
        self, x: Tensor, router: Weight, how: Gating, known: Tensor, *, norm: Rms | None = None
    ) -> Routing[Tensor]:
        """Like `route`, with experts that are known: the first columns of `known` [T, n], as floats"""

    def by_group(self, routing: Routing[Tensor], size: int, scale: float) -> Routing[Tensor]:
        """Maps groups of `size` experts to one expert each: e // size, scale · shares; a row may get an expert twice"""

    def expert_glu(
        self,
        x: Tensor,
        gate: Weight,
        up: Weight | None,
        routing: Routing[Tensor],
        then: Glu,
        *,
        norm: Rms | None = None,
        bias: tuple[Weight, Weight] | None = None,
        scales: tuple[Weight, Weight] | None = None,
        scaled: bool = False,
    ) -> Tensor:
        """y[t, j] = then(s_G,e G_e h + b_G,e) · (s_U,e U_e h + b_U,e), h = norm(x[t]), e = experts[t, j]; [T, used, M]

        Without `up`, `gate` [E, 2 · M, K] holds both, the rows of G first. Biases are [E · M], scales [E]. Where
        `scaled`, h is multiplied by shares[t, j]. A `ClampedSwiglu` or `Situ` takes both sums.
        """

    def expert_linear(
        self,
        x: Tensor,
        weight: Weight,
        routing: Routing[Tensor],
        *,
        then: Activation = "none",
        norm: Rms | None = None,
        bias: Weight | None = None,
        scale: Weight | None = None,
    ) -> Tensor:
        """y[t, j] = then(s_e W_e norm(x[t]) + b_e), e = experts[t, j]; [T, used, M]; the bias is [E · M], scales [E]

        If x is [T, used, K], each choice has its own row: then(W_e x[t, j] + b_e).
        """

    def expert_sum(
        self,
        h: Tensor,
        down: Weight,
        routing: Routing[Tensor],
        *,
        add: Tensor | None = None,
        bias: Weight | None = None,
        weighted: bool = True,
    ) -> Tensor:
        """y[t] = (sum over j of shares[t, j] · (D_e h[t, j] + b_e)) + add[t], e = experts[t, j]

        If not `weighted`, the shares count as 1: they have been applied to the input.
        """

    def resize_heads(self, x: Tensor, heads: int, size: int) -> Tensor:
        """Resizes heads to [T, heads · size]: y[t, h] is x[t, h], truncated to `size` numbers or padded with zeros"""

    def attention(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        cache: Cache,
        how: Attention,
        *,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """y[t, h] = sum_j softmax_j(cap(scale · q[t, h] · K[j, h'])) V[j, h'], over the positions j of its
        sequence up to that of t, within the window or the chunk

        q [T, H · N] and k [T, KV · N] are normed by head if there are norms, then rotated. k and v [T, KV · N] are
        written to the pages of the cache first, so that K and V hold the whole sequence; h' = h · KV / H. y [T, H · N]
        Without k and v the cache is only read: another layer of this step has written the same rows to it.
        A sink is one more score in the softmax of its head. A temperature scales q. With `alibi`, a score loses
        the slope of its head for each position between t and j: see `slopes` in ops/paged.py. With `biases` it gains
        the one of its head for j - t.
        If positions are `chosen` for each row, or for each KV head of a row, j takes only these: see `choose_keys`.
        """

    def turn(self, x: Tensor, angles: Tensor, heads: int, pairing: Pairing, parts: int = 1) -> Tensor:
        """y[t, h]: pair i of the first R numbers of a head becomes (a cos - b sin, a sin + b cos); the rest stays.

        Row t of angles [T, parts · R] has the cosines of R / 2 pairs, then their sines, for each part; head h uses
        part h mod parts.
        """

    def step_input(self, name: str) -> Tensor:
        """The rows of the step's input of this name, such as patches of images. [T, n]"""

    def add_step_input(self, x: Tensor, name: str) -> Tensor:  # noqa: ARG002
        """x + the rows of the step's input of this name; x if it has none"""
        return x

    def write_keys(self, k: Tensor, v: Tensor, cache: Cache, how: Attention) -> None:
        """Writes k and v to the pages of the cache as `attention` does, for later steps."""

    def head_linear(self, x: Tensor, weight: Weight) -> Tensor:
        """y[t, h] = W_h x[t, h, :K], the first K of each head: x [T, H · S], W [H, M, K], y [T, H · M]"""

    def latent_attention(
        self,
        q: Tensor,
        q_rope: Tensor,
        z: Tensor,
        cache: Cache,
        how: LatentAttention,
        *,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """y[t, h] = sum_j softmax_j(scale · (q[t, h] · c[j] + r[t, h] · p[j])) c[j], over j up to the position of t,
        within the window of the cache

        z [T, C + R] = [c | p]: c is normed, p is rotated, and both go to the pages of the cache first. q [T, H · C];
        r is the last R of each head of q_rope [T, H · S], rotated. A temperature scales q and r. y [T, H · C]
        A sink is one more score in the softmax of its head.
        If positions are `chosen` for each row, as `choose_keys` returns them, j takes only these.
        """

    def choose_keys(self, q: Tensor, k: Tensor | None, weights: Tensor | None, cache: Cache, how: KeyIndex) -> Tensor:
        """The positions of the `count` blocks with the largest scores, ascending, then `NO_KEY`. uint32 [T, lists, W]

        score[t, b] = sum_h weights[t, h] · relu(q[t, h] · K[j]), j the last position of block b; weights [T, H] default
        to 1. The incomplete block at the end has no score and is always seen. With `by_head` there is a list for each
        head, and score[t, h, b] = max over j in b of q[t, h] · K[j]; the last blocks have the largest scores.
        Of equal scores the earlier block is chosen. The first or last dims of q [T, H · N] are rotated by the position
        of t, those of k [T, N] by that of t (`by_head`), or that of t - B + 1; then k goes to the pages of the cache.
        Without k, both are written and rotated already. In a cache of entries, these take the place of positions.
        """

    def turn_heads(self, x: Tensor, heads: int, rope: Rope, cache: Cache, *, back: bool = False) -> Tensor:
        """x [T, heads · N], the last dims of each head rotated by the row's position, or `back` by it"""

    def write_entries(self, x: Tensor, cache: Cache, rope: Rope | None = None) -> None:
        """Writes the rows of x [T, N] that complete an entry to the pages of the cache, which has keys only.

        The last dims are rotated by the first position of the entry.
        """

    def compress(self, cache: Cache, bias: Weight, ratio: int) -> Tensor:
        """y[t, n] = sum_j p_j v_j, p = softmax_j(g_j + bias[position of j mod ratio]), for rows that complete a block

        A block has `ratio` positions. A row of the cache is [v | g], with C numbers of each for every n: [T, N · C]
        each. With C = 1, j runs over the block. With C = 2, it also runs over the block before, if there is one; that
        has the first N of v and g, the block itself the last. Other rows are zeros. y [T, N], bias [ratio, N · C]
        """

    def compressed_attention(
        self, q: Tensor, cache: Cache, entries: Cache | None, how: Attention, *, chosen: Tensor | None = None
    ) -> Tensor:
        """y[t, h] = sum_j softmax_j(scale · q[t, h] · k[j]) k[j], over the window of the cache, and complete entries

        All heads share the keys. Of the entries, j takes all that are complete at the position of t, or those that are
        `chosen`. A sink is one more score in the softmax of its head.
        """

    def write_latents(self, z: Tensor, cache: Cache, how: LatentAttention) -> None:
        """Writes z to the pages of the cache as `latent_attention` does, for later steps."""

    def pick(self, x: Tensor) -> Tensor:
        """Selects the rows whose logits are needed: y [R, D]. Later ops see only these rows."""

    def pick_blocks(self, x: Tensor, count: int, how: Blocks) -> Tensor:
        """Selects `count` rows for each output, the first of which is the requested one; later ops see R rows.

        The rows are joined, [R, count · D]; or joined with the numbers of one column next to each other; or their mean
        is taken, [R, D].
        """

    def sample(self, logits: Tensor, *, how: Choosing = "any") -> Tensor:
        """Samples each row by the step's `draws`: the token, the bits of its log probability, a `Reason`; [R, 4]

        Applies penalties, the step's `masks`, top-k, top-p, min-p and temperature, then draws; `how` limits which of
        these rows may use. The token becomes the last sampled token of the row's slot. See ops/sampling.py.
        """


def found(tree: Any, kind: type[Kind]) -> Iterator[Kind]:
    """All objects of a type in a tree of dataclasses, sequences and mappings: a model, or the arguments of an op."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, list | tuple):
        for one in tree:
            yield from found(one, kind)
    elif isinstance(tree, Mapping):
        for one in tree.values():
            yield from found(one, kind)
    elif is_dataclass(tree):
        for one in fields(tree):
            yield from found(getattr(tree, one.name), kind)
