"""Models by their names on the Hugging Face hub: `hf.co/OWNER/NAME:Q4_K_M`, or a repository and a file in it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadInput, MissingExtra

NAME = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/([\w.-]+/[\w.-]+)(?::([\w.-]+))?/?", re.ASCII)
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")  # where nobody says which
PATIENCE = 5.0  # seconds that the hub has to answer
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def is_hub_name(path: object) -> bool:
    """Whether it names a repository of the hub, and no file here."""
    return isinstance(path, str) and NAME.fullmatch(path) is not None


def find(name: str, file: str | None = None) -> Path:
    """Where the model's file lies here; it is downloaded to the hub's own cache where it is not there yet."""
    match = NAME.fullmatch(name)
    repository, quantisation = match.groups() if match else (name, None)
    if not REPOSITORY.fullmatch(repository):
        raise BadInput(f"{name!r} names no repository of the hub; give OWNER/NAME, or hf.co/OWNER/NAME:Q4_K_M")
    if file is not None and quantisation is not None:
        raise BadInput(f"{name} says which file by {quantisation}, and file is {file!r}; give one of them")
    hub = _library()
    try:
        names = _names(hub, repository)
        chosen = choose(repository, names, quantisation) if file is None else _check(repository, names, file)
        paths = [Path(hub.hf_hub_download(repository, part, etag_timeout=PATIENCE)) for part in parts(chosen)]
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  the hub raises what its HTTP library and the disk do, too
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(
            f"cannot get {repository} from the Hugging Face hub: {reason}; check its name and the network, "
            "or give the path of a file"
        ) from None
    return paths[0]


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("models by their hub names need huggingface_hub: pip install 'rwkv-gpu[hub]'") from None
    return huggingface_hub


def _names(hub: Any, repository: str) -> list[str]:
    """The GGUF files of a repository; without a network, those that were downloaded before."""
    try:
        found = [one.rfilename for one in hub.HfApi().model_info(repository, timeout=PATIENCE).siblings]
    except Exception as error:  # noqa: BLE001  raised again, unless it is here already
        try:
            folder = Path(hub.snapshot_download(repository, local_files_only=True))
        except Exception:  # noqa: BLE001  then nothing of it is here, and the first error says why
            raise error from None
        found = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    return sorted(name for name in found if name.endswith(".gguf") and "mmproj" not in name)


def has_quantisation(name: str, wanted: str) -> bool:
    """Whether the name of a file says that it is of this quantisation."""
    return re.search(rf"(?:^|[-._/]){re.escape(wanted)}(?=[-./])", name, re.IGNORECASE) is not None


def choose(repository: str, names: Sequence[str], quantisation: str | None) -> str:
    """The file of a quantisation; of a file in parts, the first."""
    if not names:
        raise BadInput(f"{repository} has no GGUF files; give a repository that has")
    first = [name for name in names if (part := PART.search(name)) is None or part[1] == "00001"]
    for wanted in [quantisation] if quantisation else PREFERRED:
        found = [name for name in first if has_quantisation(name, wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(f"{repository} has several files of {wanted}: {', '.join(found)}; name one by file=")
    if quantisation is None and len(first) == 1:
        return first[0]
    asked = f"no file of {quantisation}" if quantisation else "files of several kinds"
    raise BadInput(f"{repository} has {asked}; it has {', '.join(first)}; name one by file=")


def _check(repository: str, names: Sequence[str], file: str) -> str:
    if file not in names:
        raise BadInput(f"{repository} has no file {file}; it has {', '.join(names) or 'no GGUF files'}")
    return file


def parts(name: str) -> list[str]:
    """All files that a model is in, the first of them first."""
    part = PART.search(name)
    if part is None:
        return [name]
    return [f"{name[: part.start()]}-{at:05}-of-{part[2]}.gguf" for at in range(1, int(part[2]) + 1)]
