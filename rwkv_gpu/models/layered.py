"""Models that consist of layers between an embedding and a head: the code that they share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from ..ops.vocabulary import AnyNorm, Cache, LayerNorm, Ops, State, Tensor, Weight


@dataclass(frozen=True)
class Diffusion:
    """How a diffusion model generates: tokens that are undecided are masks, which steps replace."""

    mask: int  # token id
    shifted: bool  # True if the row before a position predicts its token, instead of its own row


@dataclass(frozen=True)
class Ends:
    """The embedding before the layers of a model, and the norm and output after them."""

    embedding: Weight  # [V, D]
    last_norm: AnyNorm | None
    head: Weight | None  # [V, D]; an encoder has none
    context: int  # positions it was trained on
    embedding_scale: float = 1.0
    embedding_norm: AnyNorm | None = None
    head_bias: Weight | None = None  # [V]
    logit_scale: float = 1.0
    softcap: float = 0.0  # limit of the logits; 0 is none
    positions: Weight | None = None  # [positions, D], added to embeddings
    shift: Weight | None = None  # [D], added to every embedding
    projections: tuple[Weight, ...] = ()  # matrices that multiply the last normed rows, in order: [M, D], [D, M]
    causal: bool = True  # False if rows see all of their text: an encoder, or a diffusion model
    diffusion: Diffusion | None = None  # settings of a diffusion model
    start: int | None = None  # the token before an answer of an encoder-decoder
    prefix: bool = False  # True if the rows of a prompt see all of it, and those of an answer what came before


@dataclass(frozen=True)
class FileHead:
    """The first draft head of a file, or the reason why it cannot be used."""

    count: int
    head: object = None  # a `Head` that reads the rows of a model
    fault: str = ""


@dataclass(frozen=True)
class Layered(ABC):
    """A model; its subclass defines the layers."""

    ends: Ends
    weights: tuple[Weight, ...]
    file_head: FileHead | None = field(default=None, kw_only=True)  # the head in the file, if it is not used

    @abstractmethod
    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        """All layers, one after the other, [T, D]; ids are those that x was embedded from"""

    @property
    @abstractmethod
    def caches(self) -> list[Cache]:
        """Keys and values, layer by layer."""

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """softcap(scale · (W_head norm(x) + bias)) of the requested rows, [R, V]; without a head, norm(x)"""
        p = self.ends
        if p.head is None:
            return self.hidden(g, ids)
        logits = g.linear(self._residual(g, ids), p.head, bias=p.head_bias, norm=p.last_norm, scale=p.logit_scale)
        return g.softcap(logits, p.softcap) if p.softcap else logits

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, or their embeddings, [R, D]"""
        y = normed(g, self._residual(g, ids), self.ends.last_norm)
        for matrix in self.ends.projections:
            y = g.linear(y, matrix)
        return y

    def _residual(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The requested rows after all layers, [R, D]"""
        p = self.ends
        x = g.embed(p.embedding, ids, scale=p.embedding_scale)  # [T, D]
        if p.shift is not None:
            x = g.shift_columns(x, p.shift)
        if p.positions is not None:
            x = g.add(x, g.embed_positions(p.positions, self.caches[0]))
        x = normed(g, x, p.embedding_norm)
        return g.pick(self.layers(g, x, ids))

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return self.ends.embedding.shape[0]

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence; none if its cache pages hold everything."""
        return []

    @property
    def context(self) -> int | None:
        """Positions it was trained on; None if its length is unlimited."""
        return self.ends.context


def normed(g: Ops[Tensor], x: Tensor, norm: AnyNorm | None) -> Tensor:
    """norm(x), or x if there is no norm"""
    if norm is None:
        return x
    if isinstance(norm, LayerNorm):
        return g.layer_norm(x, norm.weight, norm.bias, norm.eps)
    y = g.rms_norm(x, norm.weight, norm.eps)
    return y if norm.bias is None else g.shift_columns(y, norm.bias)
