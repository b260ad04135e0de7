"""The local model store: a folder with OWNER/NAME/FILE.gguf, as on the hub. Finds models by name."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..vision.projector_names import is_projector, projector_in
from ..writer_lock import WriterLock
from . import hub_names
from .hub_names import SUFFIX, is_preset

if TYPE_CHECKING:
    from .repository import Progress, RemoteFile, Repository

COPY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*){0,2}", re.ASCII)  # the name of a copy
LONGEST = 200  # characters of such a name


@dataclass(frozen=True)
class Stored:
    """A stored model, complete or partly downloaded."""

    name: str  # OWNER/NAME/FILE, without .gguf and part number
    paths: tuple[Path, ...]  # its parts in order
    nbytes: int
    complete: bool
    projectors: tuple[Path, ...] = ()  # projectors in its folder


class Store:
    """A folder of models and presets. Files that a user puts there count as models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def models(self) -> list[Stored]:
        """All models, by name."""
        groups: dict[str, list[Path]] = {}
        projectors: dict[Path, list[Path]] = {}
        kinds = ("*.gguf", "*.gguf.part", f"*{SUFFIX}")
        for path in sorted(path for kind in kinds for path in self.folder.rglob(kind)):
            if is_projector(path.name.removesuffix(".part")):
                projectors.setdefault(path.parent, []).append(path)
            else:
                groups.setdefault(self.name_of(path), []).append(path)
        return [_stored(name, paths, projectors.get(paths[0].parent, ())) for name, paths in groups.items()]

    def find(self, name: str) -> Path | None:
        """Path of a stored model, by its name, its file's name, or NAME:Q4_K_M; None if not found."""
        found = [model for model in self.matching(name) if model.complete]
        # If all are in one repository, the choice is made as for the hub.
        if len({tuple(model.name.split("/")[:2]) for model in found}) == 1:
            wanted = (
                [one for one in found if hub_names.is_meant(f"{one.name}.gguf", tag)] for tag in hub_names.PREFERRED
            )
            found = next((one for one in wanted if len(one) == 1), found)
        if len(found) > 1:
            raise BadInput(f"{name} may be {', '.join(model.name for model in found)}; give the whole name")
        return found[0].paths[0] if found else None

    def matching(self, name: str) -> list[Stored]:
        """Models that a name may refer to; exact matches exclude all others."""
        match = hub_names.NAME.fullmatch(name)
        plain, tag = hub_names.parse(name, None) if match else (name.partition(":")[0], name.partition(":")[2])
        tag = "" if tag == "latest" else tag
        models = self.models()
        plain = plain.lower() if tag else plain.lower().removesuffix(".gguf")
        exact = [model for model in models if model.name.lower() == plain] if not tag else []
        if exact or not plain:
            return exact
        found = []
        for model in models:
            *folders, file = model.name.lower().split("/")
            repository = "/".join(folders[:2])
            names = {repository, *folders[1:2], *(one.removesuffix("-gguf") for one in folders[1:2])} - {""}
            if not tag:
                names.add(file)
            if plain in names and (not tag or hub_names.is_meant("/".join([*folders[2:], f"{file}.gguf"]), tag)):
                found.append(model)
        return found

    def file(self, name: str, file: str) -> Path | None:
        """Path of a repository's file; None if any of its parts is missing."""
        paths = self._places(hub_names.parse(name, file)[0], file)
        return paths[0] if all(path.exists() for path in paths) else None

    def pull(
        self,
        name: str,
        repository: "Callable[[str], Repository]",
        progress: "Callable[[RemoteFile], Progress]",
        file: str | None = None,
        room: Callable[[int], None] | None = None,
        *,
        projector: bool = True,
    ) -> Path:
        """Path of the model with a hub name, or of OWNER/NAME and a file; downloads missing parts.

        `progress` takes a file and returns its progress callback. `room` gets the number of bytes to download, and may
        refuse them. With `projector`, a projector for images or sounds that the repository has for the model is
        downloaded into its folder, too.
        """
        owned, tag = hub_names.parse(name, file)
        source = repository(owned)
        every = source.files()
        files = {path: found for path, found in every.items() if hub_names.is_model(path)}
        if file is None:
            file = hub_names.choose(owned, sorted(files), tag)
        elif file not in files:
            raise BadInput(f"{owned} has no file {file}; it has {', '.join(sorted(files)) or 'no GGUF files'}")
        paths, parts = self._places(owned, file), hub_names.parts(file)
        for part in parts:  # check all before downloading the first
            if part not in files:
                raise BadInput(f"{owned} has no {part}: the model is incomplete there; choose another file")
        wanted = [(files[part], path) for part, path in zip(parts, paths, strict=True)]
        extra = projector_in(every, file) if projector else None
        if extra is not None:
            wanted.append((every[extra], paths[0].with_name(hub_names.steps(extra)[-1])))
        missing = [(one, path) for one, path in wanted if not path.exists()]
        if room is not None:
            room(sum(max(0, one.nbytes - _nbytes(path.with_name(f"{path.name}.part"))) for one, path in missing))
        for one, path in missing:
            source.download(one, path, progress(one))
        return paths[0]

    def _places(self, repository: str, file: str) -> list[Path]:
        """Local paths of the parts of a repository's file."""
        return [self.folder.joinpath(repository, *hub_names.steps(part)) for part in hub_names.parts(file)]

    def remove(self, name: str) -> Stored:
        """Deletes a model, complete or partly downloaded; with the last one of a folder, its projectors, too."""
        found = self.matching(name)
        if len(found) != 1:
            several = f"may be {', '.join(model.name for model in found)}; give the whole name"
            raise BadInput(f"{name} {several if found else 'is not a model of `rwkv-gpu list`'}")
        gone = found[0]
        shared = any(one.projectors == gone.projectors for one in self.models() if one.name != gone.name)
        paths = gone.paths if shared else (*gone.paths, *gone.projectors)
        nbytes = sum(map(_nbytes, paths))
        for path in paths:
            lock = path.with_name(path.name.removesuffix(".part"))  # a download may be in progress
            with suppress(FileNotFoundError), WriterLock(lock):  # another process may have deleted it
                path.unlink()
        for folder in gone.paths[0].relative_to(self.folder).parents[:-1]:
            with suppress(OSError):  # the folder may contain other files
                (self.folder / folder).rmdir()
        return replace(gone, nbytes=nbytes)

    def copy(self, paths: Sequence[Path], name: str) -> None:
        """Gives a model another name. The new files are hard links, which take no disk space."""
        plain = own_name(name)
        if self.matching(f"{plain}.gguf"):
            raise BadInput(f"there is a model {plain} already; delete it, or give another name")
        made: list[Path] = []
        try:
            for path in paths:
                part = hub_names.PART.search(path.name)
                target = self.folder / f"{plain}{part[0] if part else SUFFIX if is_preset(path) else '.gguf'}"
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)
                made.append(target)
        except OSError as error:
            for target in made:
                target.unlink(missing_ok=True)
            raise BadInput(f"{plain} cannot be created in {self.folder}: {error.strerror}") from None

    def preset_path(self, name: str) -> Path:
        """The file of a preset with this name.

        Raises BadInput if a model has the name, or if the name is not allowed.
        """
        plain = own_name(name)
        if any(not is_preset(model.paths[0]) for model in self.matching(f"{plain}.gguf")):
            raise BadInput(f"there is a model {plain} already; delete it, or give another name")
        return self.folder / f"{plain}{SUFFIX}"

    @property
    def nbytes(self) -> int:
        """Bytes of all files in the folder; a file with several names counts once."""
        found = {}
        for path in self.folder.rglob("*"):
            try:
                status = path.stat()
            except OSError:  # deleted meanwhile
                continue
            if path.is_file():
                found[status.st_dev, status.st_ino] = status.st_size
        return sum(found.values())

    def name_of(self, path: Path) -> str:
        """The name of the model to which a file of the folder belongs."""
        name = path.relative_to(self.folder).as_posix().removesuffix(".part")
        return hub_names.PART.sub("", name).removesuffix(".gguf").removesuffix(SUFFIX)


def own_name(name: str) -> str:
    """A name that a user gives to a copy or a preset, without :latest. Raises BadInput if the name is not allowed."""
    plain = name.removesuffix(":latest").removesuffix(".gguf")
    if not COPY.fullmatch(plain) or len(plain) > LONGEST or hub_names.PART.search(f"{plain}.gguf"):
        raise BadInput(f"{name[:100]!r} is not a name for a model; give letters, digits, -, _ and ., such as my-model")
    return plain


def _stored(name: str, paths: list[Path], projectors: Sequence[Path]) -> Stored:
    first = paths[0].name.removesuffix(".part")
    complete = {path.name for path in paths} == set(hub_names.parts(first))
    nbytes = sum(map(_nbytes, paths))
    return Stored(name, tuple(paths), nbytes, complete, tuple(projectors))


def _nbytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
