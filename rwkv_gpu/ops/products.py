"""Products dispatched: all of one format by one kernel, with what changes from kernel to kernel linked to it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..gpu.plan import Slice
from ..gpu.shader import Constant, Struct
from ..gpu.weights import Shard
from ..kernels.tuning import MANY, GemmConfig, gemv
from .integers import LAYING, IntegerRecorder, Roundable
from .mixing import Mixing, Told, looking
from .staged import staging
from .values import Integers, Operand, Value, Words
from .vocabulary import NUMBER, NUMBERS, Activation, LayerNorm, Rms

FLOATS = gemv(64, 16, 4, 4)  # where linear_dot is asked for what is no integers
TELLING = "linear/gemv_single_pass", "linear/gemv_int"  # kernels that can tell moments of their rows
WORDED = *TELLING, "linear/skinny_gemm"  # kernels that are faster where small planes of W are bound as words, too
WORDED_BUFFERS = 16  # that a device can bind where none of their dispatches lacks one for that
PICKED = "formats/vec4s"  # the part of a format that picks words out of vec4s
MATRICES = 8  # that a dispatch can hold, as the shader's table has room for


@dataclass(frozen=True)
class Product:
    """One matrix of a dispatch, and where its input, output and bias lie in what the dispatch binds."""

    shard: Shard
    k: int
    x: int  # in floats
    y: int
    stride: int
    bias: int
    then: Activation


@dataclass(frozen=True)
class Table:
    """The matrices of a dispatch as its kernel knows them: as data, or, in a plan of one row, when it is compiled."""

    blocks: int  # of rows of W, over all matrices
    fields: tuple[int, ...]
    matrices: tuple[tuple[int, ...], ...]  # MATRICES of them
    known: bool

    @classmethod
    def of(
        cls, products: Sequence[Product], each: Sequence[int], t_blocks: int, rows: int, parts: int, known: bool = False
    ) -> "Table":
        """Of products that have so many blocks each."""
        starts = list(itertools.accumulate(each, initial=0))
        matrices = [
            (start, count, p.shard.rows, p.k, p.x, p.y, p.stride, p.bias, NUMBER[p.then], *p.shard.planes)
            for p, count, start in zip(products, each, starts, strict=False)
        ]
        none = (0,) * len(matrices[0])
        matrices += [none] * (MATRICES - len(products))
        return cls(starts[-1], (len(products), starts[-1], t_blocks, rows, parts), tuple(matrices), rows == 1 or known)

    @property
    def parts(self) -> tuple[str, str]:
        """What links it to a kernel."""
        return "linear/table", "linear/table/constant" if self.known else "linear/table/uniform"

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        matrices = tuple(Struct("Matrix", (*words[:-4], Struct("vec4u", words[-4:]))) for words in self.matrices)
        return {"table": Struct("Table", (*self.fields, matrices))} if self.known else {}

    @property
    def operands(self) -> dict[str, Words]:
        """What the kernel binds."""
        words = [*self.fields, 0, 0, 0]  # a matrix is 16 words, and what follows its nine starts with a vec4
        for matrix in self.matrices:
            words += [*matrix[:-4], 0, 0, 0, *matrix[-4:]]
        return {} if self.known else {"table": Words(tuple(words))}


class ProductRecorder(IntegerRecorder):
    """Products whose matrices, inputs and outputs are bound."""

    def _shape(self, shards: Sequence[Shard], width: int, x: Value | None = None) -> GemmConfig:
        """For matrices of one dispatch, the widest of which is so wide, and what they multiply, where it is known."""
        run, packed, out = shards[0].run, shards[0].packed, sum(shard.rows for shard in shards)
        rounded = x is not None and isinstance(self.held(x), Roundable)
        shape = self.tuning.gemm_config(self.rows, run, out, width, packed, rounded)
        return FLOATS if shape.integers and not packed else shape

    def _multiply(
        self,
        name: str,
        products: Sequence[Product],
        operands: dict[str, Operand],
        norm: Rms | LayerNorm | Mixing | None,
        out: str | Integers = "rows",
        shape: GemmConfig | None = None,
    ) -> None:
        """All the products, which share a format, by one dispatch, or one and another that joins their parts."""
        x = operands["x"]
        assert isinstance(x, Value), "x is no parameter"
        shape = shape or self._shape([p.shard for p in products], max(p.k for p in products), x)
        if shape.reads_quantised:
            products, operands = self._as_integers(
                products, operands, norm, shape.activations, shape.kernel == "linear/skinny_gemm"
            )
            norm = None
        t_blocks = -(-self.rows // shape.tb)
        groups = t_blocks * sum(-(-p.shard.rows // shape.block) for p in products)
        parts = shape.cuts(groups, min(p.k for p in products))
        if parts == 1:
            self._dispatch(name, products, operands, norm, out, shape)
        else:
            self._in_parts(name, products, operands, out, shape, parts)

    def _as_integers(
        self,
        products: Sequence[Product],
        operands: dict[str, Operand],
        norm: Rms | LayerNorm | Mixing | None,
        form: str,
        by_rows: bool = False,
    ) -> tuple[Sequence[Product], dict[str, Operand]]:
        """The same, with x rounded, and normed."""
        x = operands["x"]
        assert isinstance(x, Value), "x is no parameter"
        assert not isinstance(norm, LayerNorm | Mixing), "what is rounded is normed or mixed before"
        found = self.integers(x, {p.x: p.k for p in products}, form, norm, by_rows)
        return [replace(p, x=found.starts[p.x]) for p in products], operands | {"x": found.value}

    def _in_parts(
        self,
        name: str,
        products: Sequence[Product],
        operands: dict[str, Operand],
        out: str | Integers,
        shape: GemmConfig,
        parts: int,
    ) -> None:
        """Workgroups of their own for each part of the columns, and a dispatch that adds up what they found."""
        count = self.rows * parts
        starts = [0, *itertools.accumulate(count * p.shard.rows for p in products)]
        found = Value((self.rows, starts[-1] // self.rows))
        cut = [replace(p, y=start) for p, start in zip(products, starts, strict=False)]
        self._dispatch(
            name, cut, {"x": operands["x"], "w": operands["w"], "y": found}, None, "partial_sums", shape, parts
        )
        joined = [replace(p, x=start) for p, start in zip(products, starts, strict=False)]
        operands = {key: operand for key, operand in operands.items() if key != "w"} | {"x": found}
        lanes = self.tuning.map_lanes
        each = _blocks(joined, lanes * (2 if out == "gated_pairs" else 1))
        table = Table.of(joined, each, self.rows, self.rows, parts)
        self.record(
            name,
            ("linear/splitk_reduce", "lib/lanes/plain", *table.parts, *_outputs(out, operands, self.rows)),
            {"WG": lanes} | table.constants | NUMBERS,
            operands | table.operands,
            groups=table.blocks * self.rows,
        )

    def _dispatch(
        self,
        name: str,
        products: Sequence[Product],
        operands: dict[str, Operand],
        norm: Rms | LayerNorm | Mixing | None,
        out: str | Integers,
        shape: GemmConfig,
        parts: int = 1,
    ) -> None:
        """One dispatch for all the products, which share a format."""
        shard, widths = products[0].shard, [p.k for p in products]
        most = self.device.capabilities.max_workgroup_memory
        shape, staged = staging(shape, [p.shard for p in products], widths, out, most)
        assert shape.workgroup_bytes <= most, f"{shape} wants too much memory"
        t_blocks = -(-self.rows // shape.tb)
        block, owned = shape.block, 1
        if isinstance(out, Integers):
            owned = owned_blocks(shape, self.rows, shard.rows)
            block *= owned
        table = Table.of(
            products,
            _blocks(products, block, max(1, shape.max_workgroups // t_blocks)),
            t_blocks,
            self.rows,
            parts,
            shape.kernel == "linear/skinny_gemm",
        )
        format_parts, words = self._format(shard, shape.kernel, operands["w"])
        linked = [*format_parts, *table.parts, *_outputs(out, operands, self.rows), *shape.parts]
        constants = shape.constants | table.constants | NUMBERS
        if isinstance(out, Integers):
            linked += [part for part in LAYING if part not in linked]
            constants |= out.constants | {"OWNED": owned}
        elif shape.kernel == "linear/skinny_gemm":
            linked.append("linear/epilogue/no_quantise")
        constants |= {"PADDED": int(any(width % 32 for width in widths))}
        if staged:
            linked += staged.parts
            constants |= staged.constants
        if shape.kernel == "linear/gemv_single_pass":
            constants["WIDTH"] = widths[0]
        if shape.kernel in TELLING:
            told = self._told_of(operands, shard.rows == products[0].stride, table.blocks, shape.block)
            linked.append("linear/row_statistics/emit" if told else "linear/row_statistics/no_emit")
            operands = operands | ({"statistics": told.moments} if told else {})
        reading, own, read = self._reading(norm, operands["x"], widths, shape)
        linked, constants, operands = [*linked, *reading], constants | own, operands | read
        self.record(
            name,
            (shape.kernel, *linked),
            constants,
            operands | words | table.operands,
            groups=table.blocks * t_blocks * parts,
            fixed_bytes=sum(o.nbytes for at, o in operands.items() if isinstance(o, Slice) and at != "shift_state"),
            row_flops=sum(2 * p.shard.rows * p.k for p in products),
            shared_bytes=shape.workgroup_bytes + (staged.nbytes if staged else 0),
        )

    def _format(self, shard: Shard, kernel: str, w: Operand) -> tuple[Sequence[str], dict[str, Operand]]:
        """The parts that decode W for a kernel, and what they bind beside it."""
        room = self.device.capabilities.max_storage_buffers >= WORDED_BUFFERS
        if not room or kernel not in WORDED or PICKED not in shard.parts:
            return shard.parts, {}
        return ["formats/words" if part == PICKED else part for part in shard.parts], {"words": w}

    def _reading(
        self, norm: Rms | LayerNorm | Mixing | None, x: Operand, widths: Sequence[int], shape: GemmConfig
    ) -> tuple[list[str], dict[str, Constant], dict[str, Operand]]:
        """What a kernel links, is specialised by, and binds, to read x: as it is, normed, or mixed."""
        parts = (
            ["linear/prologue/rms_norm" if isinstance(norm, Rms) else "linear/prologue/no_norm"]
            if shape.norms and not shape.reads_quantised
            else []
        )
        if isinstance(norm, Mixing):
            mixing, constants, operands = norm.mixing(self._told.get(norm.x))
            return [*parts, *mixing], constants, operands
        if isinstance(norm, LayerNorm):
            look, constants, operands = looking(self._told.get(x) if isinstance(x, Value) else None)
            constants |= {"D": widths[0], "EPS": float(norm.eps)}
            operands |= {"gain": self.vector(norm.weight), "shift": self.vector(norm.bias)}
            return [*parts, "linear/prologue/layer_norm", *look], constants, operands
        if not shape.reads_quantised:
            parts += [
                "linear/prologue/plain",
                "lib/rows/scalar" if any(width % 4 for width in widths) else "lib/rows/vec4",
            ]
        if norm is None:
            return parts, {}, {}
        return parts, {"EPS": float(norm.eps)}, {"gain": self.vector(norm.weight)}

    def _told_of(self, operands: Mapping[str, Operand], whole: bool, blocks: int, block: int) -> Told | None:
        """Where a dispatch tells moments of the row that it writes, if it adds to one that was mixed: so will it be."""
        y = operands["y"]
        if not isinstance(y, Value) or not (self.alone and self.tells and "shift_state" in operands):
            return None
        if not whole or blocks * block < y.shape[1]:
            return None
        self._told[y] = Told(Value((blocks, 2)), blocks, block)
        return self._told[y]


def owned_blocks(shape: GemmConfig, rows: int, out: int) -> int:
    """Blocks of rows of W, of which there are so many, side by side for a workgroup of linear_few."""
    blocks = -(-out // shape.block)
    return -(-blocks // min(blocks, max(1, shape.max_workgroups // -(-rows // shape.tb))))


def _outputs(out: str | Integers, operands: Mapping[str, Operand], rows: int) -> list[str]:
    """The parts of a kernel that say what becomes of a sum."""
    if isinstance(out, Integers):
        return ["linear/epilogue/quantise", "lib/activation"]
    parts = [f"linear/epilogue/{out}"]
    if out != "partial_sums":
        parts.append("lib/activation")
    if out == "rows":
        parts.append("linear/epilogue/bias" if "bias" in operands else "linear/epilogue/no_bias")
        kept = (
            ("residual_save_state" if rows == 1 else "residual_save_state_rows")
            if "shift_state" in operands
            else "residual"
        )
        parts.append(f"linear/epilogue/{kept}" if "residual" in operands else "linear/epilogue/no_residual")
    return parts


def _blocks(products: Sequence[Product], block: int, most: int = MANY) -> list[int]:
    """Workgroups for each matrix: one for each block of rows, or shares of as many as there may be at most."""
    each = [-(-p.shard.rows // block) for p in products]
    work = sum(count * p.k for count, p in zip(each, products, strict=True))
    return [min(count, max(1, round(most * count * p.k / work))) for count, p in zip(each, products, strict=True)]
