"""Falcon-H1: in each layer attention and a Mamba-2 mixer look at the same x, and a gated feed-forward follows.

Its many multipliers are in the weights already: converters multiply them in.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention
from .hybrid import Hybrid, Parallel, head_size, read_sizes, take_attention, take_feed, take_model, take_norm
from .mamba2 import read_inner, take_mixer
from .rope import read_rope
from .tensors import Tensors

ARCH = "falcon-h1"


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes, inner = read_sizes(file, ARCH, tensors), read_inner(file, ARCH, tensors)
    heads = file.int(f"{ARCH}.attention.head_count", low=1, high=1 << 12)
    kv_heads = file.int(f"{ARCH}.attention.head_count_kv", low=1, high=heads, default=heads)
    feed = file.int(f"{ARCH}.feed_forward_length", low=1, high=1 << 20)
    size = head_size(file, ARCH, sizes.width, heads)
    rope = read_rope(file, ARCH, tensors, "neox", size, sizes.context)
    how = Attention(heads, rope, scale=size**-0.5)
    layers = []
    for i in range(sizes.layers):
        before = take_norm(tensors, sizes, i)
        attention = take_attention(tensors, sizes, i, before, kv_heads, how, size)
        mixer = take_mixer(tensors, sizes, inner, i, before)
        norm = f"blk.{i}.ffn_norm"  # as converters name it; some day they may add the suffix
        norm += "" if norm in tensors else ".weight"
        layers.append((Parallel((attention, mixer)), take_feed(tensors, sizes, i, feed, norm)))
    return take_model(tensors, sizes, layers)
