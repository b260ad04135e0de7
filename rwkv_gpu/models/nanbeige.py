"""Nanbeige 4.2: a Llama whose layers run several times per token; each pass has its own keys and values."""

from dataclasses import dataclass, replace

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, Tensor
from .dense import DenseFile, Form, build
from .layered import normed
from .transformer import SelfAttention, Transformer

ARCH = "nanbeige"
MAX_LAYERS = 512  # layers over all passes, as in llama.cpp


@dataclass(frozen=True)
class Looped(Transformer):
    """`attentions` and `feeds` hold the layers of all passes."""

    period: int  # number of layers of one pass
    norms_between: bool  # True if the last norm follows each pass over the layers

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        for i in range(len(self.attentions)):
            if i and i % self.period == 0 and self.norms_between:
                x = normed(g, x, self.ends.last_norm)
            x = self.layer(g, i, x)
        return x


def load(file: GGUFFile) -> Looped:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    times = file.int(f"{ARCH}.num_loops", low=1, high=MAX_LAYERS, default=1)
    once = build(DenseFile(file, ARCH), Form())
    period = len(once.feeds)
    if times * period > MAX_LAYERS:
        raise UnsupportedModel(f"{file.path}: {times} times {period} layers are too many; known: up to {MAX_LAYERS}")
    attentions = tuple(with_own_cache(one, i) for i, one in enumerate(once.attentions * times))
    between = not file.bool(f"{ARCH}.skip_loop_final_norm", default=False)
    return Looped(once.ends, once.weights, attentions, once.parallel, once.feeds * times, period, between)


def with_own_cache(p: SelfAttention, i: int) -> SelfAttention:
    """The attention of a further pass, with its own KV cache."""
    return replace(p, cache=replace(p.cache, name=f"blk.{i}.kv"))
