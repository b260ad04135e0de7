"""Mixtures of experts recorded: routing, and products by the expert that each row has chosen. Nothing is read back.

A choice is one of the experts of one row; T · used of them. Few choices are computed one by one; many are sorted by
expert on the GPU and computed in tiles. How many dispatches that takes depends on neither experts nor rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from ..gpu.weights import Shard
from ..kernels.expert_config import ExpertConfig
from .held import Held
from .linear import LinearRecorder
from .staged import Staged
from .values import Operand, Value, Words
from .vocabulary import LEAST_SUM, NUMBER, NUMBERS, Activation, Rms, Routing, Weight

SORT_LANES = 256  # of the one workgroup that sorts
MOST_RANKED = 1024  # experts that are ranked all at once, each by comparing it to every other
SPARE = 4096  # of workgroup memory, for chunks that fill a row up, and sums
OWN_RANKED = 16  # logits that a lane has in registers, where every subgroup ranks by itself


@dataclass(frozen=True)
class Matrices:
    """Those of the same experts that a dispatch binds together: one for each, or gate and up."""

    name: str
    shards: tuple[Shard, ...]  # of one format in one buffer; they start at the same expert
    experts: int  # in the weight
    out: int  # M
    width: int  # K

    @property
    def slice(self) -> Slice:
        """What holds them all."""
        slices = [shard.slice for shard in self.shards]
        start = min(one.offset for one in slices)
        return Slice(slices[0].buffer, start, max(one.offset + one.nbytes for one in slices) - start)

    @property
    def table(self) -> Words:
        """Where each lies in that, and which experts they are of."""
        start = self.slice.offset
        moved = [shard.moved((shard.slice.offset - start) // 16).planes for shard in self.shards]
        assert all(shard.rows % self.out == shard.first % self.out == 0 for shard in self.shards), "experts are cut"
        here = (self.shards[0].first // self.out, self.shards[0].rows // self.out)
        return Words((*moved[0], *moved[-1], *here, 0, 0))

    @property
    def runs(self) -> int:
        """Of a row."""
        return -(-self.width // self.shards[0].run)

    @property
    def constants(self) -> dict[str, Constant]:
        """What kernels are specialised by."""
        return {"K": self.width, "M": self.out, "PADDED": int(self.width % 32 > 0)}

    @property
    def parts(self) -> tuple[str, ...]:
        """What reads them, and rows of x."""
        return (*self.shards[0].parts, "moe/matrices", "lib/rows/scalar" if self.width % 4 else "lib/rows/vec4")

    def staged(self, rows: int, lanes_per_row: int = 1) -> Staged:
        """So many rows of x as integers, by lanes that share them."""
        return Staged(-(-rows * self.width // (32 * lanes_per_row)) * lanes_per_row, "int16")

    def bytes_read(self, rows: int, used: int) -> int:
        """What is read where rows choose evenly: the experts that any of them is expected to take."""
        return round(self.slice.nbytes * (1 - (1 - used / self.experts) ** rows))

    def flops(self, choices: int) -> int:
        """Of so many products with each."""
        return 2 * choices * self.out * self.width * len(self.shards)


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranking(Held):
    """The choice of experts by logits, for products of each choice to make on the way."""

    experts: int  # that there are
    constants: Mapping[str, Constant]
    operands: Mapping[str, Operand]


class ExpertRecorder(LinearRecorder):
    """Ops that send rows to experts."""

    def route(self, x: Value, router: Weight, used: int, *, normalise: bool, norm: Rms | None = None) -> Routing[Value]:
        logits = self.linear(x, router, norm=norm)
        routing = Routing(Value((self.rows, used), np.uint32), Value((self.rows, used)))
        constants: dict[str, Constant] = {
            "E": router.shape[0], "USED": used, "NORMALISE": int(normalise), "LEAST_SUM": LEAST_SUM
        }  # fmt: skip
        told: dict[str, Operand] = {"experts": routing.experts, "shares": routing.shares}
        # Maxima one after another are less work than all ranks for few lanes or many experts, and want no room for all.
        by_maxima = self.tuning.reduce == "one_subgroup" or router.shape[0] > MOST_RANKED
        shader = ("moe/route" if by_maxima else "moe/route_rank", f"lib/lanes/{self.tuning.reduce}")
        lanes = {"WG": min(self.tuning.row_lanes, max(64, 1 << (router.shape[0] - 1).bit_length()))}
        rank = partial(self.record, router.name, shader, constants | lanes, told | {"x": logits}, groups=self.rows)
        operands = told | {"router_logits": logits}
        self.hold(Ranking(rank, routing.experts, experts=router.shape[0], constants=constants, operands=operands))
        return routing

    def expert_glu(
        self,
        x: Value,
        gate: Weight,
        up: Weight,
        routing: Routing[Value],
        then: Activation,
        *,
        norm: Rms | None = None,
    ) -> Value:
        used = routing.experts.shape[1]
        y = Value((self.rows, used, gate.shape[1]))
        both = self._paired(gate, up)
        if norm and not (both and x.shape[1] % 32 == 0 and self._expert_shape(both, routing).norms):
            x, norm = self._norm_once(x, norm), None
        if both is not None:
            self._by_choice(both, routing, {"x": x, "y": y}, "glu", used, then, norm)
            return y
        first = Value(y.shape)
        for matrices in self._each_shard(gate):
            self._by_choice(matrices, routing, {"x": x, "y": first}, "plain", used)
        for matrices in self._each_shard(up):
            self._by_choice(matrices, routing, {"x": x, "y": y, "gate": first}, "gated", used, then)
        return y

    def expert_sum(self, h: Value, down: Weight, routing: Routing[Value], *, add: Value | None = None) -> Value:
        y = Value((self.rows, down.shape[1]))
        residual: dict[str, Operand] = {} if add is None else {"residual": add}
        every = self._each_shard(down)
        shape = self._expert_shape(every[0], routing, h.shape[1])
        if shape.sums and len(every) == 1:
            self._sum_at_once(every[0], shape, routing, {"x": h, "y": y, **residual})
            return y
        products = Value((self.rows, h.shape[1], down.shape[1]))
        for matrices in every:
            self._by_choice(matrices, routing, {"x": h, "y": products}, "plain", 1)
        lanes = self.tuning.map_lanes
        self.record(
            down.name,
            (
                "moe/expert_gather",
                "linear/epilogue/residual" if residual else "linear/epilogue/no_residual",
                "lib/lanes/plain",
            ),
            {"M": down.shape[1], "USED": h.shape[1], "WG": lanes},
            {"x": products, "shares": routing.shares, "y": y, **residual},
            groups=-(-self.rows * down.shape[1] // lanes),
        )
        return y

    def _each_shard(self, weight: Weight) -> list[Matrices]:
        shards = self.weights[weight.name].shards
        return [Matrices(weight.name, (shard,), *weight.shape) for shard in shards]

    def _paired(self, gate: Weight, up: Weight) -> Matrices | None:
        """Both in one dispatch, where one format and one binding holds them."""
        shards = (*self.weights[gate.name].shards, *self.weights[up.name].shards)
        if len(shards) > 2 or shards[0].parts != shards[1].parts:
            return None
        both = Matrices(f"{gate.name}+{up.name}", shards, *gate.shape)
        together = shards[0].slice.buffer is shards[1].slice.buffer
        return both if together and both.slice.nbytes <= self.device.capabilities.max_binding else None

    def _expert_shape(self, matrices: Matrices, routing: Routing[Value], rows: int = 1) -> ExpertConfig:
        """For products of as many rows of x at a time."""
        choices = self.rows * routing.experts.shape[1]
        shard = matrices.shards[0]
        room = self.device.capabilities.max_workgroup_memory - SPARE
        integers = shard.packed and matrices.width % 32 == 0 and matrices.staged(rows).nbytes <= room
        return self.tuning.expert_config(choices / matrices.experts, shard.run, integers)

    def _by_choice(
        self,
        matrices: Matrices,
        routing: Routing[Value],
        operands: dict[str, Operand],
        result: str,
        input_uses: int,
        then: Activation = "none",
        norm: Rms | None = None,
    ) -> None:
        """One dispatch for every choice with an expert of the shard; `input_uses` neighbours read the same x."""
        shape = self._expert_shape(matrices, routing)
        used = routing.experts.shape[1]
        choices = self.rows * used
        constants = matrices.constants | NUMBERS | shape.constants
        constants |= {"USED": used, "INPUT_USES": input_uses, "THEN": NUMBER[then]}
        parts = [*matrices.parts, "moe/tiles", f"moe/result/{result}", "lib/activation", *shape.parts]
        if norm is not None:
            operands |= {"gain": self.vector(norm.weight)}
            constants["EPS"] = float(norm.eps)
        if shape.norms:
            parts.append("linear/prologue/rms_norm" if norm else "linear/prologue/no_norm")
            staging, staged = _staging(shape, matrices, 1)
            parts += staging
            constants |= staged
        if shape.tb == 1:
            tiles = choices
            ranking = self._ranking(routing, shape)
            operands |= ranking.operands if ranking else {"experts": routing.experts}
            constants |= ranking.constants if ranking else {}
            parts.append("moe/choices/ranked" if ranking else "moe/choices/each")
        else:
            tiles = most_tiles(choices, matrices.experts, shape.tb)
            parts.append("moe/choices/sorted")
            order, table = self._sort(routing, matrices.experts, tiles, shape.tb)
            operands |= {"order": order, "tiles": table}
        self.record(
            matrices.name,
            (shape.kernel, *parts),
            constants,
            operands | {"w": matrices.slice, "shard": matrices.table},
            groups=tiles * -(-matrices.out // (shape.block // len(matrices.shards))),
            fixed_bytes=matrices.bytes_read(self.rows, used),
            row_flops=matrices.flops(used),
        )

    def _ranking(self, routing: Routing[Value], shape: ExpertConfig) -> Ranking | None:
        """The choice of experts, where the kernel that first asks for it is to make it."""
        ranking = self.held(routing.experts)
        if not (self.tuning.fuses_routing and isinstance(ranking, Ranking) and shape.norms):
            return None
        if (
            shape.subgroup_width == 1
            or ranking.experts > OWN_RANKED * shape.subgroup_width
            or routing.experts.shape[1] > shape.wg
        ):
            return None
        self.take(ranking)
        return ranking

    def _sum_at_once(
        self, matrices: Matrices, shape: ExpertConfig, routing: Routing[Value], operands: dict[str, Operand]
    ) -> None:
        """The products of every row, its shares and the sum in one dispatch."""
        used = routing.experts.shape[1]
        residual = "linear/epilogue/residual" if "residual" in operands else "linear/epilogue/no_residual"
        shape = shape.summing
        constants: dict[str, Constant] = {"USED": used, **matrices.constants, **shape.constants}
        staging, staged = _staging(shape, matrices, used)
        kernel = (
            ("moe/expert_sum_gemv", "linear/prologue/no_norm")
            if shape.kernel == "moe/expert_gemv"
            else ("moe/expert_sum_gemv_int",)
        )
        self.record(
            matrices.name,
            (*kernel, "moe/chosen", *matrices.parts, residual, *shape.parts, *staging),
            constants | staged,
            operands
            | {"experts": routing.experts, "shares": routing.shares, "w": matrices.slice, "shard": matrices.table},
            groups=self.rows * -(-matrices.out // shape.block),
            fixed_bytes=matrices.bytes_read(self.rows, used),
            row_flops=matrices.flops(used),
        )

    def _sort(self, routing: Routing[Value], experts: int, tiles: int, tb: int) -> tuple[Value, Value]:
        """The choices by expert, and tiles of them; sorted once for all that asks."""
        key = (routing.experts, tb)
        if key not in self._sorted:
            choices = self.rows * routing.experts.shape[1]
            order, table = Value((choices,), np.uint32), Value((tiles, 4), np.uint32)
            self.record(
                "",
                ("moe/expert_sort",),
                {"E": experts, "USED": routing.experts.shape[1], "TB": tb, "WG": SORT_LANES},
                {"experts": routing.experts, "order": order, "tiles": table},
                groups=1,
            )
            self._sorted[key] = order, table
        return self._sorted[key]


def _staging(shape: ExpertConfig, matrices: Matrices, rows: int) -> tuple[tuple[str, ...], dict[str, Constant]]:
    """What keeps so many rows of x in workgroup memory, and how much at a time."""
    if shape.kernel == "moe/expert_gemv":
        return (), {"STAGED": shape.staged(matrices.shards[0].run, rows * matrices.runs)}
    staged = matrices.staged(rows, shape.lanes_per_row)
    return staged.parts, staged.constants


def most_tiles(choices: int, experts: int, tb: int) -> int:
    """The most tiles that choices can make: every expert that is chosen at all may have one that is not full."""
    chosen = min(choices, experts)
    return chosen + (choices - chosen) // tb
