"""The helper processes of structured output, seen from the program that starts them.

A grammar can overflow the native stack of its compiler, or take its memory or time. In a process of its own that costs
one request: the session that was being answered fails, others in that process go on in another one.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from multiprocessing import spawn
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import rwkv_gpu
from rwkv_gpu.errors import BadGrammar, Forked, MissingExtra
from rwkv_gpu.text.grammar_worker import Reply, read, write

PROCESSES = 4  # at most; further answers share them
PATIENCE = 0.1 if os.name == "nt" else None  # Windows does not interrupt who waits without end
PROGRAM = "import sys; sys.path += sys.argv[2:]; from rwkv_gpu.text.grammar_worker import main; main(int(sys.argv[1]))"
CLOSED = "cannot be used: the model was closed"


@dataclass(frozen=True)
class Limits:
    """What one grammar may take."""

    memory: int = 1 << 30  # bytes of a process
    compiling: float = 10.0  # seconds of the processor to compile it
    masking: float = 2.0  # and for the mask of one token


class Vocabulary(NamedTuple):
    """The bytes of all tokens; what begins with \\xff is no text."""

    tokens: list[bytes]
    eos: int
    bos: int | None


@dataclass(frozen=True)
class Source:
    """A grammar as the helper gets it."""

    kind: str  # schema, regex or lark
    text: str
    ends: tuple[int, ...]  # token ids
    begun: bytes = b""  # what the answer begins with


class Session:
    """One answer. `accept` never waits; `reply` does, until the mask after the last token is known."""

    def __init__(self, pool: "Pool", source: Source, left: int) -> None:
        self._pool = pool
        self.number = next(pool.numbers)
        self.source = source
        self.generated: list[int] = []
        self.left = left
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._reply: Reply = (CLOSED, b"", False, True)
        self._callbacks: list[Callable[[], None]] = []
        self._helper = pool.assign(self)
        self._helper.ask(self)

    @property
    def ready(self) -> bool:
        """Whether `reply` returns at once."""
        return self._known.is_set()

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Calls back once `reply` returns at once: now, or from another thread."""
        with self._lock:
            if not self._known.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def accept(self, token: int, left: int) -> None:
        """A token was generated, and so many more may come."""
        self.generated.append(token)
        self.refresh(left)

    def refresh(self, left: int) -> None:
        """So many more tokens may come."""
        self.left = left
        self._known.clear()
        self.again()

    def again(self) -> None:
        """Asks for the reply, of another process where the one that had the session is gone."""
        try:
            if self._helper.gone:
                self._helper = self._pool.assign(self)
        except BadGrammar:
            self.fail(CLOSED)
            return
        self._helper.ask(self)

    def reply(self) -> Reply:
        """What the helper says after the last token."""
        while not self._known.wait(PATIENCE):
            continue
        return self._reply

    def answer(self, reply: Reply) -> None:
        """The helper's reply came."""
        with self._lock:
            self._reply = reply
            self._known.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def fail(self, error: str) -> None:
        """There is no reply, for this reason."""
        self.answer((error, b"", False, True))


class Helper:
    """One process, and the thread that talks to it: one question at a time, so that it is known whose ended it."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], limits: Limits, pool: "Pool") -> None:
        self._vocabulary, self._limits = vocabulary, limits
        self._pool = weakref.ref(pool)
        self._questions: SimpleQueue[Session | int | None] = SimpleQueue()  # a number: that session has ended
        self._sent: dict[int, int] = {}  # tokens that the process has of each session, by its number
        self._process: subprocess.Popen[bytes] | None = None
        self._state = threading.Lock()  # nothing is asked after the last question was taken
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.gone = False
        self._stopped = False
        threading.Thread(target=self._run, name="rwkv-gpu grammars", daemon=True).start()

    def ask(self, session: Session) -> None:
        """Has a session answered; where the process is gone meanwhile, by another one."""
        with self._state:
            if not self.gone:
                self._questions.put(session)
                return
        session.again()

    def stop(self) -> None:
        """Ends the process, whatever it is at."""
        with self._state:
            self.gone = self._stopped = True
            process = self._process
        self._questions.put(None)
        if process is not None:
            process.kill()

    def _run(self) -> None:
        try:
            self._process = start(self._limits.memory)
            reply = self._talk(self._limits.compiling, "vocabulary", *self._vocabulary())
            error = reply[0]
        except (OSError, EOFError) as failure:
            error = f"structured output needs a helper process, and it could not be started: {failure}"
        if error is None:
            while self._serve(self._questions.get()):
                continue
        self._finish(error)

    def _serve(self, question: Session | int | None) -> bool:
        """Answers one question; whether there may be more."""
        if question is None:
            return False
        assert self._process is not None
        if self._process.poll() is not None:  # killed by others, while it did nothing
            self._questions.put(question)
            return False
        if isinstance(question, int):
            return self._close(question)
        sent = self._sent.get(question.number)
        limit = self._limits.compiling if sent is None else self._limits.masking
        tokens = tuple(question.generated[sent or 0 :])
        try:
            if sent is None:
                weakref.finalize(question, self._questions.put, question.number).atexit = False
                source = question.source
                arguments = (source.ends, source.kind, source.text, source.begun, tokens, question.left)
                reply = self._talk(limit, "open", question.number, *arguments)
            else:
                reply = self._talk(limit, "accept", question.number, tokens, question.left)
        except (OSError, EOFError):
            with self._state:
                self.gone = True
            question.fail(self._cause(question.source, limit))
            return False
        self._sent[question.number] = (sent or 0) + len(tokens)
        question.answer(reply)
        return True

    def _close(self, number: int) -> bool:
        """A session has ended; so does a process that has grown, where nobody uses it any more."""
        if self._sent.pop(number, None) is None:
            return True
        try:
            grown = self._talk(self._limits.masking, "close", number)[2]
        except (OSError, EOFError):
            return False
        return not grown or bool(self.sessions)

    def _talk(self, seconds: float, name: str, *arguments: object) -> Reply:
        assert self._process is not None
        source, target = self._process.stdout, self._process.stdin
        assert source is not None
        assert target is not None
        write(target, (seconds, name, *arguments))
        reply: Reply = read(source)
        return reply

    def _cause(self, source: Source, limit: float) -> str:
        """Why the process ended, in words of whoever wrote the grammar."""
        assert self._process is not None
        if self._stopped:
            return CLOSED
        code = self._process.wait()
        size = f"is too large or too deep: its {len(source.text):,} characters"
        if code == -getattr(signal, "SIGPROF", 0):
            return f"{size} took more than {limit:g} seconds; make it smaller"
        if code in (-signal.SIGSEGV, -getattr(signal, "SIGBUS", signal.SIGSEGV), 0xC00000FD):
            return f"{size} overflow the stack of the compiler; nest less, or name fewer rules one through the other"
        return f"{size} need more than {self._limits.memory >> 20:,} MiB or {limit:g} seconds"

    def _finish(self, error: str | None) -> None:
        """Gives the process back; questions that were not answered go to another one, or fail with it."""
        with self._state:
            self.gone = True
        process = self._process
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe and pipe.close()
            process.wait()
        pool = self._pool()
        if pool is not None:
            pool.forget(self)
        while not self._questions.empty():
            question = self._questions.get()
            if isinstance(question, Session):
                if error is not None or pool is None or pool.closed:
                    question.fail(error or CLOSED)
                else:
                    question.again()


class Pool:
    """The helper processes of one model; started when they are needed, ended with it or with the program."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], limits: Limits | None = None) -> None:
        self._vocabulary = cache(vocabulary)  # read when a process starts, and then kept
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._helpers: list[Helper] = []
        self.numbers = count()  # of sessions
        self.closed = False
        self._process = os.getpid()
        self._end = weakref.finalize(self, _stop, self._helpers, self._process)

    def session(self, source: Source, left: int) -> Session:
        """Begins an answer."""
        return Session(self, source, left)

    def assign(self, session: Session) -> Helper:
        """The process that an answer gets: one without others, if there may be one."""
        if os.getpid() != self._process:
            raise Forked
        with self._lock:
            if self.closed:
                raise BadGrammar(f"the grammar {CLOSED}")
            living = [helper for helper in self._helpers if not helper.gone]
            helper = min(living, key=lambda helper: len(helper.sessions), default=None)
            if helper is None or (helper.sessions and len(living) < PROCESSES):
                helper = Helper(self._vocabulary, self._limits, self)
                self._helpers.append(helper)
            helper.sessions.add(session)
            return helper

    def forget(self, helper: Helper) -> None:
        """A process has ended."""
        with self._lock, contextlib.suppress(ValueError):
            self._helpers.remove(helper)

    def close(self) -> None:
        """Ends all processes; who waits for one is told."""
        with self._lock:
            self.closed = True
        self._end()


def find_library() -> str:
    """The folder that llguidance is installed in; MissingExtra where it is not."""
    try:
        found = importlib.util.find_spec("llguidance")
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("structured output needs the package llguidance: pip install 'rwkv-gpu[grammar]'")
    return str(Path(next(iter(found.submodule_search_locations))).parent)


def start(memory: int) -> "subprocess.Popen[bytes]":
    """Starts a helper process. Not by multiprocessing, which would run the caller's own program once more."""
    folders = (str(Path(rwkv_gpu.__file__).parent.parent), find_library())
    program = [os.fsdecode(spawn.get_executable()), "-I", "-S", "-c", PROGRAM, str(memory), *folders]
    flags = getattr(subprocess, "CREATE_NO_WINDOW", 0) if sys.platform == "win32" else 0
    return subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, creationflags=flags
    )


def _stop(helpers: Sequence[Helper], owner: int) -> None:
    """Ends processes; not those that a forked child knows of its parent."""
    if os.getpid() == owner:
        for helper in [*helpers]:
            helper.stop()
