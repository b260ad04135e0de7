"""A ring of mapped staging buffers for uploads. The buffers are reused, so uploads allocate nothing."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import native, wgpu
from .device import Buffer, Device
from .typed_errors import TypedErrors

Target = tuple[Buffer, int, int]  # a buffer, an offset in it, and the number of bytes to write there


class Staging:
    """Copies bytes to the device through a few buffers in turn; `close` waits for the last copy."""

    def __init__(self, device: Device, nbytes: int, count: int) -> None:
        self._device = device
        self._ring: deque[tuple[native.Upload, int | None]] = deque()  # with the submit that reads it
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        with TypedErrors("making room to upload"):
            for _ in range(count):
                handle = device.handle.create_buffer(size=nbytes, usage=usage, mapped_at_creation=True)
                self._ring.append((native.Upload(device.handle, handle, nbytes), None))

    def take(self) -> "native.Upload":
        """The buffer that has waited longest, open for writing by any thread."""
        upload, index = self._ring.popleft()
        if index is not None:
            upload.wait(index)
        upload.open()
        return upload

    def copy(self, upload: "native.Upload", targets: Sequence[Target]) -> None:
        """Queues copies from the buffer's memory, where the bytes of each target start at `aligned` offsets."""
        upload.unmap()
        copies, at = [], 0
        for target, offset, nbytes in targets:
            copies.append((upload.buffer, at, target.handle, offset, -(-nbytes // 4) * 4))  # buffers are padded
            at += aligned(nbytes)
        index = self._device.submit([native.encode(self._device.handle, (), copies)])
        upload.map()
        self._ring.append((upload, index))

    def close(self) -> None:
        """Waits for copies in flight and frees the ring."""
        native.wait(self._device.handle)
        while self._ring:
            self.take().buffer.destroy()


def aligned(nbytes: int) -> int:
    """Bytes that a target takes in a staging buffer."""
    return -(-nbytes // 16) * 16


def split(memory: npt.NDArray[np.uint8], sizes: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """The parts of a staging buffer's memory for targets of these sizes, and zeros in the gaps."""
    parts, at = [], 0
    for nbytes in sizes:
        memory[at + nbytes : at + aligned(nbytes)] = 0
        parts.append(memory[at : at + nbytes])
        at += aligned(nbytes)
    return parts
