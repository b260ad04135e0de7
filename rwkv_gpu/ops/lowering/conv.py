"""Lowering of convolutions over the rows of a sequence."""

import numpy as np
import numpy.typing as npt

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ..graph import Node
from ..nodes import CentredConv1d, Conv1d
from ..values import CachedTensor, JoinedVectors, Operand
from ..vocabulary import NUMBER, NUMBERS
from .context import Lowering
from .states import written


def conv1d(to: Lowering, node: Node, op: Conv1d) -> None:
    before, channels = op.state.shape
    width = before + 1
    lanes = to.tuning.lanes.map_lanes
    weights: Operand = CachedTensor(("shift", channels), lambda: _row_before(channels))
    if op.weight:
        bias = None if op.bias is None else op.bias.name
        weights = JoinedVectors((op.weight.name, bias), (channels * width, channels))
    across = -(-channels // lanes)  # workgroups of a row
    constants: dict[str, Constant] = {
        "C": channels, "TAPS": width, "STRIDE": op.x.shape[1], "FIRST": op.first,
        "ACROSS": across, "WG": lanes, "THEN": NUMBER[op.then], **NUMBERS,
    }  # fmt: skip
    y, more, bound = written(to, node, "conv/y", op.quantises)
    to.emit(
        node,
        op.label or op.state.name,
        ("conv/conv1d", f"conv/{'gated' if op.gated else 'plain'}", *y, "lib/activation", "lib/lanes/plain"),
        {**constants, **more},
        {"weights": weights, **bound},
        groups=node.rows * across,
        fixed_bytes=4 * channels * (width + 1),
        row_flops=2 * channels * width,
        context_cost=ContextCost(sequence_bytes=2 * 4 * channels * (width - 1)),
    )


def centred_conv1d(to: Lowering, node: Node, op: CentredConv1d) -> None:
    channels, lanes = op.x.shape[1], to.tuning.lanes.map_lanes
    size = op.weight.shape[0]
    across = -(-channels // lanes)  # workgroups of a row
    bias = None if op.bias is None else op.bias.name
    weights = JoinedVectors((op.weight.name, bias), (size, channels))
    constants: dict[str, Constant] = {"C": channels, "TAPS": size // channels, "ACROSS": across, "WG": lanes}
    to.emit(
        node, op.weight.name, ("conv/centred_conv1d", "lib/lanes/plain"), constants, {"weights": weights},
        groups=node.rows * across, fixed_bytes=4 * (size + channels), row_flops=2 * size,
    )  # fmt: skip


def _row_before(channels: int) -> npt.NDArray[np.float32]:
    """The weights and bias of a convolution that returns the previous row."""
    return np.concatenate([np.tile(np.array([1, 0], np.float32), channels), np.zeros(channels, np.float32)])
