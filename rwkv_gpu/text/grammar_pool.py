"""The helper processes of structured output, as used by the main program.

A grammar can overflow the native stack of its compiler, or use up memory or time. In a separate process that costs one
request: the current session fails, and other sessions of that process continue in another one.
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

PROCESSES = 4  # maximum number of processes; further answers share them
PATIENCE = 0.1 if os.name == "nt" else None  # Windows cannot interrupt a wait without timeout
PROGRAM = "import sys; sys.path += sys.argv[2:]; from rwkv_gpu.text.grammar_worker import main; main(int(sys.argv[1]))"
CLOSED = "cannot be used: the model was closed"


@dataclass(frozen=True)
class Limits:
    """Limits for one grammar."""

    memory: int = 1 << 30  # bytes of a process
    compiling: float = 10.0  # CPU seconds to compile it
    masking: float = 2.0  # CPU seconds for the mask of one token


class Vocabulary(NamedTuple):
    """The bytes of all tokens; those beginning with \\xff are not text."""

    tokens: list[bytes]
    eos: int
    bos: int | None


@dataclass(frozen=True)
class Source:
    """A grammar in the form for the helper."""

    kind: str  # schema, regex, lark or gbnf
    text: str
    ends: tuple[int, ...]  # token ids
    begun: bytes = b""  # the beginning of the answer
    salt: int = 0  # only requests with this salt reuse its compiled form
    names: tuple[tuple[str, int], ...] = ()  # tokens by the texts that a GBNF grammar names them by


class Session:
    """One answer. `accept` never blocks; `reply` waits for the mask after the last token."""

    def __init__(self, pool: "Pool", source: Source, left: int) -> None:
        self._pool = pool
        self.number = next(pool.numbers)
        self.source = source
        self.generated: list[int] = []
        self.left = left
        self._lock = threading.Lock()
        self.asked = 0  # the number of the last question
        self._known = threading.Event()
        self._reply: Reply = (CLOSED, b"", False, True)
        self._callbacks: list[Callable[[], None]] = []
        self._helper = pool.assign(self)
        self._helper.ask(self)

    @property
    def ready(self) -> bool:
        """True if `reply` returns at once."""
        return self._known.is_set()

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once `reply` returns at once: now, or from another thread."""
        with self._lock:
            if not self._known.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def accept(self, token: int, left: int) -> None:
        """Adds a generated token; `left` more may follow."""
        self.generated.append(token)
        self.refresh(left)

    def refresh(self, left: int) -> None:
        """Updates the number of tokens that may follow."""
        self.left = left
        with self._lock:
            self.asked += 1
            self._known.clear()
        self.again()

    def again(self) -> None:
        """Requests the reply again, from another process if the session's process has ended."""
        try:
            if self._helper.gone:
                self._helper = self._pool.assign(self)
        except BadGrammar:
            self.fail(CLOSED)
            return
        self._helper.ask(self)

    def reply(self) -> Reply:
        """The helper's reply after the last token."""
        while not self._known.wait(PATIENCE):
            continue
        return self._reply

    def answer(self, reply: Reply, asked: int | None = None) -> None:
        """Handles the helper's reply, unless a later question than `asked` is waiting for its own."""
        with self._lock:
            if asked not in (None, self.asked):
                return
            self._reply = reply
            self._known.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def fail(self, error: str) -> None:
        """Ends the wait for a reply with an error."""
        self.answer((error, b"", False, True))


class Helper:
    """One process, and the thread that talks to it. One request at a time, so that a crash can be attributed."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], limits: Limits, pool: "Pool") -> None:
        self._vocabulary, self._limits = vocabulary, limits
        self._pool = weakref.ref(pool)
        self._questions: SimpleQueue[Session | int | None] = SimpleQueue()  # a number is an ended session
        self._sent: dict[int, int] = {}  # tokens sent to the process, by session number
        self._process: subprocess.Popen[bytes] | None = None
        self._state = threading.Lock()  # so that no request is added after the last one was taken
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.gone = False
        self._stopped = False
        threading.Thread(target=self._run, name="rwkv-gpu grammars", daemon=True).start()

    def ask(self, session: Session) -> None:
        """Queues a session's request; if the process has ended meanwhile, another one serves it."""
        with self._state:
            if not self.gone:
                self._questions.put(session)
                return
        session.again()

    def stop(self) -> None:
        """Ends the process, even in the middle of work."""
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
        """Serves one request; returns whether there may be more."""
        if question is None:
            return False
        assert self._process is not None
        if self._process.poll() is not None:  # killed from outside, while idle
            self._questions.put(question)
            return False
        if isinstance(question, int):
            return self._close(question)
        sent = self._sent.get(question.number)
        limit = self._limits.compiling if sent is None else self._limits.masking
        asked = question.asked
        tokens = tuple(question.generated[sent or 0 :])
        try:
            if sent is None:
                weakref.finalize(question, self._questions.put, question.number).atexit = False
                source = question.source
                arguments = (
                    source.ends,
                    source.kind,
                    source.text,
                    source.begun,
                    tokens,
                    question.left,
                    source.salt,
                    source.names,
                )
                reply = self._talk(limit, "open", question.number, *arguments)
            else:
                reply = self._talk(limit, "accept", question.number, tokens, question.left)
        except (OSError, EOFError):
            with self._state:
                self.gone = True
            question.fail(self._cause(question.source, limit))
            return False
        self._sent[question.number] = (sent or 0) + len(tokens)
        question.answer(reply, asked)
        return True

    def _close(self, number: int) -> bool:
        """Ends a session. A process that has grown ends too, if no session uses it any more."""
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
        """The reason why the process ended, in words for the author of the grammar."""
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
        """Ends the process; unanswered requests go to another one, or fail with this error."""
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
    """The helper processes of one model; started on demand, ended with the model or the program."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], limits: Limits | None = None) -> None:
        self._vocabulary = cache(vocabulary)  # read when the first process starts, then cached
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._helpers: list[Helper] = []
        self.numbers = count()  # numbers for sessions
        self.closed = False
        self._process = os.getpid()
        self._end = weakref.finalize(self, _stop, self._helpers, self._process)

    def session(self, source: Source, left: int) -> Session:
        """Starts an answer."""
        return Session(self, source, left)

    def assign(self, session: Session) -> Helper:
        """The process for an answer: an unused or new one, if the limit allows."""
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
        """Removes a process that has ended."""
        with self._lock, contextlib.suppress(ValueError):
            self._helpers.remove(helper)

    def close(self) -> None:
        """Ends all processes; waiting callers get an error."""
        with self._lock:
            self.closed = True
        self._end()


def find_library() -> str:
    """The installation folder of llguidance; raises MissingExtra if it is not installed."""
    try:
        found = importlib.util.find_spec("llguidance")
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("structured output needs the package llguidance: pip install llguidance")
    return str(Path(next(iter(found.submodule_search_locations))).parent)


def start(memory: int) -> "subprocess.Popen[bytes]":
    """Starts a helper process. Not by multiprocessing, which would run the caller's program again.

    Linux divides CPU time among sessions first. In a session of its own, a helper takes no time from the event loop.
    """
    folders = (str(Path(rwkv_gpu.__file__).parent.parent), find_library())
    program = [os.fsdecode(spawn.get_executable()), "-I", "-S", "-c", PROGRAM, str(memory), *folders]
    flags = getattr(subprocess, "CREATE_NO_WINDOW", 0) if sys.platform == "win32" else 0
    return subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        creationflags=flags,
        start_new_session=True,
    )


def _stop(helpers: Sequence[Helper], owner: int) -> None:
    """Ends processes, except those that a forked child inherited from its parent."""
    if os.getpid() == owner:
        for helper in [*helpers]:
            helper.stop()
