"""DFlash: a draft head in a separate file that drafts a block of tokens in one pass over rows of the model's layers.

g[p] = norm(W_fc [row p before layer a | row p before layer b | ...]): the keys and values of layers
x = embeddings of the last token, and of a mask for each token to draft; each row attends to all earlier g, and to all x
logits = W_out norm(layers(x)): the row of each mask predicts the token at its own position
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Activation, Cache, Columns, Ops, Rms, Tensor, Weight
from .dense import DenseFile, Form
from .eagle3 import own_or_shared, read_known, read_layers, streams_of
from .layered import Layered
from .tensors import Tensors
from .transformer import FeedForward, SelfAttention, feed_forward, self_attention, write_keys

ARCH = "dflash"
LARGEST_BLOCK, MAX_LAYERS = 64, 64  # tokens of a block, and layers of the model that are read
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu"}
AFTER = "post_attention_norm", "post_ffw_norm"  # norms that some files have
OTHERS = {
    "hyper_connection.count": "DSpark of DeepSeek V4", "markov_w1.weight": "DSpark",
    "selector_hidden.weight": "DFlash 2",
}  # fmt: skip


@dataclass(frozen=True)
class DFlash:
    """Layers over the rows of a block, which also see keys and values of the model's rows."""

    weights: tuple[Weight, ...]  # its own weights, which the model does not have
    embedding: Weight  # [V, D]
    embedding_scale: float
    read: tuple[int, ...]  # layers of the model before which it reads rows; the number of layers stands for the end
    joining: Weight  # [D, layers read · D of the model]
    read_norm: Rms  # applied to the joined rows
    layers: tuple[tuple[SelfAttention, FeedForward, float], ...]  # the number scales the layer's output
    index: int  # number of its block in the file
    norm: Rms  # before the output matrix
    output: Weight  # [known tokens, D]
    known: Columns | None  # ids of the known tokens in the model's vocabulary; None if all are known
    mask: int  # the token in place of each token to draft
    most: int  # maximum length of a draft
    rows = extra_inputs = None
    links = 1

    @property
    def caches(self) -> Sequence[Cache]:
        """The KV caches of its layers."""
        return [attention.cache for attention, _, _ in self.layers]

    def through(self, model: Layered, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        """Runs all layers of the model, and stores the head's keys and values of these rows."""
        streams: list[Tensor] = streams_of(model)(g, x, ids)
        with g.layer(self.index):
            rows = streams[self.read[0]]
            for layer in self.read[1:]:
                rows = g.concat(rows, streams[layer])
            y = g.rms_norm(g.linear(rows, self.joining), self.read_norm.weight, self.read_norm.eps)
            for attention, _, _ in self.layers:
                write_keys(g, replace(attention, norm=None), y)
        return streams[-1]

    def draft(self, g: Ops[Tensor], ids: Tensor, link: int) -> Tensor:  # noqa: ARG002  it has one
        """The logits of the masked tokens, [R, V]"""
        with g.layer(self.index):
            x = g.embed(self.embedding, ids, scale=self.embedding_scale)
            for attention, feed, scale in self.layers:
                x = feed_forward(g, feed, self_attention(g, attention, x))
                x = x if scale == 1 else g.scale(x, scale)
        logits = g.linear(g.pick(x), self.output, norm=self.norm)
        return logits if self.known is None else g.scatter(logits, self.known)


def read_dflash(file: GGUFFile, model: Layered, index: int, mask: int) -> DFlash:
    """The head in block `index` of a joined file. Raises an error if it does not fit the model of the file."""
    at, ends = f"blk.{index}", model.ends
    source = DenseFile(file, ARCH, inside=f"{at}.")
    tensors, width, eps = source.tensors, source.hyper.width, source.hyper.eps
    for sign, name in OTHERS.items():
        if f"{ARCH}.{sign}" in file.metadata or f"{at}.{sign}" in tensors:
            raise UnsupportedModel(f"{file.path}: drafts by {name}, which is not supported; use a DFlash file")
    streams_of(model, file)
    shape, read = (ends.embedding.shape[0], width), read_layers(file, ARCH, tensors, index, range(1, MAX_LAYERS + 1))
    known = read_known(file, tensors, index, shape[0])
    embedding = own_or_shared(tensors, f"{at}.token_embd.weight", ends.embedding, shape)
    head = ends.head if embedding is ends.embedding else embedding
    block = file.int(f"{ARCH}.block_size", low=2, high=LARGEST_BLOCK, default=16)
    found = DFlash(
        weights=(),
        embedding=embedding,
        embedding_scale=source.scale("embedding_scale"),
        read=read,
        joining=tensors.take(f"{at}.fc.weight", width, len(read) * ends.embedding.shape[1]),
        read_norm=Rms(tensors.take(f"{at}.enc.output_norm.weight", width), eps),
        layers=tuple(_layers(source, source.blocks)),
        index=index,
        norm=Rms(tensors.take(f"{at}.output_norm.weight", width), eps),
        output=own_or_shared(tensors, f"{at}.output.weight", head, (len(known.ids) if known else shape[0], width)),
        known=known,
        mask=_checked_mask(tensors, mask, shape[0]),
        most=block - 1,
    )
    tensors.refuse_the_rest(f"{at}.")
    return replace(found, weights=tuple(tensors.taken))


def _checked_mask(tensors: Tensors, mask: int, vocabulary: int) -> int:
    if not 0 <= mask < vocabulary:
        expected = f"a token of the {vocabulary} of the model"
        raise tensors.bad("metadata key 'tokenizer.ggml.mask_token_id'", str(mask), expected)
    return mask


def _layers(source: DenseFile, blocks: str) -> list[tuple[SelfAttention, FeedForward, float]]:
    """The layers. In a window layer, a row attends to the window before it, and to all later rows of its block."""
    file, tensors, hyper = source.file, source.tensors, source.hyper
    tensors.check_heads(hyper.head_size, 8, 512)
    act = file.str(f"{ARCH}.hidden_activation", default="silu")
    if act not in ACTIVATIONS:
        raise tensors.bad(f"metadata key '{ARCH}.hidden_activation'", f"'{act}'", f"one of {', '.join(ACTIVATIONS)}")
    after = [name if f"{blocks}.0.{name}.weight" in tensors else None for name in AFTER]
    form = Form(
        pairing="neox", activation=ACTIVATIONS[act], blocks=blocks, head_norms="each", sinks="some", causal=True,
        after=(after[0], after[1]), score_scale=source.score_scale(),
    )  # fmt: skip
    causal = file.bool(f"{ARCH}.attention.causal", default=False)
    near = source.flags("attention.sliding_window_pattern", default=False)
    found, rope = [], source.rope("neox")
    for i in range(hyper.layers):
        attention = source.attention(form, i, rope, hyper.window if near[i] else 0)
        attention = replace(
            attention,
            cache=replace(attention.cache, name=f"{blocks}.{i}.kv"),
            how=replace(attention.how, causal=causal, ahead=not causal),
        )
        scale = tensors.number(f"{blocks}.{i}.layer_output_scale.weight", default=1.0)
        found.append((attention, source.feed(form, i), scale))
    return found
