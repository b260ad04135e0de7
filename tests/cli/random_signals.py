"""Ends every command at random moments by SIGINT and SIGTERM, and checks the files that remain.

Each command runs once to its end; then it is ended by a signal at moments spread over that time. A command must end
within GRACE seconds (a chat has 5 to save what was generated), with 128 + the number of the signal. It prints
nothing beyond its usual output, and leaves complete files: a batch continues, and a session can be loaded. Signals
during the start of Python, before the command can catch them, are left out.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import rwkv_gpu
from rwkv_gpu.cli.commands import COMMANDS

MAIN = [sys.executable, "-m", "rwkv_gpu.cli.main"]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 6.0
LONGEST = 4.0  # seconds of a command within which signals are sent
ENDLESS = "1000000"
LINES = 12  # of the batch
# Arguments of commands that need some; {gpu}, {folder} and {text} are filled in.
ARGUMENTS: dict[str, list[str]] = {
    "batch": ["{folder}/in.jsonl", "{folder}/out.jsonl", "-n", "64", "--device", "cpu"],
    "bench": ["-p", "64", "-n", "64", "-r", "9", "--device", "cpu"],
    "chat": ["--session", "{folder}/a.chat", "-n", ENDLESS, "--device", "cpu", "go on"],
    "completion": ["bash"],
    "doctor": ["--op", "softmax", "--device", "{gpu}"],
    "download": ["owner/name", "--to", "{folder}"],
    "embed": ["-f", "{text}", "--device", "cpu"],
    "fit": ["--device", "{gpu}"],
    "generate": ["-p", "hello", "-n", ENDLESS, "--device", "{gpu}"],
    "info": ["--tensors", "--device", "{gpu}"],
    "perplexity": ["{text}", "--device", "cpu"],
    "profile": ["-p", "8", "--save", "{folder}", "--device", "{gpu}"],
    "run": ["-n", ENDLESS, "--device", "{gpu}", "go on"],
    "tokenize": ["-f", "{text}"],
    "tune": ["builtin", "--minutes", "0.05", "--save", "{folder}/tuned.json", "--device", "{gpu}"],
}


@dataclass(frozen=True)
class Usual:
    """The result of a command that runs to its end."""

    code: int
    seconds: float
    errors: bytes


@dataclass(frozen=True)
class Run:
    """A command that runs or has ended."""

    name: str
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, name: str, fields: dict[str, str]) -> "Run":
        """Starts a command, and waits until it can catch signals."""
        arguments = [part.format(**fields) for part in ARGUMENTS.get(name, [])]
        output = Path(fields["folder"]) / "out.jsonl"
        if name == "batch" and output.exists() and output.read_bytes().count(b"\n") == LINES:
            output.unlink()  # otherwise the command would have nothing to do
        env = {**os.environ, "RWKV_GPU_CACHE": fields["folder"]}
        process = subprocess.Popen(
            [*MAIN, name, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        while process.poll() is None and not catches_signals(process.pid):
            time.sleep(0.001)
        return cls(name, process)

    def end(self, timeout: float) -> Usual:
        """The exit code, the seconds that it took from now, and the standard error."""
        began = time.monotonic()
        try:
            _, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
        return Usual(self.process.returncode, time.monotonic() - began, errors)


def catches_signals(pid: int) -> bool:
    """True if a process blocks SIGTERM, for which its signal thread waits. Elsewhere than on Linux, waits a while."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        time.sleep(0.5)
        return True
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def prepared(folder: Path, device: str) -> dict[str, str]:
    """Writes the files that commands read, and returns them by name."""
    text = folder / "text.txt"
    text.write_text("The sea is wide and the land is far.\n" * 60, encoding="utf-8")
    (folder / "in.jsonl").write_text('{"prompt": "The sea"}\n' * LINES, encoding="utf-8")
    return {"gpu": device, "folder": str(folder), "text": str(text)}


def trial(name: str, fields: dict[str, str], number: signal.Signals, wait: float, usual: Usual) -> str | None:
    """Ends a command after a time. Returns the errors."""
    run = Run.start(name, fields)
    time.sleep(wait)
    run.process.send_signal(number)
    ended = run.end(20)
    if ended.code in ((0, usual.code) if usual.code < 0 else (usual.code,)):  # the command ended before the signal
        return None
    if ended.code != 128 + number:
        said = ended.errors.decode(errors="replace").strip()[-400:]
        return f"ended with {ended.code}, not {128 + number}: {said}"
    if ended.seconds > GRACE:
        return f"took {ended.seconds:.1f} s to end"
    known = usual.errors.splitlines()
    unusual = [line for line in ended.errors.splitlines() if line not in known and b" tok/s" not in line]
    return f"printed {unusual[0].decode(errors='replace')!r}" if unusual else None


def left_behind(fields: dict[str, str]) -> str | None:
    """The errors of the remaining files."""
    session = Path(fields["folder"]) / "a.chat"
    if session.exists():
        with rwkv_gpu.load(device="cpu") as llm:
            llm.load_chat(session)
    ended = Run.start("batch", fields).end(600)
    lines = (Path(fields["folder"]) / "out.jsonl").read_text().splitlines()
    if ended.code or len(lines) != LINES:
        return f"the batch cannot go on: {ended.code}, {len(lines)} lines, {ended.errors.decode(errors='replace')}"
    return None


def moments(count: int, seed: int, device: str) -> list[str]:
    """Runs all trials. Returns the errors."""
    wrong = []
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        fields = prepared(Path(name), device)
        usual = {command: Run.start(command, fields).end(LONGEST) for command in COMMANDS}
        for at in range(count):
            command, number = list(COMMANDS)[at % len(COMMANDS)], SIGNALS[at // len(COMMANDS) % 2]
            wait = draw.uniform(0, usual[command].seconds)
            found = trial(command, fields, number, wait, usual[command])
            if found is not None:
                wrong.append(f"{command}, {number.name} after {wait:.3f} s: {found}")
        if (found := left_behind(fields)) is not None:
            wrong.append(found)
    return wrong
