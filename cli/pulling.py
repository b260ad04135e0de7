"""The models of this user: where they are, and how one is fetched from the hub."""

import os

from rwkv_gpu.llm.repository import ENDPOINT, Progress, Repository
from rwkv_gpu.llm.store import Store

from .folders import models_folder


def store() -> Store:
    """The folder of models."""
    return Store(models_folder())


def pull(name: str, revision: str = "main") -> str:
    """The path of a model of the hub, downloaded with a bar where it is not here."""
    from .bars import download_bar  # a name alone needs no terminal
    from .screen import Screen

    def repository(owned: str) -> Repository:
        endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
        return Repository(owned, revision, endpoint=endpoint, token=os.environ.get("HF_TOKEN"))

    with download_bar(Screen()) as bar:

        def progress(file: str) -> Progress:
            return lambda done, total: bar.update(done, total, file)

        return str(store().pull(name, repository, progress))
