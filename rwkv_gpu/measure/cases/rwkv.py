"""Trials of RWKV's ops over ragged segments, in prefill and decode."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, in_chunks, reductions
from ...kernels.kernel import CLOSE, EXACT
from ...kernels.parts import FLOATS
from ...kernels.tuning import Tuning
from ...ops.batch import Batch
from ...ops.vocabulary import Mixed, State
from ..trials import Array, Past, Stored, Trial
from .common import BY_NAME, decode_batch, normal, ragged, read_as_integers, read_on_units, with_half_states

OUTER = "decay", "sigmoid", "none", "sigmoid"  # activations of the products of w, a, gate, v_gate


def cases(can: Capabilities) -> Iterator[Trial]:
    """All trials of this module."""
    batches = {"prefill": ragged(), "decode": decode_batch(4), "one row": decode_batch(1)}
    for (name, tuning), (step, batch) in product(reductions(can).items(), batches.items()):
        yield _shift(name, tuning, step, batch)
        for size in (64, 128):
            trials = list(_time_mix(name, tuning, step, batch, size))
            yield from (*trials, with_half_states(trials[0]))
    for name, tuning in in_chunks(can).items():
        yield from _time_mix(name, tuning, "prefill", batches["prefill"], 64)
    tuning = default_tuning(can).changed(state_lanes_per_row=8, lora_rows=4)  # a single lane without subgroups
    for step in ("decode", "one row"):
        trials = list(_time_mix("lanes share rows", tuning, step, batches[step], 64))
        yield from (*trials, with_half_states(trials[0]))
        if step == "decode":
            yield from read_as_integers(trials[0], 192, can)
            yield from read_on_units(trials[0], 192, can)
        for fmt in FLOATS:
            yield _loras("lanes share rows", tuning, step, batches[step], fmt.name)
    for read in (read_as_integers, read_on_units):
        yield from read(_shift("", default_tuning(can), "decode", batches["decode"]), 320, can)


def _shift(name: str, tuning: Tuning, step: str, batch: Batch) -> Trial:
    width = 320
    weights = {"w": normal(width) + 1, "b": normal(width, seed=1), "mix": normal(6, width, seed=2)}
    shift = State("shift", (width,))
    return Trial(
        "norm_shift_mix", step, name, tuning.changed(fuses_token_shift=False),
        lambda g, w, x: g.norm_shift_mix(x, w["w"], w["b"], 1e-5, w["mix"], shift)[5],
        {"x": normal(batch.rows, width, seed=3)}, {n: Stored.of(a) for n, a in weights.items()}, EXACT.result,
        Past(batch, {"shift": normal(4, width)}),
    )  # fmt: skip


def _mixed(rows: int, size: int) -> tuple[dict[str, Array], Array]:
    shape = (rows, 3 * size)
    inputs = {n: normal(*shape, seed=i) for i, n in enumerate(("r", "k", "v", "gate", "v_first"))}
    rates = {n: 1 / (1 + np.exp(-normal(*shape, seed=9 + i))) for i, n in enumerate(("a", "v_gate", "w"))}
    inputs |= {**rates, "w": np.exp(np.float32(-0.606531) * rates["w"])}
    vectors = normal(5, 3 * size)
    vectors[1] = np.abs(vectors[1])
    return inputs, vectors


def _time_mix(name: str, tuning: Tuning, step: str, batch: Batch, size: int) -> Iterator[Trial]:
    """Trials of a later layer, and of the first without a gate."""
    wkv = State("wkv", (3, size, size))
    inputs, vectors = _mixed(batch.rows, size)
    plain = {n: array for n, array in inputs.items() if n not in ("gate", "v_gate", "v_first")}
    for what, given in (("", inputs), (", first layer, no gate", plain)):
        yield Trial(
            "time_mix", f"{step}, heads of {size}{what}", name, tuning,
            lambda g, weights, /, **x: g.time_mix(Mixed(**x), weights["vectors"], 64e-5, wkv),
            given, {"vectors": Stored.of(vectors)}, CLOSE.result, Past(batch, {"wkv": normal(4, 3, size, size)}),
        )  # fmt: skip


def _loras(name: str, tuning: Tuning, step: str, batch: Batch, format_name: str) -> Trial:
    """A decode step of LoRAs and a time mix, which may compute the second halves of the LoRAs itself."""
    width, wkv = 192, State("wkv", (3, 64, 64))
    inputs = {n: normal(batch.rows, width, seed=i) for i, n in enumerate(("x", "r", "k", "v", "v_first"))}
    weights = {"vectors": Stored.of(np.abs(normal(5, width))), "bias": Stored.of(normal(width, seed=1))}
    for i, rank in enumerate((96, 36, 160, 32)):
        weights[f"down{i}"] = Stored.random(BY_NAME[format_name], rank, width, seed=i)
        weights[f"up{i}"] = Stored.random(BY_NAME[format_name], width, rank, seed=i)

    def compute(g: Any, w: Any, x: Array, **rest: Array) -> Any:
        lows = g.linears([x] * 4, [w[f"down{i}"] for i in range(4)])
        bias = [w["bias"], w["bias"], None, w["bias"]]
        made = g.linears(lows, [w[f"up{i}"] for i in range(4)], then=OUTER, bias=bias)
        mixed = Mixed(w=made[0], a=made[1], gate=made[2], v_gate=made[3], **rest)
        return g.time_mix(mixed, w["vectors"], 64e-5, wkv)

    past = Past(batch, {"wkv": normal(4, 3, 64, 64)})
    return Trial(
        "time_mix", f"{step} with LoRAs, {format_name}", name, tuning, compute, inputs, weights, CLOSE.result, past
    )
