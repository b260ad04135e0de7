"""Converts RWKV-4 to RWKV-7 from BlinkDL's programs, web-rwkv and flash-linear-attention (fla) folders.

Each row of a layout has the names of a tensor in both files, and how it is reshaped.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import BadFile, printable
from ..gguf.header import Value
from ..gguf.stored import WIDTHS, Floats, Stored
from .planned import CUT, Plan, Planned
from .world import world_tokenizer

CONTEXT = 1 << 20  # tokens; nothing limits it
ATTENTION_CONTEXT = 4096  # of models with an attention, too
EPS = 1e-5
RANK = 8  # rank of matrices of zeros
RESCALE = 6  # RWKV-6: layers after which outputs are halved, so that float16 does not overflow
RESCALED = ("time_mix_output.weight", "channel_mix_value.weight")


@dataclass(frozen=True)
class Layout:
    """The tensor names of a training program, with {i} for a layer. Each of `rows` is (name, name in GGUF, reshape).

    The reshape "table" adds a product of normed embeddings to a table of tokens.
    """

    architecture: str
    mark: str  # a name that only this layout has
    ends: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, str, str]]
    lerps: Sequence[str]  # stacked to time_mix_lerp_fused
    heads: str = ""  # [heads, head size]
    ignored: str = r"(?!)"  # a pattern of names
    zeros: Mapping[str, Callable[[int], tuple[int, ...]]] = field(default_factory=dict)  # added zeros: shape by width
    lerps_are: str = ""  # the reshape of these lerps


@dataclass(frozen=True)
class TokenTable(Planned):
    """A table of tokens plus a matrix times their normed embeddings.

    Its sources are table, matrix and embedding, and weight and bias of the norm.
    """

    def parts(self) -> Iterator[Floats]:
        table, matrix, embedding, *norm = self.sources
        weight, bias = (one.read().reshape(-1) for one in norm)
        turned, step = matrix.read().T, max(1, CUT // embedding.shape[1])
        for start in range(0, table.shape[0], step):
            y, x = (one.rows(start, min(start + step, table.shape[0])).read() for one in (table, embedding))
            x = x - x.mean(axis=1, keepdims=True)
            x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * weight + bias
            yield self.checked(table, y + x @ turned)


def _both(name: str, target: str) -> list[tuple[str, str, str]]:
    return [(f"{name}.{end}", f"{target}.{end}", "") for end in ("weight", "bias")]


def _low_rank(letters: str) -> list[tuple[str, str, str]]:
    return [
        (f"blocks.{{i}}.att.{letter}{n}", f"time_mix_{letter}{n}.weight", "turned" if n else "flat")
        for letter in letters
        for n in range(3)
        if letter != "g" or n
    ]


_MATRICES = [
    *((f"blocks.{{i}}.att.{name}.weight", f"time_mix_{name}.weight", "") for name in ("receptance", "key", "value")),
    ("blocks.{i}.att.output.weight", "time_mix_output.weight", ""),
    *_both("blocks.{i}.att.ln_x", "time_mix_ln"),
    *((f"blocks.{{i}}.ffn.{name}.weight", f"channel_mix_{name}.weight", "") for name in ("key", "value")),
    *_both("blocks.{i}.ln1", "attn_norm"),
    *_both("blocks.{i}.ln2", "attn_norm_2"),
]
_ENDS = [
    ("emb.weight", "token_embd.weight"),
    *((f"blocks.0.ln0.{end}", f"token_embd_norm.{end}") for end in ("weight", "bias")),
    *((f"ln_out.{end}", f"output_norm.{end}") for end in ("weight", "bias")),
    ("head.weight", "output.weight"),
]
RWKV7 = Layout(
    "rwkv7",
    "blocks.0.att.r_k",
    _ENDS,
    [
        *_MATRICES,
        *_low_rank("wavg"),
        *((f"blocks.{{i}}.att.{name}", f"time_mix_{name}.weight", "flat") for name in ("k_k", "k_a", "r_k")),
        ("blocks.{i}.ffn.x_k", "channel_mix_lerp_k.weight", "flat"),
    ],
    [f"blocks.{{i}}.att.x_{letter}" for letter in "rwkvag"],
    "blocks.0.att.r_k",
    r"blocks\.0\.att\.v[012]",  # unused: the first layer mixes no values of a layer before it
)
_DEEP_EMBED = [
    ("blocks.{i}.ffn.s_emb.weight", "channel_mix_s_emb.weight", "table"),
    *((f"blocks.{{i}}.ffn.s{n}", f"channel_mix_s{n}.weight", "turned" if n else "flat") for n in range(3)),
]
_DEEP_ATTENTION = [
    ("blocks.{i}.qkv.qq.weight", "dea_q.weight", ""),
    *((f"blocks.{{i}}.qkv.{one}", f"dea_{one}.weight", "turned") for one in ("k1", "k2", "v1", "v2")),
    *((f"blocks.{{i}}.qkv.{letter}_emb.weight", f"dea_{letter}_emb.weight", "table") for letter in "kv"),
    *((f"blocks.{{i}}.qkv.x_{letter}", f"dea_lerp_{letter}.weight", "flat") for letter in "qkv"),
    *(row for letter in "qkv" for row in _both(f"blocks.{{i}}.qkv.ln{letter}", f"dea_{letter}_norm")),
]
RWKV7A = replace(RWKV7, mark="blocks.0.ffn.s_emb.weight", rows=[*RWKV7.rows, *_DEEP_EMBED])
RWKV7B = replace(RWKV7A, mark="blocks.0.qkv.qq.weight", rows=[*RWKV7A.rows, *_DEEP_ATTENTION])
RWKV6 = Layout(
    "rwkv6",
    "blocks.0.att.time_maa_x",
    _ENDS,
    [
        *_MATRICES,
        ("blocks.{i}.att.gate.weight", "time_mix_gate.weight", ""),
        ("blocks.{i}.att.time_maa_x", "time_mix_lerp_x.weight", "flat"),
        ("blocks.{i}.att.time_maa_w1", "time_mix_w1.weight", "turned"),
        ("blocks.{i}.att.time_maa_w2", "time_mix_w2.weight", "turned"),
        ("blocks.{i}.att.time_decay", "time_mix_decay.weight", "flat"),
        ("blocks.{i}.att.time_decay_w1", "time_mix_decay_w1.weight", "turned"),
        ("blocks.{i}.att.time_decay_w2", "time_mix_decay_w2.weight", "turned"),
        ("blocks.{i}.att.time_faaaa", "time_mix_first.weight", ""),
        ("blocks.{i}.ffn.receptance.weight", "channel_mix_receptance.weight", ""),
        *((f"blocks.{{i}}.ffn.time_maa_{letter}", f"channel_mix_lerp_{letter}.weight", "flat") for letter in "kr"),
    ],
    [f"blocks.{{i}}.att.time_maa_{letter}" for letter in "wkvrg"],
    "blocks.0.att.time_faaaa",
)


_MIX = [(f"blocks.{{i}}.ffn.time_mix_{letter}", f"channel_mix_lerp_{letter}.weight", "rest") for letter in "kr"]
_RECEPTANCE = ("blocks.{i}.ffn.receptance.weight", "channel_mix_receptance.weight", "")
# RWKV-5.2 becomes RWKV-6. Its mixes and decays do not depend on data, so the low-rank matrices are zeros.
RWKV5 = Layout(
    "rwkv6",
    "blocks.0.att.time_faaaa",
    _ENDS,
    [
        *_MATRICES,
        *_MIX,
        _RECEPTANCE,
        ("blocks.{i}.att.gate.weight", "time_mix_gate.weight", ""),
        ("blocks.{i}.att.time_decay", "time_mix_decay.weight", "flat"),
        ("blocks.{i}.att.time_faaaa", "time_mix_first.weight", ""),
    ],
    [f"blocks.{{i}}.att.time_mix_{letter}" for letter in "kkvrg"],
    "blocks.0.att.time_faaaa",
    zeros={
        "time_mix_lerp_x.weight": lambda width: (width,),
        "time_mix_w1.weight": lambda width: (5 * RANK, width),
        "time_mix_w2.weight": lambda width: (5, width, RANK),
        "time_mix_decay_w1.weight": lambda width: (RANK, width),
        "time_mix_decay_w2.weight": lambda width: (width, RANK),
    },
    lerps_are="rest",
)
RWKV4 = Layout(
    "rwkv4",
    "blocks.0.att.time_first",
    _ENDS,
    [
        *(row for row in _MATRICES if "ln_x" not in row[0]),
        *_MIX,
        _RECEPTANCE,
        ("blocks.{i}.att.time_decay", "time_mix_decay.weight", "flat"),
        ("blocks.{i}.att.time_first", "time_mix_first.weight", "flat"),
    ],
    [f"blocks.{{i}}.att.time_mix_{letter}" for letter in "rkv"],
    lerps_are="rest",
)


def _fla_rows() -> list[tuple[str, str, str]]:
    at = "model.layers.{i}"
    names = {"r_proj": "receptance", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
    rows = [(f"{at}.attn.{name}.weight", f"time_mix_{target}.weight", "") for name, target in names.items()]
    for letter in "wavg":
        parts = {"lora.0.weight": "1", "lora.2.weight": "2", **({} if letter == "g" else {"lora.2.bias": "0"})}
        rows += [(f"{at}.attn.{letter}_lora.{part}", f"time_mix_{letter}{n}.weight", "") for part, n in parts.items()]
    rows += [(f"{at}.attn.{name}", f"time_mix_{name}.weight", "flat") for name in ("k_k", "k_a", "r_k")]
    rows += [(f"{at}.ffn.{name}.weight", f"channel_mix_{name}.weight", "") for name in ("key", "value")]
    rows += [(f"{at}.ffn.x_k", "channel_mix_lerp_k.weight", "flat")]
    norms = {"attn.g_norm": "time_mix_ln", "attn_norm": "attn_norm", "ffn_norm": "attn_norm_2"}
    return rows + [row for name, target in norms.items() for row in _both(f"{at}.{name}", target)]


FLA7 = Layout(
    "rwkv7",
    "model.layers.0.attn.r_k",
    [
        ("model.embeddings.weight", "token_embd.weight"),
        *((f"model.layers.0.pre_norm.{end}", f"token_embd_norm.{end}") for end in ("weight", "bias")),
        *((f"model.norm.{end}", f"output_norm.{end}") for end in ("weight", "bias")),
        ("lm_head.weight", "output.weight"),
    ],
    _fla_rows(),
    [f"model.layers.{{i}}.attn.x_{letter}" for letter in "rwkvag"],
    "model.layers.0.attn.r_k",
    r"model\.layers\.0\.attn\.v_lora\..*",
)


def _of_web(layout: Layout) -> Layout:
    """The layout of web-rwkv's files: its low-rank matrices are transposed already, and some names differ."""

    def renamed(name: str) -> str:
        return name.replace("time_faaaa", "time_first").replace("time_maa", "time_mix")

    rows = [(renamed(name), target, reshape.replace("turned", "")) for name, target, reshape in layout.rows]
    lerps, heads = [renamed(name) for name in layout.lerps], renamed(layout.heads)
    return replace(layout, mark=renamed(layout.mark), rows=rows, lerps=lerps, heads=heads)


WEB7, WEB6, WEB5 = map(_of_web, (RWKV7, RWKV6, RWKV5))
WEB5 = replace(WEB5, mark="blocks.0.att.gate.weight")
LAYOUTS = (RWKV7B, RWKV7A, RWKV7, RWKV6, WEB6, RWKV5, WEB5, RWKV4, FLA7)


def layout_of(tensors: Mapping[str, Stored]) -> Layout | None:
    """The layout of a checkpoint of RWKV. The shape of a matrix distinguishes web-rwkv's layout of RWKV-7."""
    found = next((layout for layout in LAYOUTS if layout.mark in tensors), None)
    low, table = (tensors.get(name) for name in ("blocks.0.att.w1", "emb.weight"))
    if found is RWKV7 and low and table and low.shape[:1] != low.shape[1:] == table.shape[1:]:
        return WEB7
    return found


def plan_rwkv(layout: Layout, tensors: Mapping[str, Stored], path: str, template: str, halved_every: int = 0) -> Plan:
    """Plans the conversion of a checkpoint of this layout. Raises BadFile if tensors are missing or unused."""
    remaining = {name: tensor for name, tensor in tensors.items() if not re.fullmatch(layout.ignored, name)}
    known = re.escape(layout.lerps[0]).replace(r"\{i\}", r"(\d{1,4})")
    layers = 1 + max((int(found[1]) for name in remaining if (found := re.fullmatch(known, name))), default=0)

    def take(name: str) -> Stored:
        if name not in remaining:
            raise BadFile(f"{path}: tensor {name!r} is missing; download the file again")
        return remaining.pop(name)

    planned = [_single(path, take(name), target) for name, target in layout.ends]
    normed = [one.sources[0] for one in planned[:3]]  # the embedding, and weight and bias of its norm
    for i in range(layers):
        planned += _layer(path, layout, i, take, normed, 2.0 ** -(i // halved_every) if halved_every else 1.0)
    if remaining:
        what = f"tensor {printable(min(remaining))!r} is none of {layout.architecture}"
        raise BadFile(f"{path}: {what}; give a file without additions")
    heads = tensors[layout.heads].shape if layout.heads else (1, 0)
    if len(heads) != 2:
        raise BadFile(f"{path}: {layout.heads!r} has the shape {list(heads)}, expected [heads, head size]")
    shapes = {tensor.name: tensor.shape for tensor in planned}
    metadata = _metadata(layout.architecture, shapes, layers, heads[1])
    return Plan(layout.architecture, metadata | world_tokenizer(shapes["token_embd.weight"][0], template), planned)


def _single(path: str, tensor: Stored, name: str, reshape: str = "", divisor: float = 1) -> Planned:
    shape = tensor.shape
    if reshape in ("flat", "rest"):
        shape = (tensor.count,)
    elif reshape == "turned":
        if len(shape) < 2:
            raise BadFile(f"{path}: the source of {name!r} has the shape {list(shape)}, expected a matrix")
        shape = (*shape[:-2], shape[-1], shape[-2])
    return Planned(name, shape, (tensor,), reshape, divisor)


def _table(path: str, name: str, sources: Sequence[Stored]) -> TokenTable:
    table, matrix, embedding, *norm = sources
    (tokens, width), sizes = embedding.shape, [*table.shape, *matrix.shape, *(one.count for one in norm)]
    if sizes != [tokens, *table.shape[1:], *table.shape[1:], width, width, width] or len(table.shape) != 2:
        raise BadFile(f"{path}: the sources of {name!r} have shapes that do not fit each other")
    if any(one.type not in WIDTHS for one in sources):
        raise BadFile(f"{path}: a source of {name!r} is not of floats; give the file of the publisher")
    return TokenTable(name, table.shape, tuple(sources))


def _layer(
    path: str, layout: Layout, i: int, take: Callable[[str], Stored], normed: Sequence[Stored], scale: float
) -> list[Planned]:
    """The tensors of a layer, whose outputs the checkpoint has multiplied by `scale`.

    The first layer of RWKV-7 gets copies of `a` as `v`, which llama.cpp requires but does not use.
    """
    taken = {name: take(name.format(i=i)) for name in dict.fromkeys(layout.lerps)}
    lerps = tuple(taken[name] for name in layout.lerps)
    if len({lerp.count for lerp in lerps}) > 1:
        raise BadFile(f"{path}: {layout.lerps[0].format(i=i)!r} and those like it differ in size")
    width = lerps[0].count
    fused = Planned(f"blk.{i}.time_mix_lerp_fused.weight", (len(lerps), 1, 1, width), lerps, layout.lerps_are)
    first_v, planned = layout.architecture == "rwkv7" and i == 0, [fused]
    for name, shape in layout.zeros.items():
        sizes = shape(width)
        planned.append(Planned(f"blk.{i}.{name}", sizes, constant=np.broadcast_to(np.float32(0), sizes)))
    for name, target, reshape in layout.rows:
        if first_v and target.startswith("time_mix_v") and target[10] in "012":
            continue
        if reshape == "table":
            both = [take(one.format(i=i)) for one in (name, name.replace("_emb.", "_emb_x."))]
            planned.append(_table(path, f"blk.{i}.{target}", [*both, *normed]))
            continue
        wanted = 2.0 ** -(i // RESCALE) if layout.architecture == "rwkv6" else 1.0
        divisor = scale / wanted if target in RESCALED else 1.0
        tensor = _single(path, take(name.format(i=i)), f"blk.{i}.{target}", reshape, divisor)
        planned.append(tensor)
        if first_v and target.startswith("time_mix_a"):
            planned.append(replace(tensor, name=tensor.name.replace("time_mix_a", "time_mix_v")))
    return planned


def _metadata(architecture: str, shapes: Mapping[str, tuple[int, ...]], layers: int, head: int) -> dict[str, Value]:
    """The sizes of the model, derived from the shapes of tensors."""

    def rows(name: str) -> int:
        return shapes[f"blk.0.{name}.weight"][-2 if len(shapes[f"blk.0.{name}.weight"]) > 1 else 0]

    sizes: dict[str, Value] = {
        "context_length": ATTENTION_CONTEXT if "blk.0.dea_q.weight" in shapes else CONTEXT,
        "embedding_length": shapes["token_embd.weight"][-1],
        "block_count": layers,
        "attention.layer_norm_epsilon": EPS,
        **({"wkv.head_size": head} if head else {}),
        "feed_forward_length": rows("channel_mix_key"),
        "attention.head_count": 0,  # llama.cpp requires the key
    }
    if architecture == "rwkv6":
        sizes |= {
            "rescale_every_n_layers": RESCALE,
            "time_mix_extra_dim": rows("time_mix_w1") // len(RWKV6.lerps),
            "time_decay_extra_dim": rows("time_mix_decay_w1"),
        }
    elif architecture == "rwkv7":
        ranks = {"decay": "w", "iclr": "a", "gate": "g"}
        sizes |= {f"attention.{what}_lora_rank": rows(f"time_mix_{letter}1") for what, letter in ranks.items()}
        values = shapes.get("blk.1.time_mix_v1.weight", shapes["blk.0.time_mix_v1.weight"])
        sizes["attention.value_residual_mix_lora_rank"] = values[0]
    return {f"{architecture}.{key}": value for key, value in sizes.items()}
