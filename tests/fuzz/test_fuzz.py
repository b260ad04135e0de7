"""Runs half a minute of fuzzing with the same inputs each time; `make fuzz` takes ten minutes and another seed."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.hubs import Fault, breaking, check_hub
from tests.fuzz.mutants import structural
from tests.fuzz.run_mutants import outcome, run_here
from tests.fuzz.targets import TARGETS
from tests.fuzz.writers import COMMANDS, check_writers, inputs, tree
from tests.process import posix

QUICK = [name for name, target in TARGETS.items() if target.is_quick]
SECONDS = 30 / len(QUICK)
WRITERS = "batch", "chat", "export plan", "pull and rm", "quantize", "store", "use of a checkpoint"  # of COMMANDS
MUTANTS = 500  # number of mutants, of the 10,000 of `make mutants`


@pytest.mark.parametrize("name", QUICK)
def test_fuzzed_input_is_refused_in_one_line_or_handled_correctly(name: str) -> None:
    assert fuzz(TARGETS[name], SECONDS, first=0) > 20


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("has_sum", [False, True])
@pytest.mark.parametrize(
    "kinds", [("cut", "denied", "changed"), ("none", "denied", "changed"), ("denied", "none", "changed")], ids="-".join
)
def test_a_file_that_changes_between_two_downloads_is_never_mixed(kinds, has_sum, connections) -> None:
    check_hub(([Fault(kind, 0.5) for kind in kinds], has_sum, connections))


@pytest.mark.long
@posix
@pytest.mark.parametrize("name", WRITERS)
def test_two_processes_that_write_one_file_do_not_damage_it(name: str) -> None:
    """The first is halted early and dies while the second is halted; `make fuzz` tries any two moments."""
    check_writers((name, 3, 2, "first"))


FULL = """
import json, resource, sys
from click.testing import CliRunner
from rwkv_gpu.cli.commands import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for arguments in json.load(sys.stdin):
    done = CliRunner().invoke(cli, arguments)
    print(json.dumps([done.exit_code, done.output.splitlines()[-1]]))
"""
UNLIMITED = "store", "rm", "pull and rm"  # write no file, or are no command
ON_GPU = "profile", "tune", "doctor"


@posix
@pytest.mark.parametrize("kind", ["host", pytest.param("gpu", marks=pytest.mark.long)])
def test_each_writing_command_says_in_one_line_that_a_disk_is_full(tmp_path: Path, kind: str) -> None:
    """The limit of a file's size stands for the disk."""
    every = [name for name in COMMANDS if name not in UNLIMITED and (name in ON_GPU) == (kind == "gpu")]
    with breaking([], has_sum=True) as server:
        commands = [
            [one.format(**{"out": tmp_path / name.replace(" ", "-"), "in": inputs().name}) for one in arguments]
            for name, arguments in ((name, COMMANDS[name].first) for name in every)
        ]
        hub = f"http://127.0.0.1:{server.server_port}"
        run = subprocess.run(
            [sys.executable, "-c", FULL], input=json.dumps(commands), capture_output=True, text=True, check=True,
            env={**os.environ, "RWKV_GPU_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": hub},
        )  # fmt: skip
    for name, line in zip(every, run.stdout.splitlines(), strict=True):
        code, last = json.loads(line)
        assert code == 2, (name, last)
        assert re.search("cannot (be written|write the output): File too large|what has arrived is kept", last), last
    assert not [path for path in tree(tmp_path) if ".saving-" in path or path.endswith(".lock")]


def test_a_mutant_is_built_if_its_texts_have_the_name_of_sizes() -> None:
    what, _ = structural(3194, ("tiny-llada", "tiny-llada-moe", "tiny-dream", "tiny-rnd1"))
    assert "swap_two_rows, change_a_size" in what


def test_a_model_file_that_is_almost_sound_is_refused_in_one_line_or_answers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's warnings about NaN and infinity
        rows = list(run_here(0, MUTANTS, "cpu"))
    assert [row for row in rows if row[2].startswith("!")] == []
    assert {"answers", "BadFile", "UnsupportedModel"} <= {result for _, _, result in rows}


def test_inputs_of_a_seed_are_the_same_in_every_run(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        fuzz(TARGETS["header"], 0, 7, tmp_path / "last")
        seen.append((tmp_path / "last").read_text())
    assert seen[0] == seen[1]


def test_a_list_of_the_wrong_kind_is_refused_in_one_short_line(tmp_path: Path) -> None:
    """Mutant 2616 of this model swaps the vocabulary and the flags of layers."""
    what, data = structural(2616, ["tiny-dots3note"])
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    assert (what, outcome(path)) == ("tiny-dots3note: swap_two_rows", "BadFile")
