"""The console script: takes signals before anything is imported that takes time."""

import os
import sys
import warnings

from .signals import Signals


def main() -> None:
    """Runs the command that the arguments name."""
    signals = Signals().start()
    warnings.formatwarning = lambda message, *_, **__: f"rwkv-gpu: {message}\n"  # in one line, as errors are
    from .commands import cli

    try:
        cli(prog_name="rwkv-gpu", obj=signals)
    except BrokenPipeError:  # the reader went away, as in `| head`: be quiet about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
