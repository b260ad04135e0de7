"""A batch on several devices has one output, which a second run continues."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from tests.process import PATIENCE
from tests.server.serving import MODEL

BATCH = [sys.executable, "-m", "rwkv_gpu.cli.main", "batch", str(MODEL)]


def lines(path: Path, count: int) -> Path:
    path.write_text(
        "".join(json.dumps({"id": n, "prompt": f"line {n}", "max_tokens": 30}) + "\n" for n in range(count))
    )
    return path


def answers(path: Path) -> dict[int, str]:
    results = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({result["id"] for result in results}) == len(results), "a line is answered once"
    return {result["id"]: result["text"] for result in results}


def children(process: subprocess.Popen[str]) -> list[int]:
    """Returns the processes of the devices."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the processes in /proc")
def test_the_lines_of_a_lost_device_go_to_another_and_a_second_run_continues(tmp_path):
    source, target = lines(tmp_path / "in.jsonl", 200), tmp_path / "out.jsonl"
    command = [*BATCH, str(source), str(target), "--device", "cpu,cpu", "--sequences", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + PATIENCE
    while not target.exists() or target.read_text().count("\n") < 20:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    first, *_ = children(process)
    os.kill(first, signal.SIGKILL)
    _, notes = process.communicate(timeout=PATIENCE)
    assert "was lost; the other devices answer its lines" in notes
    assert process.returncode == 0
    whole = answers(target)
    assert sorted(whole) == [*range(200)]
    target.write_text("".join(target.read_text().splitlines(keepends=True)[:150]) + '{"id": 1')  # as after a kill
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "150 answered before" in done.stderr
    assert answers(target) == whole


def test_a_missing_device_ends_the_batch_with_a_remedy(tmp_path):
    source, target = lines(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    done = CliRunner().invoke(cli, ["batch", str(MODEL), str(source), str(target), "--device", "cpu,nosuchgpu"])
    assert done.exit_code == 3
    assert "no device named like 'nosuchgpu'" in done.output.splitlines()[-1]
