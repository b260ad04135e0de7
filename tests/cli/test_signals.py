"""A signal ends a command at any moment, quickly and quietly, and leaves no incomplete file."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu.cli import repl
from rwkv_gpu.cli.commands import COMMANDS
from tests.cli import random_signals
from tests.cli.tmux import PYTHON, Terminal
from tests.convert.hub_folders import write_folder
from tests.convert.hub_kinds import KINDS
from tests.golden_files import OWN
from tests.llm.hub_server import serving
from tests.process import PATIENCE, SIGNALS, posix, until

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


@pytest.mark.skipif(not hasattr(signal, "sigwait"), reason="signals are not blocked here")
def test_programs_start_with_no_signal_blocked_as_tool_servers_are_ended_by_sigterm():
    code = (
        "import asyncio, signal, subprocess, sys\n"
        "from rwkv_gpu.cli.signals import Signals\n"
        "Signals().start()\n"
        "mask = 'import signal; print({each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())})'\n"
        "subprocess.run([sys.executable, '-c', mask])\n"
        "async def start():\n"
        "    process = await asyncio.create_subprocess_exec(sys.executable, '-c', mask)\n"
        "    await process.wait()\n"
        "asyncio.run(start())\n"
        "assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\nset()\n"


# Runs a command whose bar, at its first update, reports that work has begun, and waits for the signal.
PAUSED = f"""
import os, time
from rwkv_gpu.cli.bars import Bar
def update(*_):
    os.write(1, b"working\\n")
    time.sleep({PATIENCE})
Bar.update = update
from rwkv_gpu.cli.main import main
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", ["convert", "quantize", "chat"])
def test_a_signal_during_a_conversion_ends_it_quietly_and_leaves_no_file(tmp_path, command, number):
    folder = write_folder(tmp_path, KINDS["smollm2"])
    given = {
        "convert": ["convert", str(folder), str(tmp_path / "out.gguf")],
        "quantize": ["quantize", MODEL, str(tmp_path / "out.gguf"), "Q4_0"],
        "chat": ["chat", str(folder), "hello", "--device", "cpu"],
    }
    before = sorted(tmp_path.rglob("*"))
    # As in `started`: a thread of BLAS that began before signals were blocked would get them.
    env = os.environ | {"RWKV_GPU_CACHE": str(tmp_path / "cache"), "OPENBLAS_NUM_THREADS": "1"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", PAUSED, *given[command]], **pipes, cwd=ROOT, env=env) as process:
        assert process.stdout
        assert process.stdout.readline() == b"working\n"
        assert sorted(tmp_path.rglob("*")) != before
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert [line for line in errors.splitlines() if b"converting" not in line] == []
    left = [path for path in tmp_path.rglob("*") if path not in before and path.is_file()]
    assert left == []


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_during_a_slow_download_ends_it_and_the_next_one_continues(tmp_path, number):
    data = Path(MODEL).read_bytes() * 8
    with serving({"model-Q4_K_M.gguf": data}) as hub:
        hub.goes_on = threading.Event()
        env = os.environ | {"RWKV_GPU_CACHE": str(tmp_path), "HF_ENDPOINT": hub.url}
        command = [*MAIN, "pull", "owner/name:Q4_K_M"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=env)
        until(lambda: [path for path in tmp_path.rglob("*.part") if path.stat().st_size])
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output, errors) == (128 + number, b"", b"")
        [part] = [path for path in tmp_path.rglob("*") if path.is_file()]
        got = part.stat().st_size
        hub.goes_on.set()
        again = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=env, timeout=PATIENCE)
        assert Path(again.stdout.decode().strip()).read_bytes() == data
        assert hub.asked[-1] == ("model-Q4_K_M.gguf", f"bytes={got}-")


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


SUSPENDED = """
import os, signal, sys, time
from rwkv_gpu.cli.signals import Signals
from rwkv_gpu.llm.driver import RUNNING_TIME
Signals().start()
for _ in range(2):  # a second Ctrl-Z works like the first one
    ran, began = RUNNING_TIME(), time.perf_counter()
    os.kill(os.getpid(), signal.SIGTSTP)
    print(time.perf_counter() - began - (RUNNING_TIME() - ran), flush=True)
"""


def test_the_time_of_a_suspension_counts_in_no_speed():
    # A group of its own: the kernel suspends no group that has lost its shell, as that of these tests may have.
    command = [sys.executable, "-c", SUSPENDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, process_group=0) as process:
        for _ in range(2):
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            stopped = time.perf_counter()
            time.sleep(0.2)
            seconds = time.perf_counter() - stopped
            process.send_signal(signal.SIGCONT)
            assert float(process.stdout.readline()) >= seconds
    assert process.returncode == 0
