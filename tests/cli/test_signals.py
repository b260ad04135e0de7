"""A signal ends a command at any moment, quickly and quietly, and leaves no incomplete file."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu.cli import repl
from rwkv_gpu.cli.commands import COMMANDS
from tests.cli import random_signals
from tests.cli.tmux import PYTHON, Terminal
from tests.golden_files import OWN
from tests.process import PATIENCE, posix

pytestmark = posix
MODEL = str(OWN / "tiny-rwkv7.gguf")
MAIN = [sys.executable, "-m", "rwkv_gpu.cli.main"]
UNHURRIED = [sys.executable, "-m", "tests.cli.unhurried"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def interruptible():
    """Makes started processes react to Ctrl-C, even if a shell started the tests with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def started(*arguments: str, text: str = "", main: Sequence[str] = MAIN) -> subprocess.Popen:
    """Starts a command and waits until it can catch signals. On a busy machine Python alone takes a second to start."""
    # `unhurried` imports numpy before it blocks signals: otherwise a thread of BLAS would get them.
    threads = {"OPENBLAS_NUM_THREADS": "1"} if main is UNHURRIED else {}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([*main, *arguments], **pipes, cwd=ROOT, env=os.environ | threads)
    assert process.stdin
    process.stdin.write(text.encode())
    process.stdin.close()
    process.stdin = None
    while process.poll() is None and not random_signals.catches_signals(process.pid):
        time.sleep(0.001)
    return process


def moments(count: int, most: float) -> list[float]:
    """Returns random but reproducible moments, spread over the start, the loading and the answer."""
    return [random.Random(number).uniform(0.0, most) for number in range(count)]


@pytest.mark.parametrize("wait", moments(7, 2.0))
def test_an_interrupt_at_any_moment_ends_a_command(adapter, wait):
    device = str(adapter.index) if round(10 * wait) % 2 else "cpu"
    process = started("generate", MODEL, "-p", "hello", "-n", "1000000", "--device", device)
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors == b""


@pytest.mark.parametrize("wait", moments(5, 1.2))
def test_a_session_file_is_complete_whenever_the_chat_is_killed(tmp_path, wait):
    path = tmp_path / "talk.chat"
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        chat = llm.chat(max_tokens=3)
        chat.send("before")
        chat.save(path)
    process = started("chat", MODEL, "--device", "cpu", "--session", str(path), "-n", "100", text="then")
    time.sleep(wait)
    process.kill()
    process.communicate(timeout=PATIENCE)
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        asked = [m["content"] for m in llm.load_chat(path).messages if m["role"] == "user"]
    assert asked in (["before"], ["before", "then"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_piped_chat_that_is_stopped_saves_its_messages(tmp_path, number):
    path = tmp_path / "talk.chat"
    arguments = "chat", MODEL, "--device", "cpu", "--session", str(path), "-n", "1000000"
    process = started(*arguments, text="go on", main=UNHURRIED)
    assert process.stdout
    assert process.stdout.read(1)  # it has begun to answer
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        question, answer = llm.load_chat(path).messages
    assert question["content"] == "go on"
    assert answer["content"]


def test_a_signal_removes_the_unfinished_file(tmp_path):
    code = (
        "import sys, time\n"
        "from rwkv_gpu.cli.signals import Signals\n"
        "Signals().start()\n"
        "from rwkv_gpu.replace_file import replace_file\n"
        "def write(file):\n"
        "    file.write(b'half')\n"
        "    print('writing', flush=True)\n"
        f"    time.sleep({PATIENCE})\n"
        "replace_file(sys.argv[1], write=write)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.gguf")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 2  # the file and its lock
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert not list(tmp_path.iterdir())


def test_the_signal_script_names_only_commands_that_exist():
    assert random_signals.ARGUMENTS.keys() <= COMMANDS.keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_signals_at_200_random_moments_over_all_commands_leave_whole_files(adapter):
    assert random_signals.moments(200, seed=0, device=str(adapter.index)) == []


def test_a_chat_in_a_file_has_time_to_be_saved_after_any_signal():
    for number in (signal.SIGINT, signal.SIGTERM):
        assert repl.grace(number, saves=True) == repl.SAVING > 5
    assert repl.grace(signal.SIGINT, saves=False) < 1


def test_a_background_command_ends_at_once_and_leaves_the_terminal_to_its_owner(tmp_path):
    arguments = f"generate {MODEL} -p hello -n 1000000 --device cpu"
    job = f"set -m; {PYTHON} -m rwkv_gpu.cli.main {arguments} > out & until [ -s out ]; do sleep 0.05; done"
    terminal = Terminal(
        f"{job}; stty -echo; kill -INT $!; wait $!; code=$?; stty -a > now; stty echo; (exit $code)", tmp_path
    )
    try:
        assert terminal.left() == 130
        assert "-echo " in (tmp_path / "now").read_text()
    finally:
        terminal.close()
