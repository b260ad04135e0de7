"""Trials of convolutions and state space models over ragged segments, in prefill and decode."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, reductions
from ...kernels.kernel import CLOSE, EXACT
from ...kernels.ssm import HALVES
from ...kernels.tuning import Tuning
from ...ops.batch import Batch
from ...ops.vocabulary import State, StateSpace
from ..trials import Past, Stored, Trial
from .common import batches, decode_batch, normal, ragged, read_as_integers, read_on_units, with_half_states

HEADS = ((4, 2, 64, 128), (5, 1, 32, 24))  # H, G, P, N
ON_MATRIX_UNITS = ((4, 2, 64, 128), (3, 1, 32, 256))
CHANNELS, COLUMNS = 150, 16
CONVOLVED, FIRST, WIDE = 75, 6, 90  # channels of a convolution, its first column in x, and all columns


def convolutions(can: Capabilities) -> Iterator[Trial]:
    """Trials of a separate convolution: causal, gated or not, and centred."""
    every = {"prefill": ragged(((3, 0, 9), (0, 5, 1), (1, 9, 3), (2, 1, 2))), "decode": decode_batch(4)}
    for width, (step, batch) in product((2, 4), every.items()):
        state = State("past", (width - 1, CONVOLVED))
        yield Trial(
            "conv1d", f"{step}, width {width}", "", default_tuning(can),
            lambda g, w, x, state=state: g.conv1d(x, w["w"], state, then="silu", bias=w["b"], first=FIRST),
            {"x": normal(batch.rows, WIDE)},
            {"w": Stored.of(normal(CONVOLVED * width, seed=1)), "b": Stored.of(normal(CONVOLVED, seed=2))},
            EXACT.result, Past(batch, {"past": normal(4, *state.shape, seed=3)}),
        )  # fmt: skip
        yield Trial(
            "conv1d", f"{step}, width {width}, gated", "", default_tuning(can),
            lambda g, w, x, state=state: g.conv1d(x, w["w"], state, gated=True),
            {"x": normal(batch.rows, 3 * CONVOLVED)}, {"w": Stored.of(normal(CONVOLVED * width, seed=1))},
            EXACT.result, Past(batch, {"past": normal(4, *state.shape, seed=3)}),
        )  # fmt: skip
    for step, batch in every.items():
        yield Trial(
            "centred_conv1d", step, "", default_tuning(can),
            lambda g, w, x: g.centred_conv1d(x, w["w"], bias=w["b"]), {"x": normal(batch.rows, CONVOLVED)},
            {"w": Stored.of(normal(CONVOLVED * 5, seed=1)), "b": Stored.of(normal(CONVOLVED, seed=2))},
            EXACT.result, Past(batch, {}),
        )  # fmt: skip
    state, batch = State("past", (2, 64)), every["decode"]
    plain = Trial(
        "conv1d", "decode, gated", "", default_tuning(can), lambda g, w, x: g.conv1d(x, w["w"], state, gated=True),
        {"x": normal(batch.rows, 3 * 64)}, {"w": Stored.of(normal(64 * 3, seed=1))},
        EXACT.result, Past(batch, {"past": normal(4, *state.shape, seed=3)}),
    )  # fmt: skip
    yield from read_on_units(plain, 64, can)


def cases(can: Capabilities) -> Iterator[Trial]:
    """Trials of state space models."""
    by_token = default_tuning(can).changed(state_space_on_matrix_units=False)
    every = batches()
    for sizes, (step, batch) in product(HEADS, every.items()):
        yield _ssd("", by_token, sizes, step, batch)
        yield with_half_states(_ssd("", by_token, sizes, step, batch))
    for read in (read_as_integers, read_on_units):
        yield from read(_ssd("", by_token, HEADS[0], "decode", every["decode"]), 256, can)
    yield _convolved(can)
    if can.fragment:
        long = ragged(((3, 0, 70), (0, 5, 130), (1, 9, 9)))
        on_units = default_tuning(can).changed(state_space_on_matrix_units=True)
        for sizes in ON_MATRIX_UNITS:
            trial = replace(_ssd("matrix units", on_units, sizes, "prefill", long), allowed=HALVES.result)
            yield from (trial, with_half_states(trial))
    for step, batch in every.items():
        yield _scan(can, step, batch)
        yield _averages(can, step, batch)
    for (name, tuning), groups in product(reductions(can).items(), (1, 4)):
        yield Trial(
            "group_rms_norm", f"{groups} groups", name, tuning,
            lambda g, w, x, groups=groups: g.group_rms_norm(x, w["gain"], groups, 1e-6),
            {"x": normal(5, 272) * 3 + 1}, {"gain": Stored.of(normal(272, seed=1))}, EXACT.result,
        )  # fmt: skip
        yield Trial(
            "group_layer_norm", f"{groups} groups", name, tuning,
            lambda g, w, x, groups=groups: g.group_layer_norm(x, w["gain"], w["bias"], groups, 1e-6),
            {"x": normal(5, 272) * 3 + 1},
            {"gain": Stored.of(normal(272, seed=1)), "bias": Stored.of(normal(272, seed=2))}, EXACT.result,
        )  # fmt: skip


def _ssd(name: str, tuning: Tuning, sizes: tuple[int, int, int, int], step: str, batch: Batch) -> Trial:
    heads, groups, size, columns = sizes
    state, inner = State("ssm", (heads, size, columns)), heads * size
    inputs = {
        "xbc": normal(batch.rows, inner + 2 * groups * columns),
        "projected": normal(batch.rows, inner + heads, seed=1),
    }
    weights = {"bias": normal(heads), "a": -abs(normal(heads, seed=1)), "d": normal(heads, seed=2)}
    return Trial(
        "ssd", f"{step}, heads of {size} by {columns}", name, tuning,
        lambda g, w, xbc, projected: g.ssd(
            xbc, projected, StateSpace(w["bias"], w["a"], w["d"]), state, groups=groups
        ),
        inputs, {n: Stored.of(a) for n, a in weights.items()}, CLOSE.result,
        Past(batch, {"ssm": normal(4, *state.shape)}),
    )  # fmt: skip


def _convolved(can: Capabilities) -> Trial:
    """A decode step that also computes the preceding convolution; states are read and written."""
    heads, groups, size, columns = HEADS[0]
    batch = decode_batch(4).placed(states={slot: (slot, slot + 4) for slot in range(4)})
    inner = heads * size
    channels = inner + 2 * groups * columns
    past, state = State("past", (3, channels)), State("ssm", (heads, size, columns))
    weights = {
        "bias": normal(heads), "a": -abs(normal(heads, seed=1)), "d": normal(heads, seed=2),
        "taps": normal(channels * 4, seed=3) / 4, "added": normal(channels, seed=4),
    }  # fmt: skip

    def compute(g, w, /, projected):  # type: ignore[no-untyped-def]
        xbc = g.conv1d(projected, w["taps"], past, then="silu", bias=w["added"], first=inner)
        return g.ssd(xbc, projected, StateSpace(w["bias"], w["a"], w["d"]), state, groups=groups)

    return Trial(
        "ssd", "decode, with a convolution", "", default_tuning(can), compute,
        {"projected": normal(4, inner + channels + heads, seed=5)},
        {n: Stored.of(array) for n, array in weights.items()}, CLOSE.result,
        Past(batch, {"past": normal(8, *past.shape, seed=6), "ssm": normal(8, *state.shape, seed=7)}),
    )  # fmt: skip


def _scan(can: Capabilities, step: str, batch: Batch) -> Trial:
    state = State("ssm", (CHANNELS, COLUMNS))
    inputs = {
        "x": normal(batch.rows, CHANNELS),
        "dt": normal(batch.rows, CHANNELS, seed=1),
        "bc": normal(batch.rows, 2 * COLUMNS, seed=2),
        "projected": normal(batch.rows, 2 * CHANNELS, seed=3),
    }
    weights = {
        "bias": normal(CHANNELS),
        "a": -abs(normal(CHANNELS * COLUMNS, seed=1)),
        "d": normal(CHANNELS, seed=2),
    }
    return Trial(
        "selective_scan", step, "", default_tuning(can),
        lambda g, w, /, **x: g.selective_scan(**x, parameters=StateSpace(w["bias"], w["a"], w["d"]), state=state),
        inputs, {n: Stored.of(a) for n, a in weights.items()}, CLOSE.result,
        Past(batch, {"ssm": normal(4, *state.shape)}),
    )  # fmt: skip


def _averages(can: Capabilities, step: str, batch: Batch) -> Trial:
    width = 160
    state = State("wkv", (3, width))
    inputs = {name: 3 * normal(batch.rows, width, seed=i) for i, name in enumerate("rkv")}
    past = normal(4, *state.shape)
    past[:, 1] = abs(past[:, 1])  # a sum of positive numbers
    return Trial(
        "wkv4", step, "", default_tuning(can), lambda g, w, /, **x: g.wkv4(**x, vectors=w["vectors"], state=state),
        inputs, {"vectors": Stored.of(normal(2, width))}, CLOSE.result, Past(batch, {"wkv": past}),
    )  # fmt: skip
