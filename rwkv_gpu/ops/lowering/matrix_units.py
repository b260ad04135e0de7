"""Parts and constants of kernels that multiply float16 on matrix units."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ...gpu.weights import Shard
from ...kernels.gemm_config import GemmConfig
from ...kernels.parts import LAST_WORKGROUP, OF_FOURS, OF_NIBBLES, SUMS_OF_PARTS
from ..nodes import Gemm
from ..nodes.epilogue import AddAdapters
from ..nodes.stage import Links
from ..values import CachedTensor, Value


def on_matrix_units(op: Gemm, config: GemmConfig, shard: Shard, widths: Sequence[int], blocks: int) -> Links:
    """The parts, constants and operands of a product, for matrices of the format of a shard."""
    by_fours = config.takes(OF_FOURS)
    found = Links(_decoded_fours(shard) if by_fours else [decoded_weights(shard)])
    found.constants["W_EXPONENT"] = w_exponent(shard)
    if op.has(AddAdapters):
        found.constants["MAX_ASKED"] = 2  # fewer, since adapters need registers
    if by_fours:
        found.constants["STAGES"] = -(-max(widths) // (config.columns * config.joined_parts))
    if config.joined_parts > 1:
        found.add(_joined_sums(config, blocks))
    return found


def _joined_sums(config: GemmConfig, blocks: int) -> Links:
    """Buffers for `blocks` blocks with split columns: the partial sums, and counts of finished parts."""
    found = Value((blocks * config.tb, config.r * config.joined_parts))
    count = blocks * config.fragments_of_w * config.fragments_of_x
    none_done = CachedTensor(("none done", count), partial(np.zeros, count, np.uint32))
    return Links([SUMS_OF_PARTS, LAST_WORKGROUP], {}, {"found": found, "done": none_done})


def w_exponent(shard: Shard) -> int:
    """The exponent of the power of two that weights are multiplied by before rounding to float16.

    Scales of packed formats are small. A factor of 2^4 keeps full precision for scales of at least 4e-6 and weights of
    at most 4,000.
    Float formats are not scaled.
    """
    return 4 if shard.packed else 0


def decoded_weights(shard: Shard) -> str:
    """The part that converts decoded weights to float16."""
    kinds = {"formats/unsigned": "of_bytes", "formats/signed": "of_signed_bytes"}
    return "lib/matrix_units/" + next((kind for part, kind in kinds.items() if part in shard.parts), "of_floats")


def _decoded_fours(shard: Shard) -> list[str]:
    """The parts that convert four weights of a run to float16."""
    own = {part.rpartition("/")[2] for part in shard.parts}
    if own >= {"nibbles", "unsigned"} and "fifths" not in own:
        return [OF_NIBBLES]
    return [decoded_weights(shard), OF_FOURS]
