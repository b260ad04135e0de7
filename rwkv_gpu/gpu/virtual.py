"""Virtual devices, for which plans can be recorded and inspected, but not run. They need no GPU."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OutOfMemory
from .device import PORTABLE_LIMITS, Buffer, Capabilities, Device
from .shader import Linked, Pipeline

# A device with the default WebGPU limits and no features.
DEFAULT = Capabilities(
    f16=False,
    subgroup=False,
    subgroup_size=0,
    subgroup_width=1,
    integer_dot=True,
    fragment=0,
    timestamps=False,
    timestamps_in_pass=False,
    coherent=False,
    main_memory=False,
    software=False,
    max_buffer=PORTABLE_LIMITS["max-buffer-size"],
    max_binding=PORTABLE_LIMITS["max-storage-buffer-binding-size"],
    max_storage_buffers=PORTABLE_LIMITS["max-storage-buffers-per-shader-stage"],
    max_workgroup_memory=PORTABLE_LIMITS["max-compute-workgroup-storage-size"],
    max_invocations=PORTABLE_LIMITS["max-compute-invocations-per-workgroup"],
    max_workgroups=PORTABLE_LIMITS["max-compute-workgroups-per-dimension"],
    offset_alignment=PORTABLE_LIMITS["min-storage-buffer-offset-alignment"],
)

# The virtual devices by name, for `rwkv-gpu plan --limits`.
LIMITS = {
    "default": DEFAULT,
    # Vulkan on an NVIDIA H200, as wgpu reports it.
    "h200": replace(
        DEFAULT,
        f16=True,
        subgroup=True,
        subgroup_size=32,
        subgroup_width=32,
        timestamps=True,
        timestamps_in_pass=True,
        coherent=True,
        main_memory=True,
        max_buffer=1 << 40,
        max_binding=(2 << 30) - 4,
        max_storage_buffers=64,
        max_workgroup_memory=48 << 10,
        max_invocations=1024,
    ),
    # Metal on an Apple GPU.
    "apple": replace(
        DEFAULT,
        f16=True,
        subgroup=True,
        subgroup_size=32,
        subgroup_width=32,
        integer_dot=False,
        max_buffer=8 << 30,
        max_binding=4 << 30,
        max_storage_buffers=29,
        max_workgroup_memory=32 << 10,
        max_invocations=1024,
    ),
}


class VirtualDevice(Device):
    """Capabilities and buffers without memory."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def close(self) -> None:
        """Does nothing."""

    def compile(self, every: Iterable[Linked]) -> None:
        """Does nothing."""

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Does nothing."""

    def buffer(self, nbytes: int, purpose: str, *, uniform: bool = False, host: bool = False) -> Buffer:  # noqa: ARG002
        """A buffer without memory."""
        return Buffer(None, nbytes, purpose, Counter())


class HostDevice(VirtualDevice):
    """A virtual device whose buffers are arrays of the host, so that plans and the data they bind can be exported.

    The handle of a buffer is its array, and the handle of a pipeline is its WGSL. Memory that is never written takes no
    room.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__(capabilities)
        self.buffers: list[Buffer] = []
        self.uniforms: set[Buffer] = set()
        self.written: set[Buffer] = set()

    def buffer(self, nbytes: int, purpose: str, *, uniform: bool = False, host: bool = False) -> Buffer:  # noqa: ARG002
        nbytes = max(16, -(-nbytes // 16) * 16)
        if nbytes > self.capabilities.max_buffer:
            raise OutOfMemory(
                f"one buffer of {nbytes:,} bytes for {purpose} is over the limit of {self.capabilities.max_buffer:,}; "
                "use a smaller context, or a smaller model"
            )
        buffer = Buffer(np.zeros(nbytes, np.uint8), nbytes, purpose, Counter())
        self.buffers.append(buffer)
        if uniform:
            self.uniforms.add(buffer)
        return buffer

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer.handle[offset : offset + flat.nbytes] = flat
        self.written.add(buffer)

    def copy(self, source: Buffer, source_at: int, target: Buffer, target_at: int, nbytes: int) -> None:
        self.write(target, source.handle[source_at : source_at + nbytes], target_at)

    def read(self, buffer: Buffer, nbytes: int | None = None, offset: int = 0) -> bytes:
        end = buffer.nbytes if nbytes is None else offset + nbytes
        return bytes(buffer.handle[offset:end])

    def pipeline(self, linked: Linked) -> Pipeline:
        return Pipeline(linked.name, linked.source, None, linked.bindings())
