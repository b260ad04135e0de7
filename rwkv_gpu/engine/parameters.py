"""Determines which tensors of a file are the parameters of a model, and the format of each."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile, TensorInfo
from ..gguf.formats import Format
from ..gguf.planes import dequantise_rows
from ..gpu.loader import Parameter, block_of, common_float_format, convert
from ..gpu.weights import BY_NAME
from ..models.registry import Contents
from ..ops.vocabulary import Alternating, ComputedWeight, HeadRows, HeadSlice, RowRange, StackedVectors, Weight

FLOATS = ("F32", "F16", "BF16")
OWN_FORMAT = StackedVectors | Alternating | HeadSlice | ComputedWeight


def parameters_of(file: GGUFFile, model: Contents) -> list[Parameter]:
    """Returns the parameters to load, in the model's order.

    Vectors are float32, since kernels read them whole. The float matrices of one block share the smallest format that
    holds all of them without loss, so that one dispatch can read them together. This does not apply to blocks with
    experts, which are most of the model, and which a float32 router would widen.
    """
    expert_blocks = {block_of(weight.name) for weight in model.weights if len(weight.shape) > 2}
    floats: dict[str, list[Weight]] = {}
    for weight in model.weights:
        if block_of(weight.name) in expert_blocks or isinstance(weight, OWN_FORMAT):
            continue
        if _is_float_matrix(file, weight):
            floats.setdefault(block_of(weight.name), []).append(weight)
    formats: dict[str, Format] = {}
    for weights in floats.values():
        common = common_float_format(file, [_tensor(file, weight) for weight in weights])
        formats.update({weight.name: common for weight in weights})
    return [_parameter(file, weight, formats) for weight in model.weights]


def _parameter(file: GGUFFile, weight: Weight, formats: dict[str, Format]) -> Parameter:
    if isinstance(weight, StackedVectors):
        tensors = tuple(_tensor(file, part) for part in weight.parts)
        return Parameter(weight.name, weight.shape, tensors, BY_NAME["F32"], whole=True)
    if isinstance(weight, Alternating):
        tensors = tuple(_tensor(file, part) for part in weight.parts)
        return Parameter(weight.name, weight.shape, tensors, tensors[0].format, alternate=True)
    if isinstance(weight, HeadSlice):
        tensor = _tensor(file, weight.parts[0])
        turned = BY_NAME[tensor.format.name if tensor.format.name in FLOATS else "F16"]
        fmt = turned if weight.rows.transposed else tensor.format
        part = partial(_rows_of_heads, (weight.rows, *weight.more), tensor.format, fmt)
        return Parameter(weight.name, weight.shape, (tensor,), fmt, part=part)
    if isinstance(weight, ComputedWeight):
        tensors = tuple(_tensor(file, part) for part in weight.parts)
        part = partial(_computed, weight, tuple(tensor.format for tensor in tensors))
        return Parameter(weight.name, weight.shape, tensors, BY_NAME["F32"], part=part)
    tensor = _tensor(file, weight)
    kept = BY_NAME["F32"] if len(weight.shape) == 1 else formats.get(weight.name, tensor.format)
    return Parameter(weight.name, weight.shape, (tensor,), kept)


def _tensor(file: GGUFFile, weight: Weight) -> TensorInfo:
    """The tensor of a parameter in the file."""
    if isinstance(weight, RowRange):
        source = file.tensors[weight.source]
        return source.rows(weight.first, source.rows_in(weight.shape))
    return file.tensors[weight.name]


def _rows_of_heads(
    every: Sequence[HeadRows], source: Format, target: Format, raw: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Selects rows of each head of a matrix, one selection after the other."""
    return np.concatenate([_chosen_rows(rows, source, target, raw) for rows in every])


def _chosen_rows(rows: HeadRows, source: Format, target: Format, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Applies one selection. Columns of quantised rows cross block boundaries, so they are converted to floats."""
    chosen = raw.reshape(rows.heads, rows.each, -1)[:, rows.first : rows.first + rows.count]
    chosen = np.repeat(chosen.reshape(rows.heads * rows.count, -1), rows.repeats, axis=0)
    if not rows.transposed:
        return chosen
    values = dequantise_rows(source, chosen).reshape(rows.heads, rows.count, -1).transpose(0, 2, 1)
    turned = np.ascontiguousarray(values, np.float32).reshape(-1, rows.count)
    return convert(turned.view(np.uint8), BY_NAME["F32"], target)


def _computed(weight: ComputedWeight, formats: Sequence[Format], *raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The values of a parameter that is computed from the rows of some tensors."""
    values = map(dequantise_rows, formats, raw)
    each = (rows.reshape(part.shape) for rows, part in zip(values, weight.parts, strict=True))
    return np.ascontiguousarray(weight.make(*each), np.float32).reshape(-1).view(np.uint8)


def _is_float_matrix(file: GGUFFile, weight: Weight) -> bool:
    return len(weight.shape) > 1 and _tensor(file, weight).format.name in FLOATS
