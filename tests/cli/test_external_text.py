"""Text from files, models and clients cannot move the cursor: terminal output has no control characters."""

import ast
import io
import logging
import os
import re
import subprocess
import sys
import threading
import unicodedata

import pytest
from rich.progress import Task, TaskID

import rwkv_gpu
from rwkv_gpu.cli.bars import Column
from rwkv_gpu.cli.commands import OneLine
from rwkv_gpu.cli.main import warning_line
from rwkv_gpu.errors import NAME, printable
from rwkv_gpu.server.logs import TextLines
from tests.cli.tmux import ROOT
from tests.gguf.parts import take_apart
from tests.gguf.writer import STRING
from tests.golden_files import golden
from tests.process import PATIENCE, posix

EVIL = "evil\x1b]0;title\x07\x1b[2J\x9b2J\x7f\u202e\u2066\r"
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
    bad = {c for c in shown if unicodedata.category(c) == "Cc" or c in "\u202e\u2066"} - {"\n", "\t"}
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


# Texts that reach the terminal by other ways than `echo_text`, `print_text` and `Screen`.
OTHER_WAYS = {
    "cli/echo.py": "echo_text itself", "cli/screen.py": "answers, whose control characters `Fancy.feed` has removed",
    "cli/completion.py": "a script by click", "cli/main.py": "an error of the system",
    "rwkv_gpu/ops/matrix_units_trial.py": "results for the process that started this one",
}  # fmt: skip


def is_plain(node):
    """True if an expression holds no external text that could have control characters."""
    match node:
        case ast.Constant() | ast.Name(id="mark"):
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.JoinedStr(values=parts):
            return all(map(is_plain, parts))
        case ast.FormattedValue(format_spec=ast.JoinedStr(values=[ast.Constant(value=form)])) if form[-1:] in ",fdg":
            return True
        case ast.FormattedValue(value=value) | ast.GeneratorExp(elt=value):
            return is_plain(value)
        case ast.BinOp(left=left, right=right):
            return is_plain(left) and is_plain(right)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="json"), attr="dumps")):
            return True
        case ast.Call(func=ast.Attribute(attr="translate"), args=[ast.Name(id="CONTROLS")]):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[joined]):
            return is_plain(joined)
        case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id="str"), _]):
            return True  # numbers
        case ast.Call(func=ast.Name(id=name)):
            return name in ("printable", "sized", "len")
    return False


PRINTING = re.compile(r"print|click\.(echo|secho|confirm|prompt)|sys\.std(out|err)\.write|self\.(err|_out)\.print")


def raw_prints(source):
    """Returns the calls that write a text to the terminal which may have control characters."""
    for node in ast.walk(ast.parse(source)):
        printed = isinstance(node, ast.Call) and PRINTING.fullmatch(ast.unparse(node.func))
        if printed and not all(map(is_plain, node.args[:1])):
            yield ast.unparse(node)


def test_only_texts_without_control_characters_are_printed_directly():
    """`echo_text` and `Screen` remove control characters; a new `print` of a name or an answer would not."""
    found = {}
    for folder in ("cli", "rwkv_gpu"):
        for path in (ROOT / folder).rglob("*.py"):
            found[path.relative_to(ROOT).as_posix()] = [*raw_prints(path.read_text("utf-8"))]
    assert len(found) > 400
    assert not {name: calls for name, calls in found.items() if calls and name not in OTHER_WAYS}
    assert all(found[name] for name in OTHER_WAYS)


@pytest.mark.parametrize(
    "raw", ["print(name)", "click.echo(f'a {name}')", "click.confirm('a' + name)", "sys.stderr.write(str(error))"]
)
def test_a_direct_print_of_a_name_is_found(raw):
    assert [*raw_prints(raw)]


def test_bars_warnings_and_errors_hold_no_control_characters(capsys):
    task = Task(TaskID(0), EVIL, None, 0, _get_time=float)
    assert EVIL[4] not in Column(lambda task: task.description).render(task).plain
    assert warning_line(EVIL).removesuffix("\n").isprintable()
    OneLine(EVIL).show(sys.stderr)
    assert capsys.readouterr().err.removesuffix("\n").isprintable()


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
