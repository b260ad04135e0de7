"""ARWKV: Qwen2 whose attention is a time mix of RWKV-7, in RMS norms and with a gated feed-forward."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, Rms, State, Tensor, Weight
from .hybrid import GatedFeed, HybridFile, Sizes
from .rwkv7 import TimeMix, mixed_rows, read_head_size, take_time_mix


@dataclass(frozen=True)
class ARWKV7:
    """A model: its parameters, in the order of their use."""

    sizes: Sizes
    embedding: Weight  # [V, D]
    layers: tuple[tuple[TimeMix, GatedFeed], ...]
    last_norm: Weight  # [D]
    head: Weight  # [V, D]
    weights: tuple[Weight, ...]  # all of the above, once
    context = None  # no limit

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return self.sizes.vocabulary

    @property
    def states(self) -> Sequence[State]:
        """The recurrent states of a sequence: 2 for each layer."""
        return [state for time, _ in self.layers for state in (time.wkv, time.shift)]

    @property
    def caches(self) -> Sequence[Cache]:
        """None: the state has a fixed size."""
        return []

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The logits of the requested rows, [R, V]"""
        return g.linear(self._trunk(g, ids), self.head, norm=Rms(self.last_norm, self.sizes.eps))

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, [R, D]"""
        return g.rms_norm(self._trunk(g, ids), self.last_norm, self.sizes.eps)

    def _trunk(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The requested rows after all layers, [R, D]"""
        x, v_first = g.embed(self.embedding, ids), None  # [T, D]
        for i, (time, feed) in enumerate(self.layers):
            with g.layer(i):
                x, v_first = time_mix(g, time, x, v_first, self.sizes.eps)
                x = feed(g, x, x, self.sizes.eps)
        return g.pick(x)


def time_mix(g: Ops[Tensor], p: TimeMix, x: Tensor, v_first: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """x + W_o · wkv(lerp(norm(x), previous, mu)), and v of the first layer"""
    assert isinstance(p.norm, Weight)
    xx = g.rms_norm(x, p.norm, eps)
    return mixed_rows(g, p, g.lerp(xx, g.shift(xx, p.shift), p.mix), x, v_first)


def load(file: GGUFFile) -> ARWKV7:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, sizes, width = source.tensors, source.sizes, source.sizes.width
    size = read_head_size(file, source.arch, width, tensors)
    source.integer("token_shift_count", 1, 1, default=1)
    layers = []
    for i in range(sizes.layers):
        shift, wkv = State(f"blk.{i}.shift_time", (1, width)), State(f"blk.{i}.wkv", (width // size, size, size))
        time = take_time_mix(tensors, i, source.norm(i), shift, wkv)
        layers.append((time, source.feed(i, source.inner)))
    model = ARWKV7(
        sizes,
        embedding=tensors.take("token_embd.weight", sizes.vocabulary, width),
        layers=tuple(layers),
        last_norm=tensors.take("output_norm.weight", width),
        head=tensors.take("output.weight", sizes.vocabulary, width),
        weights=tuple(tensors.taken),
    )
    tensors.skip(*(f"blk.0.time_mix_v{n}.weight" for n in range(3)))  # copies of a's: a first layer mixes no v
    tensors.refuse_the_rest()
    return model
