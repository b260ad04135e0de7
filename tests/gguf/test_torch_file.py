"""A tensor of torch.save is a contiguous part of its storage."""

import numpy as np
import pytest

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.torch_file import read_torch_file
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
