"""Progress bars on standard error, for work that takes long and prints nothing."""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import table
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from rwkv_gpu.measure.sizes import sized

from .echo import CONTROLS
from .screen import Screen

WIDE = 80  # columns of a terminal with room for a bar
PATIENCE = 0.4  # seconds before a bar is shown; shorter work needs none


class Bar:
    """A bar that appears after some time, and is erased at the end. Thread-safe; leaving a `with` closes it.

    With `prints`, the work prints results. On a terminal these show its progress, so there is no bar.
    """

    def __init__(self, screen: Screen, label: str, *columns: ProgressColumn, prints: bool = False) -> None:
        self._lock = threading.Lock()
        self._screen = screen
        self._columns = columns
        self._label, self._done, self._total = label, 0, 0
        self._progress: Progress | None = None
        self._closed = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        if screen.bars and not (prints and screen.out.is_terminal):
            self._timer.start()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, done: int, total: int, label: str | None = None) -> None:
        """Sets the progress and the current stage. A total of 0 is unknown: the bar pulses."""
        with self._lock:
            self._done, self._total, self._label = done, total, label or self._label
            if self._progress is not None:
                [task] = self._progress.tasks
                task.total = total or None  # `update` would keep the total of the previous stage
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
            columns = _fitting(self._columns, self._screen.err.width)
            self._progress = Progress(*columns, console=self._screen.err, transient=True)
            self._progress.add_task(self._label, completed=self._done, total=self._total or None)
            self._progress.start()


class Column(ProgressColumn):
    """A text computed from the task, on one line."""

    def __init__(self, shown: Callable[[Task], str]) -> None:
        super().__init__(table.Column(no_wrap=True, overflow="ellipsis"))
        self.shown = shown

    def render(self, task: Task) -> Text:
        return Text(self.shown(task).translate(CONTROLS), no_wrap=True, overflow="ellipsis")


def _fitting(columns: Sequence[ProgressColumn], width: int) -> list[ProgressColumn]:
    """The columns that fit in one line of the terminal. A narrow one has room for label and progress, without a bar."""
    if width >= WIDE:
        return [Column(lambda task: task.description), BarColumn(24), *columns]
    shown = [column.shown for column in columns if isinstance(column, Column)]
    return [Column(lambda task: " ".join([task.description, *filter(None, (one(task) for one in shown))]))]


def _tokens(task: Task) -> str:
    """Tokens done and total, and tokens per second."""
    rate = f"  {task.speed:,.0f} tok/s" if task.speed else ""
    return f"{int(task.completed):,} of {int(task.total):,} tokens{rate}" if task.total else ""


def _bytes(task: Task) -> str:
    return f"{sized(task.completed)} of {sized(task.total)}" if task.total else ""


def _items(task: Task) -> str:
    return f"{int(task.completed):,} of {int(task.total):,}" if task.total else ""


def _elapsed(task: Task) -> str:
    """Elapsed seconds, if the total is unknown."""
    return "" if task.total or task.elapsed is None else f"{task.elapsed:.0f} s"


def _bar(label: str, shown: Callable[[Task], str], *, elapsed: bool = False) -> Callable[..., Bar]:
    """Returns a constructor of bars that show the progress, and the remaining or elapsed time."""

    def bar(screen: Screen, *, prints: bool = False) -> Bar:
        time = Column(_elapsed) if elapsed else TimeRemainingColumn(compact=True)
        return Bar(screen, label, Column(shown), time, prints=prints)

    return bar


lines_bar = _bar("answered", _items)
prompt_bar = _bar("reading the prompt", _tokens)
loading_bar = _bar("opening the device", _bytes, elapsed=True)
download_bar = _bar("asking the hub", _bytes)
quantise_bar = _bar("quantising", _bytes)
checking_bar = _bar("comparing the model file with the session", _items, elapsed=True)
tokens_bar = _bar("generating", _tokens)
text_bar = _bar("evaluating", _tokens)
