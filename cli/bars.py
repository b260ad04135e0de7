"""Progress bars on standard error, for work that takes time before the first word of an answer."""

import threading
from types import TracebackType

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from .screen import Screen
from .sizes import sized

PATIENCE = 0.4  # seconds without a bar: shorter work needs none


class Rate(ProgressColumn):
    """Tokens, and tokens a second."""

    def render(self, task: Task) -> Text:
        if not task.total:
            return Text("")
        rate = f"  {task.speed:,.0f} tok/s" if task.speed else ""
        return Text(f"{int(task.completed):,} of {int(task.total):,} tokens{rate}")


class Bar:
    """A bar that appears after some time, and leaves no trace. Thread-safe; leaving a `with` closes it."""

    def __init__(self, screen: Screen, label: str, *columns: ProgressColumn) -> None:
        self._lock = threading.Lock()
        self._screen = screen
        self._columns = columns
        self._label, self._done, self._total = label, 0, 0
        self._progress: Progress | None = None
        self._closed = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        if screen.bars:
            self._timer.start()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, done: int, total: int, label: str | None = None) -> None:
        """Sets how much is done, and what is going on. A total of 0 is unknown: the bar pulses."""
        with self._lock:
            self._done, self._total, self._label = done, total, label or self._label
            if self._progress is not None:
                [task] = self._progress.tasks
                task.total = total or None  # update() would keep the total of the stage before
                self._progress.update(task.id, completed=done, description=self._label)

    def close(self) -> None:
        """Removes the bar."""
        self._timer.cancel()
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
            self._closed = True

    def _show(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(24),
                *self._columns,
                console=self._screen.err,
                transient=True,
            )
            self._progress.add_task(self._label, completed=self._done, total=self._total or None)
            self._progress.start()


class Bytes(ProgressColumn):
    """Bytes done and in all, once both are known."""

    def render(self, task: Task) -> Text:
        return Text(f"{sized(task.completed)} of {sized(task.total)}" if task.total else "")


class TimeElapsed(ProgressColumn):
    """Seconds since the beginning, where nobody knows how many are left."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total or task.elapsed is None else f"{task.elapsed:.0f} s")


class Counted(ProgressColumn):
    """Items done and in all."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed):,} of {int(task.total):,}" if task.total else "")


def lines_bar(screen: Screen) -> Bar:
    """For prompts of a batch."""
    return Bar(screen, "answered", Counted(), TimeRemainingColumn(compact=True))


def prompt_bar(screen: Screen) -> Bar:
    """For a prompt that the model reads."""
    return Bar(screen, "reading the prompt", Rate(), TimeRemainingColumn(compact=True))


def loading_bar(screen: Screen) -> Bar:
    """For a model that is loaded."""
    return Bar(screen, "opening the device", Bytes(), TimeElapsed())


def download_bar(screen: Screen) -> Bar:
    """For a model that is downloaded."""
    return Bar(screen, "asking the hub", Bytes(), TimeRemainingColumn(compact=True))


def quantise_bar(screen: Screen) -> Bar:
    """For a model that is written again."""
    return Bar(screen, "quantising", Bytes(), TimeRemainingColumn(compact=True))


def checking_bar(screen: Screen) -> Bar:
    """For a session whose model file is compared."""
    return Bar(screen, "comparing the model file with the session", TimeElapsed())


def tokens_bar(screen: Screen) -> Bar:
    """For tokens that are generated where nobody sees them come."""
    return Bar(screen, "generating", Rate(), TimeRemainingColumn(compact=True))


def text_bar(screen: Screen) -> Bar:
    """For the tokens of a text that is evaluated."""
    return Bar(screen, "evaluating", Rate(), TimeRemainingColumn(compact=True))
