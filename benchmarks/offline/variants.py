"""Writes every shader that a family of GPUs would run, without such a GPU: from trials and plans of models.

A family is a set of capabilities. Trials cover every kernel with every part of every hole; plans of models add the
dispatches that are merged from two shaders.

    python -m benchmarks.offline.variants FOLDER [FAMILY]... [--sizes]

For each family, FOLDER gets a folder with files NNNN.wgsl, whose first line names the kernel and its parts. The other
programs of this package read that folder. With --sizes, it is FAMILY-sizes, with the dispatches of well-known models
(`measure/shapes.py`) in their true sizes. The models of the tests have only a few of these sizes.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy.typing as npt

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Buffer, Capabilities
from rwkv_gpu.gpu.shader import Linked, Pipeline, link
from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure import plans, trials
from rwkv_gpu.measure.cases import cases
from rwkv_gpu.measure.shapes import SHAPES
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.measure.trials import Trial

MODELS = Path(__file__).resolve().parents[2] / "tests" / "golden"
STEPS = [plans.Step(rows) for rows in (1, 2, 4, 8, 64)] + [plans.Step(rows, prefill=True) for rows in (8, 64, 512)]

AMD = replace(
    LIMITS["h200"], subgroup_size=0, max_buffer=(2 << 30) - 1, max_workgroup_memory=64 << 10, offset_alignment=32
)  # as RADV reports it
DX12 = replace(
    LIMITS["default"], coherent=True, timestamps=True, max_storage_buffers=64, max_workgroup_memory=32 << 10,
    max_invocations=1024, max_buffer=(2 << 30) - 1, max_binding=(2 << 30) - 4,
)  # fmt: skip
FAMILIES: dict[str, Capabilities] = {
    "webgpu": LIMITS["default"],
    "nvidia": LIMITS["h200"],
    "nvidia-matrix-units": replace(LIMITS["h200"], fragment=16),
    "apple": replace(LIMITS["apple"], coherent=True, timestamps=True),
    "amd": AMD,
    "amd-matrix-units": replace(AMD, fragment=16, subgroup_size=64),  # RDNA 3 and later; ACO's waves have 64 lanes
    "intel": replace(LIMITS["h200"], subgroup_size=0, subgroup_width=8, max_buffer=(2 << 30) - 1, offset_alignment=64),
    "dx12-fxc": DX12,  # FXC knows shader model 5.1 only: no subgroups, no f16
    "dx12-dxc": replace(DX12, f16=True, subgroup=True, subgroup_size=32, subgroup_width=32),
}


class ShaderCollector(VirtualDevice):
    """A device without memory that only records the shaders."""

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__(capabilities)
        self.linked: dict[str, Linked] = {}
        self.handle = SimpleNamespace(create_bind_group=lambda **_: SimpleNamespace(_internal=None))

    def upload(self, data: npt.NDArray[Any], purpose: str) -> Buffer:
        """Returns a buffer of the given size."""
        return self.buffer(data.nbytes, purpose)

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Does nothing: the device has no memory."""

    def read(self, buffer: Buffer, nbytes: int | None = None, offset: int = 0) -> bytes:
        """Returns zeros: the device has no memory."""
        return bytes(buffer.nbytes - offset if nbytes is None else nbytes)

    def copy(self, source: Buffer, source_at: int, target: Buffer, target_at: int, nbytes: int) -> None:
        """Does nothing: the device has no memory."""

    def pipeline(self, linked: Linked) -> Pipeline:
        """Records the shader without compiling it."""
        self.linked.setdefault(linked.source, linked)
        return Pipeline(linked.name, SimpleNamespace(_internal=None), None, linked.bindings())


def shaders_of(can: Capabilities) -> list[Linked]:
    """Returns each shader once, in a fixed order."""
    device = ShaderCollector(can)
    for one in _probes(can):
        device.pipeline(one)
    for trial in cases(can, default_tuning(can)):
        record(device, trial)
    for path in sorted(MODELS.glob("*.gguf")):
        with GGUFFile.open(path) as file:
            for one in _of_model(file, can):
                device.pipeline(one)
    return list(device.linked.values())


def shaders_of_sizes(can: Capabilities) -> list[Linked]:
    """Returns each shader of the known models once."""
    device = ShaderCollector(can)
    for name in SHAPES:
        with open_synthetic(name) as file:
            for one in _of_model(file, can):
                device.pipeline(one)
    return list(device.linked.values())


def record(device: VirtualDevice, trial: Trial) -> None:
    """Records the shaders of one trial on the device."""
    trials._recorded(device, trial)


def _probes(can: Capabilities) -> Iterator[Linked]:
    """Returns the features and limits that are requested when a device is opened."""
    if can.subgroup:
        yield link("probes/subgroup")
        yield link("probes/lanes", constants={"FARS": 3})


def _of_model(file: GGUFFile, can: Capabilities) -> Iterator[Linked]:
    """Records the dispatches of a model for several step sizes."""
    tuning = default_tuning(can)
    for step in STEPS:
        yield from (one.linked for one in plans.dispatches_of(file, can, tuning, step)[0])


def texts(folder: Path, family: str) -> dict[str, str]:
    """Returns the shaders of a family by number and name, from a folder that `main` wrote."""
    found = {}
    for path in sorted((folder / family).glob("*.wgsl")):
        text = path.read_text(encoding="utf-8")
        found[f"{path.stem} {text.partition(chr(10))[0].removeprefix('// ')}"] = text
    if not found:
        raise click.UsageError(
            f"{folder / family} holds no shaders: run `python -m benchmarks.offline.variants {folder}`"
        )
    return found


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@click.option("--sizes", is_flag=True, help="Shaders of known models in real sizes.")
def main(folder: Path, families: tuple[str, ...], sizes: bool) -> None:
    for family in families or FAMILIES:
        own = folder / (f"{family}-sizes" if sizes else family)
        own.mkdir(parents=True, exist_ok=True)
        for old in own.glob("*.wgsl"):
            old.unlink()
        every = (shaders_of_sizes if sizes else shaders_of)(FAMILIES[family])
        for number, linked in enumerate(every):
            (own / f"{number:04}.wgsl").write_text(f"// {linked.name}\n{linked.source}", encoding="utf-8")
        click.echo(f"{own.name}: {len(every)} shaders")


if __name__ == "__main__":
    main()
