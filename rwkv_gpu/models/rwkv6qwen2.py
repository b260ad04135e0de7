"""QRWKV6: Qwen2 with a time mix of RWKV-6 in place of attention: fewer heads of keys, no bonus, no norm of heads."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, State, Tensor, Weight
from .hybrid import Hybrid, read_sizes, take_feed, take_model
from .rwkv6 import TimeMix, take_time_mix, time_mix
from .rwkv7 import read_head_size
from .tensors import Tensors

ARCH = "rwkv6qwen2"


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
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes = read_sizes(file, ARCH, tensors)
    size = read_head_size(file, ARCH, sizes.width, tensors)
    heads = sizes.width // size
    key_heads = file.int(f"{ARCH}.attention.head_count_kv", low=1, high=heads, default=heads)
    if heads % key_heads:
        what = f"metadata key '{ARCH}.attention.head_count_kv'"
        raise tensors.bad(what, str(key_heads), f"a divisor of the {heads} heads")
    inner = file.int(f"{ARCH}.feed_forward_length", low=1, high=1 << 20)
    file.int(f"{ARCH}.token_shift_count", low=1, high=1, default=1)
    file.int(f"{ARCH}.rescale_every_n_layers", low=0, high=0, default=0)
    layers = []
    for i in range(sizes.layers):
        norm = tensors.take(f"blk.{i}.attn_norm.weight", sizes.width)
        time = take_time_mix(tensors, i, sizes.width, size, own=False, key_heads=key_heads)
        layers.append((TimeMixBlock(norm, time), take_feed(tensors, sizes, i, inner, f"blk.{i}.ffn_norm.weight")))
    return take_model(tensors, sizes, layers)
