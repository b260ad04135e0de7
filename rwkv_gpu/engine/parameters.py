"""Which tensors of a file make up the parameters of a model, and the format of each."""

from ..gguf.file import GGUFFile, TensorInfo
from ..gguf.formats import Format
from ..gpu.loader import Parameter, common_float_format
from ..gpu.weights import BY_NAME
from ..models.registry import Model
from ..ops.vocabulary import Alternating, Joined, RowRange, Weight

FLOATS = ("F32", "F16", "BF16")


def parameters_of(file: GGUFFile, model: Model) -> list[Parameter]:
    """What to load, in the model's own order.

    Vectors are float32, as kernels read them whole. The float matrices of one block share the smallest format that
    holds them all without loss, so that one dispatch can read them together; not where there are experts, since these
    are most of the model and a float32 router would widen them all.
    """
    expert_blocks = {_block(weight.name) for weight in model.weights if len(weight.shape) > 2}
    floats: dict[str, list[Weight]] = {}
    for weight in model.weights:
        if _block(weight.name) in expert_blocks or isinstance(weight, Joined | Alternating):
            continue
        if _is_float_matrix(file, weight):
            floats.setdefault(_block(weight.name), []).append(weight)
    formats: dict[str, Format] = {}
    for weights in floats.values():
        common = common_float_format(file, [_tensor(file, weight) for weight in weights])
        formats.update({weight.name: common for weight in weights})
    return [_parameter(file, weight, formats) for weight in model.weights]


def _parameter(file: GGUFFile, weight: Weight, formats: dict[str, Format]) -> Parameter:
    if isinstance(weight, Joined):
        return Parameter(weight.name, weight.shape, tuple(_tensor(file, p) for p in weight.parts), BY_NAME["F32"])
    if isinstance(weight, Alternating):
        tensors = tuple(_tensor(file, part) for part in weight.parts)
        return Parameter(weight.name, weight.shape, tensors, tensors[0].format, alternate=True)
    tensor = _tensor(file, weight)
    kept = BY_NAME["F32"] if len(weight.shape) == 1 else formats.get(weight.name, tensor.format)
    return Parameter(weight.name, weight.shape, (tensor,), kept)


def _tensor(file: GGUFFile, weight: Weight) -> TensorInfo:
    """Where a parameter lies in the file."""
    if isinstance(weight, RowRange):
        return file.tensors[weight.source].rows(weight.first, weight.shape[0])
    return file.tensors[weight.name]


def _is_float_matrix(file: GGUFFile, weight: Weight) -> bool:
    return len(weight.shape) > 1 and _tensor(file, weight).format.name in FLOATS


def _block(name: str) -> str:
    """`blk.3` of `blk.3.ffn_key.weight`; what is in no block is alone."""
    return ".".join(name.split(".")[:2]) if name.startswith("blk.") else name
