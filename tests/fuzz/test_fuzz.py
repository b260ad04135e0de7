"""Runs half a minute of fuzzing with the same inputs each time; `make fuzz` takes ten minutes and another seed."""

import warnings
from pathlib import Path

import pytest

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.run_mutants import run_here
from tests.fuzz.targets import TARGETS
from tests.fuzz.writers import check_writers
from tests.process import posix

QUICK = [name for name, target in TARGETS.items() if target.is_quick]
SECONDS = 30 / len(QUICK)
WRITERS = "batch", "chat", "export plan", "pull and rm", "quantize", "store", "use of a checkpoint"  # of COMMANDS
MUTANTS = 500  # number of mutants, of the 10,000 of `make mutants`


@pytest.mark.parametrize("name", QUICK)
def test_fuzzed_input_is_refused_in_one_line_or_handled_correctly(name: str) -> None:
    assert fuzz(TARGETS[name], SECONDS, first=0) > 20


@pytest.mark.long
@posix
@pytest.mark.parametrize("name", WRITERS)
def test_of_two_processes_that_write_one_file_none_spoils_it(name: str) -> None:
    """The first is halted early and dies while the second is halted; `make fuzz` tries any two moments."""
    check_writers((name, 3, 2, "first"))


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
