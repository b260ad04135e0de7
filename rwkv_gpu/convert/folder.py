"""Plans the conversion of a folder of the Hugging Face hub. Each family is a row; gguf's own table has tensor names."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import gguf

from ..errors import BadFile, UnsupportedModel, printable
from ..gguf.header import Value
from ..gguf.stored import WIDTHS, Stored
from .checkpoint import Checkpoint
from .config import Config, Default
from .keys import common_keys
from .planned import AS_STORED, Change, Plan, Planned
from .tokenizer import tokenizer_keys

Tensors = Mapping[str, Stored]
Rename = tuple[str, str | Callable[[re.Match[str]], str]]  # a pattern of names, and its replacement
Names = Callable[
    [str, tuple[str, ...]], str | None
]  # takes a name in a checkpoint, and suffixes to keep; returns the name in a file
# Parts of models with vision or audio, and buffers that are computed.
DROPPED = re.compile(
    r"^(?:mlp|vit\.|merger\.|resampler\.)|visual\.|vision[._]|audio[._]|projector\.|patch_embed|\.rotary_emb\.inv_freq$"
    r"|\.attention\.(?:masked_)?bias$"
)
TABLE = "token_embd.weight"
EXPERT = re.compile(r"(.+\.experts)\.(\d{1,5})\.(.+)")
EXPERTS = re.compile(r"_exps\.weight$")  # the names of their tensors in a file
FUSED = re.compile(r"(.+\.experts)\.gate_up_proj(?:\.weight)?")


@dataclass(frozen=True)
class Family:
    """The differences between families."""

    architecture: gguf.MODEL_ARCH
    defaults: Mapping[str, Default] = field(default_factory=dict)  # defaults for keys of config.json
    dropped: str = r"(?!)"  # a pattern of names that are not used
    # Functions of a config: names as in gguf's table, renames by patterns, keys, and computed tensors.
    renames: Callable[[Config], Sequence[Rename]] = lambda _: ()
    changes: Callable[[Config], Mapping[str, Change]] = lambda _: {}
    keys: Callable[[Config, Tensors], Mapping[str, Value]] = lambda _, __: {}
    computed: Callable[[Config], list[Planned]] = lambda _: []
    blocks: Callable[[Config, Tensors], int] = lambda config, _: config.layers
    has_common_keys: bool = True
    vocabulary: Callable[[Config], int] = lambda config: config.size("vocab_size")
    tokens: Callable[[Config], Mapping[str, Value]] = lambda _: {}  # further metadata of the tokenizer
    pre: Mapping[str, str] = field(default_factory=dict)  # names for ways to split text that the family defines

    @property
    def name(self) -> str:
        """The name of the architecture in a file."""
        return str(gguf.MODEL_ARCH_NAMES[self.architecture])

    def used(self, config: Config, tensors: Tensors) -> Tensors:
        """The tensors that are used, under the names of gguf's table."""
        renames, found = self.renames(config), {}
        for name, tensor in tensors.items():
            new = name.replace("language_model.", "")
            if DROPPED.search(new) or re.search(self.dropped, new):
                continue
            for pattern, replacement in renames:
                new = re.sub(pattern, replacement, new)
            found[new] = tensor
        return found


def plan_folder(family: Family, checkpoint: Checkpoint) -> Plan:
    """Plans the conversion of a folder of this family."""
    path = printable(str(checkpoint.path))
    if checkpoint.config.get("quantization_config"):
        raise UnsupportedModel(f"{path}: is quantised already; convert the model that it was made from")
    config = Config.read(checkpoint.path, checkpoint.config, family.defaults)
    used = family.used(config, checkpoint.tensors)
    keys = {**(common_keys(config) if family.has_common_keys else {}), **family.keys(config, used)}
    metadata = {f"{'' if key.startswith('tokenizer.') else family.name + '.'}{key}": one for key, one in keys.items()}
    size = family.vocabulary(config)
    tensors = [*family.computed(config), *_planned(family, config, used)]
    rows = next((one.shape[0] for one in tensors if one.name == TABLE and one.shape), size)
    if rows != size:
        raise BadFile(f"{path}: the embedding has {rows} rows, expected {size}; config.json belongs to another model")
    tokens = {**tokenizer_keys(checkpoint.path, size, family.pre), **family.tokens(config)}
    return Plan(family.name, metadata | tokens, _in_order(tensors))


def table_of(family: Family, blocks: int) -> Names:
    """gguf's table of names for a model of `blocks` layers."""
    table: Names = gguf.get_tensor_name_map(family.architecture, min(blocks, 1024)).get_name
    return table


def target_of(table: Names, name: str) -> str | None:
    """The name in a file; a family may rename tensors to it. Some programs save names without `model.` before them."""
    if name.startswith("blk."):
        return name
    for form in (name, f"model.{name}", name.removeprefix("model.")):
        if (found := table(form, (".weight", ".bias"))) is not None:
            return found
    return None


def _planned(family: Family, config: Config, tensors: Tensors) -> Iterator[Planned]:
    """The tensors of a file, in any order."""
    table = table_of(family, family.blocks(config, tensors))
    changes = family.changes(config)
    for name, sources in stacked(config, tensors).items():
        target = target_of(table, name)
        if target is None:
            what = f"tensor {printable(name)!r} is unknown in {family.name}"
            raise BadFile(f"{config.path}: {what}; give a folder without additions")
        if any(one.type not in WIDTHS for one in sources):
            kinds = printable(sources[0].type, 20)
            what = f"{printable(name)!r} has numbers of type {kinds}; known: {', '.join(WIDTHS)}"
            raise UnsupportedModel(f"{config.path}: {what}")
        change = next((change for pattern, change in changes.items() if re.search(pattern, name)), AS_STORED)
        yield _changed(config, name, Planned(target, sources[0].shape, sources, change=change))


def _changed(config: Config, name: str, planned: Planned) -> Planned:
    """The tensor in the shape after its change. Raises BadFile if rows or columns are too few or too many."""
    shape, change = planned.sources[0].shape, planned.change
    wanted = [(-1, change.columns), *([(0, change.rows)] if change.rows is not None else [])]
    for axis, order in wanted:
        if order is not None and (not shape or shape[axis] != len(order)):
            what = "rows" if axis == 0 else "columns"
            found = f"{printable(name)!r} has the shape {list(shape)}, expected {len(order)} {what}"
            raise BadFile(f"{config.path}: {found}; config.json belongs to another model")
    if not prod(shape):
        raise BadFile(f"{config.path}: {printable(name)!r} is empty; download it again")
    shape = shape if change.shape is None else change.shape(shape)
    if prod(shape) != planned.sources[0].count:
        raise BadFile(f"{config.path}: {printable(name)!r} has the shape {list(planned.shape)}, which is unknown")
    count = len(planned.sources)
    return replace(planned, shape=(count, *shape) if count > 1 or EXPERTS.search(planned.name) else shape)


def stacked(config: Config, tensors: Tensors, remedy: str = "download them again") -> dict[str, tuple[Stored, ...]]:
    """The sources of each name: one tensor, or one for each expert."""
    experts: dict[str, dict[int, Stored]] = {}
    found: dict[str, tuple[Stored, ...]] = {}
    for name, tensor in tensors.items():
        if (one := EXPERT.fullmatch(name)) is not None:
            experts.setdefault(f"{one[1]}.{one[3]}", {})[int(one[2])] = tensor
        elif (fused := FUSED.fullmatch(name)) is not None:
            found |= _unfused(config, name, fused[1], tensor)
        elif len(tensor.shape) == 3 and ".experts." in name:
            found[name if name.endswith(".weight") else f"{name}.weight"] = _each(tensor, 0, tensor.shape[1])
        else:
            found[name] = (tensor,)
    for name, each in experts.items():
        if sorted(each) != list(range(len(each))) or len({one.shape for one in each.values()}) > 1:
            raise BadFile(f"{config.path}: experts of {printable(name)!r} are missing or differ; {remedy}")
        found[name] = tuple(each[n] for n in sorted(each))
    return found


def _unfused(config: Config, name: str, start: str, tensor: Stored) -> dict[str, tuple[Stored, ...]]:
    """Splits a tensor [experts, 2 · inner, width] with the gate and up matrices of experts."""
    if len(tensor.shape) != 3 or tensor.shape[1] % 2:
        raise BadFile(f"{config.path}: {printable(name)!r} has the shape {list(tensor.shape)}, which is unknown")
    inner = tensor.shape[1] // 2
    return {
        f"{start}.gate_proj.weight": _each(tensor, 0, inner),
        f"{start}.up_proj.weight": _each(tensor, inner, 2 * inner),
    }


def _each(tensor: Stored, start: int, stop: int) -> tuple[Stored, ...]:
    """Some rows of each expert."""
    experts, rows, _ = tensor.shape
    return tuple(tensor.rows(n * rows + start, n * rows + stop) for n in range(experts))


def _in_order(tensors: list[Planned]) -> list[Planned]:
    """Sorts tensors by layer, the order in which mixes of formats count them."""

    def layer(one: Planned) -> tuple[int, str]:
        found = re.match(r"blk\.(\d+)\.", one.name)
        return (int(found[1]) if found else -1), one.name

    twice = {one.name for one in tensors}
    if len(twice) != len(tensors):
        raise BadFile("two tensors of the folder have the same name in a file; give a folder without additions")
    return sorted(tensors, key=layer)
