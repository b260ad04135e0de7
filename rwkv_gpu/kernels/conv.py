"""Convolutions over the rows of a sequence."""

from .kernel import Hole, Kernel
from .parts import PLAIN

CONV1D = Kernel("conv/conv1d", "conv1d", (Hole("gates", ("conv/plain", "conv/gated")), PLAIN), ("lib/activation",))
