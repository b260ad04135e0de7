"""The adapters that wgpu finds, and the choice among them."""

import contextlib
import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..errors import BadInput, Forked, NoAdapter
from . import native, wgpu
from .typed_errors import TypedErrors

# The order of preference for `auto`. Other kinds (software, unknown) are used only if a user names them.
PREFERENCE = {"DiscreteGPU": 0, "IntegratedGPU": 1}
ABILITIES = {
    "shader-f16": "f16",
    "subgroup": "subgroups",
    "timestamp-query": "timestamps",
}
NO_GPU_REMEDY = "install a Vulkan driver (Debian/Ubuntu: apt install mesa-vulkan-drivers), or run with --device cpu"

_opened_by: set[int] = set()  # processes that opened a device; process-wide like the threads of drivers


@dataclass(frozen=True)
class Adapter:
    """One GPU, as seen through one backend."""

    index: int
    name: str
    backend: str  # Vulkan, Metal, D3D12, OpenGL
    kind: str  # DiscreteGPU, IntegratedGPU, CPU, Unknown
    driver: str
    abilities: tuple[str, ...] = ()  # features to show to users: f16, subgroups ...
    max_binding: int = 0  # maximum bytes of a binding
    handle: Any = field(default=None, compare=False, repr=False)

    @property
    def chosen_unnamed(self) -> bool:
        """True if `auto` may choose it: real hardware, on a backend with compute shaders."""
        return self.kind in PREFERENCE and self.backend != "OpenGL"

    def facts(self) -> dict[str, Any]:
        """Everything that wgpu reports about it: identity, features and limits."""
        handle = self.handle
        return {"info": dict(handle.info), "features": sorted(handle.features), "limits": dict(handle.limits)}

    def __str__(self) -> str:
        return f"{self.name} ({self.backend}, {self.kind})"


@dataclass(frozen=True)
class Choice:
    """The adapter to run on, or None for the numpy interpreter, and the reason."""

    adapter: Adapter | None
    reason: str


@TypedErrors("listing devices")
def list_adapters() -> list[Adapter]:
    """All adapters of all backends, without output of drivers."""
    check_process()
    _guard_forks()
    with native.quiet_stderr():
        found = wgpu.gpu.enumerate_adapters_sync()
    return [
        Adapter(
            index=index,
            name=handle.info["device"] or handle.info["vendor"] or "unnamed",
            backend=handle.info["backend_type"],
            kind=handle.info["adapter_type"],
            driver=handle.info["description"] or handle.info["vendor"],  # DX12 has the version of the driver there
            abilities=tuple(word for feature, word in ABILITIES.items() if feature in handle.features),
            max_binding=handle.limits["max-storage-buffer-binding-size"],
            handle=handle,
        )
        for index, handle in enumerate(found)
    ]


def check_process(*, opens: bool = False) -> None:
    """Raises `Forked` if a device was opened before this process was forked: its driver has no threads here."""
    if _opened_by and os.getpid() not in _opened_by:
        raise Forked("a GPU was opened")
    if opens:
        _opened_by.add(os.getpid())


@cache
def _guard_forks() -> None:
    """Lets forked processes end: their exit handlers of drivers would crash, or wait for threads of the parent."""
    if hasattr(os, "register_at_fork"):  # Windows cannot fork
        os.register_at_fork(after_in_child=_end_without_drivers)


def _end_without_drivers() -> None:
    """Makes C's `exit` flush files and end the process before it calls exit handlers that were registered earlier."""
    with contextlib.suppress(AttributeError):  # only glibc has them
        c = ctypes.CDLL(None)
        c.on_exit(c._exit, None)  # called with the exit status, after those that are registered later
        c.on_exit(c.fcloseall, None)


def choose(adapters: Sequence[Adapter], wanted: str = "auto") -> Choice:
    """Finds the adapter for `auto`, `cpu`, an index, or a part of a name."""
    if wanted.lower() == "cpu":
        return Choice(None, "asked for: numpy on the CPU")
    if wanted.lower() == "auto":
        return _choose_best(adapters)
    if wanted.isdecimal() and len(wanted) < 10 and int(wanted) < len(adapters):
        return Choice(adapters[int(wanted)], f"asked for by index {wanted}")
    return _choose_named(adapters, wanted)


def several(wanted: str) -> list[str]:
    """The devices of a list such as `0,1`; for `all`, every hardware GPU once, even if several backends show it."""
    if wanted.lower() != "all":
        parts = [part.strip() for part in wanted.split(",")]
        for part in parts if len(parts) > 1 else ():
            if not part:
                raise BadInput(f"device is {wanted!r}; it lists a device without a name")
            find(part)  # raises if there is none
        return parts
    usable = [adapter for adapter in list_adapters() if adapter.chosen_unnamed]
    backends = [adapter.backend for adapter in usable]
    if not usable:
        raise NoAdapter(f"there is no hardware GPU; {_known(list_adapters())}")
    return [str(adapter.index) for adapter in usable if adapter.backend == backends[0]]


def find(wanted: str) -> Choice:
    """Chooses among the adapters of this machine; `cpu` does not look for drivers."""
    return choose([] if wanted.lower() == "cpu" else list_adapters(), wanted)


def _choose_best(adapters: Sequence[Adapter]) -> Choice:
    usable = sorted((a for a in adapters if a.chosen_unnamed), key=lambda a: PREFERENCE[a.kind])
    if usable:
        kind = "discrete" if usable[0].kind == "DiscreteGPU" else "integrated"
        return Choice(usable[0], f"the first {kind} GPU")
    if adapters:
        return Choice(None, f"no hardware GPU found; software ones run only when named (--device {adapters[0].index})")
    return Choice(None, f"no GPU found; to use one, {NO_GPU_REMEDY}")


def _choose_named(adapters: Sequence[Adapter], wanted: str) -> Choice:
    if wanted.isdecimal():  # a larger number may be part of a name, such as "4090", but "5" does not match "15"
        matching = [a for a in adapters if len(wanted) > 2 and re.search(rf"\b{wanted}\b", a.name)]
    else:
        matching = [a for a in adapters if wanted.lower() in f"{a.name} {a.backend} {a.driver}".lower()]
    if not matching:
        what = f"no device {wanted}" if wanted.isdecimal() else f"no device named like '{wanted}'"
        raise NoAdapter(f"{what}; {_known(adapters)}")
    # A GPU may appear under several backends: GL is the last choice.
    matching.sort(key=lambda a: (a.backend == "OpenGL", PREFERENCE.get(a.kind, len(PREFERENCE))))
    return Choice(matching[0], f"asked for by name '{wanted}'")


def _known(adapters: Sequence[Adapter]) -> str:
    if not adapters:
        return f"none was found: {NO_GPU_REMEDY}"
    return "known: " + ", ".join(f"{a.index} = {a.name} ({a.backend})" for a in adapters) + ", cpu"
