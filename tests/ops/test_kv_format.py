"""Keys and values in blocks: stored values are correct to half a quant, and take the declared number of bytes."""

import numpy as np
import pytest

from rwkv_gpu.ops.kv_format import BLOCK, KV_FORMATS, format_of, hadamard, kv_format
from rwkv_gpu.ops.vocabulary import Cache


@pytest.mark.parametrize("kind", ["q8", "q4"])
@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
def test_a_number_is_restored_to_half_a_quantisation_step(kind, size):
    fmt, x = KV_FORMATS[kind], np.random.default_rng(size).standard_normal((5, 2, size)).astype(np.float32) * 3
    x[0, 0, :BLOCK] = 0
    stored = fmt.store(x)
    assert format_of(stored, size) is fmt
    assert stored.nbytes == 10 * fmt.nbytes(size)
    blocks, found = (y.reshape(5, 2, -1, BLOCK) for y in (x, fmt.load(stored, size)))
    if fmt.rotated:  # quants are those of rotated blocks
        blocks, found = blocks @ hadamard(BLOCK), found @ hadamard(BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    # The scale of q4 has the sign of the largest number. The same number with the other sign is one step short.
    half = largest / 254 if kind == "q8" else np.where(np.abs(found - blocks) > largest / 16, largest / 8, largest / 16)
    assert (np.abs(found - blocks) <= half * 1.01 + 1e-5).all()
    assert np.mean(np.abs(found - blocks) > largest / 16) < 0.04
    assert not found[0, 0, 0].any()


def test_a_large_dim_costs_other_dims_of_its_block_little_precision():
    """A quant of 4 bits is an eighth of the largest number, so without a rotation errors would be up to a sixteenth."""
    x = np.random.default_rng(0).standard_normal((50, 1, 64)).astype(np.float32)
    x[..., 5] *= 100
    found = KV_FORMATS["q4"].load(KV_FORMATS["q4"].store(x), 64)
    others = np.delete(found - x, 5, axis=-1)[..., : BLOCK - 1]
    assert np.sqrt((others**2).mean()) < np.abs(x[..., 5]).mean() / 60


def test_scores_and_sums_do_not_change_by_a_rotation():
    h = hadamard(BLOCK)
    np.testing.assert_allclose(h @ h, np.eye(BLOCK), atol=1e-6)
    assert np.ptp(np.abs(h)) < 1e-7


def test_a_head_of_128_takes_half_and_a_quarter_of_float16_and_its_scales():
    assert [KV_FORMATS[kind].nbytes(128) for kind in ("f32", "f16", "q8", "q4")] == [512, 256, 136, 72]


def test_latents_and_heads_that_are_not_whole_blocks_stay_float16():
    assert kv_format("q8", Cache("a", 2, 128)).name == "q8"
    assert kv_format("q8", Cache("a", 2, 80)).name == "f16"
    assert kv_format("q4", Cache("a", 1, 576, latent=512)).name == "f16"
    assert kv_format("f32", Cache("a", 1, 80)).name == "f32"
