"""Writes a checkpoint as GGUF, in 16 bits or quantised in the same pass. Reads and writes one tensor at a time."""

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import gguf

from ..errors import BadFile, BadInput, UnsupportedModel, printable
from ..gguf.file import GGUFFile
from ..gguf.formats import Format
from ..gguf.header import TensorDescription, Value, aligned, write_header
from ..gguf.mixes import BY_NAME, FLOATS, Mix, formats_of, mix_of
from ..gguf.quantise import quantise_rows
from ..gguf.requantise import CHUNK, Progress, type_keys, write_model
from ..gguf.scan import TensorInfo
from ..models.registry import load_model
from ..writer_lock import WriterLock
from .card import card_keys
from .checkpoint import Checkpoint, open_checkpoint
from .families import FAMILIES, architecture_of, family_of
from .folder import plan_folder
from .lora import plan_adapter
from .planned import Plan, Planned
from .rwkv import layout_of, plan_rwkv
from .world import TEMPLATE

# Matrices that stay float32, as in llama.cpp.
FLOAT32 = re.compile(
    r"_norm\.weight$|time_mix_(?:first|w[12]|decay_w[12]|lerp_fused)\.|ffn_gate_inp(?:_shexp)?\.|(?:position_embd|token_types)\."
    r"|(?:ssm_conv1d|shortconv\.conv)\.|(?<!\.weight)(?<!\.lora_[ab])$"
)


def convert(
    source: Path,
    target: Path,
    kind: str = "",
    template: str = "",
    progress: Progress | None = None,
    base: Path | None = None,
    lock: WriterLock | None = None,
) -> dict[str, Format]:
    """Writes `target`; returns the format of each tensor. The default is the checkpoint's type of 16-bit floats.

    `base` is the folder of the model that an adapter was trained on. Adapters are written in F32 by default. `lock` is
    that of a caller who has already locked `target`.
    """
    checkpoint = open_checkpoint(source)
    if target.exists() and any(target.samefile(tensor.path) for tensor in checkpoint.tensors.values()):
        raise BadInput(f"{printable(str(target))} is the checkpoint itself; give another name")
    plan = plan_adapter(checkpoint, base) if checkpoint.adapter else _plan(checkpoint, template)
    mix = mix_of(kind or default_type(checkpoint))
    if plan.adapter and mix.base not in FLOATS:
        raise BadInput(f"an adapter cannot be written as {mix.base}; known: {', '.join(FLOATS)}")
    described = _described(plan.tensors, mix, _floats(checkpoint))
    header = _header({**_general(plan, source), **plan.metadata, **_type_keys(plan, mix)}, described, source)
    if not plan.adapter:
        _check(header, described, plan.tensors, source)
    contents = (_written(tensor, new.format) for tensor, new in zip(plan.tensors, described, strict=True))
    write_model(target, header, described, contents, [one.nbytes for one in described], progress, lock)
    return {one.name: one.format for one in described}


def _plan(checkpoint: Checkpoint, template: str) -> Plan:
    """The contents of the file for a checkpoint."""
    path = printable(str(checkpoint.path))
    if (layout := layout_of(checkpoint.tensors)) is not None:
        return plan_rwkv(layout, checkpoint.tensors, path, template or TEMPLATE, checkpoint.halved_every)
    if (family := family_of(checkpoint)) is not None:
        plan = plan_folder(family, checkpoint)
        own: dict[str, Value] = {"tokenizer.chat_template": template} if template else {}
        return replace(plan, metadata=plan.metadata | own)
    found = architecture_of(checkpoint.config) or checkpoint.config.get("model_type") or "unknown tensors"
    known = ", ".join(["RWKV-4 to RWKV-7", *FAMILIES])
    raise UnsupportedModel(
        f"{path}: {printable(str(found), 60)} cannot be converted; known: {known}; for others, take "
        "llama.cpp's convert_hf_to_gguf.py"
    )


def default_type(checkpoint: Checkpoint) -> str:
    """The type of a file if none is requested."""
    return "F32" if checkpoint.adapter else _floats(checkpoint)


def _floats(checkpoint: Checkpoint) -> str:
    """The 16-bit float type of the checkpoint's first matrix of 16 bits; F16 if it has none."""
    types = (one.type for one in checkpoint.tensors.values() if len(one.shape) > 1)
    return next((kind for kind in types if kind in ("F16", "BF16")), "F16")


def _type_keys(plan: Plan, mix: Mix) -> dict[str, Value]:
    return {key: value for key, value in type_keys(mix).items() if not plan.adapter or key != "general.file_type"}


def _header(metadata: Mapping[str, Value], tensors: Sequence[TensorDescription], source: Path) -> bytes:
    try:
        return write_header(metadata, tensors)
    except UnicodeEncodeError:
        raise BadFile(f"{printable(str(source))}: has a text that is not Unicode; download it again") from None


def _described(tensors: Sequence[Planned], mix: Mix, floats: str) -> list[TensorDescription]:
    """Each tensor with its format: a float type, or the choice of the mix."""
    wide = BY_NAME[mix.base if mix.base in FLOATS else floats]
    infos = []
    for tensor in tensors:
        fmt = BY_NAME["F32"] if len(tensor.shape) < 2 or FLOAT32.search(tensor.name) else wide
        infos.append(TensorInfo(tensor.name, fmt.type, tensor.shape, 0, 0, 0))
    if mix.base in FLOATS:
        return [TensorDescription(one.name, one.shape, one.format) for one in infos]
    formats = formats_of(mix, infos)
    return [TensorDescription(one.name, one.shape, formats[one.name]) for one in infos]


def _general(plan: Plan, source: Path) -> dict[str, Value]:
    """General metadata. A model from a single file is named after that file."""
    kind: dict[str, Value] = {"general.architecture": plan.architecture, "general.type": "model"}
    if plan.adapter:
        return kind | card_keys(source, plan.tensors, adapter=True) | {"general.type": "adapter"}
    if source.is_dir():
        return kind | card_keys(source, plan.tensors)
    total = sum(math.prod(tensor.shape) for tensor in plan.tensors)
    name = printable(source.stem) or "model"
    return kind | {"general.name": name, "general.size_label": gguf.size_label(total, total, 0, 0)}


def _check(header: bytes, tensors: Sequence[TensorDescription], planned: Sequence[Planned], source: Path) -> None:
    """Loads the model from a trial file with this header, so that the loader checks names and shapes.

    The trial file contains computed tensors only; all other weights are zero.
    """
    with ExitStack() as opened:
        try:
            trial = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "trial.gguf"
            with open(trial, "wb") as out:
                out.write(header)
                place = len(header)
                for one, new in zip(planned, tensors, strict=True):
                    if one.constant is not None:
                        out.seek(place)
                        out.writelines(_written(one, new.format))
                    place += aligned(new.nbytes)
                out.truncate(place)
        except OSError as error:
            where = f"the folder of temporary files, where {printable(str(source))} is checked"
            raise BadInput(f"{where}, cannot be written: {error.strerror}; set TMPDIR to one with room") from None
        try:
            with GGUFFile.open(trial) as file:
                load_model(file)
        except (BadFile, UnsupportedModel) as error:
            what = str(error).replace(str(trial), printable(str(source)))
            raise type(error)(what) from None


def _written(tensor: Planned, fmt: Format) -> Iterator[bytes]:
    """The bytes of a tensor in a format, some rows at a time."""
    for rows in tensor.parts():
        step = max(1, CHUNK // rows.shape[-1])
        for start in range(0, len(rows), step):
            yield quantise_rows(fmt, rows[start : start + step]).tobytes()
