"""The Python side where the system is Windows, as far as another system can tell."""

import io
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu import replace_file
from rwkv_gpu.cli import keyboard, session_file
from rwkv_gpu.cli.main import write_any_text
from rwkv_gpu.cli.terminal import Bursts

ROOT = Path(__file__).resolve().parent.parent
LACKING = ["termios", "fcntl", "resource", "pwd", "grp", "tty", "pty"]  # modules that Python has only on POSIX

IMPORTS = """
import importlib, pkgutil, sys
lacking = set(sys.argv[1].split(","))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in lacking:
            raise ModuleNotFoundError(name)

for name in lacking:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
import rwkv_gpu
for module in pkgutil.walk_packages(rwkv_gpu.__path__, "rwkv_gpu."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name != "ray":  # of an extra, which need not be installed
            raise
"""


def test_every_module_imports_without_what_windows_lacks():
    command = [sys.executable, "-c", IMPORTS, ",".join(LACKING)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def refuse_open_files(replace):
    """os.replace as Windows has it: neither file may be open anywhere."""

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
    for module in (replace_file, session_file):
        monkeypatch.setattr(module, "WINDOWS", True)
    path = str(tmp_path / "chat.session")
    with rwkv_gpu.load(ROOT / "tests" / "golden" / "tiny-rwkv7.gguf", device="cpu", context=64) as llm:
        for _ in range(2):  # a new file, then one that is there
            file = session_file.SessionFile(path)
            for _ in range(2):
                file.save([llm.chat(template="rwkv-world")], 0)
            file.close()
        assert len(session_file.SessionFile(path).load(llm)[0]) == 1


def test_a_console_without_term_has_the_editor_on_windows():
    assert not keyboard._is_dumb({}, True)
    assert keyboard._is_dumb({"TERM": "dumb"}, True)
    assert keyboard._is_dumb({}, False)


@pytest.fixture
def only_sockets(monkeypatch):
    """select, as Windows has it."""

    def refuse(*_):
        raise OSError(10038, "An operation was attempted on something that is not a socket")

    monkeypatch.setattr(select, "select", refuse)


@pytest.mark.usefixtures("only_sockets")
def test_input_that_nobody_can_wait_for_is_taken_as_it_comes():
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
def test_text_that_a_code_page_lacks_is_written_all_the_same(monkeypatch, environment, windows, expected):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))
    write_any_text(environment, windows)
    print("Grüße 😀", end="", flush=True)
    written = sys.stdout.buffer.getvalue()
    monkeypatch.undo()
    assert written == expected
