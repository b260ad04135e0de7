"""Models on the Hugging Face hub, or on a server with the same routes, and their local folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .folders import default_folder
from .repository import ENDPOINT, Progress, Repository
from .store import Store


@dataclass(frozen=True)
class Hub:
    """The source of models for `load` when the path is a name on the hub.

    `folder` stores them; the default is the folder of `rwkv-gpu pull`. `token` gives access to gated and private
    models. `progress` gets the name of a file, the bytes received, and the total.
    """

    folder: str | os.PathLike[str] | None = None
    endpoint: str = ENDPOINT
    token: str | None = None
    revision: str = "main"
    progress: Callable[[str, int, int], None] | None = None

    @property
    def store(self) -> Store:
        """The folder of models."""
        return Store(default_folder() / "models" if self.folder is None else Path(self.folder))

    def find(self, name: str, file: str | None = None) -> Path:
        """Path of a model given by name, or by repository and file; downloads it if missing."""
        store = self.store
        here = store.find(name) if file is None else store.file(name, file)
        return self.pull(name, file) if here is None else here

    def pull(self, name: str, file: str | None = None) -> Path:
        """Downloads the missing files of a model; asks the hub which files it has."""
        return self.store.pull(name, self.repository, self._progress, file)

    def repository(self, name: str) -> Repository:
        """The repository OWNER/NAME."""
        return Repository(name, self.revision, endpoint=self.endpoint, token=self.token)

    def _progress(self, file: str) -> Progress:
        progress = self.progress
        return lambda done, total: progress(file, done, total) if progress is not None else None
