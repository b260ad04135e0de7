"""One process at a time writes an output file. A second one is refused with the first one's id, and changes nothing."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadInput, FileInUse
from rwkv_gpu.replace_file import UNFINISHED, replace_bytes, replace_file
from rwkv_gpu.writer_lock import LONGEST_NAME, SUFFIX, WriterLock, hidden_name
from tests.golden_files import golden
from tests.process import posix

MODEL = str(golden("tiny-rwkv7.gguf"))
HOLDER = """
import sys
from rwkv_gpu.writer_lock import WriterLock
lock = WriterLock(sys.argv[2])
print("locked", flush=True)
sys.stdin.read()
"""
# Commands that write OUT, for as long as they run.
COMMANDS = {
    "quantize": ["quantize", "-y", MODEL, "OUT", "Q8_0"],
    "batch": ["batch", MODEL, "IN", "OUT", "-n", "1", "--device", "cpu"],
    "doctor": ["doctor", "--report", "OUT", "--device", "cpu"],
    "chat": ["chat", "-m", MODEL, "--session", "OUT", "--device", "cpu"],
}


@pytest.fixture
def holder(tmp_path):
    """Starts a process that locks the file `out`."""
    (tmp_path / "program").write_text(HOLDER)
    command = [sys.executable, str(tmp_path / "program"), "quantize", str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def run(name, folder):
    (folder / "in").write_text('{"prompt": "a"}\n')
    named = {"OUT": str(folder / "out"), "IN": str(folder / "in")}
    return CliRunner().invoke(cli, [named.get(one, one) for one in COMMANDS[name]])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_writer_is_refused_with_the_process_and_command_of_the_first(holder, tmp_path, name):
    (tmp_path / "out").write_text("")
    refused = run(name, tmp_path)
    assert refused.exit_code == 2
    assert f"process {holder.pid} (program quantize) is writing it; wait until it ends" in refused.stderr
    assert (tmp_path / "out").read_text() == ""


@posix
@pytest.mark.parametrize("name", ["quantize", "batch"])
def test_the_lock_and_files_of_a_killed_writer_are_removed_by_the_next(holder, tmp_path, name):
    (tmp_path / hidden_name(tmp_path / "out", f"{UNFINISHED}abc")).write_text("half")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    if name == "batch":  # appends to its file
        (tmp_path / hidden_name(tmp_path / "out", f"{UNFINISHED}abc")).unlink()
    assert run(name, tmp_path).exit_code == 0
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "program"]


def test_a_lock_file_with_any_content_names_another_process(tmp_path):
    for content in (b"", b"[", b"[]", b"null", b"{}", b'{"pid": "x"}', b"\xff" * 5000, b"[" * 5000):
        with WriterLock(tmp_path / "out") as lock:
            (tmp_path / f".out{SUFFIX}").write_bytes(content)
            with pytest.raises(FileInUse, match="out: another process is writing it"):
                WriterLock(lock.target)
    shown = json.dumps({"pid": 7, "command": "\x1b[2J" + "x" * 500})
    with WriterLock(tmp_path / "out"):
        (tmp_path / f".out{SUFFIX}").write_text(shown)
        with pytest.raises(FileInUse, match=r"process 7 \(\\x1b\[2Jx+\.\.\.\) is"):
            WriterLock(tmp_path / "out")


def test_all_names_of_a_file_have_one_lock_and_long_names_have_their_own(tmp_path):
    (tmp_path / "link").symlink_to("out")
    with WriterLock(tmp_path / "out"), pytest.raises(FileInUse):
        WriterLock(tmp_path / "link")
    first, second = (tmp_path / ("é" * 120 + end) for end in "ab")
    with WriterLock(first), WriterLock(second):
        replace_bytes(first.with_name("other"), b"")
    assert all(len(os.fsencode(hidden_name(one, ""))) <= LONGEST_NAME + 1 for one in (first, second))
    assert sorted(os.listdir(tmp_path)) == ["link", "other"]


def test_many_writers_of_a_file_leave_one_whole_file(tmp_path):
    path = tmp_path / "out"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: replace_bytes(path, bytes([n]) * 70_000), range(24)))
    data = path.read_bytes()
    assert data == data[:1] * 70_000
    assert os.listdir(tmp_path) == ["out"]


def test_a_writer_without_patience_is_refused_at_once_and_writes_nothing(tmp_path):
    def write(_):
        raise AssertionError

    with WriterLock(tmp_path / "out"), pytest.raises(FileInUse, match=f"process {os.getpid()} "):
        replace_file(tmp_path / "out", write=write, patience=0)
    with pytest.raises(BadInput, match="cannot be written: No such file or directory"):
        replace_file(tmp_path / "none" / "out", write=lambda _: None)


@posix
def test_a_lock_is_not_taken_through_a_link(tmp_path):
    """A link in the place of a lock file must not cause another file to be overwritten."""
    (tmp_path / "precious").write_text("all of it")
    (tmp_path / f".out{SUFFIX}").symlink_to("precious")
    with pytest.raises(BadInput, match="cannot be written"):
        replace_bytes(tmp_path / "out", b"new")
    assert (tmp_path / "precious").read_text() == "all of it"
