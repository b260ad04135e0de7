"""Text from files, models and clients cannot move the cursor: terminal output has no control characters."""

import io
import logging
import os
import subprocess
import sys
import threading

import pytest

import rwkv_gpu
from rwkv_gpu.errors import NAME, printable
from rwkv_gpu.server.logs import TextLines
from tests.gguf.parts import take_apart
from tests.gguf.writer import STRING
from tests.golden_files import golden
from tests.process import PATIENCE, posix

EVIL = "evil\x1b]0;title\x07\x1b[2J\x9b2J\x7f\u202e\r"
LLAMA = "tiny-llama.gguf"


@pytest.fixture
def model(tmp_path):
    """A model whose name, tokenizer and file name try to control a terminal."""
    parts = take_apart(golden(LLAMA).read_bytes())
    parts.set("general.name", STRING, (EVIL + "x" * 5000).encode())
    tokens = parts.row("tokenizer.ggml.tokens")
    tokens.value[270:280] = [f"{EVIL}{n}".encode() for n in range(10)]
    path = tmp_path / f"{EVIL}.gguf"
    path.write_bytes(parts.built())
    return path


def on_terminal(arguments, folder):
    """Returns the output of a command whose standard output and standard error are a terminal."""
    import pty

    master, slave = pty.openpty()
    environment = {**os.environ, "RWKV_GPU_CACHE": str(folder), "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", *arguments]
    found = bytearray()

    def read():
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:  # the command has ended
                return
            found.extend(piece)

    reader = threading.Thread(target=read)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        reader.start()
        process.wait(PATIENCE)
    reader.join()
    os.close(master)
    return process.returncode, found.decode("utf-8").replace("\r\n", "\n")


@posix
@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "MODEL", "--device", "cpu"],
        ["info", "MODEL", "--tensors", "--device", "cpu"],
        ["fit", "MODEL", "--device", "cpu"],
        ["list"],
        ["tokenize", "MODEL", EVIL],
        ["tokenize", "MODEL", "--decode", "270 271 272"],
        ["generate", "MODEL", "-p", EVIL, "--echo", "-n", "4", "--device", "cpu"],
        ["generate", "MODEL", "-p", "a", "--regex", "\x1b\\[2J\x07", "-n", "8", "--device", "cpu"],
        ["generate", "MODEL", "-p", "a", "--regex", "\u009b2J", "-n", "8", "--device", "cpu", "--json"],
        ["chat", "MODEL", EVIL, "--template", "chatml", "-n", "2", "--device", "cpu"],
        ["chat", "MODEL", "hello", "--template", "chatml", "--regex", "\x1b\\[2J\x07", "-n", "8", "--device", "cpu"],
        ["generate", "-m", "MODEL", "-p", "a", "--lora", "MODEL", "--device", "cpu"],
        ["perplexity", "MODEL", "--device", "cpu", "--override-kv", EVIL],
    ],
    ids=lambda arguments: "-".join(arguments[:3:2]).replace(EVIL, "evil"),
)
def test_no_command_prints_control_characters_of_external_text(model, tmp_path, arguments):
    folder = tmp_path / "models" / "o" / "n"
    folder.mkdir(parents=True)
    (folder / model.name).hardlink_to(model)
    code, shown = on_terminal([str(model) if one == "MODEL" else one for one in arguments], tmp_path)
    bad = {c for c in shown if ord(c) < 32 or 127 <= ord(c) < 160} - {"\n", "\t"}
    assert not bad, (code, shown)
    assert code == (2 if "--override-kv" in arguments or "--lora" in arguments else 0), shown
    assert shown.strip()
    assert max(map(len, shown.splitlines())) < 1000


def test_the_name_of_a_loaded_model_is_printable_and_bounded(model):
    with rwkv_gpu.load(model, device="cpu") as llm:
        assert llm.info.name.isprintable()
        assert len(llm.info.name) < 8 * NAME


def test_text_of_any_kind_becomes_one_printable_line():
    for text in (EVIL, "\ud800\udfff", "".join(map(chr, range(0x300))), "a\u2028b\u2029c\u0085d", "\n" * 10000):
        assert printable(text).isprintable()
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert printable("äöü 漢字 🙂") == "äöü 漢字 🙂"
    assert len(printable("x" * 10**6)) < 5000


def test_log_lines_hold_no_control_characters():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines())
    record = logging.LogRecord("x", logging.INFO, "", 0, f"loaded {EVIL}", (), None)
    record.fields = {"name": EVIL, "long": "y" * 10**6}
    handler.handle(record)
    try:
        raise ValueError(EVIL + "\nsecond")
    except ValueError:
        failed = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    handler.handle(failed)
    lines = stream.getvalue().removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines[0]) < 6000
    assert lines[-1] == "second"
