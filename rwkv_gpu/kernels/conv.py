"""Convolutions over the rows of a sequence."""

from .kernel import Kernel
from .parts import PLAIN

CONV1D = Kernel("conv/conv1d", "conv1d", (PLAIN,), ("lib/activation",))
