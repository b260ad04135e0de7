"""Trials of convolutions over ragged segments, in prefill and in decode."""

from collections.abc import Iterator
from itertools import product

from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning
from ...kernels.kernel import EXACT
from ...ops.batch import Batch
from ...ops.vocabulary import State
from ..trials import Past, Stored, Trial
from .common import decode_batch, normal, read_on_units

RAGGED = ((3, 0, 9), (0, 5, 1), (1, 9, 3), (2, 1, 2))  # slot, start, tokens
CHANNELS, FIRST, COLUMNS = 75, 6, 90


def cases(can: Capabilities) -> Iterator[Trial]:
    """All of them."""
    prefill = Batch.of([(slot, start, [0] * count) for slot, start, count in RAGGED])
    batches = {"prefill": prefill, "decode": decode_batch(4)}
    for width, (step, batch) in product((2, 4), batches.items()):
        state = State("past", (width - 1, CHANNELS))
        yield Trial(
            "conv1d", f"{step}, width {width}", "", default_tuning(can),
            lambda g, w, x, state=state: g.conv1d(x, w["w"], state, then="silu", bias=w["b"], first=FIRST),
            {"x": normal(batch.rows, COLUMNS)},
            {"w": Stored.of(normal(CHANNELS * width, seed=1)), "b": Stored.of(normal(CHANNELS, seed=2))},
            EXACT.result, Past(batch, {"past": normal(4, *state.shape, seed=3)}),
        )  # fmt: skip
        yield Trial(
            "conv1d", f"{step}, width {width}, gated", "", default_tuning(can),
            lambda g, w, x, state=state: g.conv1d(x, w["w"], state, gated=True),
            {"x": normal(batch.rows, 3 * CHANNELS)}, {"w": Stored.of(normal(CHANNELS * width, seed=1))},
            EXACT.result, Past(batch, {"past": normal(4, *state.shape, seed=3)}),
        )  # fmt: skip
    state, batch = State("past", (2, 64)), batches["decode"]
    plain = Trial(
        "conv1d", "decode, gated", "", default_tuning(can), lambda g, w, x: g.conv1d(x, w["w"], state, gated=True),
        {"x": normal(batch.rows, 3 * 64)}, {"w": Stored.of(normal(64 * 3, seed=1))},
        EXACT.result, Past(batch, {"past": normal(4, *state.shape, seed=3)}),
    )  # fmt: skip
    yield from read_on_units(plain, 64, can)
