"""Golden models: files with answers recorded from llama.cpp."""

from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.models import dense_families, mixture_families

OWN = Path(__file__).resolve().parent / "golden"  # golden/record.py makes and records these files
FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"
TINY = sorted(path.stem for path in OWN.glob("tiny-*.gguf"))  # a file of every architecture, and some more
# Files with recorded embeddings, scores of a classifier, or logits.
EMBEDDING = sorted(
    path.stem
    for path in OWN.glob("*.npz")
    if not path.stem.startswith("ranking-") and "exact_pooled" in np.load(path, mmap_mode="r")
)
RANKING = sorted(path.stem for path in OWN.glob("ranking-*.npz"))
# Families that forms declare. The records of WHOLE are long, and every test of whole models runs them; those of the
# others are short: they only recombine the parts of these.
WHOLE = {
    *("ernie4_5", "exaone", "exaone4", "gemma", "gemma2", "gemma3", "glm4", "glm4moe", "gpt-oss", "granite"),
    *("granite_swa", "hunyuan-dense", "internlm2", "llama", "minicpm", "minimax-m3", "mistral3", "muse-glimmer"),
    *("olmo2", "phi3", "qwen2", "qwen3", "qwen3moe", "seed_oss", "smollm3"),
}
RECOMBINED = {*dense_families.FORMS, *mixture_families.FORMS} - WHOLE
GENERATIVE = [name for name in TINY if name not in (*EMBEDDING, "tiny-t5")]  # a T5 needs a source: see test_t5.py
NAMES = tuple(sorted(path.name for folder in (OWN, FOLDER) for path in folder.glob("*.gguf")))


def golden(name: str) -> Path:
    """Returns the golden file of that name; skips the test if it does not exist."""
    path = OWN / name if (OWN / name).is_file() else FOLDER / name
    if not path.is_file():
        pytest.skip(f"no golden file {name} in ../shared/golden next to the repository")
    return path
