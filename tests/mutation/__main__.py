"""Mutation testing: makes small changes to the code, one at a time, and lists those that no test notices.

    python -m tests.mutation [--count 60] [--seed 0 1] [--place engine]

The tests of a place run once to learn which lines each of them runs. Then each change gets a process with a copy of the
code, which runs the tests of its lines up to the first that fails.
"""

import argparse
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.changes import ROOT, chosen


@dataclass(frozen=True)
class Place:
    """A folder of code, and the tests that should detect its changes."""

    folder: str
    tests: tuple[str, ...]
    on_gpu: tuple[str, ...] = ()  # tests on a GPU among them, of modules that run only there; others do not run

    def files(self, pattern: str) -> list[Path]:
        """Returns the files with some names, relative to the root."""
        return sorted(path.relative_to(ROOT) for path in (ROOT / self.folder).rglob(pattern))


# Some tests of the code that only a GPU runs; each takes a few seconds.
ON_GPU = (
    "tests/engine/test_warm_up.py::test_a_",
    "tests/engine/test_engine.py::test_biases_and_log_probabilities_read_no_logits_back[tiny-falcon-h1.gguf-gpu]",
    "tests/engine/test_engine.py::test_another_engine_continues_from_an_exported_state[tiny-falcon-h1.gguf-gpu]",
    "tests/engine/test_half_states.py::test_a_saved_state_is_float32_with_numbers_of_float16",
    "tests/engine/test_heads.py::test_drafts_of_a_head_on_the_gpu_change_no_answer[qwen35]",
    "tests/engine/test_main_memory.py::test_logits_equal_those_of_a_model_wholly_on_the_gpu",
    "tests/engine/test_speculation.py::test_drafts_change_no_answer_on_the_gpu[llama-3]",
    "tests/engine/test_split.py::test_a_gpu_and_numpy_give_the_logits_of_one_device",
    "tests/engine/test_split.py::test_two_gpus_decode_ahead_as_one",
)
PLACES = {
    "engine": Place(
        "rwkv_gpu/engine",
        (
            "tests/engine",
            "tests/vision",
            "tests/llm/test_driver.py",
            "tests/llm/test_driver_faults.py",
            "tests/llm/test_drafts.py",
            "tests/llm/test_split.py",
        ),
        on_gpu=ON_GPU,
    ),
    "text": Place(
        "rwkv_gpu/text",
        ("tests/text", "tests/llm/test_reader.py", "tests/llm/test_tools.py", "tests/llm/test_chat_format.py"),
    ),
    "gguf": Place(
        "rwkv_gpu/gguf",
        (
            "tests/gguf",
            "tests/convert",
            "tests/engine/test_initial_state.py",
            "tests/models/test_differences.py",
            "tests/cli/test_small_commands.py",
            "tests/cli/test_info_and_fit.py",
        ),
    ),
    "passes": Place("rwkv_gpu/ops/passes", ("tests/ops", "tests/test_plan_digests.py")),
    "llm": Place(
        "rwkv_gpu/llm",
        (
            "tests/llm",
            "tests/stores",
            "tests/vision",
            "tests/test_llm.py",
            "tests/server/test_conversation_files.py",
            "tests/server/test_defaults.py",
            "tests/server/test_slots.py",
        ),
    ),
}


def copy_of(folder: Path) -> None:
    """Copies the code and its tests. The command line is placed where an installation has it."""
    for name in ("rwkv_gpu", "cli", "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "rwkv_gpu" / "cli").symlink_to(folder / "cli")
    (folder / "rwkv_gpu" / "profiles").symlink_to(ROOT / "profiles")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="changes of each place")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="each chooses other changes")
    parser.add_argument("--place", choices=PLACES, action="append")
    parser.add_argument("--tests", nargs="+", help="tests to run in place of those of the place")
    parser.add_argument("--file", default="*.py", help="change files of this name only")
    options = parser.parse_args()
    places = [PLACES[name] for name in options.place or PLACES]
    changes = {
        f"{place.folder}, seed {seed}": chosen(place.files(options.file), options.count, seed)
        for seed in options.seed
        for place in places
    }
    tests = options.tests or list(dict.fromkeys(test for place in places for test in place.tests))
    with tempfile.TemporaryDirectory(prefix="rwkv-gpu-mutation-") as name:
        copy_of(Path(name))
        job = Path(name) / "job"
        on_gpu = tuple(test for place in places for test in place.on_gpu)
        job.write_bytes(pickle.dumps(([place.folder for place in places], tests, on_gpu, changes)))
        environment = {**os.environ, "PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-m", "tests.mutation.forks", str(job)], cwd=name, env=environment, check=True)


if __name__ == "__main__":
    main()
