"""LoRA adapters of PEFT: the two factors of each matrix, under the names that the matrices have in a file."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

from ..errors import BadFile, BadInput, UnsupportedModel, printable
from ..gguf.header import Value
from ..gguf.stored import WIDTHS, Stored
from .checkpoint import Checkpoint, read_json
from .config import Config
from .families import FAMILIES, architecture_of
from .folder import TABLE, Family, stacked, table_of, target_of
from .planned import AS_STORED, Change, Plan, Planned

FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.(?:lora_([AB])\.weight|lora_embedding_([AB]))")
# Features of PEFT that a GGUF file cannot store.
OTHERS = {"use_dora": "DoRA", "fan_in_fan_out": "transposed matrices", "alora_invocation_tokens": "aLoRA"}
OTHERS |= {"alpha_pattern": "a scale for each matrix"}
ALL_EXPERTS = "train an adapter for all experts of a layer, or for none"


def plan_adapter(checkpoint: Checkpoint, base: Path | None) -> Plan:
    """Plans the conversion of a folder with an adapter. `base` is the folder of the model that it was trained on."""
    path = printable(str(checkpoint.path))
    own = checkpoint.config
    if (kind := own.get("peft_type", "LORA")) != "LORA":
        raise UnsupportedModel(f"{path}: adapters of the type {printable(str(kind), 30)} are not converted")
    if other := next((name for key, name in OTHERS.items() if own.get(key)), ""):
        raise UnsupportedModel(f"{path}: adapters with {other} are not converted; train a plain LoRA")
    folder = _base_folder(path, own, base)
    raw = read_json(folder / "config.json")
    family = FAMILIES.get(architecture_of(raw))
    if family is None:
        found = printable(architecture_of(raw) or "an unknown model", 60)
        raise UnsupportedModel(f"{path}: adapters of {found} cannot be converted; known: {', '.join(FAMILIES)}")
    config = Config.read(folder, raw, family.defaults)
    tensors = _factors(family, config, path, checkpoint.tensors)
    ranks = {one.shape[-1] for one in tensors if one.name.endswith(".lora_b")}
    adapter = Config(checkpoint.path, own)
    alpha = adapter.number("lora_alpha")
    if own.get("use_rslora"):  # rsLoRA divides by the root of the rank, and a file by the rank
        if len(ranks) > 1:
            raise UnsupportedModel(f"{path}: a rank-stabilised adapter with several ranks is not converted")
        alpha *= sqrt(ranks.pop())
    metadata: dict[str, Value] = {"adapter.type": "lora", "adapter.lora.alpha": alpha}
    return Plan(family.name, metadata, tensors, adapter=True)


def _base_folder(path: str, own: Mapping[str, Any], base: Path | None) -> Path:
    """The folder with the config.json of the model."""
    named = own.get("base_model_name_or_path")
    folder = base if base is not None else Path(named) if isinstance(named, str) and named else None
    if folder is None or not (folder / "config.json").is_file():
        shown = printable(str(folder)) if folder is not None else "its model"
        what = f"config.json of {shown} is missing"
        raise BadInput(f"{path}: {what}; give the folder of the model with --base (its weights are not needed)")
    return folder


def _factors(family: Family, config: Config, path: str, tensors: Mapping[str, Stored]) -> list[Planned]:
    """The factors of all matrices, A before B."""
    sides: dict[str, dict[str, Stored]] = {"A": {}, "B": {}}
    for name, tensor in tensors.items():
        found = FACTOR.fullmatch(name)
        if found is None:
            what = f"tensor {printable(name)!r} is not a factor of a matrix"
            raise BadFile(f"{path}: {what}; train an adapter without whole tensors (modules_to_save, bias)")
        if re.search(r"(^|\.)mtp\.", found[1]):
            what = f"adapts {printable(name)!r}, of a head that drafts tokens"
            raise UnsupportedModel(f"{path}: {what}; train an adapter of the layers only")
        if tensor.type not in WIDTHS:
            raise UnsupportedModel(f"{path}: {printable(name)!r} has numbers of type {printable(tensor.type, 20)}")
        sides[found[2] or found[3]][f"{found[1]}.weight"] = tensor
    firsts, seconds = (stacked(config, family.used(config, sides[side]), ALL_EXPERTS) for side in "AB")
    if not firsts or firsts.keys() != seconds.keys():
        lone = min(firsts.keys() ^ seconds.keys(), default="")
        what = f"{printable(lone)!r} has one factor only" if lone else "it has no factors"
        raise BadFile(f"{path}: is not a valid adapter: {what}; train it again")
    table, changes = table_of(family, family.blocks(config, sides["A"])), family.changes(config)
    planned = []
    for name in sorted(firsts, key=_by_number):
        target = target_of(table, name)
        if target is None:
            what = f"{printable(name)!r} is not a matrix of {family.name}"
            raise BadFile(f"{path}: {what}; give the model that the adapter was trained on with --base")
        change = next((change for pattern, change in changes.items() if re.search(pattern, name)), AS_STORED)
        planned += _pair(path, name, target, (firsts[name], seconds[name]), change)
    return planned


def _pair(
    path: str, name: str, target: str, sources: tuple[tuple[Stored, ...], tuple[Stored, ...]], change: Change
) -> list[Planned]:
    """The two factors of a matrix: A has its columns, and B its rows."""
    (a, b), shown = (one[0].shape for one in sources), printable(name)
    if change.compute is not None or change.shape is not None:
        raise UnsupportedModel(
            f"{path}: adapts {shown!r}, which is not a matrix of a product; train an adapter without it"
        )
    if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not a[0] * a[1] * b[0] or len(sources[0]) != len(sources[1]):
        raise BadFile(f"{path}: factors of {shown!r} have the shapes {list(a)} and {list(b)}; train the adapter again")
    for order, size in ((change.columns, a[1]), (change.rows, b[0])):
        if order is not None and len(order) != size:
            what = f"a factor of {shown!r} has {size} rows or columns, expected {len(order)}"
            raise BadFile(f"{path}: {what}; give the model that the adapter was trained on with --base")
    first = Planned(f"{target}.lora_a", a, sources[0], change=Change(columns=change.columns))
    if target == TABLE:
        first = replace(first, shape=a[::-1], reshape="turned")
    second = Planned(f"{target}.lora_b", b, sources[1], change=Change(rows=change.rows))
    if len(sources[0]) == 1:
        return [first, second]
    return [replace(one, shape=(len(one.sources), *one.shape)) for one in (first, second)]


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts layer 2 before layer 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in name.split(".")]
