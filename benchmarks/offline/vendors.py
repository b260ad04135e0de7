"""Compiles for AMD's and Intel's GPUs with Mesa, and reports the resources of each kernel.

RADV compiles compute shaders for waves of 64 lanes. With RADV_PERFTEST=cswave32, it uses waves of 32 on GPUs that
support them, except for kernels on matrix units. ANV chooses 8, 16 or 32 lanes per thread for each shader; that is the
size of its subgroups.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .mesa import Compiled, Driver
from .proof import Selection

Columns = Mapping[str, Sequence[Compiled]]
RADV = re.compile(r"^([\w .-]+): (\d+)$", re.MULTILINE)
RADV_KEPT = "VGPRs", "Spilled VGPRs", "Scratch size", "LDS size", "Subgroups per SIMD"
ANV = re.compile(r"^SIMD(\d+) shader: (\d+) instructions\..* (\d+):(\d+) spills:fills", re.MULTILINE)
WAVES = "64", "32"  # lanes
STAND_INS = {"gfx1151": ("gfx1151", "strix1")}  # the kernel driver, and its entry (strix_halo.py)


@dataclass(frozen=True)
class Vendor:
    """A driver of Mesa, its GPUs, the parser of its output, and a table cell about several shaders."""

    gpus: Mapping[str, tuple[str, ...]]  # the settings of each GPU, such as the lanes of a wave
    environment: Callable[[str, str], dict[str, str]]  # of a GPU and a setting
    statistics_of: Callable[[str], dict[str, int]]
    cell: Callable[[Sequence[Compiled]], str]
    cost: str  # the statistic that is 0 for a good shader
    unit: str
    on_matrix_units: tuple[str, ...] = ()  # GPUs with fragments of 16x16x16, float16 factors and float32 sums
    without_f16: tuple[str, ...] = ()  # GPUs without f16: shaders with f16 are skipped

    def drivers(self, name: str, gpus: Sequence[str], matrix_units: bool) -> dict[str, tuple[str, Driver]]:
        """The GPU and the driver of each column of the table."""
        found = {}
        for gpu in gpus or self.gpus:
            if matrix_units and gpu not in self.on_matrix_units:
                continue
            for setting in self.gpus[gpu][: 1 if matrix_units else None]:
                label = "-".join(filter(None, (name, gpu, setting)))
                driver = Driver(label, self.environment(gpu, setting), self.statistics_of)
                found[", ".join(filter(None, (gpu, setting)))] = gpu, driver
        return found


def amd_environment(gpu: str, wave: str) -> dict[str, str]:
    shim, entry = STAND_INS.get(gpu, ("amdgpu", gpu))
    return {
        "DRIVER": "radeon", "SHIM": shim, "AMDGPU_GPU_ID": entry, "RADV_DEBUG": "shaderstats,nocache",
        "RADV_PERFTEST": "cswave32" if wave == "32" else "",
    }  # fmt: skip


def amd_statistics(output: str) -> dict[str, int]:
    """Returns registers, spills, memory and waves. Scalar registers spill to vector registers, which costs little."""
    found = {key: int(value) for key, value in RADV.findall(output)}
    return {key: found[key] for key in RADV_KEPT} if "VGPRs" in found else {}


def amd_cell(every: Sequence[Compiled]) -> str:
    """Returns the most registers, fewest waves, most spilled registers and most scratch memory of some shaders."""
    most = {key: max(one.statistics[key] for one in every) for key in RADV_KEPT}
    waves = min(one.statistics["Subgroups per SIMD"] for one in every)
    spilled, scratch = most["Spilled VGPRs"], most["Scratch size"]
    return f"{most['VGPRs']} / {waves}" + f" / **{spilled}, {scratch}**" * bool(spilled or scratch)


def intel_environment(gpu: str, _: str) -> dict[str, str]:
    return {
        "DRIVER": "intel", "SHIM": "intel", "INTEL_STUB_GPU_PLATFORM": gpu, "INTEL_DEBUG": "cs",
        "MESA_SHADER_CACHE_DISABLE": "true",
    }  # fmt: skip


def intel_statistics(output: str) -> dict[str, int]:
    """Returns the lanes of a thread, the instructions, and the registers that are spilled to memory."""
    found = ANV.findall(output)
    return dict(zip(("lanes", "instructions", "spills", "fills"), map(int, found[-1]), strict=True)) if found else {}


def intel_cell(every: Sequence[Compiled]) -> str:
    """Returns how many shaders have threads of 8, 16 and 32 lanes, and the most spills of one shader."""
    sizes = [one.statistics["lanes"] for one in every]
    spills = max(one.statistics["spills"] for one in every)
    text = ", ".join(f"{sizes.count(size)} of {size}" for size in sorted(set(sizes)))
    return f"{text} / **{spills}**" if spills else text


VENDORS = {
    "amd": Vendor(
        {"polaris10": WAVES[:1], "vega10": WAVES[:1]}
        | dict.fromkeys(("navi21", "navi31", "strix1", "gfx1151", "gfx1201"), WAVES),
        amd_environment, amd_statistics, amd_cell, "Scratch size", "bytes of scratch memory",
        on_matrix_units=("navi31", "strix1", "gfx1151", "gfx1201"), without_f16=("polaris10",),
    ),
    "intel": Vendor(  # Gen9 (HD 530), Xe-LP (Iris Xe), Xe-HPG (Arc A770), Xe2 (Arc B580)
        dict.fromkeys(("skl", "tgl", "dg2", "bmg"), ("",)),
        intel_environment, intel_statistics, intel_cell, "spills", "spills",
    ),
}  # fmt: skip


def files_of(folder: Path, family: str, selection: Selection) -> list[Path]:
    """Returns the files of the selected shaders."""
    return [folder / family / f"{name.split(' ')[0]}.wgsl" for name in selection.of(folder, family)]


def table(columns: Columns, cell: Callable[[Sequence[Compiled]], str]) -> str:
    """Returns a table with a row per kernel and a column per GPU: shader counts, and figures of those compiled."""
    rows: dict[str, dict[str, list[Compiled]]] = defaultdict(lambda: defaultdict(list))
    for column, compiled in columns.items():
        for one in compiled:
            rows[one.kernel][column].append(one)
    lines = [f"| kernel | shaders | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 2)]
    for kernel, by_column in sorted(rows.items()):
        fine = ([one for one in by_column[column] if not one.refusal] for column in columns)
        cells = " | ".join(cell(every) if every else "" for every in fine)
        lines.append(f"| `{kernel}` | {max(map(len, by_column.values()))} | {cells} |")
    return "\n".join(lines)


def remarks(columns: Columns, cost: str, unit: str) -> str:
    """For each GPU, returns the number of compiled shaders, and the names of those that were refused or spill."""
    lines = []
    for column, compiled in columns.items():
        refused = [one for one in compiled if one.refusal]
        lines.append(f"- {column}: {len(compiled) - len(refused)} of {len(compiled)} compiled")
        lines += [f"  - `{one.name}`: {one.refusal}" for one in refused]
        some = sorted((-one.statistics[cost], one.name) for one in compiled if one.statistics.get(cost))
        lines += [f"  - `{name}`: {-count} {unit}" for count, name in some]
    return "\n".join(lines)
