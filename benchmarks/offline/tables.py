"""What drivers of Mesa say of many shaders, as a table: a row for each kernel, a column for each GPU."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .mesa import Compiled
from .proof import Selection

Columns = Mapping[str, Sequence[Compiled]]


def files_of(folder: Path, family: str, selection: Selection) -> list[Path]:
    """The files of the selected shaders."""
    return [folder / family / f"{name.split(' ')[0]}.wgsl" for name in selection.of(folder, family)]


def table(columns: Columns, cell: Callable[[Sequence[Compiled]], str]) -> str:
    """How many shaders a kernel has, and a cell about those that were compiled."""
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


def remarks(columns: Columns, of: str, unit: str) -> str:
    """For each GPU how many shaders were compiled, and the names of those that were not, or that have any of `of`."""
    lines = []
    for column, compiled in columns.items():
        refused = [one for one in compiled if one.refusal]
        lines.append(f"- {column}: {len(compiled) - len(refused)} of {len(compiled)} compiled")
        lines += [f"  - `{one.name}`: {one.refusal}" for one in refused]
        some = sorted((-one.statistics[of], one.name) for one in compiled if one.statistics.get(of))
        lines += [f"  - `{name}`: {-count} {unit}" for count, name in some]
    return "\n".join(lines)
