"""Mamba: each layer is a convolution and a recurrence over one row of state per channel (a selective scan)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, Rms, State, StateSpace, Tensor, Weight
from .hybrid import Hybrid, HybridFile
from .tensors import Tensors

STEP, LARGEST_STATE = 4, 64  # limits of N in the kernel: a lane has a whole row of the state


@dataclass(frozen=True)
class Inner:
    """The sizes of a mixer."""

    width: int  # C, channels
    state: int  # N
    rank: int  # rank of the product that makes dt
    taps: int  # taps of the convolution


@dataclass(frozen=True)
class ScanNorms:
    """Norms of B, C and the input of dt; without weights in FalconMamba."""

    low: Weight | None  # [rank]
    bc: Weight | None  # [1, 2 N]: B's, then C's


@dataclass(frozen=True)
class Mixer:
    """add + W_out · (scan(x, W_dt d, B, C) · silu(z)), with d, B, C = W_x x; x = silu(conv(u)); u, z = W_in norm(x)"""

    norm: Weight  # [D]
    project: Weight  # [2 C, D]: the rows of u, then those of z
    conv: Weight  # [C · taps]
    conv_bias: Weight | None  # [C]
    low: Weight  # [rank, C]
    bc: Weight  # [2 N, C]
    scan_norms: ScanNorms | None
    dt: Weight  # [C, rank]
    parameters: StateSpace  # A [C · N], the others [C]
    output: Weight  # [D, C]
    past: State  # [taps - 1, C]
    ssm: State  # [C, N]
    caches: Sequence[Cache] = ()

    @property
    def states(self) -> Sequence[State]:
        return self.past, self.ssm

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        projected = g.linear(x, self.project, norm=Rms(self.norm, eps))
        x = g.conv1d(projected, self.conv, self.past, then="silu", bias=self.conv_bias)
        low, bc = g.linears([x, x], [self.low, self.bc])
        low_norm = None
        if self.scan_norms is not None:
            low_norm, bc = Rms(self.scan_norms.low, eps), g.group_rms_norm(bc, self.scan_norms.bc, 2, eps)
        y = g.selective_scan(x, g.linear(low, self.dt, norm=low_norm), bc, projected, self.parameters, self.ssm)
        return g.linear(y, self.output, add=add)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    inner = read_inner(source)
    norms = ScanNorms(None, None) if file.bool("mamba.ssm.dt_b_c_rms", default=False) else None
    return source.model([(take_mixer(source, inner, i, norms),) for i in range(source.sizes.layers)])


def read_inner(source: HybridFile) -> Inner:
    """The sizes of all mixers of a model."""
    inner = Inner(
        width=source.integer("ssm.inner_size", 1, 1 << 20),
        state=source.integer("ssm.state_size", 1, 1 << 16),
        rank=source.integer("ssm.time_step_rank", 1, 1 << 16),
        taps=source.integer("ssm.conv_kernel", 2, 16),
    )
    check_state(source, inner.state)
    return inner


def check_state(source: HybridFile, state: int) -> None:
    """Refuses sizes that the kernel does not support."""
    if state % STEP or state > LARGEST_STATE:
        known = f"multiples of {STEP} up to {LARGEST_STATE}"
        raise UnsupportedModel(f"{source.file.path}: states of {state} are not supported; known: {known}")


def take_scan_norms(tensors: Tensors, inner: Inner, i: int) -> ScanNorms:
    """The norms of a layer, which have weights."""
    at = f"blk.{i}.ssm"
    parts = ((f"{at}_{name}_norm.weight", (inner.state,)) for name in ("b", "c"))
    return ScanNorms(
        low=tensors.take(f"{at}_dt_norm.weight", inner.rank),
        bc=tensors.join(f"{at}_bc_norm", 2 * inner.state, *parts),
    )


def take_mixer(source: HybridFile, inner: Inner, i: int, norms: ScanNorms | None) -> Mixer:
    """The mixer of a layer."""
    at, width, tensors, sizes = f"blk.{i}.ssm", inner.width, source.tensors, source.sizes
    low, bc = tensors.split(
        f"{at}_x.weight", width, (f"{at}_x.dt.weight", inner.rank), (f"{at}_x.bc.weight", 2 * inner.state)
    )
    tensors.keep(low, bc)
    return Mixer(
        norm=source.norm(i),
        project=tensors.take(f"{at}_in.weight", 2 * width, sizes.width),
        conv=tensors.take_flat(f"{at}_conv1d.weight", width, inner.taps),
        conv_bias=tensors.find(f"{at}_conv1d.bias", width),
        low=low,
        bc=bc,
        scan_norms=norms,
        dt=tensors.take(f"{at}_dt.weight", width, inner.rank),
        parameters=StateSpace(
            dt_bias=tensors.take(f"{at}_dt.bias", width),
            a=tensors.take_flat(f"{at}_a", width, inner.state),
            d=tensors.take_flat(f"{at}_d", width),
        ),
        output=tensors.take(f"{at}_out.weight", sizes.width, width),
        past=State(f"blk.{i}.conv", (inner.taps - 1, width)),
        ssm=State(f"blk.{i}.ssm", (width, inner.state)),
    )
