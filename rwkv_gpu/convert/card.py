"""General metadata that a folder states about its model: name, licence, languages and sampling defaults."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import yaml

from ..errors import RwkvGpuError, printable
from ..gguf.header import Value
from .checkpoint import read_json
from .planned import Planned

MAX_CARD = 4 << 20  # bytes
NAMED = "general.name"


def card_keys(folder: Path, tensors: Sequence[Planned], *, adapter: bool = False) -> dict[str, Value]:
    """The keys, in llama.cpp's form. Only the name if the model card of the folder cannot be read."""
    total, shared, experts, count = _parameters(tensors)
    if adapter:
        total = -_adapted(tensors)
    names: dict[str, Value] = {NAMED: printable(folder.resolve().name) or "model"}
    try:
        found = names | _card(folder, total)
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        RecursionError,
        OSError,
        RwkvGpuError,
    ):
        found = names
    if total > 0:
        found.setdefault("general.size_label", gguf.size_label(total, shared, experts, count))
    return found


def _card(folder: Path, total: int) -> dict[str, Value]:
    """The keys of README.md, config.json, generation_config.json, and the name of the folder."""
    if any((folder / name).is_file() and (folder / name).stat().st_size > MAX_CARD for name in ("README.md",)):
        raise ValueError("the model card is too large")
    card = gguf.Metadata.load(None, folder.resolve(), None, total)
    card.name = card.name or folder.resolve().name
    if card.sampling_penalty_repeat is None:  # gguf 0.19 supports only its other name
        card.sampling_penalty_repeat = _generation(folder).get("repetition_penalty")
    writer = gguf.GGUFWriter(path=None, arch="")
    card.set_gguf_meta_model(writer)
    return {
        name: _value(one)
        for name, one in writer.kv_data[0].items()
        if name != "general.architecture" and not (isinstance(one.value, list) and not one.value)
    }


def _generation(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def _value(one: gguf.GGUFValue) -> Value:
    """A value in the type with which it is written."""
    value = one.value
    if one.type == gguf.GGUFValueType.FLOAT32:
        return float(value)
    if one.type == gguf.GGUFValueType.INT32:
        return np.int32(value)
    if one.type == gguf.GGUFValueType.STRING or not isinstance(value, list):
        return value if isinstance(value, int) else str(value)
    return [str(text) for text in value]


def _parameters(tensors: Sequence[Planned]) -> tuple[int, int, int, int]:
    """Counts all parameters, those outside experts, those of one expert, and the experts."""
    experts = [one.shape for one in tensors if "_exps." in one.name and len(one.shape) > 2]
    every = sum(prod(one.shape) for one in tensors)
    count = sum(shape[-3] for shape in experts) // len(experts) if experts else 0
    return every, every - sum(map(prod, experts)), sum(prod(shape) // shape[-3] for shape in experts), count


def _adapted(tensors: Sequence[Planned]) -> int:
    """The number of elements of the matrices that an adapter changes."""
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    return sum(prod(b.shape[:-1]) * a.shape[-1] for a, b in pairs)
