"""The models of this user: where they are, and how one is fetched from the hub."""

import os
from collections.abc import Callable

from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.repository import ENDPOINT
from rwkv_gpu.llm.store import Store

from .folders import models_folder


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
