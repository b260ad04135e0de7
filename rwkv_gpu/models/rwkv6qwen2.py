"""QRWKV6: Qwen2 with a time mix of RWKV-6 in place of attention, with fewer key heads, no bonus and no head norms."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, State, Tensor, Weight
from .hybrid import Hybrid, HybridFile
from .rwkv6 import TimeMix, take_time_mix, time_mix
from .rwkv7 import read_head_size


@dataclass(frozen=True)
class TimeMixBlock:
    """add + W_o · wkv(lerp(norm(x), previous))"""

    norm: Weight  # [D]
    time: TimeMix
    caches = ()

    @property
    def states(self) -> Sequence[State]:
        return self.time.wkv, self.time.lerp.shift

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        xx = g.rms_norm(x, self.norm, eps)
        before = g.shift(xx, self.time.lerp.shift)
        [first] = g.lerp(xx, before, self.time.lerp.first)
        return time_mix(g, self.time, first, xx, before, add)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, arch, width = source.tensors, source.arch, source.sizes.width
    size = read_head_size(file, arch, width, tensors)
    heads = width // size
    key_heads = source.only_kv_heads(heads)
    tensors.check_divides(f"{arch}.attention.head_count_kv", key_heads, heads)
    source.integer("token_shift_count", 1, 1, default=1)
    source.integer("rescale_every_n_layers", 0, 0, default=0)
    layers = []
    for i in range(source.sizes.layers):
        norm, time = source.norm(i), take_time_mix(tensors, i, width, size, own=False, key_heads=key_heads)
        layers.append((TimeMixBlock(norm, time), source.feed(i, source.inner)))
    return source.model(layers)
