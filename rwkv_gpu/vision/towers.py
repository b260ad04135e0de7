"""Vision towers: transformers over the patches of an image, and projectors to rows of a language model.

A tower is written in the ops vocabulary, so numpy and GPUs run the same function. Patches, learned
positions and angles are inputs of a step. The patches that a projector merges form a block and are consecutive.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..models.layered import normed
from ..models.transformer import FeedForward, attend, inner, output
from ..models.transformer import Output as Branch
from ..ops.vocabulary import (
    Activation,
    AnyNorm,
    Attention,
    Blocks,
    Cache,
    HeadNorms,
    LayerNorm,
    Ops,
    Pairing,
    Rms,
    State,
    Tensor,
    Weight,
)
from .clipped import Clips, with_clips

PATCHES, POSITIONS, ANGLES = "patches", "positions", "angles"  # rows of a step
WINDOWS = "windows"  # an input: the patches that each patch attends to in layers with windows
WAVES = "waves"  # an input: sines and cosines of the row and column of each patch
EMBEDDED = "media"  # a result: rows in place of embeddings


def deepstack(number: int) -> str:
    """The name of the rows that are added after layer `number` of the language model."""
    return f"deepstack.{number}"


@dataclass(frozen=True)
class PatchAttention:
    """Parameters of attention over all patches, or over those of a window."""

    norm: AnyNorm
    qkv: tuple[Weight, ...]
    biases: tuple[Weight | None, ...]
    output: Branch
    cache: Cache
    how: Attention
    size: int  # size of a head
    pairing: Pairing | None = None  # pairs of numbers that rotate together; None is no rotation
    turned_parts: int = 1  # parts of a head, each of which rotates by its own angles
    norms: HeadNorms | None = None  # norms of each head, before rotation


@dataclass(frozen=True)
class Layer:
    """One layer of a tower."""

    attention: PatchAttention
    feed: FeedForward
    scales: tuple[Weight | None, Weight | None] = None, None  # factors of the output of each branch, by column
    swish: float = 0.0  # if s > 0, the activation of `feed` is y · sigmoid(s · y); 0: that of `feed`
    erf: bool = False  # True for the exact form of GELU


@dataclass(frozen=True)
class Mlp:
    """down(then(up x + bias)) + bias"""

    up: Weight
    up_bias: Weight | None
    down: Weight
    down_bias: Weight | None
    then: Activation = "gelu"


class Projector(ABC):
    """Converts patches to rows of the language model."""

    queries: int = 0  # rows for every image; 0: one for each block
    caches: tuple[Cache, ...] = ()  # caches of its attention
    matrix: Weight  # the last one

    @property
    def width(self) -> int:
        """The width of its rows."""
        return self.matrix.shape[-2]

    @abstractmethod
    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        """The rows for the patches x after the last layer, [R, D]"""

    def resample(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - most have no queries
        """Like `project`, in a step whose first ids are those of queries"""
        return self.project(g, x)


class MediaTower(ABC):
    """A tower with its projector. Usable as a model whose rows are parts of an image or a sound, which have no ids."""

    layers: tuple[Any, ...]

    @property
    def vocabulary(self) -> int:
        """The number of ids."""
        return 1

    @property
    def caches(self) -> list[Cache]:
        return [self.layers[0].attention.cache]

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The rows that replace embeddings, [R, D]"""
        return self.features(g, ids)[EMBEDDED]

    hidden = forward

    @abstractmethod
    def features(self, g: Ops[Tensor], ids: Tensor) -> dict[str, Tensor]:
        """Rows of the language model by name: in place of embeddings, and those added after layers, [R, D] each"""


@dataclass(frozen=True)
class Tower(MediaTower):
    """A tower over the patches of an image."""

    weights: tuple[Weight, ...]
    patches: tuple[Weight, ...]  # [D, 3 · p · p], one for each frame of a patch; none: another tower embeds them
    patch_bias: Weight | None
    layers: tuple[Layer, ...]
    patch_norm: AnyNorm | None  # before learned positions are added
    first_norm: AnyNorm | None
    last_norm: AnyNorm | None
    projector: Projector
    context: int  # maximum patches of an image
    learned_positions: bool
    taps: Mapping[int, Projector] = field(default_factory=dict)  # projectors of deepstack rows, by layer
    clips: Clips = field(default_factory=dict)

    @property
    def vocabulary(self) -> int:
        """The number of ids: those of queries, or 1."""
        return max(1, self.projector.queries)

    @property
    def states(self) -> list[State]:
        return []

    @property
    def caches(self) -> list[Cache]:
        return [*super().caches, *self.projector.caches]

    def features(self, g: Ops[Tensor], ids: Tensor) -> dict[str, Tensor]:
        g = with_clips(g, self.clips)
        patches = x = g.step_input(PATCHES)
        for i, weight in enumerate(self.patches):
            x = g.linear(patches, weight, add=x) if i else g.linear(patches, weight, bias=self.patch_bias)
        x = normed(g, x, self.patch_norm)
        if self.learned_positions:
            x = g.add(x, g.step_input(POSITIONS))
        x = normed(g, x, self.first_norm)
        tapped: list[tuple[Projector, Tensor]] = []
        for i, layer in enumerate(self.layers):
            with g.layer(i):
                x = layer_rows(g, layer, x)
            if i in self.taps:
                tapped.append((self.taps[i], x))
        x = normed(g, x, self.last_norm)
        rows = {EMBEDDED: self.projector.resample(g, x, ids)}
        return rows | {deepstack(n): projector.project(g, tap) for n, (projector, tap) in enumerate(tapped)}


def layer_rows(g: Ops[Tensor], layer: Layer, x: Tensor) -> Tensor:
    """The rows after a layer"""
    x = patch_attention(g, layer.attention, x, layer.scales[0])
    y = inner(g, layer.feed, x)
    y = g.swish(y, layer.swish) if layer.swish else g.gelu_erf(y) if layer.erf else y
    return added(g, layer.feed.output, y, x, layer.scales[1])


def patch_attention(g: Ops[Tensor], p: PatchAttention, x: Tensor, scale: Weight | None = None) -> Tensor:
    """x + scale · output(attention(W_q h, W_k h, W_v h)), h = norm(x); each patch attends to all, or to its window"""
    q, k, v = g.linears([x, x, x], p.qkv, bias=p.biases, norm=p.norm)
    heads, norms = p.how.heads, p.norms
    if norms is not None:
        q, k = (g.group_rms_norm(y, weight, heads, norms.eps) for y, weight in ((q, norms.q), (k, norms.k)))
        v = g.group_rms_norm(v, None, heads, norms.eps) if norms.v else v
    if p.pairing is not None:
        angles, parts = g.step_input(ANGLES), p.turned_parts
        q, k = (g.turn(y, angles, heads * parts, p.pairing, parts) for y in (q, k))
    return added(g, p.output, attend(g, q, k, v, p.cache, p.how, p.size), x, scale)


def added(g: Ops[Tensor], p: Branch, y: Tensor, x: Tensor, scale: Weight | None) -> Tensor:
    """x + scale · (W y + bias)"""
    if scale is None:
        return output(g, p, y, x)
    return g.add(g.scale_columns(g.linear(y, p.weight, bias=p.bias), scale), x)


def mlp(g: Ops[Tensor], p: Mlp, x: Tensor) -> Tensor:
    """The result of an `Mlp`"""
    return g.linear(g.linear(x, p.up, bias=p.up_bias, then=p.then), p.down, bias=p.down_bias)


@dataclass(frozen=True)
class PooledProjector(Projector):
    """Gemma 3: the mean of a block is normed and multiplied by one matrix."""

    count: int  # patches of a block
    norm: Rms
    matrix: Weight  # [1, D, K]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        x = g.pick_blocks(x, self.count, "mean")
        return g.head_linear(g.rms_norm(x, self.norm.weight, self.norm.eps), self.matrix)


@dataclass(frozen=True)
class JoinedProjector(Projector):
    """Joins the patches of a block, with optional norms. A matrix (in some families) and an MLP follow."""

    count: int
    mlp: Mlp
    norm: LayerNorm | None = None
    each: AnyNorm | None = None  # norm of each patch
    blocks: Blocks = "joined"  # Pixtral and Mistral 3: "by_column"
    merger: Weight | None = None  # in Pixtral and Mistral 3: [D, D · count]

    @property
    def width(self) -> int:
        return self.mlp.down.shape[0]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        x = normed(g, g.pick_blocks(normed(g, x, self.each), self.count, self.blocks), self.norm)
        return mlp(g, self.mlp, x if self.merger is None else g.linear(x, self.merger))


@dataclass(frozen=True)
class ChainProjector(Projector):
    """Muse Glimmer, Llama 4: the patches of a block are joined; several matrices follow, with GELU between them."""

    count: int
    matrices: tuple[Weight, ...]
    blocks: Blocks
    then: Activation = "none"  # "none": the exact form of GELU, which is a separate op

    @property
    def width(self) -> int:
        return self.matrices[-1].shape[0]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        *inner, last = self.matrices
        x = g.pick_blocks(x, self.count, self.blocks)
        for matrix in inner:
            x = g.linear(x, matrix, then=self.then)
            x = g.gelu_erf(x) if self.then == "none" else x
        return g.linear(x, last)


@dataclass(frozen=True)
class NormedProjector(JoinedProjector):
    """Hunyuan VL: a norm of each patch, an MLP over the patches of a block, a matrix and a norm."""

    matrix: Weight = field(kw_only=True)
    bias: Weight | None = field(kw_only=True)
    after: Rms = field(kw_only=True)

    @property
    def width(self) -> int:
        return self.matrix.shape[0]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        return normed(g, g.linear(super().project(g, x), self.matrix, bias=self.bias), self.after)


@dataclass(frozen=True)
class PairProjector(Projector):
    """DeepSeek-OCR: a matrix of the rows of both towers."""

    matrix: Weight  # [D, K]
    first: Weight  # [D, K], of the rows that this tower reads
    bias: Weight | None

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        return g.pick(g.linear(x, self.matrix, bias=self.bias, add=g.linear(g.step_input(PATCHES), self.first)))


@dataclass(frozen=True)
class GatedProjector(Projector):
    """GLM-4V: one matrix merges the patches of a block; a matrix, a norm, GELU and a gated feed-forward follow."""

    count: int
    merger: Weight  # [D, K · count]: the columns of one number are adjacent
    merger_bias: Weight | None
    matrix: Weight  # [D, D]
    norm: LayerNorm
    feed: FeedForward

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        x = g.linear(g.pick_blocks(x, self.count, "by_column"), self.merger, bias=self.merger_bias)
        x = g.gelu_erf(normed(g, g.linear(x, self.matrix), self.norm))
        out = self.feed.output
        return g.linear(inner(g, self.feed, x), out.weight, bias=out.bias)


@dataclass(frozen=True)
class Resampler(Projector):
    """MiniCPM-V: learned queries attend to the patches of an image; two matrices with a norm between them follow."""

    query: Weight  # [Q, D]
    reduce: Weight  # [D, K]
    norms: tuple[LayerNorm, LayerNorm, LayerNorm]  # norms of queries, of patches, and of the queries' results
    qkv: tuple[Weight, ...]
    biases: tuple[Weight | None, ...]
    output: Branch
    matrix: Weight  # [D, D]
    how: Attention
    queries: int = 0
    caches: tuple[Cache, ...] = ()

    def resample(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        v = normed(g, g.linear(x, self.reduce), self.norms[1])
        q, k = g.embed(self.query, ids, norm=self.norms[0]), g.add(v, g.step_input(WAVES))
        q, k, v = g.linears([q, k, v], self.qkv, bias=self.biases)
        return self.project(g, g.attention(q, k, v, self.caches[0], self.how))

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        x = g.linear(g.pick(x), self.output.weight, bias=self.output.bias)
        return g.linear(normed(g, x, self.norms[2]), self.matrix)


@dataclass(frozen=True)
class LinearProjector(Projector):
    """Idefics 3: the patches of a block are concatenated and multiplied by one matrix."""

    count: int
    matrix: Weight  # [D, K · count]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        return g.linear(g.pick_blocks(x, self.count, "joined"), self.matrix)


@dataclass(frozen=True)
class ScaledProjector(Projector):
    """Gemma 4: the mean of a block, scaled by the root of its width, is normed and projected.

    Some files shift and scale it before the norm, too.
    """

    count: int
    shift: Weight | None
    scale: Weight | None
    eps: float
    matrix: Weight  # [D, K]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        x = g.scale(g.pick_blocks(x, self.count, "mean"), self.matrix.shape[1] ** 0.5)
        if self.shift is not None and self.scale is not None:
            x = g.scale_columns(g.scale(g.shift_columns(g.scale(x, -1.0), self.shift), -1.0), self.scale)
        return g.linear(g.rms_norm(x, None, self.eps), self.matrix)
