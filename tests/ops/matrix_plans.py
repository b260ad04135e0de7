"""A simulated device with matrix units: its plans can be recorded and read on any machine."""

from dataclasses import replace

from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import Tuning

WITH_MATRIX_UNITS = replace(LIMITS["h200"], fragment=16)


def tuning_with_matrix_units() -> Tuning:
    """Returns the default tuning of a device with matrix units."""
    return default_tuning(WITH_MATRIX_UNITS)
