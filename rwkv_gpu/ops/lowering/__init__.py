"""From a graph to dispatches: each kind of op has a function here that chooses the shader, its parts and its grid."""

from collections.abc import Callable
from typing import Any

from ..dispatch import UnplacedDispatch, merged
from ..graph import Graph, Op
from ..memory import Memory
from ..nodes import (
    AdapterDown,
    Attend,
    AttendLatent,
    ByRow,
    Conv1d,
    Copy,
    CorrectStreams,
    Embed,
    ExpertProducts,
    ExpertSum,
    FetchExperts,
    GatedDeltaRule,
    Gemm,
    GroupChoices,
    GroupNorm,
    HeadLinear,
    Kernel,
    Lerp,
    LightningAttention,
    Map,
    MatchLength,
    Norm,
    Pick,
    PredictStreams,
    Quantise,
    ResizeHeads,
    Route,
    Sample,
    ScaleRows,
    SelectiveScan,
    SortChoices,
    Ssd,
    TimeMix,
    TokenShift,
    Wkv6,
    WriteLatent,
)
from ..target import Target
from . import (
    adapters,
    attention,
    conv,
    dense,
    expert_cache,
    heads,
    latent,
    linear,
    moe,
    quantising,
    recurrence,
    rwkv,
    sampling,
    ssm,
    streams,
)
from .context import Lowering

LOWERINGS: dict[type[Op], Callable[..., Any]] = {
    AdapterDown: adapters.down,
    Attend: attention.attend,
    AttendLatent: latent.attend,
    WriteLatent: latent.write,
    ByRow: dense.by_row,
    Conv1d: conv.conv1d,
    Copy: dense.copy,
    CorrectStreams: streams.correct,
    Embed: dense.embed,
    ExpertProducts: moe.expert_products,
    ExpertSum: moe.expert_sum,
    FetchExperts: expert_cache.fetch_experts,
    GatedDeltaRule: recurrence.gated_delta_rule,
    Gemm: linear.gemm,
    GroupChoices: moe.group_choices,
    GroupNorm: ssm.group_norm,
    HeadLinear: heads.head_linear,
    Kernel: dense.kernel,
    Lerp: recurrence.lerp,
    LightningAttention: recurrence.lightning_attention,
    Map: dense.map_elements,
    MatchLength: streams.match_length,
    Norm: dense.norm,
    Pick: dense.pick,
    PredictStreams: streams.predict,
    Quantise: quantising.quantise,
    ResizeHeads: dense.resize_heads,
    Route: moe.route,
    Sample: sampling.sample,
    SelectiveScan: ssm.selective_scan,
    ScaleRows: dense.scale_rows,
    SortChoices: moe.sort_choices,
    Ssd: ssm.ssd,
    TimeMix: rwkv.time_mix,
    TokenShift: rwkv.token_shift,
    Wkv6: recurrence.wkv6,
}


def lower(graph: Graph, target: Target, memory: Memory) -> list[UnplacedDispatch]:
    """The dispatches of a graph, in its order; products that may share a dispatch merged as far as a device can."""
    to = Lowering(graph, target, memory)
    for node in graph.nodes:
        first = len(to.dispatches)
        LOWERINGS[type(node.op)](to, node, node.op)
        if isinstance(node.op, Gemm | Ssd | WriteLatent) and node.op.merges and first:
            own, to.dispatches[first:] = to.dispatches[first:], []
            for dispatch in own:
                both = merged(to.dispatches[-1], dispatch, target.can)
                to.dispatches[len(to.dispatches) - bool(both) :] = [both or dispatch]
    return to.dispatches
