"""Runs the command line without a time limit for saving a session after a signal, for tests on a busy machine.

Users wait for less than a second: then the process ends, saved or not (`GRACE` of cli/repl.py).
"""

import signal

from rwkv_gpu.cli import repl
from rwkv_gpu.cli.main import main


def give_time() -> None:
    """Allows a chat ten minutes to save its session."""
    repl.GRACE = dict.fromkeys(signal.Signals, 600.0)


if __name__ == "__main__":
    give_time()
    main()
