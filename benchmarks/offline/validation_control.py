"""A program with an error that Vulkan's validation layers must report: two writes without a barrier.

`validate` runs it first. Layers that are not loaded, or do not check for races, report nothing.
"""

import ctypes as c
from struct import pack
from typing import Any

VULKAN_1_2 = 1 << 22 | 2 << 12
NBYTES = 1024
TRANSFER_DST = 2


class Commands:
    """A Vulkan device with a buffer and a command buffer that is being recorded."""

    def __init__(self) -> None:
        self._vulkan = c.CDLL("libvulkan.so.1")
        self._keep: list[Any] = []
        application = self._struct("iPPIPIIxxxx", 0, 0, 0, 0, 0, 0, VULKAN_1_2)
        self._instance = self._made("vkCreateInstance", None, "iPIPIPIP", 1, 0, 0, application, 0, 0, 0, 0)
        count, devices = c.c_uint32(1), (c.c_void_p * 1)()
        self._vulkan.vkEnumeratePhysicalDevices(self._instance, c.byref(count), devices)
        self._physical = c.c_void_p(devices[0])
        priority = self._struct("f", 1.0)
        queues = self._struct("iPIIIP", 2, 0, 0, 0, 1, priority)
        self._device = self._made("vkCreateDevice", self._physical, "iPIIPIPIPP", 3, 0, 0, 1, queues, 0, 0, 0, 0, 0)
        self.buffer = self._made("vkCreateBuffer", self._device, "iPIQIIIP", 12, 0, 0, NBYTES, TRANSFER_DST, 0, 0, 0)
        memory = self._made("vkAllocateMemory", self._device, "iPQIxxxx", 5, 0, 64 << 10, 0)
        self._vulkan.vkBindBufferMemory(self._device, self.buffer, memory, c.c_uint64(0))
        pool = self._made("vkCreateCommandPool", self._device, "iPII", 39, 0, 0, 0)
        self.commands = c.c_void_p()
        asked = self._struct("iPPII", 40, 0, pool.value, 0, 1)
        self._vulkan.vkAllocateCommandBuffers(self._device, c.c_void_p(asked), c.byref(self.commands))
        self._vulkan.vkBeginCommandBuffer(self.commands, c.c_void_p(self._struct("iPIxxxxP", 42, 0, 0, 0)))

    def fill(self, value: int) -> None:
        """Writes the whole buffer."""
        self._vulkan.vkCmdFillBuffer(self.commands, self.buffer, c.c_uint64(0), c.c_uint64(NBYTES), c.c_uint32(value))

    def _struct(self, layout: str, *values: float) -> int:
        """Returns the address of a C structure."""
        self._keep.append(c.create_string_buffer(pack(f"@{layout}", *values)))
        return c.addressof(self._keep[-1])

    def _made(self, function: str, parent: c.c_void_p | None, layout: str, *values: int) -> c.c_void_p:
        made = c.c_void_p()
        before = [] if parent is None else [parent]
        result = getattr(self._vulkan, function)(
            *before, c.c_void_p(self._struct(layout, *values)), None, c.byref(made)
        )
        if result:
            raise OSError(f"{function} gave {result}")
        return made


def main() -> None:
    commands = Commands()
    commands.fill(1)
    commands.fill(2)


if __name__ == "__main__":
    main()
