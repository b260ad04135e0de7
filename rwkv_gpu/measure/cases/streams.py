"""Trials of several residual streams."""

from collections.abc import Iterator
from typing import Any

from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, reductions
from ...kernels.kernel import EXACT
from ..trials import Array, Trial
from .common import normal


def cases(can: Capabilities) -> Iterator[Trial]:
    """All of them."""
    tuning, allowed = default_tuning(can), EXACT.result
    streams = {f"x{n}": normal(3, 132, seed=n) for n in range(4)}

    def predicted(g: Any, _: Any, coefs: Array, **xs: Array) -> Any:
        first, *others = g.predict_streams(list(xs.values()), coefs)
        return g.add(g.add(first, others[0]), g.mul(others[1], others[2]))

    def corrected(g: Any, _: Any, y: Array, coefs: Array, add: Array, **xs: Array) -> Any:
        [first] = g.correct_streams([xs["x0"]], y, coefs)
        _, second, third, last = g.correct_streams(list(xs.values()), y, coefs, add=add)
        return g.add(g.add(first, second), g.mul(third, last))

    coefs, rows = normal(3, 16, seed=5), {"y": normal(3, 132, seed=6), "add": normal(3, 132, seed=7)}
    yield Trial("predict_streams", "", "map", tuning, predicted, {"coefs": coefs} | streams, allowed=allowed)
    inputs = {"coefs": coefs[:, :4].copy()} | rows | streams
    yield Trial("correct_streams", "", "map", tuning, corrected, inputs, allowed=allowed)
    for name, reduction in reductions(can).items():
        yield Trial(
            "match_length", "rows of 132", name, reduction, lambda g, _, x, z: g.match_length(x, z),
            {"x": normal(3, 132), "z": 7 * normal(3, 132, seed=1)}, allowed=allowed,
        )  # fmt: skip
