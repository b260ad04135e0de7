"""Which tensors of a file make up the parameters of a model, and the format of each."""

from ..gguf.file import GGUFFile
from ..gguf.formats import Format
from ..gpu.loader import Parameter, common_float_format
from ..gpu.weights import BY_NAME
from ..models.registry import Model
from ..ops.vocabulary import Alternating, Joined, Weight

FLOATS = ("F32", "F16", "BF16")


def parameters_of(file: GGUFFile, model: Model) -> list[Parameter]:
    """What to load, in the model's own order.

    Vectors are float32, as kernels read them whole. The float matrices of one block share the smallest format that
    holds them all without loss, so that one dispatch can read them together; not where there are experts, since these
    are most of the model and a float32 router would widen them all.
    """
    expert_blocks = {_block(weight.name) for weight in model.weights if len(weight.shape) > 2}
    floats: dict[str, list[str]] = {}
    for weight in model.weights:
        if _block(weight.name) in expert_blocks or isinstance(weight, Joined | Alternating):
            continue
        if _is_float_matrix(file, weight):
            floats.setdefault(_block(weight.name), []).append(weight.name)
    formats: dict[str, Format] = {}
    for names in floats.values():
        common = common_float_format(file, [file.tensors[name] for name in names])
        formats.update(dict.fromkeys(names, common))
    return [_parameter(file, weight, formats) for weight in model.weights]


def _parameter(file: GGUFFile, weight: Weight, formats: dict[str, Format]) -> Parameter:
    if isinstance(weight, Joined):
        return Parameter(weight.name, weight.shape, tuple(file.tensors[p.name] for p in weight.parts), BY_NAME["F32"])
    if isinstance(weight, Alternating):
        tensors = tuple(file.tensors[part.name] for part in weight.parts)
        return Parameter(weight.name, weight.shape, tensors, tensors[0].format, alternate=True)
    tensor = file.tensors[weight.name]
    kept = BY_NAME["F32"] if len(weight.shape) == 1 else formats.get(weight.name, tensor.format)
    return Parameter(weight.name, weight.shape, (tensor,), kept)


def _is_float_matrix(file: GGUFFile, weight: Weight) -> bool:
    return len(weight.shape) > 1 and file.tensors[weight.name].format.name in FLOATS


def _block(name: str) -> str:
    """`blk.3` of `blk.3.ffn_key.weight`; what is in no block is alone."""
    return ".".join(name.split(".")[:2]) if name.startswith("blk.") else name
