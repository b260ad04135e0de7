"""Rows that are another row and sums of integers: who reads them adds up, or a dispatch does, and states are kept."""

import numpy as np

from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.vocabulary import State
from tests.ops.test_recurrent import Case, batch_of, mixing, normal

WIDTH = 192
SMALL, LARGE = 2.0**-26, 0.25


def added(seed: int) -> np.ndarray:
    """What workgroups may have added up: small units and large ones."""
    random = np.random.default_rng(seed)
    small = random.integers(-(2**29), 2**29, (1, WIDTH))
    return np.concatenate([small, random.integers(-9, 9, (1, WIDTH))], 1).astype(np.int32)


def summed(g, base, sums):
    """base + sums, by either interpreter."""
    if not isinstance(g, Recorder):
        return (base + sums[:, :WIDTH] * SMALL + sums[:, WIDTH:] * LARGE).astype(np.float32)
    told = g.sums(WIDTH)
    g.record("", ("copy_rows", "lanes/plain"), {"D": 2 * WIDTH, "WG": 64}, {"x": sums, "y": told}, groups=2)
    return g.summed(base, told)


def two_layers(g, w, s, x, first, second):
    """A mix whose state is kept by who reads a sum, and one whose state is kept as ever."""
    with g.layer(0):
        a, b = g.norm_shift_mix(x, w["weight"], w["bias"], 1e-5, w["mix"], s["one"])
        early = g.linears([a, b], [w["first"], w["half"]])
        x = summed(g, x, first)
    with g.layer(1):
        a, b = g.norm_shift_mix(x, w["weight"], w["bias"], 1e-5, w["mix"], s["two"])
        late, half = g.linears([a, b], [w["first"], w["half"]])
        x = g.linear(late, w["first"], add=x)
    x = summed(g, x, second)
    return {"early": early[0], "late": late, "half": half, "y": g.activate(x, "relu2")}


def test_a_sum_is_added_up_by_what_mixes_it_or_by_a_dispatch(device):
    weights = {"weight": normal(WIDTH) + 1, "bias": normal(WIDTH, seed=1), "mix": normal(2, WIDTH, seed=2)}
    weights |= {"first": normal(WIDTH, WIDTH, seed=5) / 8, "half": (normal(80, WIDTH, seed=7) / 8).astype(np.float16)}
    case = Case(two_layers, weights, [State("one", (WIDTH,)), State("two", (WIDTH,))])
    steps = [
        (
            batch_of([(slot, start, 1)]).placed(states={slot: (slot, written)}),
            {"x": normal(1, WIDTH, seed=start) * 3 + 1, "first": added(start), "second": added(start + 9)},
        )
        for slot, start, written in ((3, 0, 3), (3, 1, 5), (5, 2, 5))
    ]
    roomy = device.capabilities.max_storage_buffers >= 10
    for tuning in mixing(device):
        case.assert_same(device, steps, rows=1, tuning=tuning)
        plan, _, _ = case.record(device, steps[0][1], 1, tuning)
        names = [dispatch.name for dispatch in plan.dispatches]
        assert sum("sum_up" in name for name in names) == (1 if roomy else 2)
