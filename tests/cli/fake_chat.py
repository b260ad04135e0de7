"""A chat without a model, to test its user interface: it repeats the question, as slowly as requested.

Run as a module it is a chat in a terminal: python -m tests.cli.fake_chat [--delay SECONDS] [--session FILE] ...
"""

import argparse
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from rwkv_gpu import BadFile, BadInput, Completion, Event, Stats
from rwkv_gpu.cli import session_file, slash
from rwkv_gpu.cli.conversation import Conversation
from rwkv_gpu.cli.keyboard import Piped, source
from rwkv_gpu.cli.repl import Repl
from rwkv_gpu.cli.screen import Screen
from rwkv_gpu.cli.session_file import SessionFile
from rwkv_gpu.cli.signals import Signals
from rwkv_gpu.replace_file import replace_file
from tests.cli.unhurried import give_time


class FakeGeneration:
    """Streams a text in pieces of a few characters."""

    def __init__(self, text, delay, on_prompt, on_end, thoughts="", prompt=1):
        self.pieces = [(thoughts[i : i + 4], True) for i in range(0, len(thoughts), 4)]
        self.pieces += [(text[i : i + 4], False) for i in range(0, len(text), 4)]
        self.delay, self.on_prompt, self.on_end, self.prompt = delay, on_prompt, on_end, prompt
        self.closed = threading.Event()
        self.said, self.reason = [], "running"

    def __iter__(self):
        for done in range(0, self.prompt, 512):
            if self.closed.wait(self.delay):
                break
            if self.on_prompt:
                self.on_prompt(min(done + 512, self.prompt), self.prompt)
        for number, (piece, thinking) in enumerate(self.pieces):
            if self.closed.wait(self.delay):
                break
            self.said.append("" if thinking else piece)
            yield Event(piece, number, 0.0, thinking=thinking)
        self._end("abort" if self.closed.is_set() else "stop")

    def close(self):
        self.closed.set()
        self._end("abort")

    def _end(self, reason):
        if self.reason == "running":
            self.reason = reason
            self.on_end("".join(self.said))

    @property
    def completion(self):
        stats = Stats(self.prompt, self.prompt // 2, len(self.said), 0.5, 2.0)
        return Completion("".join(self.said), tuple(range(len(self.said))), self.reason, stats)


class FakeChat:
    """Answers with the question."""

    def __init__(self, delay=0.0, messages=(), answer=None):
        self.delay, self.messages, self.answer = delay, list(messages), answer
        self.system, self.think, self.can_think, self.settings = None, None, True, {"temperature": 0.8}
        self.template = SimpleNamespace(source="fake")
        self.rounds = 0

    @property
    def tokens(self):
        return sum(len(message["content"]) for message in self.messages)

    calls = ()

    def media(self, _):
        return []

    def splitter(self):
        return None

    def stream(self, text, images=(), on_prompt=None):  # noqa: ARG002
        self.rounds += 1
        said = self.answer or f"**{self.rounds}:** you said {text}"
        self.messages.append({"role": "user", "content": text})
        keep = lambda said: self.messages.append({"role": "assistant", "content": said})  # noqa: E731
        thoughts = "Let me think about that. " * 3 if self.think else ""
        return FakeGeneration(said, self.delay, on_prompt, keep, thoughts, prompt=max(1, len(text)))

    def regenerate(self, on_prompt=None):
        if not self.messages:
            raise BadInput("the chat has no question yet; ask one first")
        return self.edit(self.messages[-2]["content"], on_prompt)

    def edit(self, text, on_prompt=None):
        del self.messages[-2:]
        return self.stream(text, on_prompt)

    def undo(self):
        if not self.messages:
            raise BadInput("the chat has no question yet; ask one first")
        del self.messages[-2:]

    def reset(self):
        self.messages.clear()

    def fork(self):
        return FakeChat(self.delay, self.messages, self.answer)


class FakeSession:
    """A session whose file is the messages of each branch as JSON."""

    def save(self, path, chats, current, *, lock=None, **_):
        text = json.dumps([current, [chat.messages for chat in chats]])
        write = lambda file: file.write(text.encode())  # noqa: E731
        replace_file(path, write=write, check=lambda _: None, lock=lock)

    def load(self, path, _llm):
        try:
            current, chats = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise BadFile(f"{path}: {error.strerror}") from None
        return [FakeChat(0.0, messages) for messages in chats], current


class FakeLLM:
    """A model that has only a context."""

    context = 4096
    tokenize = staticmethod(list)
    info = SimpleNamespace(
        name="Echo", architecture="fake", parameters=0, format="none", device="none", context=4096, trained_context=None
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument(
        "--loading", type=Path, help="a file that is there from when loading begins until a test removes it"
    )
    parser.add_argument("--session")
    parser.add_argument("--answer")
    parser.add_argument("--no-color", action="store_true")
    options = parser.parse_args()
    give_time()
    signals = Signals().start()
    screen = Screen(color=not options.no_color)
    answer = Path(options.answer).read_text(encoding="utf-8") if options.answer else None
    chat = FakeChat(options.delay, answer=answer)
    session_file.save_chats, session_file.load_chats = FakeSession().save, FakeSession().load
    file = SessionFile(options.session) if options.session else None
    with source([f"/{name}" for name in slash.COMMANDS], color=screen.color, interrupt=signals.interrupt) as asks:
        if options.loading:
            options.loading.touch()
            while options.loading.exists():
                time.sleep(0.01)
        branches, at = file.load(FakeLLM()) if file and file.exists else ([chat], 0)
        conversation = Conversation(FakeLLM(), screen, asks, branches, at, file, {"temperature": 0.8})
        code = Repl(conversation, signals, not isinstance(asks, Piped)).run()
        conversation.close()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
