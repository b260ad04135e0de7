"""The file or files of a loaded model: a quick fingerprint, and a digest of all bytes, computed once.

The fingerprint distinguishes models on one disk. Only the digest shows that two files are equal, so it decides whether
a saved state may be used.
"""

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..engine.state_file import ModelId
from ..errors import BadInput
from ..replace_file import read_own, replace_bytes

PIECE = 1 << 22  # bytes hashed at a time


class ModelFile:
    """A model's file as it was at loading. `digest` waits for a background thread.

    With a `folder`, digests are stored there by path, with the file's size and time, so that an unchanged file is read
    only once.
    """

    def __init__(self, paths: Sequence[Path], fingerprint: str, folder: Path | None = None) -> None:
        self.fingerprint = fingerprint
        self._paths = paths  # all parts, if the model is split
        self._folder = folder
        self._stamp = _stamp(paths)
        self._digest: str | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts computing the digest in the background, unless that has been done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._compute, name="rwkv-gpu-digest", daemon=True)
                self._thread.start()

    def digest(self) -> str | None:
        """SHA-256 of the whole file; None if it was changed or removed since loading."""
        self.start()
        assert self._thread is not None
        self._thread.join()
        return self._digest

    def model_id(self) -> ModelId:
        """The identification that is saved with a state."""
        return ModelId(self.fingerprint, self.digest())

    def _compute(self) -> None:
        with suppress(OSError):
            found = self._kept()
            if found is None:
                found = _sha256(self._paths)
                if _stamp(self._paths) != self._stamp:
                    return
                self._keep(found)
            self._digest = found

    def _entry(self) -> Path | None:
        """Path of the stored digest of this file."""
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(os.fsencode(os.path.realpath(self._paths[0]))).hexdigest()[:32]}.json"

    def _kept(self) -> str | None:
        """The stored digest, if the file's size and time are unchanged."""
        entry = self._entry()
        if entry is None or _stamp(self._paths) != self._stamp:
            return None
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            kept = json.loads(read_own(entry))
            if kept["stamp"] == self._stamp and isinstance(kept["sha256"], str):
                return str(kept["sha256"])
        return None

    def _keep(self, digest: str) -> None:
        entry = self._entry()
        if entry is None:
            return
        text = json.dumps({"path": str(self._paths[0]), "stamp": self._stamp, "sha256": digest})
        with suppress(BadInput):
            replace_bytes(entry, text.encode())


def _stamp(paths: Sequence[Path]) -> list[list[int]]:
    """Size, time and disk location: changes when a file is written."""
    return [[found.st_size, found.st_mtime_ns, found.st_ino] for found in map(os.stat, paths)]


def _sha256(paths: Sequence[Path]) -> str:
    digest, piece = hashlib.sha256(), memoryview(bytearray(PIECE))
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(piece):
                digest.update(piece[:got])
    return digest.hexdigest()
