"""Runs the command line with progress bars that appear in the middle of the work, as in a long run."""

from rwkv_gpu.cli import bars
from rwkv_gpu.cli.main import main


class Eager(bars.Bar):
    """A bar that becomes visible at its second update, provided that its own timer was started."""

    updates = 0

    def update(self, done, total, label=None):
        super().update(done, total, label)
        self.updates += 1
        if self.updates == 2 and self._timer.is_alive():
            self._timer.cancel()
            self._show()


if __name__ == "__main__":
    bars.Bar = Eager
    main()
