"""What kernels make of a gate and what it lets through."""

from ...gpu.shader import Constant
from ..vocabulary import NUMBER, ClampedSwiglu, Glu


def glu_parts(then: Glu) -> tuple[tuple[str, ...], dict[str, Constant]]:
    """The parts that do it, and their constants."""
    if not isinstance(then, ClampedSwiglu):
        return ("moe/glu/activated",), {"THEN": NUMBER[then]}
    gate, activated = then.bounds
    return ("moe/glu/clamped_swiglu",), {
        "LIMIT": float(then.limit),
        "ALPHA": float(then.alpha),
        "SHIFT": float(then.shift),
        "MOST_GATE": gate,
        "MOST_ACTIVATED": activated,
        "THEN": NUMBER["none"],
    }
