"""Ids of requests and replies: unique, and no secrets.

Asking the system for random bytes would release the interpreter's lock: another thread that computes then has it for
up to 5 ms, in the middle of a request.
"""

import os
from random import Random

_RANDOM = Random()  # seeded by the system, and apart from the one that programs seed
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_RANDOM.seed)


def unique(digits: int = 32) -> str:
    """So many random hexadecimal digits."""
    return f"{_RANDOM.getrandbits(4 * digits):0{digits}x}"
