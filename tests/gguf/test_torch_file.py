"""A tensor of torch.save is a contiguous part of its storage."""

import zipfile

import numpy as np
import pytest

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.torch_file import MAX_PICKLED, read_torch_file
from tests.gguf.torch_files import save, torch_names

NUMBERS = np.arange(6, dtype=np.float32)


def saved(tmp_path, monkeypatch, **place):
    return save(tmp_path / "x.pth", torch_names(monkeypatch), {"a": NUMBERS}, **place)


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (2, 3), None),
        (2, (2, 2), None),
        (5, (1,), None),
        (6, (0,), None),
        (1, (), None),
        (0, (1, 3), (9, 1)),
        (0, (3, 1), (1, 9)),
    ],
)
def test_a_tensor_may_be_any_part_of_its_storage(tmp_path, monkeypatch, offset, shape, strides):
    found = read_torch_file(saved(tmp_path, monkeypatch, offset=offset, shape=shape, strides=strides))["a"]
    expected = NUMBERS[offset:][: int(np.prod(shape))].reshape(shape)
    np.testing.assert_array_equal(found, expected)
    assert found.shape == shape


@pytest.mark.parametrize(
    ("offset", "shape", "message"),
    [
        (0, (7,), "longer than its numbers"),
        (5, (2,), "longer than its numbers"),
        (-1, (2,), "longer than its numbers"),
        (0, (-2, -3), "longer than its numbers"),
        (3, (2, -1), "longer than its numbers"),
        (0.0, (2,), "not a whole number"),
        (0, (2.0,), "not a whole number"),
    ],
)
def test_a_tensor_outside_of_its_storage_is_refused(tmp_path, monkeypatch, offset, shape, message):
    path = saved(tmp_path, monkeypatch, offset=offset, shape=shape)
    with pytest.raises(BadFile, match=message) as caught:
        read_torch_file(path)
    assert str(caught.value).startswith(f"{path}: ") and str(caught.value).isprintable()


def test_names_are_texts(tmp_path, monkeypatch):
    path = save(tmp_path / "x.pth", torch_names(monkeypatch), {5: NUMBERS})
    with pytest.raises(BadFile, match="is not a dict"):
        read_torch_file(path)


@pytest.mark.parametrize(("more", "message"), [(0, r"torch\.save \(0\)"), (1, "its dict is too large")])
def test_the_dict_has_a_limited_size(tmp_path, more, message):
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state/data.pkl", bytes(MAX_PICKLED + more))
    with pytest.raises(BadFile, match=message):
        read_torch_file(path)


def test_a_storage_begins_with_the_header_of_a_file(tmp_path, monkeypatch):
    path = saved(tmp_path, monkeypatch)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("state/data/0").header_offset
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadFile, match="beyond the end"):
        read_torch_file(path)
