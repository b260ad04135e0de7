"""Packing only moves bits: unpacking gives the same file, and the packed size equals the predicted one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rwkv_gpu.gguf import planes
from rwkv_gpu.gguf.codebooks import codebook
from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gguf.planes import PLANES, dequantise_rows, pack_rows, plane_row_bytes
from tests.gguf.blocks import SCALES, finite_rows, random_bytes

every_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)


def padding(fmt: Format, width: int) -> int:
    """Returns the bytes by which a row grows: floats are padded to whole runs."""
    return -width % fmt.run * fmt.nbytes if fmt.block == 1 else 0


def unpack_rows(fmt, packed, row_bytes):
    """The inverse of `pack_rows`: [rows, row_bytes] as in the file."""
    rows, every = len(packed[0]), PLANES[fmt.name]
    blocks = np.empty((packed[0].size // every[0].nbytes, sum(plane.nbytes for plane in every)), np.uint8)
    for plane, data in zip(every, packed, strict=True):
        words = data.reshape(-1, plane.nbytes).view(plane.word)
        if plane.exchanges:
            ordered, words = words.T, np.empty_like(words.T, order="C")
            words[plane.order] = ordered
            for exchange in reversed(plane.exchanges):
                exchange.apply(words)
            words = words.T
        plane.words_of(blocks)[...] = words
    return blocks.reshape(rows, -1)[:, :row_bytes]


@every_format
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), blocks=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_unpacking_undoes_packing(fmt, rows, blocks, seed):
    width = blocks * fmt.block
    raw = random_bytes(fmt, rows, width, seed)
    packed = pack_rows(fmt, raw)
    assert tuple(plane.shape for plane in packed) == tuple((rows, nbytes) for nbytes in plane_row_bytes(fmt, width))
    assert all(plane.flags.c_contiguous and plane.dtype == np.uint8 for plane in packed)
    np.testing.assert_array_equal(unpack_rows(fmt, packed, raw.shape[1]), raw)


@every_format
def test_packing_by_chunks_equals_packing_at_once(fmt, monkeypatch):
    raw = random_bytes(fmt, 5, 7 * max(fmt.block, fmt.run))
    at_once = pack_rows(fmt, raw)
    monkeypatch.setattr(planes, "CHUNK", 3 * fmt.nbytes * 32)
    for one, other in zip(at_once, pack_rows(fmt, raw), strict=True):
        np.testing.assert_array_equal(one, other)


@every_format
def test_each_row_is_packed_separately(fmt):
    raw = random_bytes(fmt, 4, 3 * max(fmt.block, 11))
    whole = pack_rows(fmt, raw)
    for row in range(4):
        for plane, alone in zip(whole, pack_rows(fmt, raw[row : row + 1]), strict=True):
            np.testing.assert_array_equal(plane[row], alone[0])


@every_format
def test_packing_keeps_the_size_of_the_file(fmt):
    for width in (1, 31, 32, 33, 256, 4096):
        if width % fmt.block == 0:
            assert sum(plane_row_bytes(fmt, width)) == fmt.row_bytes(width) + padding(fmt, width)


@every_format
def test_packing_takes_rows_of_read_only_memory_and_leaves_them(fmt):
    raw = random_bytes(fmt, 3, 2 * max(fmt.block, 32))
    before = raw.copy()
    raw.flags.writeable = False
    pack_rows(fmt, raw)
    np.testing.assert_array_equal(raw, before)


@every_format
def test_every_packed_format_has_the_functions_that_kernels_need(fmt):
    assert fmt.run in (16, 32)
    assert fmt.parts[0] == f"formats/{fmt.shader}"
    assert 1 <= len(PLANES[fmt.name]) + (codebook(fmt.name).size > 0) <= 4, "a shader part knows planes x, y, z, w"
    assert fmt.name in SCALES, "tests must know where the format holds floats"


@every_format
def test_dequantised_rows_have_the_shape_of_the_weights(fmt):
    width = 3 * max(fmt.block, 11)
    weights = dequantise_rows(fmt, finite_rows(fmt, 2, width))
    assert weights.shape == (2, width)
    assert weights.dtype == np.float32
    assert np.isfinite(weights).all()
