"""A saved state is loaded unchanged, or refused in one line. A failure never damages the old file."""

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rwkv_gpu.engine import state_file
from rwkv_gpu.engine.cache.config import CacheOptions
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.engine.state_file import ModelId
from rwkv_gpu.errors import BadFile, BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.writer_lock import WriterLock
from tests.golden_files import golden
from tests.process import posix

MODEL = ModelId("quick", "whole")
ARRAYS = {"wkv": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "shift": np.full(5, np.nan, np.float32)}


def test_a_saved_state_is_loaded_unchanged(tmp_path):
    state_file.save(tmp_path / "s", MODEL, ARRAYS, {"tokens": 7})
    saved = state_file.load(tmp_path / "s")
    assert saved.notes == {"tokens": 7}
    assert saved.model == MODEL
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(saved.arrays[name], array)
    assert os.listdir(tmp_path) == ["s"]


def test_a_state_of_another_model_is_left_out(tmp_path):
    state_file.save(tmp_path / "s", MODEL, ARRAYS, {})
    assert state_file.load(tmp_path / "s", MODEL.fingerprint).model == MODEL
    assert state_file.load(tmp_path / "s", MODEL.fingerprint).arrays
    assert not state_file.load(tmp_path / "s", "other").arrays


def test_models_with_the_same_tensors_and_other_weights_have_other_fingerprints(tmp_path):
    """Fine-tuned models are such models. One different bit at the start of any tensor is enough."""
    path, data = tmp_path / "m.gguf", golden("tiny-rwkv7.gguf").read_bytes()

    def fingerprint(data: bytes) -> str:
        path.write_bytes(data)
        with GGUFFile.open(path) as file:
            return state_file.fingerprint(file)

    with GGUFFile.open(golden("tiny-rwkv7.gguf")) as file:
        starts = [tensor.offset for tensor in file.tensors.values()]
    changed = {fingerprint(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) for at in starts}
    assert len(changed - {fingerprint(data)}) == len(starts)


def test_any_flipped_byte_and_any_cut_is_refused(tmp_path):
    path = tmp_path / "s"
    state_file.save(path, MODEL, ARRAYS, {"tokens": 7})
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(BadFile):
            state_file.load(path)
        path.write_bytes(whole[:at])
        with pytest.raises(BadFile):
            state_file.load(path)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s"
    state_file.save(path, MODEL, ARRAYS, {})
    old = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match="No space left"):
        state_file.save(path, MODEL, {"more": np.zeros(9)}, {})
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["s"]


def test_a_missing_file_or_folder_is_reported_in_one_line(tmp_path):
    with pytest.raises(BadFile, match="cannot be read"):
        state_file.load(tmp_path / "nothing")
    with pytest.raises(BadInput, match="cannot be written"):
        state_file.save(tmp_path / "no" / "folder", MODEL, ARRAYS, {})


@posix
def test_folders_devices_pipes_and_impossible_names_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, "/dev/zero", tmp_path / "pipe", tmp_path / "a\0b", tmp_path / ("x" * 300), ""):
        with pytest.raises(BadFile, match="cannot be read"):
            state_file.load(path)
        with pytest.raises(BadInput, match="cannot be written"):
            state_file.save(path, MODEL, ARRAYS, {})


@pytest.mark.parametrize("model", [None, "other"])
@pytest.mark.parametrize("piece", [1, 7, 95, 96, 97, 1 << 20])
def test_arrays_are_read_and_checked_in_pieces_of_any_size(tmp_path, monkeypatch, model, piece):
    monkeypatch.setattr(state_file, "PIECE", piece)
    state_file.save(tmp_path / "s", MODEL, ARRAYS, {"tokens": 7})
    saved = state_file.load(tmp_path / "s", model)
    assert [*saved.arrays] == ([] if model else [*ARRAYS])
    for name, array in saved.arrays.items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_an_array_has_up_to_16_dimensions():
    for count in (16, 17):
        data = state_file.dumps(MODEL, {"a": np.ones((1,) * count, np.float32)}, {})
        if count == 16:
            assert state_file.loads(data).arrays["a"].ndim == 16
        else:
            with pytest.raises(BadFile, match="damaged"):
                state_file.loads(data)


def test_notes_of_any_size_and_text_are_read_as_they_were_written(tmp_path):
    notes = {"text": "\u6f22" * (6 << 20), "odd": "\udcff\n\0", "key \u6f22": [1.5, None, True]}
    state_file.save(tmp_path / "s", MODEL, {}, notes)
    assert (tmp_path / "s").stat().st_size > 16 << 20
    assert state_file.load(tmp_path / "s").notes == notes


@pytest.mark.parametrize(("notes", "longest"), [({}, "header"), ({"text": "x" * 5000}, "notes")])
def test_headers_and_notes_have_a_maximum_length(tmp_path, monkeypatch, notes, longest):
    state_file.save(tmp_path / "s", MODEL, ARRAYS, notes)
    data = (tmp_path / "s").read_bytes()
    [header] = state_file.LENGTH.unpack_from(data, len(state_file.MAGIC))
    most = header if longest == "header" else json.loads(data[state_file.START :][:header])["notes"]
    monkeypatch.setattr(state_file, "MAX_TEXT", most)
    assert state_file.load(tmp_path / "s").notes == notes
    monkeypatch.setattr(state_file, "MAX_TEXT", most - 1)
    with pytest.raises(BadFile):
        state_file.load(tmp_path / "s")


def test_a_file_of_the_older_layout_is_read(tmp_path):
    data = b"".join(array.tobytes() for array in ARRAYS.values())
    rows = [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in ARRAYS.items()]
    (tmp_path / "s").write_bytes(old_file({"model": "quick", "notes": {"tokens": 7}, "arrays": rows}, data))
    saved = state_file.load(tmp_path / "s")
    assert saved.model == ModelId("quick", None)
    assert saved.notes == {"tokens": 7}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(saved.arrays[name], array)


def old_file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = b"RWKVGPU2" + struct.pack("<Q", len(text) if length is None else length) + text + data
    return body + hashlib.sha256(body).digest()


ROW = {"name": "a", "dtype": "float32", "shape": [2]}
FORGED = {
    "no JSON": b"{",
    "no text": b"\xff\xff",
    "a list": [],
    "deep": b"[" * 100_000,
    "no model": {"notes": {}, "arrays": []},
    "notes are a list": {"model": "m", "notes": [], "arrays": []},
    "no arrays": {"model": "m", "notes": {}},
    **{
        f"a row with {name} {value!r}": {"model": "m", "notes": {}, "arrays": [{**ROW, name: value}]}
        for name, values in {
            "dtype": ["O", "zzz", "U10", "V0", "f4,f4", [["a", "f4"]], 7],
            "shape": [[-2], [1 << 40, 1 << 40], [1 << 32, 1 << 32], "ab", [1.5], None, [1] * 70, [True, 2], [3]],
            "name": [None, []],
        }.items()
        for value in values
    },
    "a name twice": {"model": "m", "notes": {}, "arrays": [{**ROW, "shape": [1]}, {**ROW, "shape": [1]}]},
}


@pytest.mark.parametrize("name", FORGED)
def test_a_header_that_makes_no_sense_is_refused_although_the_checksum_is_right(tmp_path, name):
    (tmp_path / "s").write_bytes(old_file(FORGED[name], bytes(8)))
    with pytest.raises(BadFile):
        state_file.load(tmp_path / "s")


@pytest.mark.parametrize("length", [0, 3, 1 << 20, 1 << 63, (1 << 64) - 1])
def test_a_header_of_a_wrong_length_is_refused(tmp_path, length):
    (tmp_path / "s").write_bytes(old_file({"model": "m", "notes": {}, "arrays": []}, b"", length))
    with pytest.raises(BadFile):
        state_file.load(tmp_path / "s")


# ---------------------------------------------------------------- what replaces a file is whole

CHILD = """
import os, resource, signal, sys
import numpy as np
from rwkv_gpu.engine import state_file
from rwkv_gpu.errors import BadInput
path, what = sys.argv[1:]
save = lambda n: state_file.save(path, state_file.ModelId("m"), {"a": np.full(1 << 18, n)}, {"n": n})
save(0)
print("ready", flush=True)
if what == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    try:
        save(1)
    except BadInput as error:
        print(error, flush=True)
elif what == "misread":  # a disk that returns other bytes than were written
    state_file.replace_file.__globals__["os"].fsync = lambda fd: os.pwrite(fd, b"x", 1 << 20)
    try:
        save(1)
    except BadInput as error:
        print(error, flush=True)
else:
    for n in range(1, 1 << 30):
        save(n)
"""


def child(path, what):
    command = [sys.executable, "-c", CHILD, str(path), what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@posix
@pytest.mark.parametrize(("what", "says"), [("limit", "File too large"), ("misread", "reading it back fails")])
def test_the_old_file_remains_if_the_disk_is_full_or_returns_wrong_bytes(tmp_path, what, says):
    with child(tmp_path / "s", what) as process:
        said = process.stdout.read()
    assert says in said
    assert "the old file is as it was" in said
    assert state_file.load(tmp_path / "s").notes == {"n": 0}
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.long
def test_a_kill_in_the_middle_of_saving_leaves_a_whole_file(tmp_path):
    """The kill may come at any moment. The next save removes the files that killed processes left."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        with child(tmp_path / "s", "loop") as process:
            time.sleep(float(rng.uniform(0.0, 0.1)))
            process.kill()
        saved = state_file.load(tmp_path / "s")
        assert (saved.arrays["a"] == saved.notes["n"]).all()
    state_file.save(tmp_path / "s", MODEL, ARRAYS, {})
    assert os.listdir(tmp_path) == ["s"]


@posix  # Windows cannot rename over an open file
def test_a_reader_of_the_old_file_reads_it_to_its_end(tmp_path):
    """A save writes another file and renames it, so no byte of the open old file changes."""
    state_file.save(tmp_path / "s", MODEL, ARRAYS, {"who": "old"})
    old = (tmp_path / "s").read_bytes()
    with open(tmp_path / "s", "rb") as file:
        state_file.save(tmp_path / "s", MODEL, ARRAYS, {"who": "new"})
        assert file.read() == old
    assert state_file.load(tmp_path / "s").notes == {"who": "new"}


def test_a_second_writer_waits_for_the_first(tmp_path):
    """The lock of the first is released while the second waits."""
    first = WriterLock(tmp_path / "s")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(state_file.save, tmp_path / "s", MODEL, {}, {"who": "second"})
        state_file.save(tmp_path / "s", MODEL, {}, {"who": "first"}, lock=first)
        assert not second.done()
        first.close()
    assert state_file.load(tmp_path / "s").notes == {"who": "second"}
    assert os.listdir(tmp_path) == ["s"]


@posix
def test_a_link_leads_to_the_file_that_is_replaced_and_permissions_stay(tmp_path):
    state_file.save(tmp_path / "s", MODEL, ARRAYS, {})
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    (tmp_path / "s").chmod(0o640)
    (tmp_path / "link").symlink_to("s")
    state_file.save(tmp_path / "link", MODEL, ARRAYS, {"n": 1})
    assert (tmp_path / "link").is_symlink()
    assert state_file.load(tmp_path / "s").notes == {"n": 1}
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["tiny-rwkv7.gguf", "tiny-llama.gguf", "tiny-falcon-h1.gguf"])
@pytest.mark.parametrize(("source", "target"), [("cpu", "cpu"), ("gpu", "gpu"), ("gpu", "cpu")])
def test_a_sequence_continues_from_its_saved_state(adapter, rounding, tmp_path, name, source, target):
    """The source of the clone has continued in the meantime. A state saved on a device also continues in numpy."""
    ids = list(range(1, 90))
    with GGUFFile.open(golden(name)) as file, Device(adapter) as device:
        model, options = (
            load_model(file),
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
        state_file.save(tmp_path / "s", MODEL, first.read_state(0), {"tokens": 70})
        saved = state_file.load(tmp_path / "s")
        arrays, notes = saved.arrays, saved.notes
        second.write_state(1, notes["tokens"], arrays)
        # The largest difference, not the mean; only a device rounds rows of x.
        far = 1e-4 + (0 if source == target == "cpu" else 4 * rounding)
        np.testing.assert_allclose(prefill(second, ids[70:], slot=1, start=notes["tokens"]), want, atol=far)
