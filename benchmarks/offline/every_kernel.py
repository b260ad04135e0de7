"""Every kernel of the registry on one device, with each of its parts, as far as the device can run it.

    python -m benchmarks.offline.every_kernel DEVICE [--few] [--matrix-units]

Runs those of the doctor's trials that have all of that, or with --few those that have every kernel once. With
--matrix-units it opens the device with them, and runs the kernels that use them. Results are compared with numpy;
`validate` watches what the GPU is given.
"""

import sys

import click

from rwkv_gpu.gpu.adapters import find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.kernels.registry import KERNELS
from rwkv_gpu.measure import trials

from .metal_run import covering, trials_of

ON_MATRIX_UNITS = frozenset(name for name, kernel in KERNELS.items() if kernel.needs.matrix_units)


@click.command()
@click.argument("name")
@click.option("--few", is_flag=True, help="Every kernel once.")
@click.option("--matrix-units", is_flag=True, help="The kernels that use them.")
def main(name: str, few: bool, matrix_units: bool) -> None:
    asked = ON_MATRIX_UNITS if matrix_units else frozenset(KERNELS)
    with Device(find(name).adapter, matrix_units=matrix_units) as device:
        chosen = covering(device.capabilities, trials_of(device.capabilities), few, asked)
        wrong, kernels = 0, set[str]()
        for number, (trial, names) in enumerate(chosen, 1):
            outcome = trials.run(device, trial)
            device.pipelines.clear()
            wrong += not outcome.right
            kernels |= {part.partition(".")[0] for merged in names for part in merged.split(" & ")}
            click.echo(f"{number} of {len(chosen)}, {len(kernels & asked)} of {len(asked)} kernels: {outcome}")
    click.echo(f"{wrong} wrong; not run: {', '.join(sorted(asked - kernels)) or 'none'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
