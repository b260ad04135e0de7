"""Kernels of convolutions over the rows of a sequence."""

from .kernel import Hole, Kernel
from .parts import PLAIN, ROUNDING_IN_UNITS

GATES = Hole("gates", ("conv/plain", "conv/gated"))
WRITTEN = Hole("y", ("conv/y/floats", "conv/y/round"))
CONV1D = Kernel("conv/conv1d", "conv1d", (GATES, WRITTEN, PLAIN), ("lib/activation", *ROUNDING_IN_UNITS))
CENTRED = Kernel("conv/centred_conv1d", "centred_conv1d", (PLAIN,), ())
