"""The assistant of Gemma 4: a draft head in a separate file, whose layers read keys and values of the model.

h = normed row of the model before token p; x = W_pre [embedding of token p | h]
y = norm(layers(x)); logits = W_out y, of the token p + 1. For the token after that, W_post y replaces h.

All tokens of a draft have the position of the first, and attend to the positions before it. So a step places its row
one position earlier, and rotates its queries by angles that are inputs of the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, Rms, Rope, SlotRows, Tensor, Weight
from .dense import DenseFile
from .gemma4 import Gemma4, SharingAttention, take_attention, take_feed
from .heads import HEAD_DRAFT, ROWS
from .layered import Layered, normed
from .transformer import FeedForward, attend, feed_forward, output

ARCH = "gemma4-assistant"


@dataclass(frozen=True)
class Turning:
    """The rotation of queries at a position. Its angles are inputs of a step."""

    name: str
    rope: Rope
    frequencies: tuple[float, ...]  # one for each pair

    def angles(self, positions: Sequence[int]) -> npt.NDArray[np.float32]:
        """Cosines and sines of all pairs. [T, 2 · pairs]"""
        turned = np.outer(positions, self.frequencies)
        return (self.rope.magnitude * np.concatenate([np.cos(turned), np.sin(turned)], axis=1)).astype(np.float32)


@dataclass(frozen=True)
class AssistantLayer:
    """A layer with queries of its own; keys and values are the model's."""

    attention: SharingAttention
    turning: Turning
    feed: FeedForward
    scale: float  # scale of the layer's output


@dataclass(frozen=True)
class Assistant:
    """Layers that predict the token after the next from the model's row, and later tokens from their own rows."""

    weights: tuple[Weight, ...]  # weights that the model does not have
    joining: Weight  # [d, 2 · D of the model]
    layers: tuple[AssistantLayer, ...]
    index: int  # number of its block in the file
    norm: Rms
    output: Weight  # [V, d]
    back: Weight  # [D of the model, d]
    embedding: Weight  # [V, D of the model]
    embedding_scale: float
    rows: SlotRows  # [ROWS, D of the model]
    mask = None
    links = 1
    most = HEAD_DRAFT
    caches: Sequence[Cache] = ()

    def through(self, model: Layered, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        """Runs all layers of the model, and stores the last rows for the head."""
        x = model.layers(g, x, ids)
        with g.layer(self.index):
            g.keep_rows(normed(g, x, model.ends.last_norm), self.rows)
        return x

    def extra_inputs(self, positions: Sequence[int]) -> Mapping[str, npt.NDArray[np.float32]]:
        """The inputs of a drafting step for tokens at these positions, by name."""
        return {one.name: one.angles(positions) for one in {layer.turning for layer in self.layers}}

    def draft(self, g: Ops[Tensor], ids: Tensor, link: int) -> Tensor:  # noqa: ARG002  it has one
        """The logits of the next token of each sequence, [R, V]"""
        with g.layer(self.index):
            token = g.embed(self.embedding, ids, scale=self.embedding_scale)
            x = g.linear(g.concat(token, g.row_before(self.rows, 0)), self.joining)
            for layer in self.layers:
                x = feed_forward(g, layer.feed, _attention(g, layer, x))
                x = x if layer.scale == 1 else g.scale(x, layer.scale)
            y = g.rms_norm(x, self.norm.weight, self.norm.eps)
            g.keep_rows(g.linear(y, self.back), self.rows)
        return g.linear(g.pick(y), self.output)


def _attention(g: Ops[Tensor], layer: AssistantLayer, x: Tensor) -> Tensor:
    """x + norm(W_o attention(rope(norm(W_q h)))), h = norm(x)"""
    p, how = layer.attention, layer.attention.how
    assert how.norms is not None, "queries are normed"
    q = g.linear(x, p.matrices[0], norm=p.norm)
    q = g.group_rms_norm(q, how.norms.q, how.heads, how.norms.eps)
    q = g.turn(q, g.step_input(layer.turning.name), how.heads, layer.turning.rope.pairing)
    return output(g, p.output, attend(g, q, None, None, p.cache, replace(how, rope=None, norms=None), p.value), x)


def read_assistant(file: GGUFFile, model: Layered, index: int) -> Assistant:
    """The head in block `index` of a joined file. Raises an error if it does not fit the model of the file."""
    if type(model) is not Gemma4:
        arch = file.str("general.architecture")
        raise UnsupportedModel(
            f"{file.path}: is an assistant of Gemma 4, but the model is '{arch}'; run the model without it"
        )
    at, width = f"blk.{index}", model.ends.embedding.shape[1]
    source = DenseFile(file, ARCH, inside=f"{at}.")
    tensors, own = source.tensors, source.hyper.width
    tensors.skip(f"{at}.masked_embd_centroids.weight", f"{at}.masked_embd_ordering", f"{at}.rope_freqs.weight")
    head = Assistant(
        weights=(),
        joining=tensors.take(f"{at}.nextn.pre_projection.weight", own, 2 * width),
        layers=tuple(_layers(source, model)),
        index=index,
        norm=Rms(tensors.take(f"{at}.output_norm.weight", own), source.hyper.eps),
        output=tensors.take(f"{at}.token_embd.weight", source.hyper.vocabulary, own),
        back=tensors.take(f"{at}.nextn.post_projection.weight", width, own),
        embedding=model.ends.embedding,
        embedding_scale=model.ends.embedding_scale,
        rows=SlotRows(f"{at}.rows", (ROWS, width)),
    )
    tensors.refuse_the_rest(f"{at}.")
    return replace(head, weights=tuple(tensors.taken))


def _layers(source: DenseFile, model: Gemma4) -> list[AssistantLayer]:
    """The layers. Each reads the cache of one of the model's last two layers, a window layer and a full one."""
    tensors, found = source.tensors, []
    for i, near in enumerate(source.flags("attention.sliding_window_pattern", default=False)):
        other = model.blocks[-2 if near else -1].attention
        if len(model.blocks) < 2 or bool(other.cache.window) != near:
            key, said = f"metadata key '{ARCH}.attention.sliding_window_pattern'", "with" if near else "without"
            raise tensors.bad(key, f"layer {i} {said} a window", "the last layers of the model")
        tensors.check_divides(f"{ARCH}.attention.head_count", other.cache.heads, source.hyper.heads[i])
        assert other.how.rope is not None, "all layers of Gemma 4 turn"
        attention = take_attention(source, i, other.how.rope, other.value, other.cache)
        # The row is placed one position earlier, so its window is one position shorter.
        window = max(0, other.cache.window - 1)
        attention = replace(attention, how=replace(attention.how, window=window))
        scale = tensors.number(f"{source.blocks}.{i}.layer_output_scale.weight", default=1.0)
        feed = take_feed(source, None, i)
        assert isinstance(feed, FeedForward), "it has no experts"
        found.append(AssistantLayer(attention, _turning(source, other.how.rope, near=near), feed, scale))
    return found


def _turning(source: DenseFile, rope: Rope, *, near: bool) -> Turning:
    """The rotation of queries, which equals that of the keys in the cache."""
    divisors = np.ones(rope.dims // 2)
    if rope.factors is not None:
        divisors = source.file.values(source.file.tensors[rope.factors.name]).astype(np.float64)
    frequencies = tuple((np.array(rope.frequencies()) / divisors).tolist())
    return Turning("turn.window" if near else "turn.full", rope, frequencies)
