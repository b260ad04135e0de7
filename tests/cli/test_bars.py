"""Progress bars show the current stage."""

import io
from types import SimpleNamespace

from rich.console import Console

from rwkv_gpu.cli.bars import loading_bar


def test_a_stage_of_unknown_length_pulses_after_one_with_a_length():
    screen = SimpleNamespace(err=Console(file=io.StringIO(), force_terminal=True), bars=False)
    with loading_bar(screen) as bar:
        bar.update(5, 10, "uploading weights")
        bar._show()
        [task] = bar._progress.tasks
        assert (task.completed, task.total, task.description) == (5, 10, "uploading weights")
        bar.update(0, 0, "compiling shaders")
        assert (task.total, task.description) == (None, "compiling shaders")
