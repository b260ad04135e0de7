"""Verdicts on drivers: whether their matrix units compute correctly. Each driver is tried once; the result is saved.

    python -m rwkv_gpu.ops.driver_verdict INDEX FOLDER      tries the driver of an adapter, and saves the verdict

A verdict belongs to an adapter, its driver, the wgpu library and the version of the kernels.
"""

import hashlib
import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from ..errors import BadInput
from ..gpu import native
from ..gpu.adapters import Adapter, list_adapters
from ..kernels.tuned import file_name
from ..replace_file import read_own, replace_bytes

TRIAL_SECONDS = 300.0
RIGHT = "right"
# Kernels with a separate verdict, as named in `Capabilities`: if one is wrong, only that one is disabled.
APART = "latents_on_matrix_units", "state_space_on_matrix_units"
PARTLY_RIGHT = 64  # exit status of `ops/matrix_units_trial.py` if only such kernels are wrong, plus a bit for each


@dataclass(frozen=True)
class Verdict:
    """The result of a trial of a driver."""

    text: str  # RIGHT, or the failure
    apart: tuple[str, ...] = ()  # members of `APART` that are wrong while everything else is right
    announced: bool = False  # whether the user was told that matrix units are in use

    @property
    def right(self) -> bool:
        """True if kernels on matrix units may be used, except those in `apart`."""
        return self.text == RIGHT


class BackgroundTrial:
    """The first trial of a driver. It runs in a process of its own that outlives this one and saves the verdict."""

    def __init__(self, adapter: Adapter, folder: Path) -> None:
        self._adapter, self._folder = adapter, folder
        begun = _place(adapter, folder).with_suffix(".begun")
        self._process = None if _recent(begun) else _started(adapter, folder, begun)

    def verdict(self) -> Verdict | None:
        """The verdict; None while there is none."""
        if self._process is not None and self._process.poll() is None:
            return None
        return kept_verdict(self._adapter, self._folder)


def verdict_of(adapter: Adapter, folder: Path | None) -> Verdict:
    """The saved verdict on a driver; tries the driver if there is none. A driver that crashes ends only the trial."""
    verdict = kept_verdict(adapter, folder)
    if verdict is None:
        verdict = _tried(adapter)
        keep_verdict(adapter, folder, verdict)
    return verdict


def kept_verdict(adapter: Adapter, folder: Path | None) -> Verdict | None:
    """The saved verdict on this driver with this library; None if there is none."""
    if folder is None:
        return None
    try:
        found = json.loads(read_own(_place(adapter, folder)))
        apart = tuple(name for name in APART if name in found["apart"])
        kept = Verdict(str(found["text"]), apart, found["announced"] is True)
        return kept if found["library"] == library_digest() else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep_verdict(adapter: Adapter, folder: Path | None, verdict: Verdict) -> None:
    """Saves a verdict. If the folder is not writable, the next start tries the driver again."""
    if folder is None:
        return
    text = json.dumps({"adapter": str(adapter), "library": library_digest(), **asdict(verdict)})
    with suppress(BadInput):
        replace_bytes(_place(adapter, folder), text.encode())


def announce(adapter: Adapter, folder: Path | None) -> bool:
    """Returns True once per verdict: the user should now learn that the matrix units of an adapter are in use."""
    verdict = kept_verdict(adapter, folder)
    if verdict is None or not verdict.right or verdict.announced:
        return False
    keep_verdict(adapter, folder, replace(verdict, announced=True))
    return True


@cache
def library_digest() -> str:
    """A digest of the loaded wgpu-native library."""
    return hashlib.sha256(Path(native.library_path()).read_bytes()).hexdigest()[:16]


def _tried(adapter: Adapter) -> Verdict:
    command = [sys.executable, "-m", "rwkv_gpu.ops.matrix_units_trial", str(adapter.index)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"trying them took more than {TRIAL_SECONDS:.0f} s")
    if done.returncode == 0:
        return Verdict(RIGHT)
    bits = done.returncode - PARTLY_RIGHT
    if 0 < bits < 1 << len(APART):
        return Verdict(RIGHT, tuple(name for bit, name in enumerate(APART) if bits >> bit & 1))
    if done.returncode < 0:
        return Verdict(f"the driver crashed (signal {-done.returncode})")
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return Verdict(lines[-1] if lines else f"trying them ended with {done.returncode}")


def _place(adapter: Adapter, folder: Path) -> Path:
    return folder / f"matrix-units-{file_name(adapter)}"


def _recent(begun: Path) -> bool:
    """True if another process began a trial that may still run."""
    try:
        return time.time() - begun.stat().st_mtime < TRIAL_SECONDS
    except OSError:
        return False


def _started(adapter: Adapter, folder: Path, begun: Path) -> subprocess.Popen[bytes] | None:
    """Starts a trial in a process session of its own, so that Ctrl-C does not end it."""
    with suppress(BadInput):
        replace_bytes(begun, b"")
    command = [sys.executable, "-m", "rwkv_gpu.ops.driver_verdict", str(adapter.index), str(folder)]
    quiet = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    except OSError:
        return None


def main(index: str, folder: str) -> None:
    """Tries the driver of the adapter with this index."""
    adapter = list_adapters()[int(index)]
    try:
        verdict_of(adapter, Path(folder))
    finally:
        _place(adapter, Path(folder)).with_suffix(".begun").unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
