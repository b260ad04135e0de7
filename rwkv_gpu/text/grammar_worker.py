"""The helper process of structured output: compiles grammars and computes masks with llguidance.

It is separate from the model, since llguidance recurses in native code: exceeding stack, memory or time ends this
process, and only one request with it. It receives tuples and answers each with one, in order (`serve`). It ends with
its input, so it never outlives the program that started it.
"""

import contextlib
import json
import marshal
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any

from rwkv_gpu.errors import BadGrammar
from rwkv_gpu.text.closed_schema import closed
from rwkv_gpu.text.gbnf import to_lark
from rwkv_gpu.text.grammar_closing import Closing, Digits, Kinds

COMPILED = 16  # grammars that stay compiled for later requests
REMEMBERED_SOURCE = 1 << 20  # bytes of a grammar that is worth caching
COMPACT = {"whitespace_flexible": False}  # JSON without white space; a schema's own "x-guidance" may override this
# By kind of grammar: the text after which JSON begins, which is ended in time
OPENINGS = {"schema": b"", "calls": b"", "channels": b"commentary to=functions."}
LARGE = 400 << 20  # bytes; a process that has used more ends when no session uses it
NICE = 5  # lower priority than the server's, so that a large grammar does not delay other requests
LONGEST_PIECE = 64  # maximum bytes of a token when texts are split

Reply = tuple[str | None, bytes, bool, bool]  # error, mask, whether the answer may end here, whether nothing can follow


class Pieces:
    """The bytes of all tokens. Called by llguidance to split a text, longest token first."""

    def __init__(self, tokens: list[bytes], eos: int, bos: int | None) -> None:
        self.tokens = tokens
        self.eos_token_id, self.bos_token_id = eos, bos
        self.ids: dict[bytes, int] = {}
        self._longest = [1] * 256  # bytes of the longest token, by the first byte
        for token, piece in enumerate(tokens):
            if 0 < len(piece) <= LONGEST_PIECE and piece not in self.ids:
                self.ids[piece] = token
                self._longest[piece[0]] = max(self._longest[piece[0]], len(piece))

    def __call__(self, text: bytes | str) -> list[int]:
        return self.split(text.encode() if isinstance(text, str) else text)

    def split(self, data: bytes, ends: frozenset[int] = frozenset()) -> list[int]:
        """Splits a text into tokens, without those that end an answer."""
        found, at = [], 0
        while at < len(data):
            for size in range(self._longest[data[at]], 0, -1):
                token = self.ids.get(data[at : at + size])
                if token is not None and token not in ends:
                    found.append(token)
                    break
            else:
                size = 1  # this byte has no token
            at += size
        return found


class Session:
    """One answer: a matcher, and what narrows its masks further."""

    def __init__(self, matcher: Any, bounds: list[Digits | Closing]) -> None:
        self._matcher = matcher
        self._bounds = bounds

    def accept(self, tokens: tuple[int, ...], left: int) -> Reply:
        """Advances by these tokens; `left` more may follow."""
        matcher = self._matcher
        for token in tokens:
            matcher.consume_token(token)
            if matcher.is_error():
                return f"cannot be used: {reason(matcher)}", b"", False, True
            for bound in self._bounds:
                bound.accept(token)
        if matcher.is_stopped():
            return None, b"", True, True
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return f"cannot be used: {reason(matcher)}", b"", False, True
        for bound in self._bounds:
            mask = bound.narrow(matcher, mask, left)
        return None, mask, matcher.is_accepting(), False


class Worker:
    """The sessions of one process, over one vocabulary."""

    def __init__(self, library: Any, limit: Callable[[float], None]) -> None:
        self._library = library
        self._limit = limit
        self._limits = library.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
        self._pieces: Pieces | None = None
        self._kinds: Kinds | None = None
        self._tokenizers: dict[tuple[int, ...], Any] = {}
        self._compiled: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._sessions: dict[int, Session] = {}

    def vocabulary(self, tokens: list[bytes], eos: int, bos: int | None) -> Reply:
        """Receives the bytes of all tokens; the first message."""
        self._pieces = Pieces(tokens, eos, bos)
        return None, b"", False, False

    def open(
        self,
        number: int,
        ends: tuple[int, ...],
        kind: str,
        source: str,
        begun: bytes,
        tokens: tuple[int, ...],
        left: int,
        salt: int = 0,
        names: tuple[tuple[str, int], ...] = (),
    ) -> Reply:
        """Compiles a grammar and starts an answer that already has a text and some tokens."""
        assert self._pieces is not None
        text = tuple(self._pieces.split(begun, frozenset(ends)))
        for white_space in (False, True) if kind == "schema" and begun else (False,):
            try:
                matcher = self._matcher(ends, kind, source, white_space, salt, names)
            except BadGrammar as error:
                return str(error).removeprefix("the grammar "), b"", False, True
            except ValueError as error:
                return f"cannot be read: {error}", b"", False, True
            except RecursionError:
                return "is too deep: nest its parts less", b"", False, True
            if matcher.is_error():
                return f"cannot be used: {reason(matcher)}", b"", False, True
            if matcher.validate_tokens(text) == len(text):
                break
        else:
            return "does not allow what the answer begins with; begin it otherwise, or not at all", b"", False, True
        bounds: list[Digits | Closing] = []
        if kind in OPENINGS or kind == "tagged":
            bounds.append(Digits(self._kinds_of_tokens()))
        if kind in OPENINGS:
            bounds.append(Closing(self._kinds_of_tokens(), OPENINGS[kind]))
        session = self._sessions[number] = Session(matcher, bounds)
        return session.accept((*text, *tokens), left)

    def accept(self, number: int, tokens: tuple[int, ...], left: int) -> Reply:
        """Advances a session by generated tokens; `left` more may follow."""
        return self._sessions[number].accept(tokens, left)

    def close(self, number: int) -> Reply:
        """Ends a session. The first flag of the reply tells whether this process has grown."""
        self._sessions.pop(number, None)
        return None, b"", grown(), True

    def _matcher(
        self,
        ends: tuple[int, ...],
        kind: str,
        source: str,
        white_space: bool,
        salt: int,
        names: tuple[tuple[str, int], ...],
    ) -> Any:
        key = (ends, kind, source, white_space, salt)
        if key not in self._compiled:
            matcher = self._library.LLMatcher(
                self._tokenizer(ends),
                self._translated(kind, source, white_space, names),
                log_level=0,
                limits=self._limits,
            )
            if len(source) > REMEMBERED_SOURCE or matcher.is_error():
                return matcher
            self._compiled[key] = matcher
            if len(self._compiled) > COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return self._compiled[key].deep_copy()

    def _translated(self, kind: str, source: str, white_space: bool, names: tuple[tuple[str, int], ...]) -> str:
        matcher = self._library.LLMatcher
        if kind == "gbnf":
            kind, source = "lark", to_lark(source, dict(names))
        if kind == "schema":
            with contextlib.suppress(ValueError):  # the library reports text that is not JSON
                source = json.dumps(closed(json.loads(source)))
            return str(matcher.grammar_from_json_schema(source, defaults={} if white_space else COMPACT))
        return str(matcher.grammar_from_regex(source) if kind == "regex" else matcher.grammar_from_lark(source))

    def _kinds_of_tokens(self) -> Kinds:
        """Token classes of this vocabulary, created on first use."""
        assert self._pieces is not None
        if self._kinds is None:
            self._kinds = Kinds(self._pieces.tokens, self._pieces)
        return self._kinds

    def _tokenizer(self, ends: tuple[int, ...]) -> Any:
        if ends not in self._tokenizers:
            wrapped = self._library.TokenizerWrapper(self._pieces)
            self._tokenizers[ends] = self._library.LLTokenizer(wrapped, eos_token=list(ends))
        return self._tokenizers[ends]


def reason(matcher: Any) -> str:
    """The reason why a matcher cannot continue, in words for the author of the grammar."""
    error = str(matcher.get_error()).replace("<non-verbose/>", "").strip()
    return "no answer can match it" if error.startswith("NoExtension") else error


def read(source: IO[bytes]) -> Any:
    """The next message; EOFError if there is none."""
    size = source.read(4)
    data = source.read(int.from_bytes(size, "little")) if len(size) == 4 else b""
    if len(size) < 4 or len(data) < int.from_bytes(size, "little"):
        raise EOFError
    return marshal.loads(data)  # from a process of the same Python, which we started


def write(target: IO[bytes], message: Any) -> None:
    """Sends a message whole."""
    data = marshal.dumps(message)
    target.write(len(data).to_bytes(4, "little") + data)
    target.flush()


def serve(source: IO[bytes], target: IO[bytes], worker: Worker, limit: Callable[[float], None]) -> None:
    """Serves messages (seconds, name of a method, its arguments) until there are no more."""
    while True:
        try:
            seconds, name, *arguments = read(source)
        except EOFError:
            return
        limit(seconds)
        try:
            reply = getattr(worker, name)(*arguments)
        except MemoryError:
            return
        except BaseException as error:  # noqa: BLE001  a panic of llguidance is not an Exception
            reply = f"cannot be used: {error}", b"", False, True
        limit(0)
        write(target, reply)


def grown() -> bool:
    """True if this process has used so much memory that a new one is better."""
    return peak_memory() > LARGE


def peak_memory() -> int:
    """Peak memory of this program in bytes; 0 if the system does not report it."""
    # Linux: ru_maxrss would include the parent's
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:")), 0)
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def limit_memory(nbytes: int) -> None:
    """Limits the memory of this process, if the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time() -> Callable[[float], None]:
    """Returns a function that ends this process after some seconds, also in native code; 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        return lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds) and None  # CPU time
    import faulthandler

    silent = open(os.devnull, "w")  # noqa: SIM115  stays open while the process runs

    def limit(seconds: float) -> None:
        if seconds:
            faulthandler.dump_traceback_later(seconds, exit=True, file=silent)
        else:
            faulthandler.cancel_dump_traceback_later()

    return limit


def lower_priority() -> None:
    """Lowers the priority of this process within its session, and of its session."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as session:  # Linux
        session.write(str(NICE))


def main(memory: int) -> None:
    """Serves standard input and output. Output printed by libraries is discarded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started this one
    lower_priority()
    limit_memory(memory)
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(target.fileno(), os.O_BINARY)
    import llguidance

    limit = limit_time()
    serve(sys.stdin.buffer, target, Worker(llguidance, limit), limit)
