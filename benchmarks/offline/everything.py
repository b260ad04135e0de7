"""Runs every kernel or every model family on one device, under the layers of `validate`.

    python -m benchmarks.offline.everything kernels DEVICE [--few] [--matrix-units]
    python -m benchmarks.offline.everything models DEVICE
    LP_NATIVE_VECTOR_WIDTH=512 python -m benchmarks.offline.everything subgroups llvmpipe [--few]

Kernels are run by those of the doctor's trials that cover each kernel with each of its parts, and compared with numpy.
With --few, the trials cover each kernel once. With --matrix-units, only kernels on matrix units run. The models are
those of the tests, with random weights. Each runs a prompt and some tokens, without a comparison.

`subgroups` runs the doctor's trials with the kernels for Intel GPUs, whose compiler chooses the size of subgroups.
These kernels may only assume that 8 adjacent lanes share a subgroup. Subgroups of Mesa's software Vulkan have 4 lanes
with LP_NATIVE_VECTOR_WIDTH=128, 8 with 256, and 16 with 512. With 4 lanes, trials must fail.
"""

import sys
from collections import Counter
from dataclasses import replace

import click

import rwkv_gpu
from rwkv_gpu.gpu.adapters import find
from rwkv_gpu.gpu.device import Device, with_subgroups
from rwkv_gpu.kernels.registry import KERNELS
from rwkv_gpu.measure import trials
from rwkv_gpu.measure.cases import quick
from rwkv_gpu.measure.doctor import examine

from .metal_run import covering, kernels_of, trials_of
from .variants import MODELS

LEAST = 8  # neighbours in a subgroup
ON_MATRIX_UNITS = frozenset(name for name, kernel in KERNELS.items() if kernel.needs.matrix_units)


@click.command()
@click.argument("what", type=click.Choice(["kernels", "models", "subgroups"]))
@click.argument("device")
@click.option("--few", is_flag=True, help="Every kernel once.")
@click.option("--matrix-units", is_flag=True, help="The kernels that use them.")
def main(what: str, device: str, few: bool, matrix_units: bool) -> None:
    if what == "models":
        run_models(device)
    else:
        sys.exit(run_kernels(device, few, matrix_units) if what == "kernels" else run_subgroups(device, few))


def run_kernels(name: str, few: bool, matrix_units: bool) -> bool:
    """Runs the trials of kernels. Returns True if one failed."""
    asked = ON_MATRIX_UNITS if matrix_units else frozenset(KERNELS)
    with Device(find(name).adapter, matrix_units=matrix_units) as device:
        chosen = covering(device.capabilities, trials_of(device.capabilities), few, asked)
        wrong, kernels = 0, set[str]()
        for number, (trial, names) in enumerate(chosen, 1):
            outcome = trials.run(device, trial)
            device.pipelines.clear()
            wrong += not outcome.right
            kernels |= kernels_of(names)
            click.echo(f"{number} of {len(chosen)}, {len(kernels & asked)} of {len(asked)} kernels: {outcome}")
    click.echo(f"{wrong} wrong; not run: {', '.join(sorted(asked - kernels)) or 'none'}")
    return bool(wrong)


def run_subgroups(name: str, few: bool) -> bool:
    """Runs the trials with Intel's kernels. Returns True if one failed."""
    with Device(find(name).adapter) as device:
        size = device.capabilities.subgroup_size
        can = device.capabilities = replace(with_subgroups(device.capabilities, LEAST, LEAST), software=False)
        chosen = list(trials_of(can))
        report = examine(device, quick(chosen) if few else chosen)
    click.echo(f"subgroups of {size}: {len(report.outcomes) - len(report.wrong)} of {len(report.outcomes)} are right")
    for op, count in Counter(outcome.op for outcome in report.wrong).items():
        click.echo(f"  {op}: {count} wrong")
    return bool(report.wrong)


def run_models(device: str) -> None:
    files = sorted(MODELS.glob("tiny-*.gguf"))
    for number, path in enumerate(files, 1):
        with rwkv_gpu.load(path, device=device, context=64) as llm:
            llm.generate(list(range(3, 23)), max_tokens=3)
        click.echo(f"{number} of {len(files)}: {path.stem}")


if __name__ == "__main__":
    main()
