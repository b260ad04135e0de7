"""Unique ids of requests and replies; not secret.

Random bytes from the system would release the interpreter lock in the middle of a request; a computing thread may then
hold it for up to 5 ms.
"""

import os
from random import Random

_RANDOM = Random()  # seeded by the system; independent of the global generator, which programs may seed
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_RANDOM.seed)


def unique(digits: int = 32) -> str:
    """Returns that many random hexadecimal digits."""
    return f"{_RANDOM.getrandbits(4 * digits):0{digits}x}"
