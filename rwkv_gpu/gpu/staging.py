"""A ring of mapped staging buffers for uploads. The buffers are reused, so uploads allocate nothing."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import wgpu

from . import native
from .device import Buffer, Device
from .typed_errors import TypedErrors

Target = tuple[Buffer, int, npt.NDArray[np.uint8]]  # a buffer, an offset in it, and the bytes to write there


class Staging:
    """Copies bytes to the device through a few buffers in turn; `close` waits for the last copy."""

    def __init__(self, device: Device, nbytes: int, count: int = 3) -> None:
        self._device = device
        self._nbytes = nbytes
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        with TypedErrors("making room to upload"):
            self._ring: deque[tuple[Any, Any]] = deque(
                (device.handle.create_buffer(size=nbytes, usage=usage, mapped_at_creation=True), None)
                for _ in range(count)
            )

    def write(self, targets: Sequence[Target]) -> None:
        """Queues copies, which must fit into one buffer of the ring together."""
        buffer, mapping = self._ring.popleft()
        with TypedErrors("uploading"):
            if mapping is not None:
                mapping.sync_wait()
            encoder = self._device.handle.create_command_encoder()
            at = 0
            places = []
            for target, offset, data in targets:
                flat = data.reshape(-1)
                whole = -(-flat.nbytes // 4) * 4  # wgpu copies whole words; buffers are padded
                if whole != flat.nbytes:
                    flat = np.concatenate([flat, np.zeros(whole - flat.nbytes, np.uint8)])
                buffer.write_mapped(flat, at)
                places.append((target, offset, at, whole))
                at += -(-whole // 8) * 8
            buffer.unmap()
            for target, offset, at, whole in places:
                encoder.copy_buffer_to_buffer(buffer, at, target.handle, offset, whole)
            self._device.queue.submit([encoder.finish()])
            self._ring.append((buffer, buffer.map_async("WRITE")))

    def close(self) -> None:
        """Waits for copies in flight and frees the ring."""
        with TypedErrors("uploading"):
            native.wait(self._device.handle)
            for buffer, mapping in self._ring:
                if mapping is not None:
                    mapping.sync_wait()
                buffer.destroy()
        self._ring.clear()
