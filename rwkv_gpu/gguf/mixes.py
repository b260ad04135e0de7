"""Chooses the format of each tensor of a model. Mixes have the names of llama.cpp's `llama-quantize`.

A mix such as Q4_K_M uses one format for most matrices, and gives more bits to those whose errors cost most.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import BadInput
from .formats import FORMATS, Format
from .quantise import PLAIN, WRITERS
from .scan import TensorInfo

WRITABLE = (*PLAIN, *WRITERS)
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
# Replacements for rows that are not whole blocks of 256.
NARROW = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
FLOATS = ("F32", "F16", "BF16")
# Small control matrices: of routers, convolutions, and RWKV's decay, gates and lerps.
KEPT = re.compile(
    r"ffn_gate_inp|norm|conv1d|time_mix_(?:first|decay|lerp|[wavg]\d)|altup|laurel|per_layer_model_proj|position_embd"
    r"|token_types|attn_rel_b|shortconv\.conv|\.bias"
)


@dataclass(frozen=True)
class Mix:
    """A type of llama-quantize: its number in a file, and formats by the role of a tensor."""

    file_type: int
    base: str
    roles: Mapping[str, str] = field(default_factory=dict)
    grouped: Mapping[str, str] = field(default_factory=dict)  # by role, if 4 heads or more share keys and values
    middle: Mapping[str, str] = field(default_factory=dict)  # by role, in all layers but the first and last eighth
    more: Mapping[str, str] = field(default_factory=dict)  # by role, in the layers that get more bits
    first: Mapping[str, str] = field(default_factory=dict)  # by role, in the first eighth of the layers
    values: int = 0  # number of first layers in which values get the format of `first`
    head: str = ""  # format of the output matrix, or a tied embedding; default: Q6_K, or unchanged floats
    table: str = ""  # format of an embedding that is not tied
    experts: str = ""  # format of experts, if the mix has one for experts only


@dataclass(frozen=True)
class Rule:
    """A format for matrices whose names match; it replaces the format of the mix. None keeps them unchanged."""

    pattern: str
    format: str | None  # name in upper or lower case

    def __post_init__(self) -> None:
        if self.format is not None and self.format.upper() not in WRITABLE:
            raise BadInput(f"{self.format!r} is not a tensor type that can be written; known: {', '.join(WRITABLE)}")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise BadInput(f"{self.pattern!r} is not a regular expression of names of tensors: {error}") from None


_M = {"Q4_K": {"value": "Q6_K", "down": "Q6_K"}, "Q5_K": {"value": "Q6_K", "down": "Q6_K"}}
_VALUES, _BETTER = {"value": "Q4_K"}, {"value": "IQ3_S", "out": "IQ3_S"}
_ONE_BIT = {"value": "Q2_K", "out": "IQ2_XXS"}
MIXES: dict[str, Mix] = {
    "F32": Mix(0, "F32"),
    "F16": Mix(1, "F16"),
    "BF16": Mix(32, "BF16"),
    "Q4_0": Mix(2, "Q4_0"),
    "Q4_1": Mix(3, "Q4_1"),
    "Q5_0": Mix(8, "Q5_0"),
    "Q5_1": Mix(9, "Q5_1"),
    "Q8_0": Mix(7, "Q8_0"),
    "Q2_K": Mix(10, "Q2_K", {"value": "Q3_K", "down": "Q3_K", "out": "Q3_K"}, _VALUES),
    "Q2_K_S": Mix(21, "Q2_K", grouped=_VALUES, first={"down": "Q4_K"}),
    "Q3_K_S": Mix(11, "Q3_K"),
    "Q3_K_M": Mix(
        12,
        "Q3_K",
        {"value": "Q4_K", "down": "Q4_K", "out": "Q4_K", "qkv": "Q4_K"},
        first={"down": "Q5_K", "value": "Q5_K"},
        values=2,
    ),
    "Q3_K_L": Mix(13, "Q3_K", {"value": "Q5_K", "down": "Q5_K", "out": "Q5_K", "qkv": "Q4_K"}),
    "Q4_K_S": Mix(14, "Q4_K", first={"value": "Q5_K", "down": "Q5_K"}, values=4),
    "Q4_K_M": Mix(15, "Q4_K", {"qkv": "Q5_K"}, more=_M["Q4_K"]),
    "Q5_K_S": Mix(16, "Q5_K"),
    "Q5_K_M": Mix(17, "Q5_K", {"qkv": "Q6_K"}, more=_M["Q5_K"]),
    "Q6_K": Mix(18, "Q6_K"),
    "IQ1_S": Mix(24, "IQ1_S", _ONE_BIT, _VALUES, first={"down": "Q2_K"}, head="Q5_K", table="Q2_K"),
    "IQ1_M": Mix(31, "IQ1_M", _ONE_BIT, _VALUES, first={"down": "Q2_K"}, head="Q5_K", table="Q2_K"),
    "IQ2_XXS": Mix(19, "IQ2_XXS", {"value": "Q2_K"}, _VALUES, first={"down": "Q2_K"}, head="Q5_K", table="Q2_K"),
    "IQ2_XS": Mix(20, "IQ2_XS", {"value": "Q2_K"}, _VALUES, first={"down": "Q2_K"}, head="Q5_K", table="Q2_K"),
    "IQ2_S": Mix(28, "IQ2_XS", _BETTER, _VALUES, first={"down": "IQ3_S"}, head="Q5_K", table="IQ3_S"),
    "IQ2_M": Mix(29, "IQ2_S", _BETTER, _VALUES, first={"down": "IQ3_S"}, head="Q5_K", table="IQ3_S"),
    "IQ3_XXS": Mix(
        23, "IQ3_XXS", {"query": "IQ2_S", "key": "IQ2_S", "out": "IQ3_S"}, _VALUES, head="Q5_K", table="IQ3_S"
    ),
    "IQ3_XS": Mix(
        22,
        "IQ3_S",
        {"query": "IQ3_XXS", "key": "IQ3_XXS"},
        _VALUES,
        middle={"gate": "IQ3_XXS", "up": "IQ3_XXS"},
    ),
    "IQ3_S": Mix(26, "IQ3_S", grouped=_VALUES),
    "IQ3_M": Mix(27, "IQ3_S", {"value": "Q4_K", "out": "Q4_K", "qkv": "Q4_K"}, first={"down": "Q4_K"}),
    "IQ4_NL": Mix(25, "IQ4_NL", grouped={"value": "Q5_K"}, first={"down": "Q5_K"}),
    "IQ4_XS": Mix(30, "IQ4_XS", grouped={"value": "Q5_K"}, first={"down": "Q5_K"}),
    "TQ1_0": Mix(36, "TQ1_0"),
    "TQ2_0": Mix(37, "TQ2_0"),
    "MXFP4": Mix(38, "MXFP4"),
    "NVFP4": Mix(39, "NVFP4"),
    "MXFP4_MOE": Mix(38, "Q8_0", experts="MXFP4"),
    "Q1_0": Mix(40, "Q1_0"),
    "Q2_0": Mix(41, "Q2_0"),
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
ROLES = {
    "attn_q": "query", "attn_k": "key", "attn_v": "value", "attn_output": "out", "attn_qkv": "qkv",
    "ffn_gate": "gate", "ffn_gate_exps": "gate", "ffn_up": "up", "ffn_up_exps": "up",
    "ffn_down": "down", "ffn_down_exps": "down",
}  # fmt: skip


def mix_of(name: str) -> Mix:
    """The mix of a name, in any case."""
    upper = name.upper()
    if ALIASES.get(upper, upper) not in MIXES:
        raise BadInput(f"{name!r} is not a type that can be written; known: {', '.join(MIXES)}")
    return MIXES[ALIASES.get(upper, upper)]


def pure_mix(mix: Mix) -> Mix:
    """One format for all matrices, the head and the embedding as well."""
    return Mix(mix.file_type, mix.base, head=mix.base, table=mix.base)


@dataclass(frozen=True)
class Choice:
    """The format of a tensor, and the reason if it differs from that of the mix."""

    format: Format
    reason: str = ""


def formats_of(mix: Mix, tensors: Sequence[TensorInfo], rules: Sequence[Rule] = ()) -> dict[str, Format]:
    """The format of each tensor. Vectors and small matrices stay unchanged.

    If several rules match, the first applies.
    """
    return {name: choice.format for name, choice in choices_of(mix, tensors, rules).items()}


def choices_of(mix: Mix, tensors: Sequence[TensorInfo], rules: Sequence[Rule] = ()) -> dict[str, Choice]:
    """The format of each tensor, with its reason."""
    unused = {rule.pattern for rule in rules}
    counts = Counter(_role(tensor.name) for tensor in tensors)
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    grouped = _grouped(tensors)
    seen = Counter[str]()
    found = {}
    for tensor in tensors:
        role = _role(tensor.name)
        if reason := _why_kept(tensor):
            found[tensor.name] = Choice(tensor.stored, reason)
            continue
        name = _named(mix, role, seen[role], counts[role], grouped=grouped)
        if tensor.name == "output.weight" or (tensor.name == "token_embd.weight" and tied):
            name = mix.head or (mix.base if mix.base in (*FLOATS, "Q8_0") else "Q6_K")
        elif tensor.name == "token_embd.weight":
            name = mix.table or ("Q4_K" if mix.base in ("TQ1_0", "TQ2_0", "Q1_0", "Q2_0") else name)
        elif mix.experts and len(tensor.shape) == 3:
            name = mix.experts
        seen[role] += 1
        matching = [rule for rule in rules if re.search(rule.pattern, tensor.name)]
        unused -= {rule.pattern for rule in matching}
        asked = matching[0].format if matching else name
        found[tensor.name] = (
            Choice(tensor.stored, "left as they are by an option")
            if asked is None
            else _fitting(asked.upper(), tensor.shape[-1])
        )
    if unused:
        raise BadInput(f"no matrix of the model has a name like {min(unused)!r}; `rwkv-gpu info --tensors` lists them")
    return found


def _why_kept(tensor: TensorInfo) -> str:
    """Why a tensor keeps its format in every mix; empty if it may change."""
    if len(tensor.shape) < 2:
        return "vectors"
    if not tensor.name.endswith(".weight"):
        return "no weights of a matrix product"
    return "small matrices whose errors cost most" if KEPT.search(tensor.name) else ""


def _grouped(tensors: Sequence[TensorInfo]) -> bool:
    """True if 4 or more heads share keys and values."""
    rows = {tensor.name.split(".")[-2]: tensor.shape[-2] for tensor in tensors if len(tensor.shape) > 1}
    return rows.get("attn_q", 0) >= 4 * rows.get("attn_k", 1 << 40)


def _named(mix: Mix, role: str, layer: int, layers: int, *, grouped: bool) -> str:
    """The format of a tensor by its role and its layer, which is counted among the layers with this role."""
    eighth = layers // 8
    few = mix.values if role == "value" else layers // 16 if mix.base == "Q3_K" else eighth
    if layer < few and role in mix.first:
        return mix.first[role]
    if role in mix.more and (layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2):
        return mix.more[role]
    if grouped and role in mix.grouped:
        return mix.grouped[role]
    if role in mix.middle and eighth <= layer < 7 * layers // 8:
        return mix.middle[role]
    return mix.roles.get(role, mix.base)


def _role(name: str) -> str:
    part = name.removesuffix(".weight").rpartition(".")[2]
    return ROLES.get(part, "")


def _fitting(name: str, width: int) -> Choice:
    """The format, or the nearest one whose blocks fill rows of this width."""
    block = BY_NAME[name].block
    if width % block == 0:
        return Choice(BY_NAME[name])
    near = NARROW.get(name, "IQ4_NL" if block == 256 else "F16")
    fitting = BY_NAME["F16"] if width % BY_NAME[near].block else BY_NAME[near]
    return Choice(fitting, f"rows of {width} are not whole blocks of {name}")
