"""T5: an encoder reads a source text, and a decoder answers. The decoder's layers also attend to the encoder's rows.

The positions of a sequence are those of the source, then those of the answer. Every cache has keys for all of them. The
keys that a query must not see are marked in the padding of their heads, so that their scores are at least 8,000 less.
"""

from dataclasses import dataclass, replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import AnyNorm, Cache, Ops, Tensor
from .dense import DenseFile, Form
from .encoders import t5_encoder
from .layered import Layered, normed
from .transformer import HEAD_STEP, FeedForward, SelfAttention, feed_forward, output, self_attention, write_keys

MARK = 1000.0
MAX_LAYERS = 1024


@dataclass(frozen=True)
class DecoderLayer:
    """Parameters of a layer: attention to the answer, attention to the source, and a feed-forward."""

    own: SelfAttention
    cross: SelfAttention
    feed: FeedForward


@dataclass(frozen=True)
class EncoderDecoder(Layered):
    """The model. `hidden` reads a source, and `forward` continues an answer."""

    encoder: tuple[tuple[SelfAttention, FeedForward], ...]
    encoder_norm: AnyNorm | None
    decoder: tuple[DecoderLayer, ...]

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The encoder's rows of a whole source, [R, D]; the keys and values of the source are in the caches then."""
        x = g.embed(self.ends.embedding, ids)
        for i, (attention, feed) in enumerate(self.encoder):
            with g.layer(i):
                x = feed_forward(g, feed, self_attention(g, attention, x))
        marked = g.scale(_marks(g, self.decoder[0].own, x), -MARK)
        for i, layer in enumerate(self.decoder, len(self.encoder)):
            with g.layer(i):
                write_keys(g, replace(layer.cross, norm=self.encoder_norm), x)
                g.write_keys(marked, marked, layer.own.cache, layer.own.how)
        return normed(g, g.pick(x), self.encoder_norm)

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        marks = _marks(g, self.decoder[0].own, x)
        marked = g.scale(marks, -MARK)
        for i, layer in enumerate(self.decoder, len(self.encoder)):
            own, cross = layer.own, layer.cross
            with g.layer(i):
                q, k, v = g.linears([x, x, x], [own.q, own.k, own.v], norm=own.norm)
                k, v = (g.resize_heads(y, own.cache.heads, own.cache.size) for y in (k, v))
                x = _attend(g, own, q, (k, v), marks, x)
                x = _attend(g, cross, g.linear(x, cross.q, norm=cross.norm), (marked, marked), marks, x)
                x = feed_forward(g, layer.feed, x)
        return x

    @property
    def caches(self) -> list[Cache]:
        return [cache for layer in self.decoder for cache in (layer.own.cache, layer.cross.cache)]


def _marks(g: Ops[Tensor], p: SelfAttention, x: Tensor) -> Tensor:
    """Rows with 1 in the padding of every head, and 0 elsewhere: [T, H · N]"""
    minus = g.resize_heads(x, 1, p.cache.heads * p.value)
    minus = g.resize_heads(g.clip(minus, -1.0, -1.0), p.cache.heads, p.cache.size)
    return g.add(g.clip(minus, 1.0, 1.0), minus)


def _attend(g: Ops[Tensor], p: SelfAttention, q: Tensor, kv: tuple[Tensor, Tensor], marks: Tensor, x: Tensor) -> Tensor:
    """x + output(attention(q, k, v)) without marked keys"""
    q = g.add(g.resize_heads(q, p.how.heads, p.cache.size), marks)
    y = g.attention(q, *kv, p.cache, p.how)
    return output(g, p.output, g.resize_heads(y, p.how.heads, p.value), x)


def load(file: GGUFFile) -> EncoderDecoder:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = DenseFile(file, "t5")
    tensors, hyper = source.tensors, source.hyper
    form = t5_encoder(source)
    encoder = [(source.attention(form, i, None, 0), source.feed(form, i)) for i in range(hyper.layers)]
    norm = source.norm(form, "enc.output_norm")
    if hyper.kv_heads != hyper.heads or hyper.value_size != hyper.head_size:
        raise tensors.bad("metadata key 't5.attention.head_count_kv'", "fewer heads of k and v", "as many as of q")
    layers = file.int("t5.decoder_block_count", low=1, high=MAX_LAYERS, default=hyper.layers)
    heads, inner = (hyper.heads[0],) * layers, (hyper.inner[0],) * layers
    source.hyper = replace(hyper, layers=layers, heads=heads, kv_heads=heads, inner=inner)
    # The publisher scales logits if the embedding is the head.
    scale = 1.0 if "output.weight" in tensors else hyper.width**-0.5
    form = replace(form, blocks="dec.blk", last_norm="dec.output_norm", causal=True, head=True, logit_scale=scale)
    decoder = tuple(_layer(source, form, i) for i in range(layers))
    start = file.int("t5.decoder_start_token_id", low=0, high=hyper.vocabulary - 1, default=0)
    ends = replace(source.ends(form), context=2 * hyper.context, start=start)
    tensors.refuse_the_rest()
    # An encoder layer uses the cache of a decoder layer, which is written last.
    pairs = [
        (replace(one, cache=decoder[i % layers].cross.cache, how=replace(one.how, head=one.value)), feed)
        for i, (one, feed) in enumerate(encoder)
    ]
    return EncoderDecoder(ends, tuple(tensors.taken), tuple(pairs), norm, decoder)


def _layer(source: DenseFile, form: Form, i: int) -> DecoderLayer:
    at = f"dec.blk.{i}"
    source.tensors.skip(f"{at}.cross_attn_rel_b.weight")  # not used by the publisher's code either
    across = replace(form, attention="cross_attn", attention_output="cross_attn_o", norms=("cross_attn_norm", None))
    own, cross = (source.attention(one, i, None, 0) for one in (form, replace(across, biases=False)))
    return DecoderLayer(_marked(own, "kv"), _marked(cross, "cross"), source.feed(form, i))


def _marked(p: SelfAttention, name: str) -> SelfAttention:
    """The attention with a cache that has room for marks."""
    at = p.cache.name.removesuffix("kv")
    cache = replace(p.cache, name=at + name, size=p.cache.size + HEAD_STEP)
    return replace(p, cache=cache, how=replace(p.how, head=p.value))
