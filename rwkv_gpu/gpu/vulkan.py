"""Queries a Vulkan driver for its matrix units through ctypes, as wgpu's C interface does not expose them.

Read-only. The only link to wgpu is a pair of PCI numbers, which identify an adapter in both.
"""

import ctypes as c
import sys
from dataclasses import dataclass
from typing import Any

LOADERS = {"win32": ("vulkan-1.dll",), "darwin": ("libvulkan.1.dylib", "libMoltenVK.dylib")}
EXTENSION = b"VK_KHR_cooperative_matrix"
KINDS = {0: "f16", 1: "f32", 3: "s8", 5: "s32", 7: "u8", 9: "u32"}  # the values of VkComponentTypeKHR in use
SUBGROUP = 3  # VK_SCOPE_SUBGROUP_KHR
VULKAN_1_2 = 1 << 22 | 2 << 12
APPLICATION_INFO, INSTANCE_INFO, PROPERTIES = 0, 1, 1000506001  # VkStructureType


@dataclass(frozen=True)
class MatrixShape:
    """A product that matrix units support: [m, k] · [k, n] + [m, n], computed by all lanes of a subgroup."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str


class _Application(c.Structure):
    _fields_ = [
        ("kind", c.c_uint32), ("next", c.c_void_p), ("name", c.c_char_p), ("version", c.c_uint32),
        ("engine", c.c_char_p), ("engine_version", c.c_uint32), ("api", c.c_uint32),
    ]  # fmt: skip


class _Instance(c.Structure):
    _fields_ = [
        ("kind", c.c_uint32), ("next", c.c_void_p), ("flags", c.c_uint32), ("application", c.POINTER(_Application)),
        ("layers", c.c_uint32), ("layer_names", c.c_void_p),
        ("extensions", c.c_uint32), ("extension_names", c.c_void_p),
    ]  # fmt: skip


class _Extension(c.Structure):
    _fields_ = [("name", c.c_char * 256), ("version", c.c_uint32)]


class _Properties(c.Structure):
    _fields_ = [
        ("kind", c.c_uint32), ("next", c.c_void_p), ("m", c.c_uint32), ("n", c.c_uint32), ("k", c.c_uint32),
        ("a", c.c_uint32), ("b", c.c_uint32), ("c", c.c_uint32), ("result", c.c_uint32),
        ("saturating", c.c_uint32), ("scope", c.c_uint32),
    ]  # fmt: skip


def matrix_shapes(vendor: int, device: int) -> tuple[MatrixShape, ...]:
    """The subgroup products that the adapter with these PCI numbers supports; empty if it cannot be queried."""
    vulkan = _loader()
    if vulkan is None:
        return ()
    application = _Application(kind=APPLICATION_INFO, api=VULKAN_1_2)
    info = _Instance(kind=INSTANCE_INFO, application=c.pointer(application))
    instance = c.c_void_p()
    if vulkan.vkCreateInstance(c.byref(info), None, c.byref(instance)):
        return ()
    try:
        return _shapes_of(vulkan, instance, vendor, device)
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _loader() -> Any:
    for name in LOADERS.get(sys.platform, ("libvulkan.so.1",)):
        try:
            return c.CDLL(name)
        except OSError:
            continue
    return None


def _shapes_of(vulkan: Any, instance: c.c_void_p, vendor: int, device: int) -> tuple[MatrixShape, ...]:
    vulkan.vkGetInstanceProcAddr.restype = c.c_void_p
    vulkan.vkGetInstanceProcAddr.argtypes = [c.c_void_p, c.c_char_p]
    address = vulkan.vkGetInstanceProcAddr(instance, b"vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    if not address:
        return ()
    # VkResult vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(VkPhysicalDevice, uint32_t *, Properties *)
    ask = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_uint32), c.c_void_p)(address)
    count = c.c_uint32()
    vulkan.vkEnumeratePhysicalDevices(instance, c.byref(count), None)
    every = (c.c_void_p * count.value)()
    vulkan.vkEnumeratePhysicalDevices(instance, c.byref(count), every)
    for physical in every:
        assert physical is not None
        if _numbers(vulkan, physical) != (vendor, device) or not _has_extension(vulkan, physical):
            continue
        ask(physical, c.byref(count), None)
        found = (_Properties * count.value)(*[_Properties(kind=PROPERTIES) for _ in range(count.value)])
        ask(physical, c.byref(count), found)
        return tuple(
            MatrixShape(p.m, p.n, p.k, *(KINDS.get(kind, "other") for kind in (p.a, p.b, p.c, p.result)))
            for p in found
            if p.scope == SUBGROUP
        )
    return ()


def _numbers(vulkan: Any, physical: int) -> tuple[int, int]:
    """Vendor and device, from VkPhysicalDeviceProperties: (api, driver, vendor, device, ...)."""
    room = c.create_string_buffer(4096)
    vulkan.vkGetPhysicalDeviceProperties(c.c_void_p(physical), room)
    words = c.cast(room, c.POINTER(c.c_uint32))
    return words[2], words[3]


def _has_extension(vulkan: Any, physical: int) -> bool:
    count = c.c_uint32()
    vulkan.vkEnumerateDeviceExtensionProperties(c.c_void_p(physical), None, c.byref(count), None)
    every = (_Extension * count.value)()
    vulkan.vkEnumerateDeviceExtensionProperties(c.c_void_p(physical), None, c.byref(count), every)
    return any(one.name == EXTENSION for one in every)
