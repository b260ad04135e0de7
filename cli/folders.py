"""The cache folder of this user."""

import os
import sys
from pathlib import Path

from rwkv_gpu.llm.hub import default_folder


def cache_folder() -> Path:
    """The usual place of each system, or RWKV_GPU_CACHE."""
    if named := os.environ.get("RWKV_GPU_CACHE"):
        return Path(named)
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "rwkv-gpu" / "cache"
    if sys.platform not in ("win32", "darwin") and (caches := os.environ.get("XDG_CACHE_HOME")):
        return Path(caches) / "rwkv-gpu"
    return default_folder()


def tuned_folder() -> Path:
    """Where `rwkv-gpu tune` saves its results."""
    return cache_folder() / "tuned"


def models_folder() -> Path:
    """Where `rwkv-gpu pull` keeps models."""
    return cache_folder() / "models"
