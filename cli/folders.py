"""The cache folder of this user."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The usual place of each system, or RWKV_GPU_CACHE."""
    if named := os.environ.get("RWKV_GPU_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rwkv-gpu"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "rwkv-gpu" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rwkv-gpu"


def tuned_folder() -> Path:
    """Where `rwkv-gpu tune` saves its results."""
    return cache_folder() / "tuned"


def models_folder() -> Path:
    """Where `rwkv-gpu pull` keeps models."""
    return cache_folder() / "models"
