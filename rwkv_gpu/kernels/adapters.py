"""The kernel of A x of LoRA adapters, for matrix products of few rows."""

from .kernel import CLOSE, Kernel
from .parts import EXTRA_WORK, LANES, LOW, NORM, PLAIN_ROWS, QUANTISING

ADAPTER_DOWN = Kernel(
    "adapters/down",
    "adapter_down",
    (LANES, NORM, PLAIN_ROWS.only("vec4"), EXTRA_WORK, LOW),
    shared=(*QUANTISING, "lib/sum/subgroup", "lib/matrix_units/rounded"),
    tolerance=CLOSE,
)
