"""Trials of recurrences other than RWKV-7's over ragged segments, in prefill and decode."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, in_chunks, reductions
from ...kernels.gemm_config import gemv
from ...kernels.kernel import CLOSE, EXACT
from ...kernels.parts import FLOATS
from ...kernels.tuning import Tuning
from ...ops.batch import Batch
from ...ops.vocabulary import Activation, DeltaRule, SlotRows, State
from ..trials import Past, Stored, Trial
from .common import BY_NAME, F32, batches, decode_batch, normal, read_as_integers, read_on_units, with_half_states

HEADS, KEY_HEADS = 4, 2


def cases(can: Capabilities) -> Iterator[Trial]:
    """All trials of this module."""
    every = batches()
    prefill = every["prefill"]
    for (name, tuning), (step, batch) in product(reductions(can).items(), every.items()):
        yield from _wkv6(name, tuning, step, batch)
        yield _lightning(name, tuning, step, batch)
        yield with_half_states(_lightning(name, tuning, step, batch))
        for size in (32, 128):
            yield from _delta_rules(name, tuning, step, batch, size)
        if step == "decode":
            for size in (32, 96):  # head sizes with neighbouring rows of four numbers, and without
                yield _convolved(name, tuning, size)
            for fmt in FLOATS:
                yield _decay_lora(name, tuning.changed(lora_rows=4), batch, fmt.name)
    for name, tuning in in_chunks(can).items():
        yield from _delta_rules(name, tuning, "prefill", prefill, 128)
        yield from _wkv6(name, tuning, "prefill", prefill)
        yield _lightning(name, tuning, "prefill", prefill)
        yield with_half_states(_lightning(name, tuning, "prefill", prefill))
    yield from _mixes(can, every)
    tuning = next(iter(reductions(can).values()))
    yield with_half_states(_convolved("", tuning, 32))
    for trial in (*_wkv6("", tuning, "decode", every["decode"]), _convolved("", tuning, 32)):
        yield from read_as_integers(trial, HEADS * 32, can)
        yield from read_on_units(trial, HEADS * 32, can)


def _mixes(can: Capabilities, every: dict[str, Batch]) -> Iterator[Trial]:
    """Ops that mix a row with the previous one."""
    tuning, width, shift = next(iter(reductions(can).values())), 96, State("shift", (1, 96))
    weights = {"mix": Stored.of(normal(3, width))}
    for step, batch in every.items():
        x = {"x": normal(batch.rows, width, seed=2)}
        past = Past(batch, {"shift": normal(4, 1, width, seed=3)})
        yield Trial("shift", step, "", tuning, lambda g, _, x: g.shift(x, shift), x, past=past)
        rows = SlotRows("rows", (4, width))
        kept = Past(batch, {"rows": normal(4, *rows.shape, seed=3)})
        yield Trial("shift_rows", step, "", tuning, lambda g, _, x, rows=rows: _shifted(g, x, rows), x, past=kept)
        if batch.single:
            yield Trial("row_before", step, "", tuning, lambda g, _, x, rows=rows: _before(g, x, rows), x, past=kept)
            here = lambda g, _, x, rows=rows: g.add(x, g.row_before(rows, 0))  # noqa: E731
            yield Trial("row_before", f"{step}, at its place", "", tuning, here, x, past=kept)
            one, only = SlotRows("rows", (1, width)), Past(batch, {"rows": normal(4, 1, width, seed=3)})
            yield Trial("keep_rows", step, "", tuning, lambda g, _, x, one=one: _kept(g, x, one), x, past=only)
        both = x | {"before": normal(batch.rows, width, seed=4)}
        yield Trial(
            "lerp",
            step,
            "",
            tuning,
            lambda g, w, x, before: g.lerp(x, before, w["mix"])[2],
            both,
            weights,
            EXACT.result,
        )
        for rank in (5, 12):  # rows that are whole vec4s or not
            yield Trial(
                "lerp", f"{step}, by rows of {rank}", "", tuning,
                lambda g, w, x, before, low: g.lerp(x, before, w["mix"], low=low, up=w["up"])[2],
                both | {"low": normal(batch.rows, 3 * rank, seed=5)},
                weights | {"up": Stored.of(normal(3 * width * rank, seed=1))}, EXACT.result, past,
            )  # fmt: skip
    yield _mixes_in_decode(can)


def _before(g: Any, x: Any, rows: SlotRows) -> Any:
    """Returns x and the rows before it."""
    return g.add(x, g.row_before(rows))


def _kept(g: Any, x: Any, rows: SlotRows) -> Any:
    """Returns x as the stored row of a slot."""
    g.keep_rows(x, rows)
    return g.row_before(rows)


def _shifted(g: Any, x: Any, rows: SlotRows) -> Any:
    """The previous row of each row of x; in decode, plus the previous row of 2x, which is stored next."""
    y = g.shift_rows(x, rows)
    g.keep_rows(g.scale(x, 2.0), rows)
    return y if x.shape[0] > 4 else g.add(y, g.row_before(rows))


def _mixes_in_decode(can: Capabilities) -> Trial:
    """A token shift whose previous row is read from the state, by a product and by another mix."""
    batch, width = decode_batch(1), 512
    weights = {"w": normal(width) + 1, "b": normal(width, seed=1), "mix": normal(1, width, seed=2)}
    weights |= {"mixes": normal(2, width, seed=3), "up": normal(2 * width * 8, seed=4) / 8}
    stored = {n: Stored.of(a) for n, a in weights.items()} | {"down": Stored.random(F32, 16, width)}
    stored["last"] = Stored.random(F32, width, width, seed=1)

    def compute(g, w, /, x):  # type: ignore[no-untyped-def]
        shift = State("previous", (width,))
        first, xx, before = g.norm_shift_mix(x, w["w"], w["b"], 1e-5, w["mix"], shift, rows=True)
        low = g.linear(first, w["down"], then="tanh")
        one, two = g.lerp(xx, before, w["mixes"], low=low, up=w["up"])
        return g.linear(g.mul(one, two), w["last"], add=x)

    tuning = default_tuning(can).only(gemv(64, 8, 2, 2)).changed(fuses_token_shift=True, token_shift_rows=2)
    past = Past(batch, {"previous": normal(1, width)})
    return Trial(
        "lerp", "within a token shift", "", tuning, compute, {"x": normal(1, width, seed=5)}, stored, CLOSE.result, past
    )


def _wkv6(name: str, tuning: Tuning, step: str, batch: Batch) -> Iterator[Trial]:
    """Trials of wkv6 with bonus and norm, and without both, with fewer key heads."""
    size = 32
    wkv, wide, narrow = State("wkv", (HEADS, size, size)), HEADS * size, KEY_HEADS * size
    weights = {"vectors": Stored.of(normal(3, wide))}
    for what, keys in (("", wide), (", QRWKV", narrow)):
        inputs = {n: normal(batch.rows, wide, seed=i) for i, n in enumerate(("r", "gate"))}
        inputs |= {n: normal(batch.rows, keys, seed=5 + i) for i, n in enumerate(("k", "v"))}
        inputs["w"] = np.exp(-np.exp(normal(batch.rows, wide, seed=9) - 1))
        yield Trial(
            "wkv6", step + what, name, tuning,
            lambda g, w, r, gate, k, v, w_, own=not what: g.wkv6(
                r, w_, k, v, gate, wkv, vectors=w["vectors"] if own else None, eps=64e-5 if own else 0.0
            ),
            {("w_" if n == "w" else n): array for n, array in inputs.items()},
            weights, CLOSE.result, Past(batch, {"wkv": normal(4, *wkv.shape)}),
        )  # fmt: skip


def _decay_lora(name: str, tuning: Tuning, batch: Batch, format_name: str) -> Trial:
    """Decode whose recurrence computes its decay from the first half of a LoRA."""
    size, rank = 32, 36
    wkv, wide = State("wkv", (HEADS, size, size)), HEADS * size
    inputs = {n: normal(batch.rows, wide, seed=i) for i, n in enumerate(("r", "k", "v", "gate"))}
    inputs["low"] = normal(batch.rows, rank, seed=9) / 8
    stored = {"vectors": Stored.of(normal(3, wide)), "bias": Stored.of(normal(wide, seed=4))}
    stored["up"] = Stored.random(BY_NAME[format_name], wide, rank)

    def compute(g, w, /, r, k, v, gate, low):  # type: ignore[no-untyped-def]
        decay = g.linear(low, w["up"], then="decay6", bias=w["bias"])
        return g.wkv6(r, decay, k, v, gate, wkv, vectors=w["vectors"], eps=64e-5)

    past = Past(batch, {"wkv": normal(4, *wkv.shape)})
    return Trial(
        "wkv6", f"decode with a LoRA, {format_name}", name, tuning, compute, inputs, stored, CLOSE.result, past
    )


def _delta_rules(name: str, tuning: Tuning, step: str, batch: Batch, size: int) -> Iterator[Trial]:
    """Trials of decays per head and per channel, separate and fused gates, and both ways in which heads share keys."""
    state, wide, narrow = State("delta", (HEADS, size, size)), HEADS * size, KEY_HEADS * size
    weights = {
        "rate": -np.exp(normal(HEADS)), "norm": normal(size, seed=1), "rising": np.exp(normal(HEADS)),
        "bias": normal(HEADS, seed=2), "biases": normal(wide, seed=3),
    }  # fmt: skip
    stored = {n: Stored.of(array) for n, array in weights.items()}
    past = Past(batch, {"delta": normal(4, *state.shape)})
    gate = {"gate": normal(batch.rows, wide, seed=4)}
    columns = gate | {"qkv": normal(batch.rows, 2 * narrow + wide, seed=5)}
    apart = columns | {n: normal(batch.rows, HEADS, seed=6 + i) for i, n in enumerate(("beta", "decay"))}
    channels = gate | {n: normal(batch.rows, wide, seed=9 + i) for i, n in enumerate(("q", "k", "v", "decay"))}
    channels |= {"beta": apart["beta"]}
    ways = {
        "by head": (apart, "bias", KEY_HEADS, False, 0.0),
        "in one": (columns | {"both": normal(batch.rows, 2 * HEADS, seed=8)}, "bias", KEY_HEADS, True, 0.0),
        "by channel": (channels, "biases", HEADS, False, 0.0),
        "by channel, bounded": (channels, "biases", HEADS, False, -5.0),
    }
    for what, (inputs, bias, keys, grouped, bound) in ways.items():

        def compute(g, w, /, bias=bias, keys=keys, grouped=grouped, bound=bound, **x):  # type: ignore[no-untyped-def]
            rate = w["rising" if bound else "rate"]
            then: Activation = "sigmoid" if keys == HEADS else "silu"
            how = DeltaRule(keys, grouped, w[bias], rate, w["norm"], 1e-6, then, bound)
            qkv = [x["qkv"]] if "qkv" in x else [x["q"], x["k"], x["v"]]
            beta, decay = (x["both"], x["both"]) if "both" in x else (x["beta"], x["decay"])
            return g.gated_delta_rule(qkv, beta, decay, x["gate"], how, state)

        yield Trial(
            "gated_delta_rule",
            f"{step}, heads of {size}, {what}",
            name,
            tuning,
            compute,
            inputs,
            stored,
            CLOSE.result,
            past,
        )


def _lightning(name: str, tuning: Tuning, step: str, batch: Batch) -> Trial:
    """Trials with one decay per head, from almost none to almost full."""
    size, decays = 32, (0.999, 0.9, 0.4, 1e-3)
    state = State("lightning", (HEADS, size, size))
    return Trial(
        "lightning_attention", step, name, tuning, lambda g, _, qkv: g.lightning_attention(qkv, decays, state),
        {"qkv": normal(batch.rows, 3 * HEADS * size)}, {}, CLOSE.result,
        Past(batch, {"lightning": normal(4, *state.shape)}),
    )  # fmt: skip


def _convolved(name: str, tuning: Tuning, size: int) -> Trial:
    """A decode step that also computes the preceding convolution; states are read and written."""
    batch = decode_batch(4).placed(states={slot: (slot, slot + 4) for slot in range(4)})
    wide, channels = HEADS * size, (2 * KEY_HEADS + HEADS) * size
    past, state = State("past", (3, channels)), State("delta", (HEADS, size, size))
    weights = {
        "rate": -np.exp(normal(HEADS)), "norm": normal(size, seed=1), "bias": normal(HEADS, seed=2),
        "taps": normal(channels * 4, seed=3),
    }  # fmt: skip

    def compute(g, w, /, qkv, gate, beta, decay):  # type: ignore[no-untyped-def]
        how = DeltaRule(KEY_HEADS, False, w["bias"], w["rate"], w["norm"], 1e-6, "silu")
        mixed = g.conv1d(qkv, w["taps"], past, then="silu")
        return g.gated_delta_rule([mixed], beta, decay, gate, how, state)

    widths = {"qkv": channels, "gate": wide, "beta": HEADS, "decay": HEADS}
    return Trial(
        "gated_delta_rule", f"decode, heads of {size}, with a convolution", name, tuning, compute,
        {n: normal(4, width, seed=4 + i) for i, (n, width) in enumerate(widths.items())},
        {n: Stored.of(array) for n, array in weights.items()}, CLOSE.result,
        Past(batch, {"past": normal(8, *past.shape, seed=8), "delta": normal(8, *state.shape, seed=9)}),
    )  # fmt: skip
