"""Models with answers recorded from llama.cpp, where they are at hand."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"
NAMES = tuple(sorted(path.name for path in FOLDER.glob("*.gguf"))) or ("any",)  # none at hand: one that is skipped


def golden(name: str) -> Path:
    """The golden file of that name; skips the test that asks where there is none."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"no golden file {name} in ../shared/golden next to the repository")
    return path
