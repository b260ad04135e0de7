"""Results on their way back while the GPU goes on: a ring of mappable buffers, each waited for by its own submit."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import wgpu

from ..errors import DeviceLost
from . import native
from .device import Device
from .plan import Copy, Slice


class Readback:
    """Bytes that a submit will have copied; `wait` gives them, once."""

    def __init__(
        self,
        device: Device,
        landing: "native.Landing",
        index: int,
        nbytes: int,
        done: "Callable[[native.Landing], None]",
    ) -> None:
        self._device = device
        self._landing = landing
        self._index = index
        self._nbytes = nbytes
        self._done = done

    def wait(self) -> bytes:
        """The bytes, once that submit is done; what was submitted after it need not be."""
        if self._device.closed:  # wgpu would say that the bytes are there, and end the process when they are read
            raise DeviceLost("the GPU was closed while reading results back; start again")
        data = self._landing.take(self._index, self._nbytes)
        self._done(self._landing)
        return data


class ReadbackRing:
    """Buffers that results are read back by, in turn; as many as are under way at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._all: list[native.Landing] = []  # also those whose results nobody took: their callbacks may yet be called
        self._free: list[native.Landing] = []

    def start(self, parts: Sequence[Slice], submit: Callable[[Sequence[Copy]], int]) -> Readback:
        """Reads parts of buffers, one after the other, by copies that `submit` puts behind what writes them."""
        nbytes = sum(part.nbytes for part in parts)
        landing = self._take(nbytes)
        starts = itertools.accumulate((part.nbytes for part in parts), initial=0)
        copies = [
            (part.buffer.handle, part.offset, landing.buffer, at, part.nbytes)
            for part, at in zip(parts, starts, strict=False)
        ]
        index = submit(copies)
        landing.map(nbytes)
        return Readback(self._device, landing, index, nbytes, self._free.append)

    def _take(self, nbytes: int) -> "native.Landing":
        for at, landing in enumerate(self._free):
            if landing.nbytes >= nbytes:
                return self._free.pop(at)
        size = max(4096, 1 << (nbytes - 1).bit_length())
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        with native.typed_errors("reading results back"):
            handle: Any = self._device.handle.create_buffer(size=size, usage=usage)
        self._all.append(native.Landing(self._device.handle, handle, size))
        return self._all[-1]
