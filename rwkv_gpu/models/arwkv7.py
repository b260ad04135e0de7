"""ARWKV: Qwen2 with a time mix of RWKV-7 in place of attention; it keeps RMS norms and the gated feed-forward."""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, Rms, State, Tensor, Weight
from .hybrid import GatedFeed, HybridFile
from .layered import Ends
from .rwkv7 import Recurrent, TimeMix, mixed_rows, read_head_size, take_time_mix


@dataclass(frozen=True)
class ARWKV7(Recurrent):
    """A model: a time mix and a feed-forward in each layer."""

    eps: float
    blocks: tuple[tuple[TimeMix, GatedFeed], ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        v_first = None
        for i, (time, feed) in enumerate(self.blocks):
            with g.layer(i):
                x, v_first = time_mix(g, time, x, v_first, self.eps)
                x = feed(g, x, x, self.eps)
        return x

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence: 2 for each layer."""
        return [state for time, _ in self.blocks for state in (time.wkv, time.shift)]


def time_mix(g: Ops[Tensor], p: TimeMix, x: Tensor, v_first: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """x + W_o · wkv(lerp(norm(x), previous, mu)), and v of the first layer"""
    assert isinstance(p.norm, Weight)
    xx = g.rms_norm(x, p.norm, eps)
    return mixed_rows(g, p, g.lerp(xx, g.shift(xx, p.shift), p.mix), x, v_first)


def load(file: GGUFFile) -> ARWKV7:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, sizes, width = source.tensors, source.sizes, source.sizes.width
    size = read_head_size(file, source.arch, width, tensors)
    source.integer("token_shift_count", 1, 1, default=1)
    layers = []
    for i in range(sizes.layers):
        shift, wkv = State(f"blk.{i}.shift_time", (1, width)), State(f"blk.{i}.wkv", (width // size, size, size))
        time = take_time_mix(tensors, i, source.norm(i), shift, wkv)
        layers.append((time, source.feed(i, source.inner)))
    embedding = tensors.take("token_embd.weight", sizes.vocabulary, width)
    last_norm = Rms(tensors.take("output_norm.weight", width), sizes.eps)
    ends = Ends(embedding, last_norm, tensors.take("output.weight", sizes.vocabulary, width), sizes.context)
    tensors.skip(*(f"blk.0.time_mix_v{n}.weight" for n in range(3)))  # unused copies of `a`: the first layer mixes no v
    tensors.refuse_the_rest()
    return ARWKV7(ends, tuple(tensors.taken), sizes.eps, tuple(layers))
