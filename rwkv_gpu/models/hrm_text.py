"""HRM-Text: two stacks of layers, low and high, run alternately over the same tokens. Each run has its own keys.

If the file says so, the tokens of a prompt see each other in both directions.
"""

from dataclasses import dataclass, replace

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, Rms, Tensor, Weight
from .dense import DenseFile, Form, build
from .layered import normed
from .nanbeige import MAX_LAYERS, with_own_cache
from .transformer import Transformer

ARCH = "hrm_text"


@dataclass(frozen=True)
class Stacks(Transformer):
    """`attentions` and `feeds` hold the layers of all runs."""

    size: int  # layers of a stack
    low_runs: int  # runs of the low stack before each run of the high one
    start: Weight  # [D], a vector that the first run of the low stack adds to the embedding

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 - layers see x alone
        high, low = x, None
        for run in range(len(self.feeds) // self.size):
            y = g.shift_columns(high, self.start) if low is None else g.add(high, low)
            for i in range(run * self.size, (run + 1) * self.size):
                y = self.layer(g, i, y)
            y = normed(g, y, Rms(None, self.eps))
            if run % (self.low_runs + 1) < self.low_runs:
                low = y
            else:
                high = y
        return high

    @property
    def eps(self) -> float:
        """The eps of all norms, which have no weights."""
        norm = self.feeds[0].norm
        assert norm is not None
        return norm.eps


def load(file: GGUFFile) -> Stacks:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    names = "layers_per_stack", "h_cycles", "l_cycles"
    size, high, low = (file.int(f"{ARCH}.hrm.{name}", low=1, high=MAX_LAYERS) for name in names)
    slots = size * high * (low + 1)
    if slots > MAX_LAYERS:
        raise UnsupportedModel(f"{file.path}: {slots} layers of all runs are too many; known: up to {MAX_LAYERS}")
    if slots != source.hyper.layers:
        raise source.tensors.bad(
            f"metadata key '{ARCH}.block_count'", str(source.hyper.layers), f"{slots}, as the keys of the stacks say"
        )
    start = source.tensors.take("hrm.z_l_init", source.hyper.width)
    two = {name: getattr(source.hyper, name)[:1] * 2 * size for name in ("inner", "heads", "kv_heads")}
    source.hyper = replace(source.hyper, layers=2 * size, **two)
    form = Form(
        pairing="neox", norm_weights=False, gated=True, last_norm=None, embedding_scale=source.scale("embedding_scale")
    )
    once = build(source, form)
    runs = [*range(size)] * low + [*range(size, 2 * size)]
    attentions = tuple(with_own_cache(once.attentions[layer], i) for i, layer in enumerate(runs * high))
    feeds = tuple(once.feeds[layer] for layer in runs * high)
    ends = replace(once.ends, prefix=file.bool(f"{ARCH}.hrm.prefix_lm", default=False))
    return Stacks(ends, once.weights, attentions, once.parallel, feeds, size, low, start)
