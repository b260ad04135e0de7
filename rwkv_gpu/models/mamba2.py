"""Mamba-2: each layer is a convolution and a recurrence over one state matrix per head, which decays as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, Rms, State, StateSpace, Tensor, Weight
from .hybrid import Hybrid, HybridFile

STEP, LARGEST_SIZE, LARGEST_STATE = 4, 256, 512  # limits of P and N in the kernel


@dataclass(frozen=True)
class Inner:
    """The sizes of a mixer."""

    heads: int  # H
    size: int  # P, of x in a head
    state: int  # N
    groups: int  # G, which have B and C of their own
    taps: int  # taps of the convolution

    @property
    def width(self) -> int:
        """The width of z, x and y."""
        return self.heads * self.size

    @property
    def convolved(self) -> int:
        """The width of x, B and C together."""
        return self.width + 2 * self.groups * self.state


@dataclass(frozen=True)
class Mixer:
    """add + scale · W_out · norm(ssd(silu(conv(x, B, C)), dt) · silu(z)), with z, x, B, C, dt = W_in norm(x)"""

    inner: Inner
    norm: Weight  # [D]
    project: Weight  # [2 H P + 2 G N + H, D]: the rows of z, x, B, C, dt
    conv: Weight  # [(H P + 2 G N) · taps]
    conv_bias: Weight | None  # [H P + 2 G N]
    parameters: StateSpace  # [H]
    out_norm: Weight | None  # [H P], by group
    output: Weight  # [D, H P]
    past: State  # [taps - 1, H P + 2 G N]
    ssm: State  # [H, P, N]
    scale: float = 1.0
    caches: Sequence[Cache] = ()

    @property
    def states(self) -> Sequence[State]:
        return self.past, self.ssm

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        groups = self.inner.groups
        projected = g.linear(x, self.project, norm=Rms(self.norm, eps))
        xbc = g.conv1d(projected, self.conv, self.past, then="silu", bias=self.conv_bias, first=self.inner.width)
        y = g.ssd(xbc, projected, self.parameters, self.ssm, groups=groups)
        if self.out_norm is not None and groups > 1:
            y = g.group_rms_norm(y, self.out_norm, groups, eps)
        norm = Rms(self.out_norm, eps) if self.out_norm is not None and groups == 1 else None
        return g.linear(y, self.output, norm=norm, add=add, scale=self.scale)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    inner = read_inner(source)
    return source.model([(take_mixer(source, inner, i, source.norm(i)),) for i in range(source.sizes.layers)])


def read_inner(source: HybridFile) -> Inner:
    """The sizes of all mixers of a model."""
    at, width = f"{source.arch}.ssm", source.integer("ssm.inner_size", 1, 1 << 20)
    heads = source.integer("ssm.time_step_rank", 1, 1 << 16)
    groups = source.integer("ssm.group_count", 1, heads, default=1)
    if width % heads:
        what = f"metadata key '{at}.inner_size'"
        raise source.tensors.bad(what, str(width), f"a multiple of the {heads} heads")
    source.tensors.check_divides(f"{at}.group_count", groups, heads)
    state = source.integer("ssm.state_size", 1, 1 << 16)
    inner = Inner(heads, width // heads, state, groups, source.integer("ssm.conv_kernel", 2, 16))
    if inner.size % STEP or inner.size > LARGEST_SIZE or state % STEP or state > LARGEST_STATE:
        known = f"multiples of {STEP} up to {LARGEST_SIZE} by {LARGEST_STATE}"
        raise UnsupportedModel(
            f"{source.file.path}: states of {inner.size} by {state} are not supported; known: {known}"
        )
    return inner


def take_mixer(source: HybridFile, inner: Inner, i: int, norm: Weight, *, scale: float = 1.0) -> Mixer:
    """The mixer of a layer."""
    at, width, convolved, out_norm = f"blk.{i}.ssm", inner.width, inner.convolved, f"blk.{i}.ssm_norm.weight"
    tensors, sizes = source.tensors, source.sizes
    return Mixer(
        inner,
        norm=norm,
        project=tensors.take(f"{at}_in.weight", width + convolved + inner.heads, sizes.width),
        conv=tensors.take_flat(f"{at}_conv1d.weight", convolved, inner.taps),
        conv_bias=tensors.find(f"{at}_conv1d.bias", convolved),
        parameters=StateSpace(
            dt_bias=tensors.take(f"{at}_dt.bias", inner.heads),
            a=tensors.take_flat(f"{at}_a", inner.heads),
            d=tensors.take_flat(f"{at}_d", inner.heads),
        ),
        out_norm=tensors.take_flat(out_norm, inner.groups, width // inner.groups) if out_norm in tensors else None,
        output=tensors.take(f"{at}_out.weight", sizes.width, width),
        past=State(f"blk.{i}.conv", (inner.taps - 1, convolved)),
        ssm=State(f"blk.{i}.ssm", (inner.heads, inner.size, inner.state)),
        scale=scale,
    )
