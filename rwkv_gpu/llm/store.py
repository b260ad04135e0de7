"""The models that were pulled: a folder with OWNER/NAME/FILE.gguf, and the names by which they are found."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from . import hub_names
from .repository import Progress, Repository


@dataclass(frozen=True)
class Stored:
    """A model of the store, whole or cut off."""

    name: str  # OWNER/NAME/FILE, without .gguf and the number of a part
    paths: tuple[Path, ...]  # its parts, the first one first
    nbytes: int
    complete: bool


class Store:
    """A folder of models. Files that a user puts there are models, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def models(self) -> list[Stored]:
        """All models, by name."""
        groups: dict[str, list[Path]] = {}
        for path in sorted((*self.folder.rglob("*.gguf"), *self.folder.rglob("*.gguf.part"))):
            groups.setdefault(self._name(path), []).append(path)
        return [self._stored(name, paths) for name, paths in groups.items()]

    def find(self, name: str) -> Path | None:
        """The file of a model that is here, by its name, its file's name, or NAME:Q4_K_M; None for any other."""
        found = [model for model in self.matching(name) if model.complete]
        if len(found) > 1:
            raise BadInput(f"{name} may be {', '.join(model.name for model in found)}; give the whole name")
        return found[0].paths[0] if found else None

    def matching(self, name: str) -> list[Stored]:
        """The models that a name may mean; those of which it is the whole name are the only ones then."""
        match = hub_names.NAME.fullmatch(name)
        plain = (f"{match[1]}:{match[2]}" if match[2] else match[1]) if match else name.removesuffix(".gguf")
        plain, _, quantisation = plain.lower().partition(":")
        models = self.models()
        exact = [model for model in models if model.name.lower() == plain] if not quantisation else []
        if exact or not plain:
            return exact
        found = []
        for model in models:
            *owner, repository, file = model.name.lower().rsplit("/", 2)
            names = {repository, repository.removesuffix("-gguf"), *(f"{one}/{repository}" for one in owner)}
            if not quantisation:
                names.add(file)
            if plain in names and (not quantisation or hub_names.has_quantisation(f"{file}.gguf", quantisation)):
                found.append(model)
        return found

    def file(self, name: str, file: str) -> Path | None:
        """A file of a repository, with all of its parts; None where one is not here."""
        paths = self._places(hub_names.parse(name, file)[0], file)
        return paths[0] if all(path.exists() for path in paths) else None

    def pull(
        self,
        name: str,
        repository: Callable[[str], Repository],
        progress: Callable[[str], Progress],
        file: str | None = None,
    ) -> Path:
        """The model of a hub name, or of OWNER/NAME and a file; what is not here of it is downloaded.

        `progress` gives what is told of the download of a file.
        """
        owned, quantisation = hub_names.parse(name, file)
        source = repository(owned)
        files = source.models()
        if file is None:
            file = hub_names.choose(owned, sorted(files), quantisation)
        elif file not in files:
            raise BadInput(f"{owned} has no file {file}; it has {', '.join(sorted(files)) or 'no GGUF files'}")
        paths, parts = self._places(owned, file), hub_names.parts(file)
        for part in parts:  # before the first is downloaded
            if part not in files:
                raise BadInput(f"{owned} has no {part}: the model is incomplete there; choose another file")
        for part, path in zip(parts, paths, strict=True):
            if not path.exists():
                source.download(files[part], path, progress(part))
        return paths[0]

    def _places(self, repository: str, file: str) -> list[Path]:
        """Where the parts of a file of a repository are, or will be."""
        return [self.folder / repository / Path(part).name for part in hub_names.parts(file)]

    def remove(self, name: str) -> Stored:
        """Deletes a model, or what is left of one that was cut off."""
        found = self.matching(name)
        if len(found) != 1:
            several = f"may be {', '.join(model.name for model in found)}; give the whole name"
            raise BadInput(f"{name} {several if found else 'is no model of `rwkv-gpu list`'}")
        for path in found[0].paths:
            path.unlink()
        for folder in (found[0].paths[0].parent, found[0].paths[0].parent.parent):
            if folder != self.folder and not any(folder.iterdir()):
                folder.rmdir()
        return found[0]

    def _name(self, path: Path) -> str:
        name = path.relative_to(self.folder).as_posix().removesuffix(".part")
        return hub_names.PART.sub("", name).removesuffix(".gguf")

    def _stored(self, name: str, paths: list[Path]) -> Stored:
        first = paths[0].name.removesuffix(".part")
        complete = {path.name for path in paths} == set(hub_names.parts(first))
        return Stored(name, tuple(paths), sum(path.stat().st_size for path in paths), complete)
