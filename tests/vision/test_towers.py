"""Pixels and towers against what llama.cpp's libmtmd made of the same images."""

import hashlib

import numpy as np
import pytest

from rwkv_gpu.vision.encoder import Encoder, prepare
from rwkv_gpu.vision.pixels import patches_of, picture_of
from rwkv_gpu.vision.projector import read_vision
from tests.golden.record_images import MODELS, SIZES, image
from tests.golden_files import OWN


def golden(name):
    return read_vision(OWN / "vision" / f"{name}.gguf"), np.load(OWN / "vision" / f"{name}.npz")


def pixels_of(prepared, how):
    """The pixels of an image as its tower reads them, [height, width, 3], from its patches."""
    (width, height), merge, side = prepared.grid, how.merge, how.patch
    blocks = patches_of(prepared.pixels, how).reshape(height // merge, width // merge, merge, merge, 3, side, side)
    return np.ascontiguousarray(blocks.transpose(0, 2, 5, 1, 3, 6, 4).reshape(height * side, width * side, 3))


@pytest.mark.parametrize("name", MODELS)
def test_pixels_are_those_of_llama_cpp_byte_for_byte(name):
    vision, record = golden(name)
    for number, size in enumerate(SIZES):
        pixels = pixels_of(prepare(vision, picture_of(image(*size))), vision.preparation)
        assert pixels.shape == tuple(record[f"shape{number}"])
        assert hashlib.sha256(pixels.tobytes()).digest() == record[f"pixels{number}"].tobytes()


def rms_apart(vision, record, encoder):
    """The largest deviation of the rows of an image, relative to their own."""
    worst = 0.0
    for number, size in enumerate(SIZES):
        found = encoder.rows(prepare(vision, picture_of(image(*size))))
        rows = np.concatenate([found[name] for name in ("media", *sorted(found.keys() - {"media"}))], axis=1)
        wanted = record[f"rows{number}"]
        assert rows.shape == wanted.shape
        worst = max(worst, float(np.sqrt(((rows - wanted) ** 2).mean()) / wanted.std()))
    return worst


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_images_in_numpy_are_those_of_llama_cpp(name):
    vision, record = golden(name)
    assert rms_apart(vision, record, Encoder(vision, None)) < 1e-5  # float32 against float32


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_images_on_a_gpu_are_those_of_llama_cpp(name, fast_device):
    vision, record = golden(name)
    assert rms_apart(vision, record, Encoder(vision, fast_device)) < 1e-3  # keys and values are float16
