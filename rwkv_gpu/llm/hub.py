"""Models of the Hugging Face hub, or of a server with the same routes, and the folder where they are kept."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .repository import ENDPOINT, Progress, Repository
from .store import Store


@dataclass(frozen=True)
class Hub:
    """Where `load` gets models from that are given by their names on the hub.

    `folder` is where they are kept: by default that of `rwkv-gpu pull`. `token` gives access to gated and private
    models. `progress` is told the name of a file, how many bytes of it are here, and of how many.
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
        """The model of a name, or of a repository's name and a file in it; it is downloaded if it is not here yet."""
        store = self.store
        here = store.find(name) if file is None else store.file(name, file)
        return self.pull(name, file) if here is None else here

    def pull(self, name: str, file: str | None = None) -> Path:
        """Downloads what is not here of a model; the hub says which files it has."""
        return self.store.pull(name, self.repository, self._progress, file)

    def repository(self, name: str) -> Repository:
        """The repository OWNER/NAME."""
        return Repository(name, self.revision, endpoint=self.endpoint, token=self.token)

    def _progress(self, file: str) -> Progress:
        progress = self.progress
        return lambda done, total: progress(file, done, total) if progress is not None else None


def default_folder() -> Path:
    """The usual place of each system for what can be downloaded or computed again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rwkv-gpu"
    if sys.platform == "win32":
        return Path.home() / "AppData" / "Local" / "rwkv-gpu" / "cache"
    return Path.home() / ".cache" / "rwkv-gpu"
