"""A saved state is read back as it was, or refused in one line; the old file outlives every failure."""

import os

import numpy as np
import pytest

from rwkv_gpu.engine import state_file
from rwkv_gpu.engine.cache.config import CacheOptions
from rwkv_gpu.engine.runner import GpuRunner, HostRunner, prefill
from rwkv_gpu.errors import BadFile, BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from tests.golden_files import golden

ARRAYS = {"wkv": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "shift": np.full(5, np.nan, np.float32)}


def test_what_is_saved_is_loaded(tmp_path):
    state_file.save(tmp_path / "s", "model", ARRAYS, {"tokens": 7})
    arrays, notes = state_file.load(tmp_path / "s", "model")
    assert notes == {"tokens": 7}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert os.listdir(tmp_path) == ["s"]


def test_a_state_of_another_model_is_refused(tmp_path):
    state_file.save(tmp_path / "s", "model", ARRAYS, {})
    with pytest.raises(BadFile, match="another model"):
        state_file.load(tmp_path / "s", "other")


def test_any_flipped_byte_and_any_cut_is_refused(tmp_path):
    path = tmp_path / "s"
    state_file.save(path, "model", ARRAYS, {"tokens": 7})
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(BadFile):
            state_file.load(path, "model")
        path.write_bytes(whole[:at])
        with pytest.raises(BadFile):
            state_file.load(path, "model")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s"
    state_file.save(path, "model", ARRAYS, {})
    old = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match="No space left"):
        state_file.save(path, "model", {"more": np.zeros(9)}, {})
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["s"]


def test_a_missing_file_or_folder_is_one_line(tmp_path):
    with pytest.raises(BadFile, match="cannot be read"):
        state_file.load(tmp_path / "nothing", "model")
    with pytest.raises(BadInput, match="cannot be written"):
        state_file.save(tmp_path / "no" / "folder", "model", ARRAYS, {})


@pytest.mark.parametrize("name", ["tiny-rwkv7.gguf", "tiny-llama.gguf"])
@pytest.mark.parametrize(("source", "target"), [("cpu", "cpu"), ("gpu", "gpu"), ("gpu", "cpu")])
def test_a_sequence_goes_on_from_its_saved_state(adapter, rounding, tmp_path, name, source, target):
    """What it was cloned from has moved on meanwhile; kept on a device, it goes on in numpy as well."""
    ids = list(range(1, 90))
    with GGUFFile.open(golden(name)) as file, Device(adapter) as device:
        model, mark, options = (
            load_model(file),
            state_file.fingerprint(file),
            CacheOptions(slots=2, context=128, kv="f32"),
        )
        first, second = (
            HostRunner(file, model, **options) if where == "cpu" else GpuRunner(device, file, model, **options)
            for where in (source, target)
        )
        want = prefill(first, ids, slot=0)
        prefill(first, ids[:70], slot=1)
        first.store.adopt(0, first.store.keep(1, 70), 70)
        prefill(first, ids[:5], slot=1, start=70)
        state_file.save(tmp_path / "s", mark, first.read_state(0), {"tokens": 70})
        arrays, notes = state_file.load(tmp_path / "s", mark)
        second.write_state(1, notes["tokens"], arrays)
        far = 1e-4 + 4 * rounding  # the largest difference, not the mean
        np.testing.assert_allclose(prefill(second, ids[70:], slot=1, start=notes["tokens"]), want, atol=far)
