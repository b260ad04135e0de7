"""What is chosen where nothing was tuned."""

from dataclasses import replace

import pytest

from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning


@pytest.mark.parametrize(
    ("rows", "out", "width", "serve"),
    [
        (8, 14336, 4096, False),
        (16, 2560, 10240, False),  # all matrices of RWKV-7 2.9B: 16 sequences lost a fifth on an H200
        (16, 7680, 2560, False),
        (16, 14336, 4096, True),
        (16, 4096, 14336, True),
        (32, 2560, 10240, True),
        (512, 2560, 2560, True),
    ],
)
def test_matrix_units_serve_batches_where_they_gain(rows, out, width, serve):
    can = replace(LIMITS["h200"], fragment=16)
    assert bool(default_tuning(can).gemm_config(rows, out=out, width=width, packed=True).fragment) == serve
