"""Safetensors files are read strictly: nothing beyond the file is read, and every error is one line."""

import json
import os
import random
import re

import numpy as np
import pytest

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.safetensors import MAX_HEADER, is_safetensors, read_safetensors

ALL = re.compile(".*")
KINDS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def whole(tensors: dict[str, tuple[str, np.ndarray]], **entries: object) -> bytes:
    """Returns a file; `entries` replace those of its header."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, array) in tensors.items():
        bits = (array.astype("<f4").view("<u4") >> 16).astype("<u2") if kind == "BF16" else array.astype(KINDS[kind])
        header[name] = {
            "dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + bits.nbytes],
        }  # fmt: skip
        data += bits.tobytes()
    text = json.dumps(header | entries).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_every_type_are_read(tmp_path, kind):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
    path = tmp_path / "x.st"
    path.write_bytes(whole({"other": ("F32", array), "a": (kind, array)}))
    assert is_safetensors(path)
    found = read_safetensors(path, re.compile("a"))
    assert list(found) == ["a"] and found["a"].dtype == np.float32
    np.testing.assert_array_equal(found["a"], array)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 17]}, "beyond the end"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [-4, 12]}, "beyond the end"),
        ({"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}, "another size"),
        ({"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 16]}, "another size"),
        ({"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}, "beyond the end"),
        ({"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}, "not a list of whole numbers"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 16]}, "beyond the end"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [12, 0]}, "beyond the end"),
        ({"dtype": "F32", "shape": [1] * 8 + [4], "data_offsets": [0, 16]}, "beyond the end"),
        ({"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}, "not a list of whole numbers"),
        ({"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}, "its numbers are I64"),
        ({"dtype": "F32", "shape": [4]}, "data_offsets"),
        ([], "not an object"),
    ],
)
def test_an_entry_with_false_sizes_is_refused(tmp_path, entry, message):
    path = tmp_path / "x.st"
    path.write_bytes(whole({"a": ("F32", np.ones(4))}, a=entry))
    with pytest.raises(BadFile, match=message) as caught:
        read_safetensors(path, ALL)
    assert str(caught.value).startswith(f"{path}: ") and str(caught.value).isprintable()


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1, 1, 1, 1, 1, 2, 2)])
def test_shapes_without_numbers_and_of_eight_dimensions_are_read(tmp_path, shape):
    path = tmp_path / "x.st"
    path.write_bytes(whole({"a": ("F32", np.ones(shape))}))
    assert read_safetensors(path, ALL)["a"].shape == shape


def test_a_header_that_the_file_or_the_limit_does_not_hold_is_not_read(tmp_path):
    path = tmp_path / "x.st"
    for length, size in ((1 << 30, 100), (100, 100), (MAX_HEADER + 1, 4 * MAX_HEADER), (1, 100)):
        path.write_bytes(length.to_bytes(8, "little"))
        os.truncate(path, size)
        with pytest.raises(BadFile, match="its header of"):
            read_safetensors(path, ALL)


@pytest.mark.long
def test_mutants_are_read_or_refused_in_one_line(tmp_path):
    good, rng, path = whole({"a": ("F16", np.ones((4, 4))), "b": ("F32", np.ones(3))}), random.Random(1), tmp_path / "x"
    for n in range(10_000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        path.write_bytes(bad[: rng.randint(0, len(bad))] if n % 3 == 0 else bad)
        found, refusal = {}, ""
        try:
            found = read_safetensors(path, ALL)
        except BadFile as error:
            refusal = str(error)
        assert refusal.isprintable()
        assert sum(array.nbytes for array in found.values()) <= 2 * len(good)
