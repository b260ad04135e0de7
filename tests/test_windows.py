"""The parts of the Python code that are specific to Windows, as far as another system can test them."""

import errno
import io
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu import replace_file, writer_lock
from rwkv_gpu.cli import keyboard, session_file
from rwkv_gpu.cli.main import write_any_text
from rwkv_gpu.cli.terminal import Bursts
from rwkv_gpu.errors import BadFile, BadInput
from rwkv_gpu.gguf.source import Source
from rwkv_gpu.server.run import listen
from rwkv_gpu.stores import FilesystemStore, directory, filesystem
from tests.process import posix

ROOT = Path(__file__).resolve().parent.parent
APART = "browser", "clients", "ray"  # folders of tests that run by other make targets

IMPORTS = """
import importlib, pkgutil, sys
import pytest
import tests.as_on_windows
import rwkv_gpu, tests

def names_in(package):
    return [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]

modules = [name for name in names_in(rwkv_gpu) if not name.endswith("__main__")]
apart = sys.argv[1].split(",")
modules += [name for name in names_in(tests) if ".test_" in name and name.split(".")[1] not in apart]
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "ray":  # packages of extras, which need not be installed
            raise
    except pytest.skip.Exception:
        pass
"""


@posix
def test_all_modules_and_test_files_import_without_the_modules_that_windows_lacks():
    command = [sys.executable, "-c", IMPORTS, ",".join(APART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def refuse_open_files(replace):
    """Simulates os.replace on Windows: neither file may be open in any process."""

    def replacing(source, target):
        opened = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
        for path in (source, target):
            if os.path.realpath(path) in opened:
                raise PermissionError(13, "The process cannot access the file", str(path))
        replace(source, target)

    return replacing


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks there for open files")
def test_a_chat_is_saved_where_no_open_file_can_be_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "replace", refuse_open_files(os.replace))
    for module in (replace_file, writer_lock):
        monkeypatch.setattr(module, "WINDOWS", True)
    path = str(tmp_path / "chat.session")
    with rwkv_gpu.load(ROOT / "tests" / "golden" / "tiny-rwkv7.gguf", device="cpu", context=64) as llm:
        for _ in range(2):  # a new file, then an existing one
            file = session_file.SessionFile(path)
            for _ in range(2):
                file.save([llm.chat(template="rwkv-world")], 0)
            file.close()
        assert len(session_file.SessionFile(path).load(llm)[0]) == 1


@pytest.fixture
def windows_files(monkeypatch):
    """Simulates files on Windows: open files cannot be replaced or deleted, and locks cover bytes."""
    monkeypatch.setattr(os, "replace", refuse_open_files(os.replace))
    unlink = os.unlink
    refusing = refuse_open_files(lambda path, _: unlink(path))
    monkeypatch.setattr(os, "unlink", lambda path, **_: refusing(path, path))
    for module in (replace_file, writer_lock):
        monkeypatch.setattr(module, "WINDOWS", True)
    monkeypatch.setattr(replace_file, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(directory, "WINDOWS", True)
    for module in (directory, filesystem):
        monkeypatch.setattr(module, "GONE", (FileNotFoundError, PermissionError))


class ByteLocks:
    """Simulates the locks of `msvcrt` for descriptors of this process."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.taken: dict[tuple[int, int], int] = {}

    def locking(self, handle: int, mode: int, nbytes: int) -> None:
        assert (mode, nbytes) == (self.LK_NBLCK, 1)
        place = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        if self.taken.setdefault(place, handle) != handle:
            raise OSError(36, "Resource deadlock avoided")


def test_windows_locks_a_byte_outside_the_data(monkeypatch, tmp_path):
    locks = ByteLocks()
    monkeypatch.setitem(sys.modules, "fcntl", None)  # its import fails
    monkeypatch.setitem(sys.modules, "msvcrt", locks)
    (tmp_path / "file").write_bytes(b"text")
    with open(tmp_path / "file", "r+b") as first, open(tmp_path / "file", "r+b") as second:
        first.seek(2)
        assert writer_lock.lock(first.fileno())
        assert not writer_lock.lock(second.fileno())
        assert first.read() == b"xt"
    assert [at for _, at in locks.taken] == [writer_lock.LOCKED_AT]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks there for open files")
@pytest.mark.usefixtures("windows_files")
def test_two_chats_do_not_have_one_file_where_no_open_file_can_be_replaced(tmp_path):
    path = str(tmp_path / "chat.session")
    first = session_file.SessionFile(path)
    with pytest.raises(BadInput, match="is writing it"):
        session_file.SessionFile(path)
    first.close()
    session_file.SessionFile(path).close()
    assert not [*tmp_path.iterdir()]


def test_a_missing_model_gives_the_same_error_everywhere(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "Das System kann die angegebene Datei nicht finden", "no.gguf")

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(BadFile, match="no.gguf: cannot be opened: No such file or directory"):
        Source("no.gguf")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks there for open files")
@pytest.mark.usefixtures("windows_files")
def test_a_chat_cannot_be_saved_to_a_folder(tmp_path):
    with pytest.raises(BadInput, match="Is a directory; give another file"):
        session_file.SessionFile(str(tmp_path))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks there for open files")
@pytest.mark.usefixtures("windows_files")
def test_a_file_is_replaced_after_another_program_closes_it(monkeypatch, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("old")
    reader = path.open()
    monkeypatch.setattr(replace_file.time, "sleep", lambda _: reader.close())
    replace_file.replace_bytes(path, b"new")
    assert path.read_text() == "new"
    with path.open(), pytest.raises(BadInput, match="The process cannot access the file"):
        replace_file.replace_file(path, write=lambda file: None)
    assert [one.name for one in tmp_path.iterdir()] == ["results.jsonl"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks there for open files")
@pytest.mark.usefixtures("windows_files")
def test_the_next_writer_removes_files_of_killed_processes(tmp_path):
    path = tmp_path / "file"
    for end in (f"{replace_file.UNFINISHED}abc", writer_lock.SUFFIX):
        (tmp_path / f".file{end}").write_text("half")
    replace_file.replace_bytes(path, b"newer")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks there for open files")
@pytest.mark.usefixtures("windows_files")
def test_a_store_keeps_a_value_that_is_being_read_and_returns_none_for_one_that_is_replaced(monkeypatch, tmp_path):
    store = directory.DirectoryStore(tmp_path, max_bytes=64, max_age=1000)
    store.put("a", b"1" * 40)
    with open(tmp_path / "a.state", "rb"):
        store.put("b", b"2" * 40)  # no room for both while the first is being read
        assert store.get(["a", "b"]) == [b"1" * 40, b"2" * 40]

    def refuse(*_):
        raise PermissionError(13, "The process cannot access the file")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert store.get(["b"]) == [None]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks there for open files")
@pytest.mark.usefixtures("windows_files")
@pytest.mark.parametrize("store", [directory.DirectoryStore, lambda path: FilesystemStore(f"file://{path}")])
def test_a_value_that_is_read_all_the_time_cannot_be_replaced_and_no_temporary_file_stays(tmp_path, store):
    """All values of a key are equivalent, so a write that is refused must not count as a failure of the store."""
    store = store(tmp_path)
    store.put("a", b"1")
    with open(tmp_path / "a.state", "rb"):
        store.put("a", b"2")
        assert store.get(["a"]) == [b"1"]
    store.put("a", b"2")
    assert store.get(["a"]) == [b"2"]
    assert [one.name for one in tmp_path.iterdir()] == ["a.state"]


def test_a_port_belongs_to_one_server_only(monkeypatch):
    """On Windows, SO_REUSEADDR would let two servers share a port."""
    options = []
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_KEEPALIVE, raising=False)
    monkeypatch.setattr(socket.socket, "setsockopt", lambda _, *option: options.append(option))
    listen("127.0.0.1", 0).close()
    assert options == [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]


def test_a_console_without_term_has_the_editor_on_windows():
    assert not keyboard._is_dumb({}, True)
    assert keyboard._is_dumb({"TERM": "dumb"}, True)
    assert keyboard._is_dumb({}, False)


@pytest.fixture
def only_sockets(monkeypatch):
    """Simulates select on Windows, which supports sockets only."""

    def refuse(*_):
        raise OSError(10038, "An operation was attempted on something that is not a socket")

    monkeypatch.setattr(select, "select", refuse)


@pytest.mark.usefixtures("only_sockets")
def test_input_that_cannot_be_waited_for_is_read_as_it_arrives():
    assert Bursts(0, iter(["first\n", "second\n"]).__next__).next() == "first\n"


@pytest.mark.usefixtures("only_sockets")
def test_lines_of_a_plain_console_are_messages_where_only_sockets_can_be_waited_for(monkeypatch):
    monkeypatch.setattr(keyboard, "WINDOWS", True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Grüße\nnext\n"))
    source = keyboard.Dumb()
    try:
        assert [source.ask("> "), source.ask("> ")] == ["Grüße", "next"]
        with pytest.raises(EOFError):
            source.ask("> ")
    finally:
        source.close()


@pytest.mark.parametrize(
    ("environment", "windows", "expected"),
    [
        ({}, True, "Grüße 😀".encode()),
        ({"PYTHONIOENCODING": "cp1252"}, True, "Grüße ?".encode("cp1252")),
        ({}, False, "Grüße ?".encode("cp1252")),
    ],
)
def test_text_outside_the_code_page_is_written(monkeypatch, environment, windows, expected):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))
    write_any_text(environment, windows)
    print("Grüße 😀", end="", flush=True)
    written = sys.stdout.buffer.getvalue()
    monkeypatch.undo()
    assert written == expected
