"""Writes a checkpoint as GGUF, in 16 bits or quantised in the same pass. Reads and writes one tensor at a time."""

import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf

from ..errors import BadFile, BadInput, UnsupportedModel, printable
from ..gguf.file import GGUFFile
from ..gguf.formats import Format
from ..gguf.header import Described, Value, aligned, write_header
from ..gguf.mixes import BY_NAME, FLOATS, Mix, formats_of, mix_of
from ..gguf.quantise import quantise_rows
from ..gguf.requantise import CHUNK, Progress, type_keys, write_model
from ..gguf.scan import TensorInfo
from ..models.registry import load_model
from .checkpoint import Checkpoint, open_checkpoint
from .planned import Plan, Planned
from .rwkv import LAYOUTS, layout_of, plan_rwkv
from .world import TEMPLATE

# Matrices that stay float32, as llama.cpp has it.
FLOAT32 = re.compile(r"_norm\.weight$|time_mix_(?:first|w[12]|decay_w[12]|lerp_fused)\.|(?<!\.weight)$")


def convert(
    source: Path, target: Path, kind: str = "", template: str = TEMPLATE, progress: Progress | None = None
) -> dict[str, Format]:
    """Writes `target`; returns the format of each tensor. The default is the 16-bit float nearest to the checkpoint."""
    checkpoint = open_checkpoint(source)
    if target.exists() and any(target.samefile(tensor.path) for tensor in checkpoint.tensors.values()):
        raise BadInput(f"{printable(str(target))} is the checkpoint itself; give another name")
    plan = _plan(checkpoint, template)
    mix = mix_of(kind or _floats(checkpoint))
    described = _described(plan.tensors, mix, _floats(checkpoint))
    header = write_header({**_general(plan, source), **plan.metadata, **type_keys(mix)}, described)
    _check(header, described, source)
    contents = (_written(tensor, new.format) for tensor, new in zip(plan.tensors, described, strict=True))
    write_model(target, header, described, contents, [one.nbytes for one in described], progress)
    return {one.name: one.format for one in described}


def _plan(checkpoint: Checkpoint, template: str) -> Plan:
    """The contents of the file for a checkpoint."""
    path = printable(str(checkpoint.path))
    layout = layout_of(checkpoint.tensors)
    if layout is None:
        found = checkpoint.config.get("architectures") or checkpoint.config.get("model_type") or "unknown tensors"
        known = ", ".join(sorted({layout.architecture for layout in LAYOUTS}))
        raise UnsupportedModel(
            f"{path}: {printable(str(found), 60)} cannot be converted; known: {known}; for others, take "
            "llama.cpp's convert_hf_to_gguf.py"
        )
    return plan_rwkv(layout, checkpoint.tensors, path, template)


def _floats(checkpoint: Checkpoint) -> str:
    """The 16-bit float type that is nearest to the type of the checkpoint."""
    return "BF16" if next(iter(checkpoint.tensors.values())).type == "BF16" else "F16"


def _described(tensors: Sequence[Planned], mix: Mix, floats: str) -> list[Described]:
    """Each tensor with its format: a float type, or the choice of the mix."""
    wide = BY_NAME[mix.base if mix.base in FLOATS else floats]
    infos = []
    for tensor in tensors:
        fmt = BY_NAME["F32"] if len(tensor.shape) < 2 or FLOAT32.search(tensor.name) else wide
        infos.append(TensorInfo(tensor.name, fmt.type, tensor.shape, 0, 0, 0))
    if mix.base in FLOATS:
        return [Described(one.name, one.shape, one.format) for one in infos]
    formats = formats_of(mix, infos)
    return [Described(one.name, one.shape, formats[one.name]) for one in infos]


def _general(plan: Plan, source: Path) -> dict[str, Value]:
    """General metadata. The name of the model is that of the file or folder."""
    total = sum(math.prod(tensor.shape) for tensor in plan.tensors)
    name = source.name if source.is_dir() else source.stem
    return {
        "general.architecture": plan.architecture,
        "general.type": "model",
        "general.name": printable(name) or "model",
        "general.size_label": gguf.size_label(total, total, 0, 0),
    }


def _check(header: bytes, tensors: Sequence[Described], source: Path) -> None:
    """Lets the model's loader check names and shapes, with a file that has no weights yet."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.gguf"
        with open(trial, "wb") as out:
            out.write(header)
            out.truncate(len(header) + sum(aligned(one.nbytes) for one in tensors))
        try:
            with GGUFFile.open(trial) as file:
                load_model(file)
        except (BadFile, UnsupportedModel) as error:
            what = str(error).replace(str(trial), printable(str(source)))
            raise type(error)(what) from None


def _written(tensor: Planned, fmt: Format) -> Iterator[bytes]:
    """The bytes of a tensor in a format, some rows at a time."""
    values = tensor.values()
    rows = values.reshape(-1, values.shape[-1])
    step = max(1, CHUNK // rows.shape[-1])
    for start in range(0, len(rows), step):
        yield quantise_rows(fmt, rows[start : start + step]).tobytes()
