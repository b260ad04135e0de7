"""Models with answers recorded from llama.cpp, where they are at hand."""

from pathlib import Path

import numpy as np
import pytest

OWN = Path(__file__).resolve().parent / "golden"  # made and recorded by golden/record.py
FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"
TINY = sorted(path.stem for path in OWN.glob("tiny-*.gguf"))  # one of every architecture, and some more
# Those of which embeddings are recorded, scores of a classifier, or logits.
EMBEDDING = sorted(
    path.stem
    for path in OWN.glob("*.npz")
    if not path.stem.startswith("ranking-") and "exact_pooled" in np.load(path, mmap_mode="r")
)
RANKING = sorted(path.stem for path in OWN.glob("ranking-*.npz"))
GENERATIVE = [name for name in TINY if name not in EMBEDDING]
NAMES = tuple(sorted(path.name for folder in (OWN, FOLDER) for path in folder.glob("*.gguf")))


def golden(name: str) -> Path:
    """The golden file of that name; skips the test that asks where there is none."""
    path = OWN / name if (OWN / name).is_file() else FOLDER / name
    if not path.is_file():
        pytest.skip(f"no golden file {name} in ../shared/golden next to the repository")
    return path
