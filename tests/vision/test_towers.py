"""Pixels and towers against what llama.cpp's libmtmd made of the same images."""

import hashlib

import numpy as np
import pytest

from rwkv_gpu.vision import encoder as encoder_module
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


def rows_of(encoder, vision, number):
    return encoder.rows(prepare(vision, picture_of(image(*SIZES[number]))))["media"]


def test_a_tower_is_released_when_memory_is_short_and_loaded_again(monkeypatch):
    vision, record = golden("qwen3vl")
    encoder, free = Encoder(vision, None), 1 << 40
    monkeypatch.setattr(encoder_module, "host_available", lambda: free)
    rows_of(encoder, vision, 0)
    assert "_runner" in vars(encoder)
    free = 1 << 20
    for number in (1, 2):
        assert len(rows_of(encoder, vision, number)) == len(record[f"rows{number}"])
        assert "_runner" not in vars(encoder)


@pytest.mark.gpu
def test_a_released_tower_takes_no_memory_of_the_gpu(monkeypatch, fast_device):
    vision, _ = golden("qwen3vl")
    encoder, free = Encoder(vision, fast_device), 1 << 40
    monkeypatch.setattr(encoder_module, "device_available", lambda _: free)
    before = fast_device.memory()
    rows_of(encoder, vision, 0)
    grown = {name: fast_device.memory().get(name, 0) - before.get(name, 0) for name in ("weights", "kv")}
    assert all(nbytes > 0 for nbytes in grown.values()), grown
    free = 1 << 20
    rows_of(encoder, vision, 1)
    assert all(fast_device.memory().get(name, 0) == before.get(name, 0) for name in grown)
