"""How many threads numpy multiplies with. Its OpenBLAS shares even small products out, and waits for all, spinning.

On two cores that others use too, a step of a small model takes ten times as long that way. Where numpy brings another
library, nothing is changed.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

SMALL = 1 << 24  # multiplications, of one product, that one thread does in a few milliseconds
NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class Blas:
    """The library that numpy multiplies by, as far as it can be told what to do."""

    def __init__(self, folder: Path | None = None) -> None:
        self.set_threads: Any = None  # where it can be told
        self.threads = 1
        package = Path(np.__file__).parent
        for place in [folder] if folder else [package.with_name("numpy.libs"), package / ".dylibs"]:
            for path in sorted(place.glob("*openblas*")):
                self._find(path)

    @contextmanager
    def sized(self, multiplications: int) -> Iterator[None]:
        """Inside, small products are done by one thread."""
        if self.set_threads is None or multiplications > SMALL:
            yield
            return
        self.set_threads(1)
        try:
            yield
        finally:
            self.set_threads(self.threads)

    def _find(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # no library, or none of this machine
            return
        for name in NAMES:
            try:
                self.threads = getattr(library, name.format("get_num_threads"))()
                self.set_threads = getattr(library, name.format("set_num_threads"))
            except AttributeError:
                continue
            return
