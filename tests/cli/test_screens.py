"""Tables and facts look right in wide and narrow terminals: whole words, no empty columns, no long lines."""

import pytest
from rich.cells import cell_len

from rwkv_gpu.cli import export
from rwkv_gpu.cli.printing import rendered
from rwkv_gpu.measure.report import markdown
from tests.cli.screens import COMMANDS, HERE, WIDTHS, screens

JSON_LINES = "tokenize", "embed"  # a token or a text is a line
ROW = {
    "test": "pp512", "tokens_per_second": 13218.4, "stddev": 37.2, "batch": 1, "chunk_size": 512, "dispatches": 163,
    "dispatches_per_layer": 5.0, "cpu_share": 0.021, "bytes_per_token": 3.5e6, "bandwidth_share": 0.384,
    "compute_share": 0.226,
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_equals_the_recorded_one(name, tmp_path):
    shown = screens(name, tmp_path)
    assert shown == (HERE / f"{name}.txt").read_text(encoding="utf-8"), (
        "look at the change, then run: python -m tests.cli.screens"
    )
    if name in JSON_LINES:
        return
    for part, width in zip(shown.split(" columns\n")[1:], WIDTHS, strict=True):
        too_long = [line for line in part.split("\n") if cell_len(line) > width and len(line.split()) > 1]
        assert not too_long, too_long


def test_what_an_export_runs_on_fits_40_columns(monkeypatch, capsys):
    monkeypatch.setattr("rwkv_gpu.cli.printing.terminal_width", lambda **_: 40)
    export._tell([{"wgsl": ["shader-f16", "subgroups"], "bytes": 1 << 30}])
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(lines).startswith("runs on: any WebGPU device with shader-f16, subgroups")
    assert max(map(cell_len, lines)) <= 40


def test_the_bench_of_a_gpu_fits_80_columns_as_a_table_and_40_as_lines():
    table = markdown([ROW, {**ROW, "test": "tg128", "chunk_size": None, "tokens_per_second": 888.2}])
    at_80, at_40 = (rendered(table, width).split("\n") for width in (80, 40))
    assert at_80[0].split()[:2] == ["test", "tok/s"]
    assert any(line.startswith("───") for line in at_80)
    assert {"13,218", "888"} <= {word for line in at_80 for word in line.split()}
    assert at_40[:2] == ["test: pp512", "tok/s: 13,218 ± 37.2"]
    assert max(map(cell_len, at_80)) <= 80
    assert max(map(cell_len, at_40)) <= 40
