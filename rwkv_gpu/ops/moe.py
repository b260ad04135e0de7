"""Products with experts: the matrices of a dispatch, and the selection of its kernel.

A choice is one of the experts of one row; there are T · used choices. Few choices are computed one by one. Many choices
are sorted by expert and computed in tiles. The number of dispatches is independent of the numbers of experts and rows.
"""

from dataclasses import dataclass

import numpy as np

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from ..gpu.weights import Shard
from ..kernels.expert_config import ExpertConfig
from ..kernels.staging import Staged
from .nodes import ExpertProducts, ExpertSum, Route, SortChoices
from .target import Target
from .values import UniformTable, Value
from .vocabulary import Weight

SPARE = 4096  # bytes of workgroup memory reserved for the padding of rows, and sums
# The part that decodes MXFP4 to floats, and the parts that it replaces.
AS_FLOATS = {"formats/mxfp4": "formats/mxfp4_floats", "formats/packed": "", "formats/signed": "", "formats/e2m1": ""}
LOGITS_OF_A_LANE = 16  # maximum logits per lane in registers, if every subgroup ranks experts
PREFETCHED = 16  # numbers of x that a lane prefetches while it ranks experts
# Number of experts up to which x is loaded before the choice: this makes steps of GLM-4.7-Flash (64 experts) 3% faster,
# does not change Granite 4 H Tiny (64) and Qwen3-30B-A3B (128), and makes Qwen3.5 35B-A3B (256) and Qwen3-Next 80B-A3B
# (512) 0.3% slower.
MAX_PREFETCHING = 128


@dataclass(frozen=True)
class Matrices:
    """The matrices that a dispatch binds together: one per expert, or gate and up."""

    name: str
    shards: tuple[Shard, ...]  # all have the same format, buffer and first expert
    experts: int  # number of experts in the weight
    out: int  # M
    width: int  # K
    halves: bool = False  # whether the rows of an expert are first those of gate, then those of up

    @property
    def count(self) -> int:
        """The number of matrices per expert."""
        return 2 if self.halves else len(self.shards)

    @property
    def expert_rows(self) -> int:
        """The number of rows of an expert in a shard."""
        return self.out * (1 + self.halves)

    @property
    def slice(self) -> Slice:
        """The range of the buffer that holds all of them."""
        slices = [shard.slice for shard in self.shards]
        start = min(one.offset for one in slices)
        return Slice(slices[0].buffer, start, max(one.offset + one.nbytes for one in slices) - start)

    @property
    def table(self) -> UniformTable:
        """The table for kernels: the place of each matrix in the binding, and the range of experts."""
        start = self.slice.offset
        moved = [shard.moved((shard.slice.offset - start) // 16).planes for shard in self.shards]
        rows = self.expert_rows
        assert all(shard.rows % rows == shard.first % rows == 0 for shard in self.shards), "experts are cut"
        here = (self.shards[0].first // rows, self.shards[0].rows // rows)
        return UniformTable((*moved[0], *moved[-1], *here, 0, 0))

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of all kernels."""
        return {
            "K": self.width,
            "M": self.out,
            "PADDED": int(self.width % 32 > 0),
            "EXPERTS": self.experts,
            "EXPERT_ROWS": self.expert_rows,
            "SECOND": self.out if self.halves else 0,
        }

    @property
    def parts(self) -> tuple[str, ...]:
        """The part that reads the table."""
        return (*self.shards[0].parts, "moe/matrices")

    @property
    def rows(self) -> str:
        """The part that reads rows of x."""
        return "lib/rows/scalar" if self.width % 4 else "lib/rows/vec4"

    def reading(self, config: ExpertConfig, *, ranked: bool = False) -> tuple[str, ...]:
        """The parts that read rows of x for a kernel; none for tiles on matrix units, which have their own."""
        if config.fragment:
            return ()
        if not config.gathers_row:
            return (self.rows,)
        few = self.experts <= MAX_PREFETCHING and self.width <= PREFETCHED * config.wg
        prefetched = ranked and few and not self.floats
        return self.rows, f"moe/rows/{'prefetched' if prefetched else 'plain'}"

    def staged(self, rows: int, lanes_per_row: int = 1) -> Staged:
        """The staging of whole rows of x: as floats if decoding W to floats is less work, else as integers."""
        form = "f32" if self.floats and rows == 1 else "int16"
        return Staged(-(-rows * self.width // (32 * lanes_per_row)) * lanes_per_row, form)

    @property
    def floats(self) -> bool:
        """True if decoding W to floats is less work than to bytes."""
        return AS_FLOATS.keys() <= set(self.shards[0].parts)

    def format_parts(self, *, floats: bool) -> tuple[str, ...]:
        """The parts that decode W for kernels that multiply floats, or integers."""
        if not (floats and self.floats):
            return self.parts
        made = (AS_FLOATS.get(part, part) for part in self.shards[0].parts)
        return (*filter(None, made), "moe/matrices")

    def staging(self, config: ExpertConfig, rows: int) -> tuple[tuple[str, ...], dict[str, Constant]]:
        """The parts and constants that stage `rows` rows of x in workgroup memory."""
        if config.kernel == "moe/expert_gemv":
            runs = -(-self.width // self.shards[0].run)
            return (), {"STAGED": config.staged(self.shards[0].run, rows * runs)}
        staged = self.staged(rows, config.lanes_per_row)
        return staged.parts, staged.constants

    def bytes_read(self, rows: int, used: int) -> int:
        """Bytes read on average if rows choose experts uniformly."""
        return round(self.slice.nbytes * (1 - (1 - used / self.experts) ** rows))

    def flops(self, choices: int) -> int:
        """Flops of a number of choices."""
        return 2 * choices * self.out * self.width * self.count


def matrices_of(weight: Weight, target: Target, *, halves: bool = False) -> tuple[Matrices, ...]:
    """The matrices of a weight, one group for each binding that holds some of the experts."""
    experts, rows, width = weight.shape
    out = rows // 2 if halves else rows
    return tuple(Matrices(weight.name, (shard,), experts, out, width, halves) for shard in target.shards([weight]))


def complete(op: ExpertProducts, target: Target) -> tuple[Matrices, ...]:
    """The matrices of each dispatch that writes results; empty if gate and up are in two formats or bindings."""
    if len(op.weights) == 1:
        return matrices_of(op.weights[0], target, halves=op.halves)
    shards = target.shards(op.weights)
    if len(shards) > 2 or shards[0].parts != shards[1].parts:
        return ()
    experts, out, width = op.weights[0].shape
    both = Matrices("+".join(weight.name for weight in op.weights), tuple(shards), experts, out, width)
    one_buffer = shards[0].slice.buffer is shards[1].slice.buffer
    return (both,) if one_buffer and both.slice.nbytes <= target.can.max_binding else ()


def expert_config(
    matrices: Matrices, choices: int, target: Target, rows: int = 1, *, heads: bool = False
) -> ExpertConfig:
    """The config for a number of choices."""
    shard = matrices.shards[0]
    room = target.can.max_workgroup_memory - SPARE
    integers = shard.packed and matrices.width % 32 == 0 and matrices.staged(rows).nbytes <= room
    return target.tuning.expert_config(
        choices / matrices.experts, shard.run, integers, floats=matrices.floats, heads=heads
    )


def head_config(matrices: Matrices, rows: int, target: Target) -> ExpertConfig:
    """The config of per-head products, in which every row uses all heads."""
    config = expert_config(matrices, rows * matrices.experts, target, heads=True)
    return config.within(matrices.width)


def products_config(op: ExpertProducts, rows: int, target: Target) -> tuple[ExpertConfig, tuple[Matrices, ...]]:
    """The config of the first dispatch, and the matrices of each dispatch that writes results."""
    whole = complete(op, target)
    first = whole[0] if whole else matrices_of(op.weights[0], target)[0]
    return expert_config(first, rows * op.routing.experts.shape[1], target), whole


def sums_at_once(op: ExpertSum, rows: int, target: Target) -> ExpertConfig | None:
    """The config of the kernel that computes and sums the weighted products of a row; None if it does not apply.

    Several whole rows of floats do not fit in workgroup memory.
    """
    every, used = matrices_of(op.down, target), op.routing.experts.shape[1]
    config = expert_config(every[0], rows * used, target, used)
    fits = not (every[0].floats and config.kernel == "moe/expert_gemv_int")
    return config if config.sums and len(every) == 1 and fits else None


def multiplies_rounded(op: ExpertProducts | ExpertSum, rows: int, target: Target) -> bool:
    """True if all of its dispatches multiply float16 on matrix units."""
    if isinstance(op, ExpertSum):
        every = () if sums_at_once(op, rows, target) else matrices_of(op.down, target)
    else:
        every = complete(op, target) or tuple(one for w in op.weights for one in matrices_of(w, target))
    choices = rows * op.routing.experts.shape[1]
    return bool(every) and all(expert_config(one, choices, target).fragment for one in every)


def tile_of(op: ExpertProducts | ExpertSum, rows: int, target: Target) -> int:
    """The number of choices of one expert that the kernel of an op processes at a time; above 1, they are sorted."""
    if isinstance(op, ExpertProducts):
        return products_config(op, rows, target)[0].tb
    if sums_at_once(op, rows, target):
        return 1
    return expert_config(matrices_of(op.down, target)[0], rows * op.routing.experts.shape[1], target).tb


def subgroups_rank(op: Route, width: int) -> bool:
    """True if subgroups of this width can choose experts: they hold all logits, and each score depends on one logit
    only.

    The last condition excludes expert groups, and softmax scores with a selection bias.
    """
    by_own_logit = op.how.groups == 1 and (
        op.how.selection_bias is None or op.how.scores in ("sigmoid", "sqrt_softplus")
    )
    return by_own_logit and width > 1 and op.router.shape[0] <= LOGITS_OF_A_LANE * width


def sorting(op: ExpertProducts | ExpertSum, tile: int, rows: int) -> SortChoices:
    """The op that sorts the choices of `op` by expert, into tiles of `tile`."""
    weight = op.weights[0] if isinstance(op, ExpertProducts) else op.down
    choices = rows * op.routing.experts.shape[1]
    tiles = Value((max_tiles(choices, weight.shape[0], tile), 4), np.uint32)
    return SortChoices(op.routing, weight.shape[0], tile, Value((choices,), np.uint32), tiles)


def max_tiles(choices: int, experts: int, tile: int) -> int:
    """The maximum number of tiles of choices: every chosen expert may have a partial one."""
    chosen = min(choices, experts)
    return chosen + (choices - chosen) // tile
