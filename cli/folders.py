"""The cache folder of this user, and the models in it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from rwkv_gpu.llm.hub import Hub, default_folder
from rwkv_gpu.llm.repository import ENDPOINT
from rwkv_gpu.llm.store import Store


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


def store() -> Store:
    """The folder of models."""
    return Store(models_folder())


def hub(revision: str = "main", progress: Callable[[str, int, int], None] | None = None) -> Hub:
    """The hub that the environment names, with its token."""
    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    return Hub(models_folder(), endpoint, os.environ.get("HF_TOKEN"), revision, progress)


def pull(name: str, revision: str = "main") -> str:
    """The path of a model of the hub, downloaded with a bar where it is not here."""
    from .bars import download_bar  # a name alone needs no terminal
    from .screen import Screen

    with download_bar(Screen()) as bar:
        return str(hub(revision, lambda file, done, total: bar.update(done, total, file)).pull(name))
