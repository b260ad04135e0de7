"""Finds out if an adapter has matrix units that our kernels can use, and the size of their fragments."""

from typing import Literal

from ..errors import NoMatrixUnits
from .adapters import Adapter
from .vulkan import MatrixShape, matrix_shapes

MatrixUnits = Literal["auto", "on", "off"]  # whether they are used: see `ops/open_device.py`
CHOICES: tuple[MatrixUnits, ...] = ("auto", "on", "off")
SIDES = 16, 8  # sides of the square fragments that WGSL supports, best first
REASONS = {
    "Metal": "wgpu-native 29 compiles matrix kernels for Metal wrongly; wgpu 30 is needed",
    "D3D12": "wgpu has no matrix units on DirectX 12",
    "OpenGL": "OpenGL has no matrix units",
}


def refuse_cpu(matrix_units: MatrixUnits) -> None:
    """Raises `NoMatrixUnits` if they are requested for the cpu device."""
    if matrix_units == "on":
        raise NoMatrixUnits("no matrix units on the cpu device; name a GPU by --device, see `rwkv-gpu devices`")


def fragment_of(adapter: Adapter) -> int:
    """The side of a float16 fragment with float32 sums; raises `NoMatrixUnits` if there is none."""
    if adapter.backend != "Vulkan":
        raise NoMatrixUnits(f"no matrix units on {adapter}: {REASONS.get(adapter.backend, 'its backend has none')}")
    if "cooperative-matrix" not in adapter.handle.features or "shader-f16" not in adapter.handle.features:
        raise NoMatrixUnits(f"no matrix units on {adapter}: its driver lists none")
    info = adapter.handle.info
    shapes = matrix_shapes(info["vendor_id"], info["device_id"])
    for side in SIDES:
        if MatrixShape(side, side, side, "f16", "f16", "f32", "f32") in shapes:
            return side
    others = ", ".join(sorted({f"{s.m}x{s.n}x{s.k} {s.a} into {s.c}" for s in shapes})) or "none"
    raise NoMatrixUnits(f"no matrix units on {adapter} that WGSL can use: the driver offers {others}")
