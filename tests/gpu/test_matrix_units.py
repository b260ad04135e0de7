"""Enabling matrix units: it works only if the driver supports them, and leaves the library unchanged."""

import ctypes
import ctypes.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rwkv_gpu.errors import NoMatrixUnits
from rwkv_gpu.gpu import experimental, matrix_units, native
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.experimental import NotLifted, functions, lifted
from rwkv_gpu.gpu.matrix_units import fragment_of
from rwkv_gpu.gpu.vulkan import MatrixShape, matrix_shapes

on_linux = pytest.mark.skipif(os.name != "posix" or not Path("/proc/self/mem").exists(), reason="Linux only")
F32_SUMS = "f16", "f16", "f32", "f32"


def some_adapter(backend="Vulkan", features=("cooperative-matrix", "shader-f16")) -> Adapter:
    handle = SimpleNamespace(features=set(features), info={"vendor_id": 1, "device_id": 2})
    return Adapter(0, "a GPU", backend, "DiscreteGPU", "1.0", handle=handle)


def code_of(library: str) -> list[bytes]:
    return [ctypes.string_at(start, size) for start, size in experimental._executable(library)]


@on_linux
def test_the_function_that_refuses_is_in_the_library_exactly_once():
    library = Path(native.library_path()).read_bytes()
    assert sum(library.count(code) for code, _ in functions()) == 1


@on_linux
def test_the_patch_changes_the_library_only_inside_the_with_block():
    before = code_of(native.library_path())
    with lifted(native.library_path()):
        inside = code_of(native.library_path())
        assert sum(
            a != b for one, other in zip(before, inside, strict=True) for a, b in zip(one, other, strict=True)
        ) in range(1, 17)
    assert code_of(native.library_path()) == before


@on_linux
def test_the_library_is_restored_after_an_error():
    before = code_of(native.library_path())
    with pytest.raises(KeyError), lifted(native.library_path()):
        raise KeyError
    assert code_of(native.library_path()) == before


@on_linux
def test_another_library_is_left_alone():
    other = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc" in line)
    with pytest.raises(NotLifted, match="another build: the function is there 0 times"), lifted(other):
        raise AssertionError


def test_the_patch_is_applied_on_linux_only(monkeypatch):
    monkeypatch.setattr(experimental.sys, "platform", "darwin")
    with pytest.raises(NotLifted, match="darwin"), lifted(native.library_path()):
        raise AssertionError


@on_linux
def test_without_permission_nothing_changes(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(experimental, "open", refuse, raising=False)
    with pytest.raises((NotLifted, PermissionError)), lifted(native.library_path()):
        raise AssertionError


@pytest.mark.parametrize(("backend", "why"), [("Metal", "wgpu 30"), ("D3D12", "DirectX 12"), ("OpenGL", "OpenGL")])
def test_other_backends_report_why_they_have_none(backend, why):
    with pytest.raises(NoMatrixUnits, match=why):
        fragment_of(some_adapter(backend))


@pytest.mark.parametrize("features", [(), ("shader-f16",), ("cooperative-matrix",)])
def test_an_adapter_that_lists_none_has_none(features):
    with pytest.raises(NoMatrixUnits, match="lists none"):
        fragment_of(some_adapter(features=features))


def test_the_largest_fragment_that_wgsl_can_express_is_chosen(monkeypatch):
    offered = [MatrixShape(8, 8, 8, *F32_SUMS), MatrixShape(16, 16, 16, *F32_SUMS), MatrixShape(16, 16, 32, *F32_SUMS)]
    monkeypatch.setattr(matrix_units, "matrix_shapes", lambda *_: tuple(offered))
    assert fragment_of(some_adapter()) == 16
    del offered[1]
    assert fragment_of(some_adapter()) == 8


def test_shapes_that_wgsl_cannot_express_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(matrix_units, "matrix_shapes", lambda *_: (MatrixShape(8, 16, 16, *F32_SUMS),))
    with pytest.raises(NoMatrixUnits, match="8x16x16 f16 into f32"):
        fragment_of(some_adapter())


def test_an_unknown_adapter_has_no_shapes():
    assert matrix_shapes(0xFFFF, 0xFFFF) == ()


def test_a_device_has_matrix_units_only_if_requested(adapter):
    with Device(adapter) as device:
        assert device.capabilities.fragment == 0


def test_a_device_opens_with_matrix_units_or_reports_why_not(adapter):
    try:
        side = fragment_of(adapter)
    except NoMatrixUnits:
        with pytest.raises(NoMatrixUnits, match="matrix units"):
            Device(adapter, matrix_units=True)
        return
    with Device(adapter, matrix_units=True) as device:
        assert device.capabilities.fragment == side
