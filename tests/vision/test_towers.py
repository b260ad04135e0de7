"""Pixels and rows of towers equal those of llama.cpp's libmtmd for the same images."""

import gc
import hashlib
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu.errors import BadFile, BadInput, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.vision import encoder as encoder_module
from rwkv_gpu.vision.encoder import Encoder
from rwkv_gpu.vision.image import prepare
from rwkv_gpu.vision.media_projector import read_projector
from rwkv_gpu.vision.pixels import patches_of, picture_of
from rwkv_gpu.vision.sam import waves_of
from rwkv_gpu.vision.sizes import LONGEST, Size, closest, grids
from rwkv_gpu.vision.tiles import slices
from rwkv_gpu.vision.towers import WINDOWS
from tests.golden.record_images import (
    LARGE,
    MODELS,
    deepseekocr,
    hunyuanvl,
    image,
    internvl,
    kept,
    llama4,
    minicpmv,
    muse,
    sizes_of,
    write,
)
from tests.golden_files import OWN

TILED = "lfm2", "idefics3", "idefics3old", "minicpmv", "deepseekocr"


# The overview of DeepSeek-OCR has 4,096 patches, which take minutes of software Vulkan.
EACH, ON_GPU = (
    [pytest.param(name, marks=mark) if name == "deepseekocr" else name for name in MODELS]
    for mark in (pytest.mark.long, pytest.mark.slow)
)


def golden(name):
    return read_projector(OWN / "vision" / f"{name}.gguf").vision, np.load(OWN / "vision" / f"{name}.npz")


def pixels_of(prepared, how):
    """Returns the pixels that a tower reads, [n, 3], from the patches of an image, tile by tile."""
    each = []
    for unit in prepared.units:
        width, merge, side = unit.grid.width, how.merge, how.patch
        patches = np.concatenate([patches_of(tile, how) for tile in unit.tiles])
        blocks = patches.reshape(-1, width // merge, merge, merge, 3, side, side)
        each.append(blocks.transpose(0, 2, 5, 1, 3, 6, 4).reshape(-1, 3))
    return np.concatenate(each)


@pytest.mark.parametrize("name", MODELS)
def test_pixels_equal_those_of_llama_cpp_byte_for_byte(name):
    vision, record = golden(name)
    for number, size in enumerate([*sizes_of(name), *LARGE.get(name, ())]):
        pixels = pixels_of(prepare(vision, picture_of(image(*size))), vision.preparation)
        assert len(pixels) == record[f"shape{number}"][:-1].prod()
        assert hashlib.sha256(pixels.tobytes()).digest() == record[f"pixels{number}"].tobytes()


@pytest.mark.parametrize("name", TILED)
def test_texts_between_tiles_equal_those_of_llama_cpp(name):
    vision, record = golden(name)
    layouts = json.loads(str(record["layouts"]))
    assert len({len(layout) for layout in layouts}) > 1
    for size, layout in zip(sizes_of(name), layouts, strict=True):
        parts = prepare(vision, picture_of(image(*size))).texts(vision)
        runs = itertools.groupby((part if isinstance(part, str) else part.tokens for part in parts), type)
        found = [["".join(run)] if kind is str else [*run] for kind, run in runs]
        assert [part for run in found for part in run if part] == layout


def rms_apart(vision, record, encoder):
    """Returns the largest deviation of the rows of an image, relative to their RMS."""
    worst = 0.0
    for number, size in enumerate(sizes_of(vision.path.stem)):
        units = [encoder.rows(unit) for unit in prepare(vision, picture_of(image(*size))).units]
        names = "media", *sorted(units[0].keys() - {"media"})
        rows = np.concatenate([np.concatenate([found[name] for found in units]) for name in names], axis=1)
        wanted = record[f"rows{number}"]
        assert len(rows) == record[f"count{number}"]
        found = rows[kept(len(rows))]
        assert found.shape == wanted.shape
        worst = max(worst, float(np.sqrt(((found - wanted) ** 2).mean()) / wanted.std()))
    return worst


@pytest.mark.parametrize("name", EACH)
def test_rows_of_images_in_numpy_equal_those_of_llama_cpp(name):
    vision, record = golden(name)
    assert rms_apart(vision, record, Encoder(vision, None)) < 1e-5  # float32 against float32


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_rows_of_images_on_a_gpu_equal_those_of_llama_cpp(name, fast_device):
    vision, record = golden(name)
    # Keys and values are float16. Keys of DeepSeek-OCR also contain 209 waves in layers without windows.
    assert rms_apart(vision, record, Encoder(vision, fast_device)) < (2e-3 if name == "deepseekocr" else 1e-3)


def rows_of(encoder, vision, number):
    return encoder.rows(prepare(vision, picture_of(image(*sizes_of(vision.path.stem)[number]))))["media"]


def test_a_tower_is_released_when_memory_is_short_and_loaded_again(monkeypatch):
    vision, record = golden("qwen3vl")
    encoder, free = Encoder(vision, None), 1 << 40
    monkeypatch.setattr(encoder_module, "host_available", lambda: free)
    rows_of(encoder, vision, 0)
    assert "runner" in vars(encoder)
    free = 1 << 20
    for number in (1, 2):
        assert len(rows_of(encoder, vision, number)) == record[f"count{number}"]
        assert "runner" not in vars(encoder)


@pytest.mark.gpu
def test_a_released_tower_takes_no_memory_of_the_gpu(monkeypatch, fast_device):
    vision, _ = golden("qwen3vl")
    encoder, free = Encoder(vision, fast_device), 1 << 40
    monkeypatch.setattr(encoder_module, "device_available", lambda _: free)
    gc.collect()  # closes towers of other tests, which the release would collect as well
    before = fast_device.memory()
    rows_of(encoder, vision, 0)
    grown = {name: fast_device.memory().get(name, 0) - before.get(name, 0) for name in ("weights", "kv")}
    assert all(nbytes > 0 for nbytes in grown.values()), grown
    free = 1 << 20
    rows_of(encoder, vision, 1)
    assert all(fast_device.memory().get(name, 0) == before.get(name, 0) for name in grown)


def test_tiles_of_every_shape_are_within_their_limits():
    how = replace(golden("internvl")[0].preparation, side=24, shapes=grids(24, 2, 6))
    rng = np.random.default_rng(0)
    shapes = [Size(*(int(side) for side in np.exp(rng.uniform(0, 9.7, 2)))) for _ in range(300)]
    for shape in [Size(1, LONGEST), Size(LONGEST, 1), Size(24, 25), *shapes]:
        cut = how.tiled(shape)
        count = cut.width * cut.height // 24**2
        assert (max(shape) > 24) == (2 <= count <= 6), (shape, cut)
        assert cut.width % 24 == cut.height % 24 == 0
    assert how.tiled(Size(24, 24)) == (0, 0)


def test_no_image_has_more_patches_than_its_tower_holds():
    rng = np.random.default_rng(1)
    sizes = [Size(*(int(side) for side in np.exp(rng.uniform(0, 9.7, 2)))) for _ in range(500)]
    longs = [Size(LONGEST, side) for side in (1, 2, 3, 5, 9, 17, 30, 50, 120, 300, LONGEST)]
    for name in ("qwen3vl", "qwen25vl", "lfm2", "gemma4v", "mistral3"):
        how = golden(name)[0].preparation
        for size in (*sizes, *longs, *(Size(b, a) for a, b in longs)):
            try:
                grid = how.grid(how.target(size))
            except BadInput:
                assert max(size) > 500 * min(size)
                continue
            assert grid.width * grid.height <= how.max_patches, (name, size)


@pytest.mark.parametrize(("side", "rows"), [(40, 42), (64, 70)])
def test_windows_of_deepseek_ocr_contain_each_patch_once(side, rows):
    patch, given = golden("deepseekocr")[0].sam.places(Size(side, side))
    assert len(patch) == rows**2 and sorted(patch[patch >= 0]) == [*range(side**2)]
    for first in range(0, rows**2, 14**2):
        own = patch[first : first + 14**2]
        y, x = np.divmod(own[own >= 0], side)
        assert np.ptp(y) < 14 and np.ptp(x) < 14
        assert (given[WINDOWS][first : first + 14**2] == [first, first + 14**2]).all()


@pytest.mark.parametrize(("side", "size"), [(5, 9), (14, 27), (40, 127)])
def test_waves_add_up_to_a_table_of_distances(side, size):
    table = np.random.default_rng(3).normal(size=(size, 2))
    cosines, sines = waves_of(table, side)
    angles = 2 * np.pi / (2 * side - 1) * np.arange(1 - side, side)[:, None] * np.arange(side)
    at = np.clip((np.arange(2 * side - 1) + 0.5) * size / (2 * side - 1) - 0.5, 0, size - 1)
    wanted = np.stack([np.interp(at, np.arange(size), column) for column in table.T], axis=1)
    assert np.abs(np.cos(angles) @ cosines - np.sin(angles) @ sines - wanted).max() < 1e-12


def test_tiles_of_llama_4_have_the_texts_of_its_publisher():
    vision, _ = golden("llama4")

    def text(*size):
        parts = prepare(vision, picture_of(image(*size))).texts(vision)
        return "".join(part if isinstance(part, str) else "#" for part in parts)

    assert text(20, 9) == "<|image_start|><|image|>#<|image_end|>"
    row = "#<|tile_x_separator|>#<|tile_y_separator|>"
    assert text(48, 48) == f"<|image_start|>{row}{row}<|image|>#<|image_end|>"


def test_images_of_muse_glimmer_stay_within_their_limit():
    how = golden("muse")[0].preparation
    rng = np.random.default_rng(2)
    for _ in range(300):
        image = Size(*(int(side) for side in np.exp(rng.uniform(0, 9.7, 2))))
        size = closest(image, how.step, how.most)
        assert size.width % how.step == size.height % how.step == 0 and min(size) > 0
        if min(image) > 8 * how.step and image.width * image.height < how.most:  # wide enough for its shape
            assert 0.85 < size.width * image.height / (size.height * image.width) < 1.15


@pytest.mark.parametrize(
    ("key", "value"), [("preproc_min_tiles", 0), ("preproc_max_tiles", 1 << 20), ("preproc_min_tiles", 9)]
)
def test_wrong_numbers_of_tiles_are_refused_in_one_line(tmp_path, key, value):
    tensors, keys = internvl(32)
    write(tmp_path / "a.gguf", "clip", keys | {f"clip.vision.{key}": value}, tensors)
    with pytest.raises(BadFile, match="clip.vision.preproc_m.._tiles"):
        read_projector(tmp_path / "a.gguf")


@pytest.mark.parametrize("name", ["v.blk.0.attn_q_norm.weight", "mm.4.weight", "v.blk.2.ln1.weight"])
def test_a_tensor_that_the_tower_does_not_use_is_refused(tmp_path, name):
    tensors, keys = internvl(32)
    write(tmp_path / "a.gguf", "clip", keys, tensors | {"a.blk.0.ln1.weight": np.ones(8, np.float32)})
    read_projector(tmp_path / "a.gguf")  # the tower for sounds is not read here
    write(tmp_path / "a.gguf", "clip", keys, tensors | {name: np.ones(32, np.float32)})
    with pytest.raises(UnsupportedModel, match=name):
        read_projector(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("make", "name", "shape"),
    [
        (muse, "mm.1.weight", (20, 23)),
        (muse, "v.position_embd.weight", (25, 16)),
        (hunyuanvl, "mm.model.fc.weight", (40, 23)),
        (hunyuanvl, "v.image_newline", (23,)),
        (hunyuanvl, "mm.image_end", (39,)),
        (llama4, "mm.model.fc.weight", (40, 19)),
        (deepseekocr, "v.sam.blk.2.attn.pos_w.weight", (27, 8)),
        (deepseekocr, "v.sam.neck.3.bias", (7,)),
        (deepseekocr, "v.sam.net_3.weight", (9, 7, 3, 3)),
        (deepseekocr, "v.sam.pos_embd.weight", (1, 40, 40, 8)),
        (deepseekocr, "v.view_seperator", (39,)),
        (deepseekocr, "mm.model.fc.weight", (40, 17)),
        (deepseekocr, "v.sam.blk.3.attn.out.weight", (8, 8)),
    ],
)
def test_a_tensor_of_another_shape_is_refused_by_its_name(tmp_path, make, name, shape):
    tensors, keys = make(40)
    write(tmp_path / "a.gguf", "clip", keys, tensors)
    read_projector(tmp_path / "a.gguf")
    write(tmp_path / "a.gguf", "clip", keys, tensors | {name: np.ones(shape, np.float32)})
    with pytest.raises((BadFile, UnsupportedModel), match=name) as caught:
        read_projector(tmp_path / "a.gguf")
    assert "\n" not in str(caught.value)


def test_a_resampler_of_another_version_or_width_is_refused(tmp_path):
    tensors, keys = minicpmv(128)
    write(tmp_path / "a.gguf", "clip", keys | {"clip.minicpmv_version": 2}, tensors)
    with pytest.raises(UnsupportedModel, match="version 2 of MiniCPM-V"):
        read_projector(tmp_path / "a.gguf")
    tensors["resampler.query"] = tensors["resampler.query"][:, :96]
    write(tmp_path / "a.gguf", "clip", keys, tensors)
    with pytest.raises(BadFile, match="resampler.query.*multiple of 128"):
        read_projector(tmp_path / "a.gguf")


def test_an_image_whose_slices_are_too_narrow_is_refused():
    how = replace(golden("minicpmv")[0].preparation, patch=14, tile_side=448, most=2 * 448**2)
    with pytest.raises(BadInput, match="16,384 x 1 pixels is too narrow"):
        slices(picture_of(np.zeros((1, LONGEST, 3), np.uint8)), how)


def test_a_class_embedding_without_positions_is_refused(tmp_path):
    tensors, keys = internvl(32)
    del tensors["v.position_embd.weight"]
    write(tmp_path / "a.gguf", "clip", keys, tensors)
    with pytest.raises(BadFile, match="v.class_embd"):
        read_projector(tmp_path / "a.gguf")


def test_a_class_embedding_of_another_width_is_refused(tmp_path):
    tensors, keys = internvl(32)
    write(tmp_path / "a.gguf", "clip", keys, tensors | {"v.class_embd": tensors["v.class_embd"][:16]})
    with pytest.raises(BadFile, match="v.class_embd"):
        read_projector(tmp_path / "a.gguf")


def test_a_projector_with_nan_is_refused_by_the_name_of_its_tensor(tmp_path):
    path = tmp_path / "mmproj.gguf"
    for name, type in (("qwen2vl", "<f2"), ("gemma3", "<f4")):
        data = bytearray((OWN / "vision" / f"{name}.gguf").read_bytes())
        with GGUFFile.open(OWN / "vision" / f"{name}.gguf") as file:
            tensor = next(one for one in file.tensors.values() if one.format.name == {"<f2": "F16", "<f4": "F32"}[type])
        nan = np.array(np.nan, type).tobytes()
        data[tensor.offset : tensor.offset + len(nan)] = nan
        path.write_bytes(data)
        with pytest.raises(BadFile, match=f"'{tensor.name}' has numbers that are NaN"):
            read_projector(path)
