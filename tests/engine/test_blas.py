"""Small products run on one thread. Afterwards the number of threads is restored, even after an error."""

import numpy as np
import pytest

from rwkv_gpu.engine.host_runner import SMALL, Blas


@pytest.fixture
def blas():
    before = Blas()
    if before.set_threads is None:
        pytest.skip("numpy multiplies by another library than its own OpenBLAS")
    before.set_threads(2)
    yield Blas()
    before.set_threads(before.threads)


def test_small_products_use_one_thread_and_the_limit_is_restored(blas):
    assert blas.threads == 2
    with blas.sized(SMALL):
        assert Blas().threads == 1
    assert Blas().threads == blas.threads
    with pytest.raises(KeyError), blas.sized(1):
        raise KeyError
    assert Blas().threads == blas.threads


def test_large_products_keep_their_threads(blas):
    with blas.sized(SMALL + 1):
        assert Blas().threads == blas.threads


def test_a_path_that_is_not_a_library_changes_nothing(tmp_path):
    (tmp_path / "libopenblas.so").write_bytes(b"nothing")
    with Blas(tmp_path).sized(1):
        assert np.allclose(np.eye(3) @ np.eye(3), np.eye(3))
