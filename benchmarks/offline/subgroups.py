"""Kernels for compilers that choose the size of subgroups, as Intel's: right with subgroups of 8 lanes, and of 16.

    LP_NATIVE_VECTOR_WIDTH=512 python -m benchmarks.offline.subgroups [--quick]

Runs the trials of the doctor on the software Vulkan of Mesa, with the kernels that Intel is given. They may rely on 8
neighbours in a subgroup and on nothing else. Subgroups of the driver have 4 lanes by LP_NATIVE_VECTOR_WIDTH=128, 8 by
256, 16 by 512. With 4 trials must fail.
"""

import sys
from collections import Counter
from dataclasses import replace

import click

from rwkv_gpu.gpu.adapters import list_adapters
from rwkv_gpu.gpu.device import Device, with_subgroups
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.cases import cases, quick
from rwkv_gpu.measure.doctor import examine

LEAST = 8


@click.command()
@click.option("--quick", "few", is_flag=True, help="Each case by one kernel, and each kernel in one case.")
@click.option("--op", "wanted", multiple=True, help="Only this op; can be repeated.")
def main(few: bool, wanted: tuple[str, ...]) -> None:
    [adapter] = [one for one in list_adapters() if one.kind == "CPU" and one.backend == "Vulkan"]
    with Device(adapter) as device:
        size = device.capabilities.subgroup_size
        device.capabilities = replace(with_subgroups(device.capabilities, LEAST, LEAST), software=False)
        trials = [
            trial for trial in cases(device.capabilities, default_tuning(device.capabilities)) if trial.op != "speed"
        ]
        trials = [trial for trial in (quick(trials) if few else trials) if not wanted or trial.op in wanted]
        report = examine(device, trials)
    click.echo(f"subgroups of {size}: {len(report.outcomes) - len(report.wrong)} of {len(report.outcomes)} are right")
    for op, count in Counter(outcome.op for outcome in report.wrong).items():
        click.echo(f"  {op}: {count} wrong")
    sys.exit(bool(report.wrong))


if __name__ == "__main__":
    main()
