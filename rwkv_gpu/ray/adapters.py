"""Chooses the GPU adapter for a Ray process.

Ray numbers the GPUs that it knows, and gives each process its numbers. For a custom resource such as `wgpu`, it only
counts the remaining amount, so processes of one machine use file locks to choose different adapters. The system
releases a lock when its process ends.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rwkv_gpu.errors import NoAdapter
from rwkv_gpu.gpu.adapters import several
from rwkv_gpu.writer_lock import lock

CPU = "cpu"


class Claim:
    """The adapter of this process, until `close` or the end of the process."""

    def __init__(self, device: str, handle: int | None = None) -> None:
        self.device = device
        self._handle = handle

    def close(self) -> None:
        """Releases the adapter for another process."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


def claim(
    wanted: str, numbers: Sequence[str], amount: float, list_devices: Callable[[str], list[str]] = several
) -> Claim:
    """Claims the adapter for an actor to which Ray has given GPUs of these numbers, or an amount of `wgpu`.

    If Ray has given it neither, it takes the wanted adapter, even if others use it.
    """
    if wanted.lower() == CPU or not (numbers or amount):
        return Claim(wanted)
    devices = list_devices("all" if wanted.lower() == "auto" else wanted)
    if numbers and numbers[0].isdecimal():
        if int(numbers[0]) >= len(devices):
            known = ", ".join(devices)
            raise NoAdapter(f"Ray gave this process GPU {numbers[0]}, and wgpu sees {len(devices)} here: {known}")
        return Claim(devices[int(numbers[0])])
    return locked(devices, max(1, round(1 / (amount or 1.0))))


def claim_of_actor(wanted: str) -> Claim:
    """Claims the adapter for this actor, by the resources that Ray has given it."""
    import ray

    context = ray.get_runtime_context()
    numbers = context.get_accelerator_ids().get("GPU", [])
    return claim(wanted, numbers, context.get_assigned_resources().get("wgpu", 0.0))


def locked(devices: Sequence[str], shares: int, folder: Path | None = None) -> Claim:
    """Claims the first device with a share that no process has locked."""
    folder = folder or Path(tempfile.gettempdir()) / f"rwkv-gpu-adapters-{os.getuid() if hasattr(os, 'getuid') else ''}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for share in range(shares):  # so that each device is used once before any is used twice
        for device in devices:
            handle = os.open(folder / f"{device.replace(os.sep, '_')}.{share}", os.O_RDWR | os.O_CREAT, 0o600)
            if lock(handle):
                return Claim(device, handle)
            os.close(handle)
    raise NoAdapter(
        f"all adapters of this machine have replicas: {', '.join(devices)}; "
        "start Ray with one `wgpu` resource for each adapter"
    )
