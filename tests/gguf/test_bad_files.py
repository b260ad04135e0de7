"""Every invalid file raises BadFile or UnsupportedModel in one line, and nothing worse."""

import contextlib
import json
import os
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.engine import state_file
from rwkv_gpu.engine.adapters import Adapter
from rwkv_gpu.engine.state_file import ModelId
from rwkv_gpu.errors import BadFile, BadInput, RwkvGpuError, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.imatrix import read_imatrix
from tests.cases import each
from tests.gguf import writer
from tests.gguf.corpus import BAD, GOOD, Bad
from tests.gguf.writer import array_key, gguf, number, number_key, string, tensor, text_key
from tests.golden_files import golden
from tests.process import PATIENCE, posix, resident

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 1.0
MEGABYTES = 64
MUTANTS = 20_000
BOUNDARIES = (0, 1, 2, 31, 33, 255, 1 << 15, (1 << 16) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63)

EVERY_TYPE = gguf(
    [
        text_key("general.architecture", "qwen3"),
        number_key("general.alignment", writer.U32, 16),
        *(number_key(f"number.{kind}", kind, 1) for kind in writer.LAYOUT),
        *(array_key(f"array.{kind}", kind, [number(kind, n) for n in (0, 1, 1)]) for kind in writer.LAYOUT),
        array_key("tokens", writer.STRING, [string(text) for text in ("<s>", "é", "", "日本")]),
    ],
    [tensor("k", [256], 0, kind=12), tensor("h", [5, 3], 144, kind=30), tensor("i", [2, 2, 2, 2], 176, kind=24)],
    bytes(range(192)),
    alignment=16,
)


@each("bad", BAD)
def test_a_bad_file_is_refused_in_one_line_with_the_reason(bad: Bad, tmp_path: Path) -> None:
    path = bad.put(tmp_path)
    with pytest.raises((BadFile, UnsupportedModel)) as caught:
        GGUFFile.open(path)
    message = str(caught.value)
    assert bad.says in message
    assert message.isprintable()
    assert len(message) < 400 + len(str(path))
    assert " at byte " not in message or re.fullmatch(r".*: [a-z'].* at byte \d+: found .+, expected .+", message)


def test_every_bad_file_has_a_different_name() -> None:
    assert len({bad.name for bad in BAD}) == len(BAD) >= 100


def test_every_bad_file_is_refused_at_once_and_in_little_memory(tmp_path: Path) -> None:
    """A separate process measures its own peak memory, and its hang cannot stop the test run."""
    if sys.platform == "win32":
        pytest.skip("the high water mark of memory is read through the module resource, which Windows lacks")
    script = Path(__file__).with_name("measure_bad_files.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert len(measured) == len(BAD)
    slow = {name: seconds for name, seconds, _ in measured if seconds > SECONDS}
    large = {name: grown for name, _, grown in measured if grown > MEGABYTES}
    assert (slow, large) == ({}, {})


@pytest.mark.parametrize("data", [GOOD, EVERY_TYPE], ids=["good", "every type"])
def test_a_file_cut_anywhere_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(BadFile):
            GGUFFile.open(path)


@pytest.mark.parametrize("seed", range(4))
def test_a_mutant_is_refused_or_consistent(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = tmp_path / "model.gguf"
    accepted, messages = 0, []
    for i in range(MUTANTS // 4):
        path.write_bytes(mutant(rng, EVERY_TYPE if i % 2 else GOOD))
        try:
            with GGUFFile.open(path) as file:
                must_be_consistent(file)
        except RwkvGpuError as error:
            messages.append(str(error))
        else:
            accepted += 1
    assert all(message.isprintable() for message in messages)
    assert 0 < accepted < MUTANTS // 8  # a flip in a name or in weights keeps the file well-formed; most others do not


def mutant(rng: random.Random, data: bytes) -> bytes:
    """Returns the file with one to three changes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 2, 4, 8, 24, 64))
        match rng.randrange(6):
            case 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                for k in range(at, min(at + 1, len(out))):
                    out[k] ^= 1 << rng.randrange(8)
            case 2:
                layout = rng.choice("BHIQ")
                limit = (1 << 8 * struct.calcsize(layout)) - 1
                out[at : at + struct.calcsize(layout)] = struct.pack(f"<{layout}", rng.choice(BOUNDARIES) & limit)
            case 3:
                del out[at : at + size]
            case 4:
                out[at:at] = out[at : at + size]
            case _:
                out[at:at] = rng.randbytes(size)
    return bytes(out)


def must_be_consistent(file: GGUFFile) -> None:
    """Checks everything that a caller may rely on in an accepted file."""
    size = os.path.getsize(file.path)
    end = 0
    for name, tensor_info in file.tensors.items():
        assert tensor_info.name == name
        assert name.isprintable()
        assert 1 <= len(name.encode()) <= 63
        assert 1 <= len(tensor_info.shape) <= 4
        assert min(tensor_info.shape) >= 1
        assert end <= tensor_info.offset <= tensor_info.offset + tensor_info.nbytes <= size
        end = tensor_info.offset + tensor_info.nbytes
        assert len(file.read(tensor_info)) == tensor_info.nbytes
    for key, value in file.metadata.items():
        assert key.isprintable()
        assert isinstance(value, int | float | str | list | np.ndarray)
        for get in (file.int, file.float, file.str, file.bool, file.strings, file.ints, file.floats):
            with contextlib.suppress(RwkvGpuError):
                get(key)


def grown(path: Path, size: int = 1 << 40) -> Path:
    """Returns a file that is extended with zeros, which take no disk space."""
    with open(path, "r+b") as file:
        file.truncate(size)
    return path


@posix
def test_sizes_in_a_file_are_checked_before_anything_is_read(tmp_path):
    """Tested with an imatrix, a session and an adapter of 1 TiB each."""
    floats = struct.pack("<iii", 1, 1, ord("a") << 24)[:8] + b"a" + struct.pack("<ii", 1, 1 << 30)
    for index, data in enumerate((b"\0" * 64, floats, struct.pack("<ii", 9, -1), struct.pack("<ii", 9, 1 << 30))):
        path = tmp_path / f"{index}.dat"
        path.write_bytes(data)
        with pytest.raises(BadFile):
            read_imatrix(grown(path))
    session = tmp_path / "session"
    state_file.save(session, ModelId("f"), {"a": np.zeros(8)}, {})
    with pytest.raises(BadFile):
        state_file.load(grown(session, 1 << 34), "another model")
    for header in (b"RWKVGPU3" + struct.pack("<Q", 1 << 33), b"RWKVGPU2" + struct.pack("<Q", 1 << 33)):
        session.write_bytes(header)
        with pytest.raises(BadFile, match="damaged"):
            state_file.load(grown(session, 1 << 34))
    huge = gguf(
        [
            text_key("general.architecture", "llama"),
            text_key("general.type", "adapter"),
            text_key("adapter.type", "lora"),
        ],
        [
            tensor(f"blk.0.attn_q.weight.lora_{end}", [64, 1 << 26], offset=place << 34)
            for place, end in enumerate("ab")
        ],
    )
    (tmp_path / "lora.gguf").write_bytes(huge)
    before = resident()
    with GGUFFile.open(golden("tiny-llama.gguf")) as model, pytest.raises(BadInput, match="but the matrix is"):
        Adapter.read(grown(tmp_path / "lora.gguf", len(huge) + (-len(huge) % 32) + (2 << 34)), 1.0, model)
    assert resident() - before < 64 << 20
