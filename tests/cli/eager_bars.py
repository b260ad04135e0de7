"""The command line with bars that appear in the middle of the work, as they do where it takes long."""

from rwkv_gpu.cli import bars
from rwkv_gpu.cli.main import main


class Eager(bars.Bar):
    """A bar whose time to appear comes at its second update; only if its own timer was started."""

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
