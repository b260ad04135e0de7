"""The command line with all the time it wants to save a session when a signal comes, for tests on a loaded machine.

Users wait for less than a second: then the process ends, saved or not (`GRACE` of cli/repl.py).
"""

import signal

from rwkv_gpu.cli import repl
from rwkv_gpu.cli.main import main


def give_time() -> None:
    """Has a chat wait ten minutes for its session to be saved."""
    repl.GRACE = dict.fromkeys(signal.Signals, 600.0)


if __name__ == "__main__":
    give_time()
    main()
