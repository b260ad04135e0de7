"""Opens adapters by name, and models by file or by the name of a synthetic one."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Adapter, choose, list_adapters
from rwkv_gpu.measure.shapes import Shape
from rwkv_gpu.measure.synthetic import named, noise, open_synthetic, write


def adapter_of(name: str) -> Adapter:
    """Returns the adapter of that name; software Vulkan if `auto` finds no GPU."""
    adapters = list_adapters()
    return choose(adapters, name).adapter or next(one for one in adapters if one.backend == "Vulkan")


def open_model(model: str) -> GGUFFile:
    """Opens a file or a synthetic model."""
    return GGUFFile.open(model) if Path(model).exists() else open_synthetic(model)


@contextmanager
def as_file(model: str, change: Callable[[Shape], Shape] = lambda shape: shape) -> Iterator[str]:
    """Returns the path of a file, or of a temporary file with the named synthetic model. Its shape may be changed."""
    if Path(model).exists():
        yield model
        return
    name, shape, quant = named(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.gguf"
        write(path, noise(name, change(shape), quant))
        yield str(path)
