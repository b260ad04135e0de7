"""Where this user's programs keep what can be made again."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """By the custom of each system; RWKV_GPU_CACHE names another."""
    if named := os.environ.get("RWKV_GPU_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rwkv-gpu"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "rwkv-gpu" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rwkv-gpu"


def tuned_folder() -> Path:
    """Where `rwkv-gpu tune` keeps what it finds."""
    return cache_folder() / "tuned"
