"""LoRA adapters beside matrix products of few rows."""

from .kernel import CLOSE, Kernel
from .parts import BESIDE, LANES, LOW, NORM, PLAIN_ROWS, QUANTISING

ADAPTER_DOWN = Kernel(
    "adapters/down",
    "adapter_down",
    (LANES, NORM, PLAIN_ROWS.only("vec4"), BESIDE, LOW),
    shared=(*QUANTISING, "lib/sum/subgroup", "lib/matrix_units/rounded"),
    tolerance=CLOSE,
)
