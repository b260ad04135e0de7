"""Lowers a graph to dispatches. Each kind of op has a function that selects the shader, its parts and its grid."""

from collections.abc import Callable
from typing import Any

from .. import nodes
from ..dispatch import UnplacedDispatch, merged
from ..graph import Graph, Op
from ..memory import Memory
from ..target import Target
from . import (
    adapters,
    attention,
    conv,
    dense,
    entries,
    expert_cache,
    heads,
    key_index,
    latent,
    linear,
    moe,
    quantising,
    recurrence,
    rwkv,
    sampling,
    slot_rows,
    ssm,
)
from .context import Lowering

LOWERINGS: dict[type[Op], Callable[..., Any]] = {
    nodes.Accept: sampling.accept,
    nodes.AdapterDown: adapters.down,
    nodes.AddToStreams: dense.add_to_streams,
    nodes.Attend: attention.attend,
    nodes.AttendEntries: entries.attend,
    nodes.AttendLatent: latent.attend,
    nodes.Compress: entries.compress,
    nodes.TurnHeads: entries.turn_heads,
    nodes.WriteEntries: entries.write,
    nodes.WriteIndex: key_index.write,
    nodes.WriteKeys: attention.write_keys,
    nodes.WriteLatent: latent.write,
    nodes.ByRow: dense.by_row,
    nodes.ChooseKeys: key_index.choose,
    nodes.Concat: slot_rows.concat,
    nodes.Conv1d: conv.conv1d,
    nodes.CentredConv1d: conv.centred_conv1d,
    nodes.Copy: dense.copy,
    nodes.CorrectStreams: dense.correct,
    nodes.Embed: dense.embed,
    nodes.ExpertProducts: moe.expert_products,
    nodes.ExpertSum: moe.expert_sum,
    nodes.FetchExperts: expert_cache.fetch_experts,
    nodes.GatedDeltaRule: recurrence.gated_delta_rule,
    nodes.Gemm: linear.gemm,
    nodes.GroupChoices: moe.group_choices,
    nodes.GroupNorm: ssm.group_norm,
    nodes.HeadLinear: heads.head_linear,
    nodes.KeepRows: slot_rows.keep_rows,
    nodes.Kernel: dense.kernel,
    nodes.Lerp: recurrence.lerp,
    nodes.LightningAttention: recurrence.lightning_attention,
    nodes.MakeStreamGates: dense.stream_gates,
    nodes.MakeStreamMatrix: dense.stream_matrix,
    nodes.Map: dense.map_elements,
    nodes.MatchLength: dense.match_length,
    nodes.Norm: dense.norm,
    nodes.Pick: dense.pick,
    nodes.PickBlocks: dense.pick_blocks,
    nodes.PredictStreams: dense.predict,
    nodes.Quantise: quantising.quantise,
    nodes.ResizeHeads: dense.resize_heads,
    nodes.Route: moe.route,
    nodes.RouteKnown: moe.route_known,
    nodes.RowBefore: slot_rows.row_before,
    nodes.MeanParts: dense.mean_parts,
    nodes.NGramRows: dense.ngram_rows,
    nodes.RowMatrix: dense.row_matrix,
    nodes.TokenNumbers: dense.token_numbers,
    nodes.Sample: sampling.sample,
    nodes.SelectiveScan: ssm.selective_scan,
    nodes.ScaleRows: dense.scale_rows,
    nodes.Scatter: dense.scatter,
    nodes.ShiftRows: slot_rows.shift_rows,
    nodes.SortChoices: moe.sort_choices,
    nodes.Ssd: ssm.ssd,
    nodes.TimeMix: rwkv.time_mix,
    nodes.TokenShift: rwkv.token_shift,
    nodes.Turn: dense.turn,
    nodes.Wkv4: rwkv.wkv4,
    nodes.Wkv6: recurrence.wkv6,
}


def lower(graph: Graph, target: Target, memory: Memory) -> list[UnplacedDispatch]:
    """The dispatches of a graph, in order. A node marked `merges` shares the dispatch before it if the device can."""
    to = Lowering(graph, target, memory)
    for node in graph.nodes:
        first = len(to.dispatches)
        LOWERINGS[type(node.op)](to, node, node.op)
        if isinstance(node.op, nodes.Gemm | nodes.Ssd | nodes.WriteLatent) and node.op.merges and first:
            own, to.dispatches[first:] = to.dispatches[first:], []
            for dispatch in own:
                both = merged(to.dispatches[-1], dispatch, target.can)
                to.dispatches[len(to.dispatches) - bool(both) :] = [both or dispatch]
    return [*to.corrections.values(), *to.dispatches]
