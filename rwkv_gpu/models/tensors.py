"""The tensors that a model takes from its file, by name and shape. Raises BadFile if the file disagrees."""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rwkv_gpu.errors import BadFile, UnsupportedModel

from ..gguf.file import GGUFFile, TensorInfo
from ..ops.vocabulary import Alternating, ComputedWeight, HeadRows, HeadSlice, RowRange, StackedVectors, Weight

EPS = 9e-13, 1e-2  # range of eps of norms; models have 1e-12 (rounded, in BERT) to 1e-5; 0 makes NaN of a row of zeros
FACTORS = "rope_freqs.weight"  # factors of RoPE frequencies
TOWERS = "v.", "a.", "mm."  # prefixes of tensors for images and sounds, which text does not need
RANK = 4  # the pooling type of models that score texts: `rank` of llama.cpp
CLASSIFIER = "cls."  # prefix of a classifier of texts, which runs on the host: see llm/pooling.py
OF_MATRICES, OF_ACTIVATIONS = ".scale", ".input_scale"  # scales of formats such as NVFP4: one number per matrix
LONGEST_CONTEXT = 1 << 30  # maximum positions that the metadata may give


class Tensors:
    """Checks each requested tensor and records it: only the tensors in `taken` are loaded."""

    def __init__(self, file: GGUFFile, elsewhere: tuple[str, ...] = TOWERS) -> None:
        self._file = file
        self._elsewhere = elsewhere  # prefixes of tensors that another part of the program uses
        self.taken: list[Weight] = []
        self._once: set[Weight] = set()
        self._skipped = {FACTORS}  # unused if no layer rotates
        pooling = f"{file.metadata.get('general.architecture')}.pooling_type"
        self.classified = file.metadata.get(pooling) == RANK  # whether the file may have a classifier

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def take(self, name: str, *shape: int) -> Weight:
        """The tensor of that name and shape; dimensions of size 1 are ignored.

        A matrix may have a scale in the file.
        """
        return self._taken_once(self._scaled(self._checked(name, shape)))

    def find(self, name: str, *shape: int) -> Weight | None:
        """The tensor of that name and shape; None if the file lacks it."""
        return self.take(name, *shape) if name in self else None

    def take_flat(self, name: str, *shape: int) -> Weight:
        """The tensor of that name and shape as one vector, for rows of a few numbers that a kernel reads whole."""
        self._checked(name, shape)
        return self._taken_once(Weight(name, (math.prod(shape),)))

    def join(
        self, name: str, width: int, *parts: str | tuple[str, int] | tuple[str, tuple[int, ...]]
    ) -> StackedVectors:
        """Tensors stacked as float32 [n, width]; each is one row, or (name, rows), or (name, its own shape)."""
        shapes = [(part, (width,)) if isinstance(part, str) else part for part in parts]
        weights = tuple(
            self._checked(part, (shape, width) if isinstance(shape, int) else shape) for part, shape in shapes
        )
        joined = StackedVectors(name, (sum(math.prod(weight.shape) for weight in weights) // width, width), weights)
        self.taken.append(joined)
        return joined

    def alternate(self, name: str, rows: int, width: int, *parts: str) -> Alternating:
        """Matrices of one shape and format with interleaved rows, [n · rows, width]."""
        return self.interleave(name, *(self._scaled(self._checked(part, (rows, width))) for part in parts))

    def interleave(self, name: str, *parts: Weight) -> Alternating:
        """One matrix in which the rows of these parts alternate."""
        rows, width = parts[0].shape
        alternating = Alternating(name, (len(parts) * rows, width), parts)
        self.taken.append(alternating)
        return alternating

    def split(self, name: str, width: int, *parts: tuple[str, int]) -> tuple[RowRange, ...]:
        """The rows of one matrix as several parts, each given as (name, rows). The parts are not loaded separately."""
        columns = (width,) if width else ()  # a vector has no columns
        whole = self._scaled(self._checked(name, (sum(rows for _, rows in parts), *columns)))
        firsts = itertools.accumulate((rows for _, rows in parts), initial=0)
        return tuple(
            RowRange(part, (rows, *columns), name, first, scale=whole.scale)
            for (part, rows), first in zip(parts, firsts, strict=False)
        )

    def first_row(self, name: str, rows: int, width: int) -> RowRange:
        """The first row of a matrix, as a vector."""
        self._checked(name, (rows, width))
        part = RowRange(f"{name}.0", (width,), name, 0)
        self.keep(part)
        return part

    def unstack(self, name: str, count: int, rows: int, width: int) -> tuple[RowRange, ...]:
        """The separate matrices [rows, width] of a tensor that stacks them."""
        self._checked(name, (count, rows, width))
        parts = tuple(RowRange(f"{name}.{i}", (rows, width), name, i * rows) for i in range(count))
        self.keep(*parts)
        return parts

    def keep(self, *weights: Weight) -> None:
        """Loads these parts as separate parameters."""
        self.taken.extend(weights)

    def slice_heads(self, name: str, whole: str, rows: HeadRows, width: int, *, flat: bool = False) -> HeadSlice:
        """Rows of each head of a matrix, [H, count, width], or transposed [H, width, count]; with `flat`, [H, n]."""
        part = self._checked(whole, (rows.heads * rows.each, width))
        last = (width, rows.count) if rows.transposed else (rows.count, width)
        part_of = HeadSlice(name, (rows.heads, *((math.prod(last),) if flat else last)), (part,), rows)
        self.taken.append(part_of)
        return part_of

    def rows_of_heads(self, name: str, whole: str | RowRange, rows: HeadRows, width: int, *more: HeadRows) -> HeadSlice:
        """The same rows as one matrix [H · count, width], followed by `more`.

        They are rows of a tensor, or of some of its rows.
        """
        shape = rows.heads * rows.each, width
        part: Weight = self._scaled(self._checked(whole, shape)) if isinstance(whole, str) else whole
        count = sum(each.heads * each.count * each.repeats for each in (rows, *more))
        part_of = HeadSlice(name, (count, width), (part,), rows, more, scale=part.scale)
        self.taken.append(part_of)
        return part_of

    def numbers_of_heads(self, name: str, whole: str | RowRange, rows: HeadRows) -> HeadSlice:
        """Numbers of each head of a vector, chosen by `rows`, as one vector."""
        part = self._checked(whole, (rows.heads * rows.each,)) if isinstance(whole, str) else whole
        part_of = HeadSlice(name, (rows.heads * rows.count * rows.repeats,), (part,), rows)
        self.taken.append(part_of)
        return part_of

    def compute(
        self, name: str, shape: tuple[int, ...], make: Callable[..., Any], *parts: tuple[str, tuple[int, ...]]
    ) -> ComputedWeight:
        """A parameter that `make` computes from the values of some tensors, each given as (name, shape)."""
        found = ComputedWeight(name, shape, tuple(self._checked(*part) for part in parts), make)
        self.taken.append(found)
        return found

    def same_format(self, *names: str) -> bool:
        """True if these tensors have the same format, and can be one matrix."""
        return not self.any_separate(*names) and len({self._info(name, "").type for name in names}) == 1

    def any_separate(self, *names: str) -> bool:
        """True if adapters require that one of these tensors stays a separate matrix."""
        return not self._file.separate.isdisjoint(names)

    def number(self, name: str, *, default: float) -> float:
        """The only number of a tensor."""
        if name not in self:
            return default
        self._checked(name, (1,))
        value = float(self._file.values(self._file.tensors[name])[0])
        if not math.isfinite(value):
            raise self.bad(f"tensor '{name}'", str(value), "a finite number")
        self.skip(name)
        return value

    def skip(self, *names: str) -> None:
        """Allows these tensors in the file: converters write them, but the model does not use them."""
        self._skipped.update(names)

    def skip_blocks(self, numbers: range) -> None:
        """Allows blocks that predict further tokens (MTP) in the file: they are not executed."""
        blocks = (re.match(r"blk\.(\d+)\.", name) for name in self._file.tensors)
        self.skip(*(block.string for block in blocks if block and int(block[1]) in numbers))

    def refuse_the_rest(self, inside: str = "") -> None:
        """Refuses a file with tensors that are neither taken nor skipped: without them the answers would be wrong.

        `inside` is the beginning of the names that are checked.
        """
        parts = (part for weight in self.taken for part in getattr(weight, "parts", ()))
        used = {getattr(weight, "source", weight.name) for weight in (*self.taken, *parts)}
        elsewhere = (*self._elsewhere, CLASSIFIER) if self.classified else self._elsewhere
        rest = {name for name in self._file.tensors if name.startswith(inside) and not name.startswith(elsewhere)}
        rest -= used | self._skipped
        rest = {name for name in rest if not name.endswith(OF_ACTIVATIONS) and not self._is_neutral(name)}
        scaled = sorted(name for name in rest if name.endswith(OF_MATRICES))
        if scaled and len(scaled) == len(rest):
            raise UnsupportedModel(
                f"{self._file.path}: tensor '{scaled[0]}': matrices that are scaled as a whole are not supported; "
                "take a file of another format"
            )
        if rest:
            arch = self._file.str("general.architecture")
            names = f"tensor '{min(rest)}'" + (f" and {len(rest) - 1} more" if len(rest) > 1 else "")
            raise UnsupportedModel(f"{self._file.path}: {names}: unknown in architecture '{arch}'; update rwkv-gpu")

    def _is_neutral(self, name: str) -> bool:
        """True if it is a scale that changes nothing."""
        if not name.endswith(OF_MATRICES):
            return False
        return bool((self._file.values(self._file.tensors[name]) == 1).all())

    def dimension(self, name: str, axis: int, dimensions: int = 2) -> int:
        """A size that only the tensor has, such as the rank of a LoRA or the vocabulary."""
        shape = self._info(name, "").shape
        if len(shape) != dimensions:
            raise self.bad(f"tensor '{name}'", f"the shape {list(shape)}", f"{dimensions} dimensions")
        return shape[axis]

    def dimensions(self, name: str) -> int:
        """The number of dimensions of a tensor that the file has."""
        return len(self._info(name, "a tensor").shape)

    def bad(self, what: str, found: str, expected: str) -> BadFile:
        """The error for a file whose metadata and tensors disagree."""
        return BadFile(f"{self._file.path}: {what}: found {found}, expected {expected}; convert the model again")

    def check_heads(self, size: int, step: int, largest: int) -> None:
        """Refuses head sizes that no kernel supports."""
        if not size or size % step or size > largest:
            known = f"multiples of {step} up to {largest}"
            raise UnsupportedModel(f"{self._file.path}: heads of size {size} are not supported; known: {known}")

    def check_divides(self, key: str, found: int, of: int, what: str = "heads") -> None:
        """Refuses a number of the metadata that does not divide another."""
        if of % found:
            raise self.bad(f"metadata key '{key}'", str(found), f"a divisor of the {of} {what}")

    def _taken_once(self, weight: Weight) -> Weight:
        """Takes a weight once, even if several parts of a model use it, such as a norm before two branches."""
        if weight not in self._once:
            self._once.add(weight)
            self.taken.append(weight)
        return weight

    def _checked(self, name: str, shape: Sequence[int]) -> Weight:
        self._file.require(name, shape)
        info = self._info(name, f" of shape {list(shape)}")
        if _without_ones(info.shape) != _without_ones(shape):
            raise self.bad(f"tensor '{name}'", f"the shape {list(info.shape)}", str(list(shape)))
        _ = info.format  # raises an error if no kernel reads the format
        return Weight(name, tuple(shape))

    def _scaled(self, weight: Weight) -> Weight:
        """The weight with its scale in the file, if it is a matrix with a scale, as in NVFP4."""
        name = weight.name.removesuffix(".weight") + OF_MATRICES
        if len(weight.shape) != 2 or name not in self or _without_ones(self._info(name, "").shape):
            return weight
        return replace(weight, scale=self.number(name, default=1.0))

    def _info(self, name: str, expected: str) -> TensorInfo:
        if name not in self._file.tensors:
            raise self.bad(f"tensor '{name}'", "no such tensor", f"one{expected}")
        return self._file.tensors[name]


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
