"""LoRA adapters in GGUF files: read, checked against the model, and combined for all rows of a step."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, BadInput, printable
from ..gguf.file import GGUFFile, TensorInfo
from ..gpu.device import Buffer, Device
from ..gpu.weights import BY_NAME, Tensor, Weights, place_together, upload_together
from ..models.registry import Model
from ..ops.adapted import LowRank, adapted_rows
from ..ops.vocabulary import Alternating, Weight

Array = npt.NDArray[np.float32]
ENDS = ".lora_a", ".lora_b"
FOURS = 4  # columns that kernels read at a time
MAX_ALTERNATING = 512  # most columns if gate and up are one matrix: B then takes 59 MB; any device binds 128 MB
MAX_CHANGE = 2.0**14  # maximum change of a weight; more would not fit float16
MAX_SCALE = 1000.0
MAX_RANK = 1 << 14
MAX_ALPHA = 1e6
TABLE = "token_embd.weight"
TYPES = "token_types.weight"  # one of its rows is added to every token
# Names of tensors that an adapter cannot change, as a step does not multiply its rows by them.
NOT_PRODUCTS = re.compile(r"gate_up_exps|conv|norm|per_layer_token_embd|position_embd")
EXPERTS = "_exps.weight"
# Families whose experts scale their inputs.
OTHER_EXPERTS = ("llama4",)


@dataclass(frozen=True)
class Adapter:
    """A LoRA file: the matrix B A · alpha / rank that it adds to each matrix, by name."""

    name: str
    scale: float  # default scale
    rank: int  # number of columns: the maximum of its factors' ranks, rounded up to a multiple of four
    # A [r, K], B [M, r] including alpha / r; for a table A [r, V], B [D, r]; for experts A [E, r, K], B [E, M, r]
    factors: Mapping[str, tuple[Array, Array]]

    @classmethod
    def read(cls, path: Path, scale: float, model: GGUFFile) -> "Adapter":
        """Reads a file and checks it against the model, before anything is loaded."""
        if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
            raise BadInput(f"{path}: the scale of a LoRA adapter is {scale}; it must be from -1000 to 1000")
        with GGUFFile.open(path) as file:
            if kind_of(file) != "lora":
                raise BadInput(f"{path}: is not a LoRA adapter; `rwkv-gpu convert` writes one from a folder of PEFT")
            wanted, own = (printable(f.str("general.architecture"), 60) for f in (model, file))
            if own != wanted:
                raise BadInput(f"{path}: is an adapter for '{own}', and the model is '{wanted}'; use another adapter")
            if "adapter.alora.invocation_tokens" in file.metadata:
                raise BadInput(
                    f"{path}: is active after certain tokens only (aLoRA), which is not supported; train a LoRA"
                )
            alpha = file.float("adapter.lora.alpha", -MAX_ALPHA, MAX_ALPHA, default=0.0)
            names = sorted({name.removesuffix(end) for name in file.tensors for end in ENDS if name.endswith(end)})
            odd = [name for name in file.tensors if not name.endswith(ENDS)]
            if odd or not names:
                what = f"tensor {odd[0]!r} is not a factor" if odd else "has no factors"
                raise BadFile(f"{path}: {what} of a LoRA adapter; train one without whole tensors (modules_to_save)")
            factors = {name: _pair(path, file, name, model, alpha) for name in names}
        rank = max(b.shape[-1] for _, b in factors.values())
        return cls(path.stem, scale, -(-rank // FOURS) * FOURS, factors)


def kind_of(file: GGUFFile) -> str:
    """The kind of an adapter file, `lora` or `state`; empty for other files."""
    is_adapter = file.str("general.type", default="") == "adapter"
    return file.str("adapter.type", default="") if is_adapter else ""


def _pair(path: Path, file: GGUFFile, name: str, model: GGUFFile, alpha: float) -> tuple[Array, Array]:
    """The two factors for a matrix."""
    for end in ENDS:
        if name + end not in file.tensors:
            raise BadFile(f"{path}: has no tensor '{name}{end}'; convert the adapter again")
    if name not in model.tensors:
        raise BadInput(
            f"{path}: adapts '{name}', which is not a matrix of this model; use an adapter that was made for it"
        )
    part = name.removesuffix(".weight").rpartition(".")[2]
    if NOT_PRODUCTS.search(part):
        raise BadInput(
            f"{path}: adapts '{name}', but adapters of convolutions, norms, experts whose gate and up are one "
            "matrix, and position embeddings are not supported; train one without"
        )
    if name.endswith(EXPERTS) and model.str("general.architecture") in OTHER_EXPERTS:
        raise BadInput(
            f"{path}: adapts '{name}', but experts of this family cannot be adapted; train an adapter without them"
        )
    stored = [file.tensors[name + end] for end in ENDS]
    of_a, of_b = (one.shape if len(one.shape) > 1 else (1, *one.shape) for one in stored)
    shape = model.tensors[name].shape
    *experts, rows, columns = shape if len(shape) > 1 else (1, *shape)  # the gate of a shared expert is a vector
    if name == TABLE:  # converters store A in the order of token ids
        of_a, rows, columns = of_a[::-1], columns, rows
    rank = of_b[-1]
    if experts and len(of_a) == 3 and of_a[0] < experts[0]:
        raise BadInput(
            f"{path}: adapts {of_a[0]} of the {experts[0]} experts of '{name}'; train one for all of them, or for none"
        )
    if of_a != (*experts, rank, columns) or of_b != (*experts, rows, rank) or rank > MAX_RANK:
        raise BadInput(
            f"{path}: '{name}' has factors {list(of_a)} and {list(of_b)}, but the matrix is "
            f"{[*experts, rows, columns]}; use an adapter that was made for this model"
        )
    a, b = (_floats(file, one) for one in stored)  # read after the checks, as a wrong file may be huge
    a = a.T if name == TABLE else a
    b = b * np.float32(alpha / rank) if alpha else b
    if float(np.abs(a).max()) * float(np.abs(b).max()) > MAX_CHANGE:
        raise BadInput(f"{path}: '{name}' has factors whose products exceed 16,384; train the adapter again")
    return a, b


def _floats(file: GGUFFile, tensor: TensorInfo) -> Array:
    values: Array = file.values(tensor) if len(tensor.shape) > 1 else file.values(tensor)[None]
    if not np.isfinite(values).all():
        raise BadFile(f"{file.path}: tensor '{tensor.name}' holds NaN or infinity; convert the adapter again")
    return values


class Adapters:
    """All adapters of a model, each in its own columns."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self.adapters = tuple(adapters)
        names = [one.name for one in adapters]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadInput(f"two LoRA adapters have the name {twice}; rename one of the files")
        self.rank = sum(one.rank for one in adapters)  # total columns

    @property
    def separate(self) -> frozenset[str]:
        """Names of the matrices that cannot share a dispatch with others."""
        return self.names if self.rank > MAX_ALTERNATING else frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Matrices that any of the adapters changes."""
        return frozenset(name for one in self.adapters for name in one.factors)

    def digest(self) -> str:
        """Identifies the adapters: a state belongs to the adapters that it was computed with."""
        digest = sha256(self.scales().tobytes())
        for adapter in self.adapters:
            for name, factors in sorted(adapter.factors.items()):
                digest.update(repr((name, [one.shape for one in factors])).encode())
                for factor in factors:
                    digest.update(np.ascontiguousarray(factor).tobytes())
        return digest.hexdigest()

    def scales(self, wanted: Mapping[str, float] | None = None) -> Array:
        """The scale of each adapter column for one row. Adapters not in `wanted` get 0.

        None means the scales at load. [R]
        """
        known = [one.name for one in self.adapters]
        for name in wanted or ():
            if name not in known:
                raise BadInput(f"lora names {name!r}; loaded: {', '.join(known) or 'none'}")
        each = [one.scale if wanted is None else wanted.get(one.name, 0.0) for one in self.adapters]
        return np.repeat(np.array(each, np.float32), [one.rank for one in self.adapters])

    def family(self, scales: Array) -> int:
        """A 40-bit number for these scales; 0 for the scales at loading."""
        if np.array_equal(scales, self.scales()):
            return 0
        return int.from_bytes(sha256(scales.tobytes()).digest()[:5], "big") or 1

    def factors(self, model: Model) -> tuple[dict[str, LowRank], dict[str, Array]]:
        """Returns the factors by weight name, and their values by factor name."""
        factors: dict[str, LowRank] = {}
        values: dict[str, Array] = {}
        found = set()
        for weight in model.weights:
            parts = weight.parts if isinstance(weight, Alternating) else (weight,)
            sources = [adapted_rows(part) for part in parts]
            own = {name for name, _ in sources if name in self.names and fits(weight, name)}
            if own:
                found |= own
                *arrays, b = self._arrays(weight, sources)
                ends = "lora_a", "lora_a2"
                first, *others = (
                    Weight(f"{weight.name}.{end}", one.shape) for end, one in zip(ends, arrays, strict=False)
                )
                rows = Weight(f"{weight.name}.lora_b", b.shape)
                factors[weight.name] = LowRank(first, rows, next(iter(others), None), weight.name == TABLE)
                values |= dict(zip((one.name for one in (first, *others, rows)), (*arrays, b), strict=True))
        missing = self.names - found
        if missing:
            raise BadInput(f"a LoRA adapter adapts '{min(missing)}', which this model uses as a part of another matrix")
        return factors, values

    def _arrays(self, weight: Weight, sources: Sequence[tuple[str, Sequence[int]]]) -> list[Array]:
        """A for each matrix that is part of a weight, and the rows of B in the order of the weight's rows."""
        *experts, count, width = weight.shape if len(weight.shape) > 1 else (*weight.shape, 1)
        if weight.name == TABLE:
            a, b = self._joined(TABLE, (), range(width), count)
            return [np.ascontiguousarray(a.T), b]
        if sources[0][0] == TYPES:
            a, b = self._joined(TYPES, (), sources[0][1], count)
            return [a, np.ascontiguousarray((a * b.T).T)]
        pairs = [self._joined(name, tuple(experts), range(count) if experts else rows, width) for name, rows in sources]
        return [*(a for a, _ in pairs), np.stack([b for _, b in pairs], -2).reshape(*experts, count, -1)]

    def _joined(self, name: str, experts: tuple[int, ...], rows: Sequence[int], width: int) -> tuple[Array, Array]:
        """A [R, K] and rows of B [M, R] of all adapters, or of all experts; zeros for adapters without this matrix."""
        a = np.zeros((*experts, self.rank, width), np.float32)
        b = np.zeros((*experts, len(rows), self.rank), np.float32)
        at = 0
        for adapter in self.adapters:
            if name in adapter.factors:
                own_a, own_b = balanced(*adapter.factors[name])
                rank = own_b.shape[-1]
                a[..., at : at + rank, :] = own_a
                b[..., at : at + rank] = own_b if experts else own_b[rows]
            at += adapter.rank
        return a, b


def fits(weight: Weight, name: str) -> bool:
    """True if factors of this name can adapt a weight: a matrix, one matrix per expert, or a row of a matrix."""
    return name == TYPES or len(weight.shape) == 2 + name.endswith(EXPERTS)


def balanced(a: Array, b: Array) -> tuple[Array, Array]:
    """Rescales two factors to similar magnitudes, so that both fit float16; the product is unchanged."""
    largest = float(np.abs(a).max()), float(np.abs(b).max())
    if not all(largest):
        return np.zeros_like(a), np.zeros_like(b)
    shift = round((math.log2(largest[1]) - math.log2(largest[0])) / 2)
    return np.ldexp(a, shift), np.ldexp(b, -shift)


NO_ADAPTERS = Adapters(())


def adapters_of(specs: Any, model: GGUFFile, find: Callable[[str | Path], Path] = Path) -> Adapters:
    """Reads the adapters for `load`: paths, or pairs of path and scale; `find` locates the file of a name."""
    if specs is not None and not isinstance(specs, str | Path | list | tuple):
        raise BadInput(f"lora is {specs!r}; it must be a path, or a list of paths or of pairs of a path and a scale")
    several = [specs] if isinstance(specs, str | Path) else list(specs or ())
    read = []
    for spec in several:
        path, scale = spec if isinstance(spec, tuple) and len(spec) == 2 else (spec, 1.0)
        if not isinstance(path, str | Path) or isinstance(scale, bool) or not isinstance(scale, int | float):
            raise BadInput(f"lora holds {spec!r}; it must be paths, or pairs of a path and a scale")
        read.append(Adapter.read(find(path), float(scale), model))
    return Adapters(read)


def upload_factors(device: Device, weights: Weights, values: Mapping[str, Array]) -> None:
    """Uploads factors next to a model's parameters.

    Factors of one block are contiguous: a dispatch can read several.
    """
    for block in _blocks(values):
        for name, weight in upload_together(device, block).items():
            weights.add(name, weight)


def place_factors(
    device: Device, weights: Weights, values: Mapping[str, Array], allocate: Callable[[int], Buffer]
) -> None:
    """Like `upload_factors`, into allocated or placeholder buffers, without writing."""
    for block in _blocks(values):
        for name, weight in place_together(device, block, allocate).items():
            weights.add(name, weight)


def _blocks(values: Mapping[str, Array]) -> Iterator[dict[str, Tensor]]:
    """Yields the factors block by block, as bytes."""
    blocks: dict[str, dict[str, Tensor]] = {}
    for name, array in values.items():
        block = blocks.setdefault(".".join(name.split(".")[:2]), {})
        rows = array.reshape(-1, array.shape[-1])  # rows of all experts
        block[name] = BY_NAME["F16"], rows.astype(np.float16).view(np.uint8), array.shape
    return iter(blocks.values())
