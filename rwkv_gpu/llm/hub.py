"""Models on the Hugging Face hub, or on a server with the same routes, and their local folder."""

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..gguf.cursor import shown
from .catalogue import Catalogue, catalogue_of
from .folders import hub_endpoint, hub_token, models_folder
from .hub_names import LIBRARY, REPOSITORY, is_hub_name, is_path, parse
from .store import Store

if TYPE_CHECKING:
    from .repository import Progress, RemoteFile, Repository

MAX_CONNECTIONS = 16  # maximum connections of a download


@dataclass(frozen=True)
class Hub:
    """A hub of models, and the folder of its downloads. `load` finds models there by name."""

    folder: str | os.PathLike[str] | None = None
    """Folder of the models; by default that of `rwkv-gpu pull`."""
    endpoint: str = field(default_factory=hub_endpoint)
    """Web address of the hub; by default HF_ENDPOINT or that of Hugging Face."""
    token: str | None = field(default_factory=hub_token)
    """Access token for gated and private models; by default HF_TOKEN."""
    revision: str = "main"
    """Branch, tag or commit."""
    progress: Callable[[str, int, int], None] | None = None
    """A function called with the name of a file, the bytes received, and the total."""
    catalogue: str | os.PathLike[str] | None = None
    """A file or URL with additional short names of models."""
    connections: int = 1
    """Connections for one file."""
    rate: float | None = None
    """Maximum bytes per second."""
    projectors: bool = True
    """True to download the projector for images that belongs to a model."""

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise BadInput(f"connections is {self.connections}; a download has 1 to {MAX_CONNECTIONS}")
        if self.rate is not None and not self.rate > 0:
            raise BadInput(f"rate is {self.rate}; it must be a positive number of bytes per second")

    @property
    def store(self) -> Store:
        """The folder of models."""
        return Store(models_folder() if self.folder is None else Path(self.folder))

    @property
    def names(self) -> Catalogue:
        """The catalogue of short names."""
        return catalogue_of(self.catalogue)

    def locate(self, name: str) -> Path | str | None:
        """Finds a model: returns the path of a local file, or its name on the hub; None if the name is unknown.

        The name is a path, a name on the hub, the name of a stored model, a short name of the catalogue, or OWNER/NAME.
        """
        if os.path.exists(name):
            return Path(name)
        stored = None if is_path(name) else self.store.find(name)
        if stored is not None or is_hub_name(name):
            return stored or name
        if re.match(r"(?:https?://)?(?:hf\.co|huggingface\.co)/", name):
            parse(name, None)  # raises an error with the reason
        if "://" in name and not LIBRARY.match(name):
            raise BadInput(f"{shown(name)} is not a URL of a model on the hub; give hf.co/OWNER/NAME, a name or a path")
        short = None if is_path(name) else self.names.hub_name(name)
        if short is not None:
            return self.store.find(short) or short
        return None if is_path(name) or not REPOSITORY.fullmatch(name.partition(":")[0]) else f"hf.co/{name}"

    def full_name(self, name: str) -> str:
        """Returns the name on the hub, given this name, a short name, or OWNER/NAME."""
        if is_hub_name(name):
            return name
        short, named = self.names.hub_name(name), f"hf.co/{name}"
        if short is None and not is_hub_name(named):
            raise self.unknown(name)
        return short or named

    def unknown(self, name: str) -> BadInput:
        """The error about a name that matches no model, with similar names."""
        stored = {part.removesuffix("-GGUF"): one for one in self.store.models() for part in one.name.split("/")[1:]}
        near = difflib.get_close_matches(name.lower(), [*map(str.lower, stored)], 1)
        found = [*(one for one in stored if one.lower() in near), *self.names.near(name)][:3]
        meant = f"did you mean {' or '.join(found)}? " if found else ""
        return BadInput(f"no model {shown(name)}; {meant}`rwkv-gpu models` lists names")

    def find(self, name: str, file: str | None = None) -> Path:
        """Path of a model given by name, or by repository and file; downloads it if missing."""
        store = self.store
        here = store.find(name) if file is None else store.file(name, file)
        return self.pull(name, file) if here is None else here

    def pull(self, name: str, file: str | None = None) -> Path:
        """Downloads the missing files of a model; asks the hub which files it has."""
        return self.store.pull(name, self.repository, self._progress, file, projector=self.projectors)

    def header(self, name: str) -> Path:
        """Path of a copy of a model without weights: enough to show what it is, and to compute its memory."""
        return self.store.pull(name, partial(self.repository, headers=True), self._progress, projector=self.projectors)

    def repository(self, name: str, *, headers: bool = False) -> "Repository":
        """The repository OWNER/NAME. With `headers`, its downloads lack the weights."""
        from .repository import Headers, Repository  # also imports HTTP and TLS

        return (Headers if headers else Repository)(
            name,
            self.revision,
            endpoint=self.endpoint,
            token=self.token,
            connections=self.connections,
            rate=self.rate,
        )

    def _progress(self, file: "RemoteFile") -> "Progress":
        progress, path = self.progress, file.path
        return lambda done, total: progress(path, done, total) if progress is not None else None
