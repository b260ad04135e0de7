"""The shader parts that combine gate and up."""

from ...gpu.shader import Constant
from ..elementwise import ELEMENTWISE
from ..vocabulary import NUMBER, ClampedSwiglu, Glu


def glu_parts(then: Glu) -> tuple[tuple[str, ...], dict[str, Constant]]:
    """The parts that compute a gated activation, and their constants."""
    if not isinstance(then, ClampedSwiglu):
        return ("moe/glu/activated",), {"THEN": NUMBER[then]}
    row = ELEMENTWISE["glu"]
    numbers = {name: float(number) for name, number in zip(row.numbers, then.numbers, strict=True)}
    return row.links, {**row.constants, **numbers}
