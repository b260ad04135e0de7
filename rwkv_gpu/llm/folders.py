"""The default folders of commands and library."""

import sys
from pathlib import Path


def default_folder() -> Path:
    """The system's usual cache folder."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rwkv-gpu"
    if sys.platform == "win32":
        return Path.home() / "AppData" / "Local" / "rwkv-gpu" / "cache"
    return Path.home() / ".cache" / "rwkv-gpu"


def default_tuned_folder() -> Path:
    """Where `rwkv-gpu tune` saves its results, and verdicts on drivers are kept."""
    return default_folder() / "tuned"
