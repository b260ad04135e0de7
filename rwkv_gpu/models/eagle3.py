"""EAGLE-3: a draft head in a separate file. It reads rows of three layers of the model, and has its own vocabulary.

h[p] = W_fc [row p before layer a | before layer b | before layer c]
x[p] = [norm(embedding of token p) | norm(h[p - 1])]; y = h[p - 1] + attention(x[p]); y = y + feed(norm(y))
logits = W_out norm(y), of the token p + 1 if the head knows it. For the token after that, y replaces h[p].

The first token of a text has no row before it, so no token sees it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, Columns, Ops, Rms, SlotRows, Tensor, Weight
from .dense import DenseFile, take_feed
from .heads import HEAD_DRAFT, ROWS
from .layered import Layered
from .tensors import Tensors
from .transformer import FeedForward, Output, SelfAttention, feed_forward, self_attention, write_keys

ARCH = "eagle3"
FILE_TYPE_OF_IDS = 27  # 64-bit integers
Streams = Callable[[Ops[Any], Any, Any], list[Any]]


@dataclass(frozen=True)
class Eagle3:
    """A layer that predicts the token after the next one. From its own rows, it predicts later tokens."""

    weights: tuple[Weight, ...]  # its own weights, which the model does not have
    embedding: Weight  # [V, D]
    read: tuple[int, ...]  # layers of the model before which it reads rows; the number of layers stands for the end
    read_norm: Rms | None  # norm of the joined rows of all these layers
    joining: Weight  # [D, 3 · D of the model]
    norms: tuple[Rms, Rms]  # norms of an embedded token, and of a row
    normed_rows: bool  # whether the layer adds its result to the normed row
    attention: SelfAttention  # over [2 · D]
    feed: FeedForward
    index: int  # number of its block in the file
    norm: Rms  # before the output matrix
    output: Weight  # [known tokens, D]
    known: Columns | None  # ids of these tokens in the model's vocabulary; None if the vocabularies are equal
    rows: SlotRows  # [ROWS, D]
    mask = extra_inputs = None
    links = 1
    most = HEAD_DRAFT

    @property
    def caches(self) -> Sequence[Cache]:
        """Its KV cache."""
        return (self.attention.cache,)

    def through(self, model: Layered, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        """All layers of the model. The head stores its keys and values of these rows, and its last rows."""
        streams: list[Tensor] = streams_of(model)(g, x, ids)
        with g.layer(self.index):
            first, second, third = (streams[layer] for layer in self.read)
            rows = g.concat(g.concat(first, second), third)
            if self.read_norm is not None:
                rows = g.rms_norm(rows, self.read_norm.weight, self.read_norm.eps)
            before = g.shift_rows(g.linear(rows, self.joining), self.rows)
            write_keys(g, self.attention, self._joined(g, ids, before)[0])
        return streams[-1]

    def draft(self, g: Ops[Tensor], ids: Tensor, link: int) -> Tensor:  # noqa: ARG002  it has one
        """For each sequence, the logits of the token after the given one, [R, V]"""
        with g.layer(self.index):
            x, residual = self._joined(g, ids, g.row_before(self.rows))
            y = feed_forward(g, self.feed, self_attention(g, self.attention, x, residual))
            g.keep_rows(y, self.rows)
            answer = g.rms_norm(y, self.norm.weight, self.norm.eps)
        logits = g.linear(g.pick(answer), self.output)
        return logits if self.known is None else g.scatter(logits, self.known)

    def _joined(self, g: Ops[Tensor], ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the attention, and the row to which the layer adds its result."""
        of_token, of_row = self.norms
        token = g.rms_norm(g.embed(self.embedding, ids), of_token.weight, of_token.eps)
        row = g.rms_norm(before, of_row.weight, of_row.eps)
        return g.concat(token, row), row if self.normed_rows else before


def read_eagle3(file: GGUFFile, model: Layered, index: int) -> Eagle3:
    """The head in block `index` of a joined file. Raises an error if it does not fit the model of the file."""
    streams_of(model, file)
    at, ends = f"blk.{index}", model.ends
    source = DenseFile(file, ARCH, inside=f"{at}.")
    tensors, width, eps = source.tensors, source.hyper.width, source.hyper.eps
    shape = ends.embedding.shape[0], width
    normed = file.bool(f"{ARCH}.norm_before_fc", default=False)
    read_width = 3 * ends.embedding.shape[1]
    known, output = read_known(file, tensors, index, shape[0]), f"{at}.output.weight"
    count = shape[0] if known is None else len(known.ids)
    head = Eagle3(
        weights=(),
        embedding=own_or_shared(tensors, f"{at}.token_embd.weight", ends.embedding, shape),
        read=read_layers(file, ARCH, tensors, index, range(3, 4)),
        read_norm=Rms(tensors.take(f"{at}.enc.output_norm.weight", read_width), eps) if normed else None,
        joining=tensors.take(f"{at}.fc.weight", width, read_width),
        norms=(
            Rms(tensors.take(f"{at}.attn_norm.weight", width), eps),
            Rms(tensors.take(f"{at}.attn_norm_2.weight", width), eps),
        ),
        normed_rows=file.bool(f"{ARCH}.norm_before_residual", default=False),
        attention=_attention(source, at),
        feed=_feed(source, at),
        index=index,
        norm=Rms(tensors.take(f"{at}.output_norm.weight", width), eps),
        output=own_or_shared(tensors, output, ends.head, (count, width)),
        known=known,
        rows=SlotRows(f"{at}.rows", (ROWS, width)),
    )
    tensors.refuse_the_rest(f"{at}.")
    return replace(head, weights=tuple(tensors.taken))


def streams_of(model: Layered, file: GGUFFile | None = None) -> Streams:
    """The function that gives a model's rows before each layer. Raises an error if the model of the file has none."""
    kinds = [next((one for one in type(model).__mro__ if name in vars(one)), None) for name in ("layers", "streams")]
    if kinds[0] is not kinds[1]:  # a subclass has layers of its own
        assert file is not None, "it was checked"
        arch = file.str("general.architecture")
        raise UnsupportedModel(
            f"{file.path}: heads that read layers of '{arch}' are not supported; run the model without it"
        )
    streams: Streams = cast(Any, model).streams
    return streams


def read_layers(file: GGUFFile, arch: str, tensors: Tensors, layers: int, counts: range) -> tuple[int, ...]:
    """The layers of the model, of which there are `layers`, before which a head reads rows."""
    key = f"{arch}.target_layers"
    found = tuple(file.ints(key).tolist())
    if len(found) not in counts or not all(0 <= layer <= layers for layer in found):
        wanted = "three layers" if len(counts) == 1 else f"1 to {counts[-1]} layers"
        raise tensors.bad(f"metadata key '{key}'", str(list(found))[:60], f"{wanted} of a model of {layers}")
    return found


def own_or_shared(tensors: Tensors, name: str, shared: Weight | None, shape: tuple[int, int]) -> Weight:
    """A matrix of the head if the file has it, otherwise that of the model if its shape fits."""
    if name in tensors:
        return tensors.take(name, *shape)
    if shared is None or shared.shape != shape:
        raise tensors.bad(f"tensor '{name}'", "no such tensor", f"one of shape {list(shape)}")
    return shared


def read_known(file: GGUFFile, tensors: Tensors, index: int, vocabulary: int) -> Columns | None:
    """The tokens that the head can predict, if these are not all."""
    name = f"blk.{index}.d2t"
    if name not in tensors:
        return None
    info = file.tensors[name]
    if info.type != FILE_TYPE_OF_IDS or len(info.shape) != 1 or info.shape[0] > vocabulary:
        raise tensors.bad(f"tensor '{name}'", f"the shape {list(info.shape)}", f"at most {vocabulary} integers")
    tensors.skip(name)
    ids = np.frombuffer(file.read(info), "<i8")
    if ids.min() < 0 or ids.max() >= vocabulary or len(np.unique(ids)) != len(ids):
        raise tensors.bad(f"tensor '{name}'", "other numbers", f"different tokens of the {vocabulary} of the model")
    return Columns(name, ids.astype(np.uint32), vocabulary)


def _attention(source: DenseFile, at: str) -> SelfAttention:
    """An attention whose matrices read the embedding of a token and a row, concatenated."""
    tensors, hyper = source.tensors, source.hyper
    [heads], [kv_heads] = hyper.heads, hyper.kv_heads
    size, width = hyper.head_size, hyper.width
    tensors.check_heads(size, 8, 512)
    q, k, v = (
        tensors.take(f"{at}.attn_{name}.weight", count * size, 2 * width)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    return SelfAttention(
        norm=None,
        q=q,
        k=k,
        v=v,
        biases=(None, None, None),
        whole_norms=None,
        gate=None,
        output=Output(tensors.take(f"{at}.attn_output.weight", width, heads * size)),
        cache=Cache(f"{at}.kv", kv_heads, size),
        how=Attention(
            heads,
            source.rope("normal"),
            scale=size**-0.5,
            after_first=True,
        ),
        value=size,
    )


def _feed(source: DenseFile, at: str) -> FeedForward:
    hyper, tensors = source.hyper, source.tensors
    norm = Rms(tensors.take(f"{at}.ffn_norm.weight", hyper.width), hyper.eps)
    return take_feed(tensors, f"{at}.ffn", norm, hyper.inner[0], hyper.width)
