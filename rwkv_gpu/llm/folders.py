"""The user's folders and hub, as the environment names them. The same for commands and library."""

import os
import sys
from pathlib import Path

from .hub_names import ENDPOINT


def cache_folder() -> Path:
    """The folder that RWKV_GPU_CACHE names, or the system's usual cache folder."""
    if named := os.environ.get("RWKV_GPU_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rwkv-gpu"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "rwkv-gpu" / "cache"
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "rwkv-gpu"


def tuned_folder() -> Path:
    """Where `rwkv-gpu tune` saves its results, and verdicts on drivers are kept."""
    return cache_folder() / "tuned"


def models_folder() -> Path:
    """The folder where `rwkv-gpu pull` stores models."""
    return cache_folder() / "models"


def hub_endpoint() -> str:
    """Web address of the hub: HF_ENDPOINT, or that of Hugging Face."""
    return os.environ.get("HF_ENDPOINT") or ENDPOINT


def hub_token() -> str | None:
    """The access token HF_TOKEN."""
    return os.environ.get("HF_TOKEN") or None
