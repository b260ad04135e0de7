"""Products with experts: the matrices that one dispatch binds, and the kernel that serves them.

A choice is one of the experts of one row; there are T · used of them. Few choices are computed one by one; many are
sorted by expert and computed in tiles. How many dispatches that takes depends on neither experts nor rows.
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

SPARE = 4096  # of workgroup memory, for chunks that fill a row up, and sums
# Of MXFP4: what decodes it into floats, and what that does not want.
AS_FLOATS = {"formats/mxfp4": "formats/mxfp4_floats", "formats/packed": "", "formats/signed": "", "formats/e2m1": ""}
LOGITS_OF_A_LANE = 16  # logits that a lane has in registers, where every subgroup ranks by itself
PREFETCHED = 16  # numbers of x that it has there as well meanwhile
# Experts up to which x is asked for before the choice: GLM-4.7-Flash (64) takes 3% less of a step so, Granite 4 H Tiny
# (64) and Qwen3-30B-A3B (128) the same, Qwen3.5 35B-A3B (256) and Qwen3-Next 80B-A3B (512) 0.3% more.
MOST_PREFETCHING = 128


@dataclass(frozen=True)
class Matrices:
    """Those of the same experts that a dispatch binds together: one for each, or gate and up."""

    name: str
    shards: tuple[Shard, ...]  # of one format in one buffer; they start at the same expert
    experts: int  # in the weight
    out: int  # M
    width: int  # K
    halves: bool = False  # whether the rows of an expert are those of gate, then those of up

    @property
    def count(self) -> int:
        """Matrices of an expert."""
        return 2 if self.halves else len(self.shards)

    @property
    def expert_rows(self) -> int:
        """Rows of an expert in a shard."""
        return self.out * (1 + self.halves)

    @property
    def slice(self) -> Slice:
        """What holds them all."""
        slices = [shard.slice for shard in self.shards]
        start = min(one.offset for one in slices)
        return Slice(slices[0].buffer, start, max(one.offset + one.nbytes for one in slices) - start)

    @property
    def table(self) -> UniformTable:
        """Where each lies in that, and which experts they are of."""
        start = self.slice.offset
        moved = [shard.moved((shard.slice.offset - start) // 16).planes for shard in self.shards]
        rows = self.expert_rows
        assert all(shard.rows % rows == shard.first % rows == 0 for shard in self.shards), "experts are cut"
        here = (self.shards[0].first // rows, self.shards[0].rows // rows)
        return UniformTable((*moved[0], *moved[-1], *here, 0, 0))

    @property
    def constants(self) -> dict[str, Constant]:
        """What kernels are specialised by."""
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
        """What reads them."""
        return (*self.shards[0].parts, "moe/matrices")

    @property
    def rows(self) -> str:
        """What reads rows of x."""
        return "lib/rows/scalar" if self.width % 4 else "lib/rows/vec4"

    def reading(self, config: ExpertConfig, *, ranked: bool = False) -> tuple[str, ...]:
        """What reads rows of x for a kernel, which may rank experts; nothing where tiles on matrix units do it."""
        if config.fragment:
            return ()
        if not config.gathers_row:
            return (self.rows,)
        few = self.experts <= MOST_PREFETCHING and self.width <= PREFETCHED * config.wg
        prefetched = ranked and few and not self.floats
        return self.rows, f"moe/rows/{'prefetched' if prefetched else 'plain'}"

    def staged(self, rows: int, lanes_per_row: int = 1) -> Staged:
        """So many rows of x whole, by lanes that share them: as integers, but as floats where these need less work."""
        form = "f32" if self.floats and rows == 1 else "int16"
        return Staged(-(-rows * self.width // (32 * lanes_per_row)) * lanes_per_row, form)

    @property
    def floats(self) -> bool:
        """Whether floats are made of W with less work than bytes."""
        return AS_FLOATS.keys() <= set(self.shards[0].parts)

    def format_parts(self, *, floats: bool) -> tuple[str, ...]:
        """What decodes W for kernels that multiply floats, or integers."""
        if not (floats and self.floats):
            return self.parts
        made = (AS_FLOATS.get(part, part) for part in self.shards[0].parts)
        return (*filter(None, made), "moe/matrices")

    def staging(self, config: ExpertConfig, rows: int) -> tuple[tuple[str, ...], dict[str, Constant]]:
        """What keeps so many rows of x in workgroup memory, and how much at a time."""
        if config.kernel == "moe/expert_gemv":
            runs = -(-self.width // self.shards[0].run)
            return (), {"STAGED": config.staged(self.shards[0].run, rows * runs)}
        staged = self.staged(rows, config.lanes_per_row)
        return staged.parts, staged.constants

    def bytes_read(self, rows: int, used: int) -> int:
        """What is read where rows choose evenly: the experts that any of them is expected to take."""
        return round(self.slice.nbytes * (1 - (1 - used / self.experts) ** rows))

    def flops(self, choices: int) -> int:
        """Of so many products with each."""
        return 2 * choices * self.out * self.width * self.count


def matrices_of(weight: Weight, target: Target, *, halves: bool = False) -> tuple[Matrices, ...]:
    """One for each binding that holds some of the experts."""
    experts, rows, width = weight.shape
    out = rows // 2 if halves else rows
    return tuple(Matrices(weight.name, (shard,), experts, out, width, halves) for shard in target.shards([weight]))


def complete(op: ExpertProducts, target: Target) -> tuple[Matrices, ...]:
    """Matrices whose dispatches each write results: none where gate and up are apart, in two formats or bindings."""
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
    """The kernel for so many choices, each with as many rows of x at a time."""
    shard = matrices.shards[0]
    room = target.can.max_workgroup_memory - SPARE
    integers = shard.packed and matrices.width % 32 == 0 and matrices.staged(rows).nbytes <= room
    return target.tuning.expert_config(
        choices / matrices.experts, shard.run, integers, floats=matrices.floats, heads=heads
    )


def head_config(matrices: Matrices, rows: int, target: Target) -> ExpertConfig:
    """The kernel of products by head: every row takes all of these."""
    config = expert_config(matrices, rows * matrices.experts, target, heads=True)
    return config.within(matrices.width)


def products_config(op: ExpertProducts, rows: int, target: Target) -> tuple[ExpertConfig, tuple[Matrices, ...]]:
    """The kernel of the first dispatch, and the matrices whose dispatches each write results."""
    whole = complete(op, target)
    first = whole[0] if whole else matrices_of(op.weights[0], target)[0]
    return expert_config(first, rows * op.routing.experts.shape[1], target), whole


def sums_at_once(op: ExpertSum, rows: int, target: Target) -> ExpertConfig | None:
    """The kernel that computes the products of a row with their shares and sum, where there is one.

    Several whole rows of floats have no room in workgroup memory.
    """
    every, used = matrices_of(op.down, target), op.routing.experts.shape[1]
    config = expert_config(every[0], rows * used, target, used)
    fits = not (every[0].floats and config.kernel == "moe/expert_gemv_int")
    return config if config.sums and len(every) == 1 and fits else None


def multiplies_rounded(op: ExpertProducts | ExpertSum, rows: int, target: Target) -> bool:
    """Whether all of its dispatches multiply float16 on matrix units."""
    if isinstance(op, ExpertSum):
        every = () if sums_at_once(op, rows, target) else matrices_of(op.down, target)
    else:
        every = complete(op, target) or tuple(one for w in op.weights for one in matrices_of(w, target))
    choices = rows * op.routing.experts.shape[1]
    return bool(every) and all(expert_config(one, choices, target).fragment for one in every)


def tile_of(op: ExpertProducts | ExpertSum, rows: int, target: Target) -> int:
    """Choices of one expert that the kernel of an op takes at a time: 1 as they come, else sorted."""
    if isinstance(op, ExpertProducts):
        return products_config(op, rows, target)[0].tb
    if sums_at_once(op, rows, target):
        return 1
    return expert_config(matrices_of(op.down, target)[0], rows * op.routing.experts.shape[1], target).tb


def subgroups_rank(op: Route, width: int) -> bool:
    """Whether subgroups so wide can choose experts: their lanes have the logits of all, and each is chosen by its own.

    So there are no groups, and scores that a bias is added to are no softmax.
    """
    by_own_logit = op.how.groups == 1 and (op.how.selection_bias is None or op.how.scores == "sigmoid")
    return by_own_logit and width > 1 and op.router.shape[0] <= LOGITS_OF_A_LANE * width


def sorting(op: ExpertProducts | ExpertSum, tile: int, rows: int) -> SortChoices:
    """The choices of an op by expert, in tiles of so many."""
    weight = op.weights[0] if isinstance(op, ExpertProducts) else op.down
    choices = rows * op.routing.experts.shape[1]
    tiles = Value((most_tiles(choices, weight.shape[0], tile), 4), np.uint32)
    return SortChoices(op.routing, weight.shape[0], tile, Value((choices,), np.uint32), tiles)


def most_tiles(choices: int, experts: int, tile: int) -> int:
    """The most tiles that choices can make: every expert that is chosen at all may have one that is not full."""
    chosen = min(choices, experts)
    return chosen + (choices - chosen) // tile
