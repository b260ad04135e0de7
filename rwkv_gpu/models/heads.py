"""Heads that predict further tokens (MTP): a block that reads the model's last row and the next token.

h = rows of the model, normed as its output matrix reads them, or as they are
x[p] = W [norm(embedding of token p) | norm(h[p - 1])]
y = block(x); logits = W_out norm(y), of the token p + 1. For the token after that, y replaces h[p].

A file may have several such blocks. The first drafts the first token, the second the one after it, and so on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, UnsupportedModel
from ..gguf.file import GGUFFile
from ..ops.vocabulary import AnyNorm, Cache, LayerNorm, Ops, Rms, SlotRows, State, Tensor, Weight
from .layered import Ends, FileHead, Layered, normed
from .tensors import Tensors

LAST_NORMS = "nextn.shared_head_norm", "layer_output_norm"
HEAD_DRAFT = 3  # maximum tokens of a draft; a head is trained to predict one token
ROWS = 32  # rows of a sequence that a slot keeps: more than twice the maximum tokens of a draft


InputMaker = Callable[[Sequence[int]], Mapping[str, npt.NDArray[np.float32]]]  # makes inputs from positions of tokens


class HeadBlock(Protocol):
    """The transformer layer of a draft head."""

    @property
    def caches(self) -> Sequence[Cache]:
        """Its KV caches."""

    def write(self, g: Ops[Tensor], x: Tensor) -> None:
        """Writes the keys and values of x, for later rows."""

    def __call__(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        """The residual stream after the layer, [T, D]"""


class DraftHead(Protocol):
    """A draft head: predicts tokens from the rows of a model's layers."""

    @property
    def weights(self) -> Sequence[Weight]:
        """All its weights that are not weights of the model."""

    @property
    def rows(self) -> SlotRows | None:
        """The last rows of each sequence that it reads."""

    @property
    def caches(self) -> Sequence[Cache]:
        """Its KV caches."""

    @property
    def mask(self) -> int | None:
        """The mask token that stands for each token to draft, if one step drafts all.

        None if a step drafts one token.
        """

    @property
    def most(self) -> int:
        """The default length of a draft; also the maximum if a step drafts all tokens."""

    @property
    def links(self) -> int:
        """The number of blocks, if each drafts one token; 1 if one block drafts all."""

    @property
    def extra_inputs(self) -> InputMaker | None:
        """Computes further inputs of a drafting step, if all tokens of a draft have the position of the first.

        Each row is then placed one position earlier, so that it attends to the positions before its own.
        """

    def through(self, model: Layered, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        """Runs all layers of the model; the head reads their rows."""

    def draft(self, g: Ops[Tensor], ids: Tensor, link: int) -> Tensor:
        """The logits of drafted tokens, [R, V]: for each sequence, of the token after the given one, or of its masks.

        `link` is the number of the block that drafts.
        """


@dataclass(frozen=True)
class Head:
    """A block that predicts the token after the next one. From its own rows, it predicts later tokens."""

    weights: tuple[Weight, ...]  # its own weights and those of the heads after it, which the model does not have
    embedding: Weight  # [V, D]
    norms: tuple[Rms, Rms]  # norms of an embedded token, and of a row of the model
    joining: Weight  # [D, 2 · D]
    block: HeadBlock
    index: int  # number of the block in the file
    norm: AnyNorm | None  # before the output matrix
    output: Weight  # [V, D]
    row_norm: AnyNorm | None  # norm of the model's rows that it reads
    rows: SlotRows  # [ROWS, D]
    after: tuple["Head", ...] = ()  # further heads, each of which drafts the next token
    mask = extra_inputs = None

    @property
    def links(self) -> int:
        return 1 + len(self.after)

    @property
    def most(self) -> int:
        """Maximum tokens of a draft by default."""
        return len(self.after) + 1 if self.after else HEAD_DRAFT

    @property
    def caches(self) -> Sequence[Cache]:
        """Its KV caches, and those of the heads after it."""
        return [cache for head in (self, *self.after) for cache in head.block.caches]

    def through(self, model: Layered, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        """All layers of the model. The head stores its keys and values of the rows after them, and the last rows."""
        x = model.layers(g, x, ids)
        with g.layer(self.index):
            before = g.shift_rows(normed(g, x, self.row_norm), self.rows)
        for head in (self, *self.after):
            head.write(g, ids, before)
        return x

    def draft(self, g: Ops[Tensor], ids: Tensor, link: int) -> Tensor:
        """For each sequence, the logits of the token after the given one, [R, V]

        Heads after the one that drafts store the keys and values of this token, too.
        """
        head, *after = (self, *self.after)[link:]
        with g.layer(head.index):
            before = g.row_before(self.rows)
            y = head.block(g, head._joined(g, ids, before))
            answer = normed(g, y, head.norm)
        for other in after:
            other.write(g, ids, before)
        with g.layer(head.index):
            g.keep_rows(y if self.row_norm is None else answer, self.rows)
        return g.linear(g.pick(answer), head.output)

    def write(self, g: Ops[Tensor], ids: Tensor, before: Tensor) -> None:
        """Stores the keys and values of these tokens."""
        with g.layer(self.index):
            self.block.write(g, self._joined(g, ids, before))

    def _joined(self, g: Ops[Tensor], ids: Tensor, before: Tensor) -> Tensor:
        of_token, of_row = self.norms
        token = g.rms_norm(g.embed(self.embedding, ids), of_token.weight, of_token.eps)
        return g.linear(g.concat(token, g.rms_norm(before, of_row.weight, of_row.eps)), self.joining)


def read_head(file: GGUFFile, index: int, count: int, take: Callable[[int], Head]) -> FileHead | None:
    """Reads the `count` heads of a file, from block `index` on. If one cannot be used, the model works without heads.

    A file may state that it has heads, while the tensors of some or all are in another file.
    """
    blocks = range(index, index + count)
    there = [block for block in blocks if any(name.startswith(f"blk.{block}.") for name in file.tensors)]
    if not there or there[0] != index:
        return None
    try:
        first, *after = map(take, there)
        weights = dict.fromkeys(weight for head in (first, *after) for weight in head.weights)
        return FileHead(count, replace(first, weights=tuple(weights), after=tuple(after)))
    except (BadFile, UnsupportedModel) as error:
        return FileHead(count, fault=str(error))


def take_head(
    tensors: Tensors,
    index: int,
    ends: Ends,
    eps: float,
    block: HeadBlock,
    *,
    normed_rows: bool,
    layer_norm_eps: float | None = None,
) -> Head:
    """The head of block `index`, whose own tensors are `nextn.*`; it may share embedding, last norm and output matrix.

    `normed_rows`: it reads rows of the model after the last norm. `layer_norm_eps`: its last norm is a layer norm.
    """
    at, shape = f"blk.{index}.nextn", ends.embedding.shape
    width = shape[1]
    output = tensors.find(f"{at}.shared_head_head.weight", *shape) or ends.head
    assert output is not None, "an encoder has no heads"
    head = Head(
        weights=(),
        embedding=tensors.find(f"{at}.embed_tokens.weight", *shape) or ends.embedding,
        norms=(
            Rms(tensors.take(f"{at}.enorm.weight", width), eps),
            Rms(tensors.take(f"{at}.hnorm.weight", width), eps),
        ),
        joining=tensors.take(f"{at}.eh_proj.weight", width, 2 * width),
        block=block,
        index=index,
        norm=_last_norm(tensors, index, ends, eps, layer_norm_eps),
        output=output,
        row_norm=ends.last_norm if normed_rows else None,
        rows=SlotRows(f"blk.{index}.rows", (ROWS, width)),
    )
    return replace(head, weights=tuple(tensors.taken))


def _last_norm(tensors: Tensors, index: int, ends: Ends, eps: float, layer_norm_eps: float | None) -> AnyNorm | None:
    """The norm before the output matrix: the head's, by one of two names, or the model's."""
    width, names = ends.embedding.shape[1], [f"blk.{index}.{name}.weight" for name in LAST_NORMS]
    name = next((name for name in names if name in tensors), names[0])
    if layer_norm_eps is not None:
        return LayerNorm(tensors.take(name, width), None, layer_norm_eps)
    return Rms(tensors.take(name, width), eps) if name in tensors else ends.last_norm


@dataclass(frozen=True)
class Predicting(Layered):
    """A model whose head is in use: every step lets the head read its rows."""

    model: Layered
    head: DraftHead

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        return self.head.through(self.model, g, x, ids)

    def draft(self, g: Ops[Tensor], ids: Tensor, link: int = 0) -> Tensor:
        """The head's logits of the tokens after the given ones, [R, V]"""
        return self.head.draft(g, ids, link)

    @property
    def caches(self) -> list[Cache]:
        return [*self.model.caches, *self.head.caches]

    @property
    def states(self) -> list[State]:
        return self.model.states

    @property
    def context(self) -> int | None:
        return self.model.context


def predicting(model: Layered, head: DraftHead) -> Predicting:
    """The model with its head."""
    own = {weight.name for weight in model.weights}
    weights = (*model.weights, *(weight for weight in head.weights if weight.name not in own))
    return Predicting(model.ends, weights, model, head, file_head=model.file_head)
