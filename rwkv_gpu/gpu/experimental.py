"""Lets wgpu-native 29 open a device with experimental features, in memory and only while the device is requested.

wgpu-core refuses features named EXPERIMENTAL_* unless its caller consents, and wgpu-native 29 cannot pass on such
consent. The refusal tests `Features::all_experimental_mask()` of wgpu-types: a function that returns one constant.
`lifted` finds it by the bytes of the whole function, which must occur exactly once in the loaded library, makes it
return no features, and puts the bytes back. Nothing is written to disk, and nothing else in the process changes.

It fails closed: another build, two hits, no permission or another system than Linux raise `NotLifted` with the reason.
"""

import contextlib
import ctypes
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

MASK = 0x0287_0001_0000_0000  # the EXPERIMENTAL_* bits of wgpu-types 29.0: 32, 48, 49, 50, 55, 57

_one_at_a_time = threading.Lock()


class NotLifted(Exception):
    """The reason why experimental features stay disabled."""


def functions() -> tuple[tuple[bytes, bytes], ...]:
    """Machine code by architecture: the whole function, and a replacement that returns no features."""
    x86 = "48b8{}31d2c3"  # movabs rax, MASK; xor edx, edx; ret
    none = struct.pack("<Q", 0).hex()
    x86_pair = bytes.fromhex(x86.format(struct.pack("<Q", MASK).hex())), bytes.fromhex(x86.format(none))
    # mov x0, 1 << 32; mov x1, xzr; movk x0, 0x287, lsl 48; ret
    arm = struct.pack("<4I", 0xD2C00020, 0xAA1F03E1, 0xF2E050E0, 0xD65F03C0)
    arm_none = struct.pack("<4I", 0xD2800000, 0xAA1F03E1, 0xD2800000, 0xD65F03C0)
    return x86_pair, (arm, arm_none)


@contextlib.contextmanager
def lifted(library: str) -> Iterator[None]:
    """A context in which experimental features are accepted; restores the library afterwards."""
    if sys.platform != "linux":
        raise NotLifted(f"lifting wgpu's refusal is only known to work on Linux, not on {sys.platform}")
    with _one_at_a_time:
        address, code, without = _found(library)
        _write(address, without)
        try:
            yield
        finally:
            _write(address, code)


def _found(library: str) -> tuple[int, bytes, bytes]:
    """The address of the function, its code, and the replacement."""
    hits = []
    for start, size in _executable(library):
        text = ctypes.string_at(start, size)
        for code, without in functions():
            at = text.find(code)
            while at >= 0:
                hits.append((start + at, code, without))
                at = text.find(code, at + 1)
    if len(hits) != 1:
        raise NotLifted(f"{Path(library).name} is another build: the function is there {len(hits)} times, not once")
    return hits[0]


def _executable(library: str) -> Iterator[tuple[int, int]]:
    """The address and size of each code segment of a loaded library."""
    path = os.path.realpath(library)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and "x" in fields[1] and os.path.realpath(fields[5].strip()) == path:
                first, last = (int(number, 16) for number in fields[0].split("-"))
                yield first, last - first


def _write(address: int, code: bytes) -> None:
    """Writes memory through the kernel, which flushes instruction caches and can write to read-only pages."""
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(code)
    except OSError as error:
        raise NotLifted(f"this process may not change its own code: {error.strerror}") from None
    if ctypes.string_at(address, len(code)) != code:
        raise NotLifted("this process may not change its own code")
