"""All code that uses wgpu: devices, shaders, memory, weights, recorded steps."""

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import wgpu as wgpu


def _at_first_use(name: str) -> ModuleType:
    """A module that is loaded at the first access to one of its attributes."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    loader = spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


# wgpu and its library take half a second to load, which a model in numpy need not wait for.
globals()["wgpu"] = sys.modules.get("wgpu") or _at_first_use("wgpu")
globals()["native"] = _at_first_use(f"{__name__}.native")
