"""Names of projector files: recognises them, and ranks them for a model."""

import re
from collections.abc import Iterable
from pathlib import Path

ARCHITECTURE = "clip"  # `general.architecture` of projectors
FORMATS = "f16", "bf16", "q8_0", "f32"  # the first is preferred


def is_projector(path: str) -> bool:
    """True if a file is named like a projector."""
    name = re.split(r"[/\\]", path)[-1].lower()
    return name.endswith(".gguf") and "mmproj" in name


def ranked(names: Iterable[str], model: str) -> list[str]:
    """Names of projectors, ordered by the number of words that they share with the model's file name."""
    own = _words(model)

    def rank(name: str) -> tuple[int, int, str]:
        formats = [at for at, one in enumerate(FORMATS) if re.search(rf"(?<![a-z0-9]){one}(?![a-z0-9])", name.lower())]
        return -len(own & _words(name)), min(formats, default=len(FORMATS)), name

    return sorted(names, key=rank)


def projectors_next_to(model: Path) -> list[str]:
    """Names of projectors in the folder of a model, the most similar name first."""
    return ranked([path.name for path in model.parent.glob("*.gguf") if is_projector(path.name)], model.name)


def projector_in(files: Iterable[str], model: str) -> str | None:
    """The projector of a model in its repository: in the model's folder, or in the nearest parent folder with one."""
    *folders, name = model.split("/")
    projectors = [file for file in files if is_projector(file)]
    for depth in range(len(folders), -1, -1):
        here = [file for file in projectors if file.split("/")[:-1] == folders[:depth]]
        if here:
            return ranked(here, name)[0]
    return None


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower().removesuffix(".gguf")))
