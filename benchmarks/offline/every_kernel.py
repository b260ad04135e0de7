"""Every kernel of the registry on one device, with each of its parts, as far as the device can run it.

    python -m benchmarks.offline.every_kernel DEVICE [--few]

Runs those of the doctor's trials that have all of that, or with --few those that have every kernel once. Results are
compared with numpy; `validate` watches what the GPU is given.
"""

import sys

import click

from rwkv_gpu.gpu.adapters import find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.kernels.registry import KERNELS
from rwkv_gpu.measure import trials

from .metal_run import covering, trials_of


@click.command()
@click.argument("name")
@click.option("--few", is_flag=True, help="Every kernel once.")
def main(name: str, few: bool) -> None:
    with Device(find(name).adapter) as device:
        chosen = covering(device.capabilities, trials_of(device.capabilities), few)
        wrong, kernels = 0, set[str]()
        for number, (trial, names) in enumerate(chosen, 1):
            outcome = trials.run(device, trial)
            device.pipelines.clear()
            wrong += not outcome.right
            kernels |= {part.partition(".")[0] for merged in names for part in merged.split(" & ")}
            click.echo(f"{number} of {len(chosen)}, {len(kernels & set(KERNELS))} kernels: {outcome}")
    click.echo(f"{wrong} wrong; not run: {', '.join(sorted(set(KERNELS) - kernels))}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
