"""What is chosen where nothing was tuned."""

from dataclasses import replace

import pytest

from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning


@pytest.mark.parametrize(
    ("rows", "out", "width", "rounded", "serve"),
    [
        (8, 14336, 4096, False, False),
        (16, 2560, 10240, True, False),  # all matrices of RWKV-7 2.9B: 16 sequences lost a fifth on an H200
        (16, 7680, 2560, True, False),
        (16, 10576, 2560, False, True),  # of Mamba-2 2.7B, whose x is floats: 42% gained
        (16, 2560, 5120, False, True),
        (16, 6144, 2048, False, True),
        (16, 1536, 2048, False, False),
        (16, 14336, 4096, True, True),
        (16, 4096, 14336, True, True),
        (32, 2560, 10240, True, True),
        (512, 2560, 2560, True, True),
    ],
)
def test_matrix_units_serve_batches_where_they_gain(rows, out, width, rounded, serve):
    """`rounded` says that whatever writes x writes integers, too."""
    can = replace(LIMITS["h200"], fragment=16)
    config = default_tuning(can).gemm_config(rows, out=out, width=width, packed=True, rounded=rounded)
    assert bool(config.fragment) == serve
