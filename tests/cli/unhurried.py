"""Runs the command line without time limits for the end of a chat, for tests on a busy machine.

After a signal, users wait for less than a second: then the process ends, saved or not (`GRACE` of cli/repl.py). Tool
servers have ten seconds to end (`CLOSE` of rwkv_gpu/mcp/client.py).
"""

import signal

from rwkv_gpu.cli import repl
from rwkv_gpu.cli.main import main
from rwkv_gpu.mcp import client


def give_time() -> None:
    """Allows a chat ten minutes to save its session, and its tool servers as long to end."""
    repl.GRACE = dict.fromkeys(signal.Signals, 600.0)
    client.CLOSE = 600.0


if __name__ == "__main__":
    give_time()
    main()
