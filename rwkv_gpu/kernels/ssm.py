"""Kernels of convolutions, of Mamba-2's recurrence and Mamba's selective scan, and of a norm by groups of columns."""

from .kernel import CLOSE, Hole, Kernel, Needs, Tolerance
from .parts import LANES, PLAIN, QUANTISING, ROUNDING_IN_UNITS, STATE, SUM

ON_MATRIX_UNITS = Needs(f16=True, matrix_units=True)
GATES = Hole("gates", ("conv/plain", "conv/gated"))
WRITTEN = Hole("y", ("conv/y/floats", "conv/y/round"))
CONV1D = Kernel("conv/conv1d", "conv1d", (GATES, WRITTEN, PLAIN), ("lib/activation", *ROUNDING_IN_UNITS))
CENTRED = Kernel("conv/centred_conv1d", "centred_conv1d", (PLAIN,), ())

SSD = Kernel(
    "ssm/ssd",
    "ssd",
    (
        Hole("xbc", ("ssm/xbc/plain", "ssm/xbc/convolved")),
        Hole("output", ("ssm/output/floats", "ssm/output/quantise", "ssm/output/round")),
        SUM,
        STATE,
        PLAIN,
    ),
    shared=("conv/row", *QUANTISING, *ROUNDING_IN_UNITS),
    core=("lib/softplus",),
    tolerance=CLOSE,
    part_needs={"lib/sum/single_lane": Needs(max_lanes=1)},  # one lane per row: for devices without subgroups
)
# Mamba-2 in chunks of tokens on matrix units: products of B and C, which heads share, then all heads in parallel.
HALVES = Tolerance(2e-3, 2e-3, "x, B, C, S and decays times scores are rounded to float16: by 1/2048 of themselves")
SSD_SCORES = Kernel("ssm/ssd_scores", "ssd", (PLAIN,), core=("ssm/ssd_slots",), needs=ON_MATRIX_UNITS, tolerance=HALVES)
SSD_MATRIX = Kernel(
    "ssm/ssd_matrix",
    "ssd",
    (STATE, PLAIN),
    core=("ssm/ssd_slots", "lib/softplus"),
    needs=ON_MATRIX_UNITS,
    tolerance=HALVES,
)
SELECTIVE_SCAN = Kernel("ssm/selective_scan", "selective_scan", (PLAIN,), tolerance=CLOSE)
GROUP_NORM = Kernel(
    "ssm/group_norm",
    "group_norm",
    (
        Hole("centre", ("ssm/centre/none", "ssm/centre/mean")),
        Hole("shift", ("ssm/shift/none", "ssm/shift/each")),
        LANES,
    ),
)
