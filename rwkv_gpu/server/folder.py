"""The models of a folder: its GGUF files, named by file."""

import re
from pathlib import Path

MOST = 1000  # maximum files examined
LATER_PART = re.compile(r"-0*(?!0*1-of-)\d+-of-\d+$")  # a later part of a split model
FIRST_PART = re.compile(r"-0*1-of-\d+$")


def models_of(folder: Path) -> dict[str, str]:
    """Paths by name, in order. A file in a subfolder is named folder/model."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.gguf"))[:MOST]:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if not LATER_PART.search(name) and path.is_file():
            found[FIRST_PART.sub("", name)] = str(path)
    return found
