"""Trials of LoRA adapters fused with products.

They cover rows that mix adapters, in every way to reduce, and adapters as separate products.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, reductions
from ...kernels.kernel import CLOSE
from ...ops.vocabulary import Rms
from ..trials import Stored, Trial
from .common import F32, normal

COLUMNS = 24  # three adapters of eight: more groups of four than workgroups divide evenly


def cases(can: Capabilities) -> Iterator[Trial]:
    """Trials of q and v with adapters, in a dispatch with k without; few rows, so that every device has a kernel."""
    inputs = {"x": normal(4, 256), "scales": mixed_scales(4)}
    weights = {"gain": Stored.of(1 + normal(256) / 4)}
    for i, name in enumerate("qkv"):
        weights[name] = Stored.random(F32, 64, 256, seed=i)
        weights |= factors(name, 64, 256)
    for (way, tuning), normed in product(reductions(can).items(), (True, False)):
        yield Trial(
            "adapter_down", f"{'normed, ' * normed}{way}", "fused", tuning,
            lambda g, w, x, scales, normed=normed: _queries(g, w, x, scales, normed), inputs, weights, CLOSE.result,
        )  # fmt: skip
    yield Trial(
        "adapter_down", "as products", "products", default_tuning(can).changed(adapter_rows=0),
        lambda g, w, x, scales: _queries(g, w, x, scales, True), inputs, weights, CLOSE.result,
    )  # fmt: skip


def factors(name: str, rows: int, width: int, seed: int = 0, columns: int = COLUMNS) -> dict[str, Stored]:
    """A and B for a matrix."""
    halves = (normal(columns, width, seed=seed) / 16, normal(rows, columns, seed=seed + 1))
    return dict(zip((f"{name}.a", f"{name}.b"), (Stored.of(one.astype(np.float16)) for one in halves), strict=True))


def mixed_scales(rows: int, columns: int = COLUMNS) -> npt.NDArray[np.float32]:
    """Scales of each column per row: none, two non-adjacent adapters, or one."""
    wanted = np.array([[0, 0, 0], [1, 0, -1], [0, 0.5, 0], [0, 0, 2]], np.float32)
    return np.repeat(wanted[np.arange(rows) % len(wanted)], columns // 3, axis=1)


def _queries(g: Any, w: Mapping[str, Any], x: Any, scales: Any, normed: bool) -> Any:
    norm = Rms(w["gain"], 1e-6) if normed else None
    lows = g.adapter_down([x, x], [w["q.a"], w["v.a"]], scales, norm=norm)
    ys = g.linears([x, x, x], [w["q"], w["k"], w["v"]], norm=norm)
    q, k, v = g.adapter_up(ys, [lows[0], None, lows[1]], [w["q.b"], None, w["v.b"]], then=["none", "none", "silu"])
    return g.add(g.mul(q, k), v)
