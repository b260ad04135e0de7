"""Names of models on the Hugging Face hub, `hf.co/OWNER/NAME:Q4_K_M`, and the files that they refer to.

After the colon comes a quantisation, or a file of the repository: `hf.co/OWNER/NAME:model-Q4_K_M.gguf`. The URL of a
file, or of its page, is a name too.
"""

import os
import re
from collections.abc import Sequence

from ..errors import BadInput

BUILTIN = "builtin"  # the name of the model that ships with the package
FILE = r"[\w.+-]+(?:/[\w.+-]+)*"
NAME = re.compile(
    r"(?:(?:https?://)?(?:hf\.co|huggingface\.co)/|hf://)(?P<repository>[\w.-]+/[\w.-]+)"
    rf"(?::(?P<tag>{FILE})|/tree/main|/(?:blob|resolve)/main/(?P<file>{FILE}\.gguf)(?:\?.*)?)?/?",
    re.ASCII,
)
LIBRARY = re.compile(r"(?:https?://)?(?:(?:registry\.)?ollama\.(?:com|ai)/)?library/", re.ASCII)  # Ollama's
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")  # the first available is chosen if none is given
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
ENDPOINT = "https://huggingface.co"
SUFFIX = ".preset.json"  # end of the names of preset files
NOT_MODELS = "mmproj", "imatrix", "mtp-", "eagle3-", "dflash-"  # mark files that accompany models but are not models


def is_preset(path: str | os.PathLike[str]) -> bool:
    """True for the path of a preset's file."""
    return os.fspath(path).endswith(SUFFIX)


def is_hub_name(path: object) -> bool:
    """True if it names a hub repository, and no local file."""
    return isinstance(path, str) and NAME.fullmatch(path) is not None


def is_path(name: str) -> bool:
    """True if it has the form of a path, not of a model's name: ./models/a, a/b/c, a.gguf, a/b if a is a folder."""
    if is_hub_name(name) or LIBRARY.match(name):
        return False
    steps = re.split(r"[/\\]", name) if os.sep == "\\" else name.split("/")
    named = len(steps) == 2 and steps[0] not in ("", ".", "..", "~") and not os.path.isdir(steps[0])
    return name.lower().endswith(".gguf") or (len(steps) > 1 and not named)


def parse(name: str, file: str | None) -> tuple[str, str | None]:
    """Splits a name into repository and quantisation; with `file`, the name is the repository only."""
    match = NAME.fullmatch(name) or (NAME.fullmatch(f"hf.co/{name}") if file is not None else None)
    if match is None:
        raise BadInput(f"{name!r} names no model of the hub; give hf.co/OWNER/NAME:Q4_K_M, or OWNER/NAME and a file")
    tag = match["tag"] or match["file"]
    if file is not None and tag:
        raise BadInput(f"{name} says which file by {tag}, and file is {file!r}; give one of them")
    return match["repository"], None if tag == "latest" else tag


def is_model(path: str) -> bool:
    """True if a repository's file is a language model, or a part of one."""
    return path.endswith(".gguf") and not any(one in path.rpartition("/")[2] for one in NOT_MODELS)


def steps(path: str) -> list[str]:
    """The folders and name of a file within its repository, for any hub URL scheme."""
    return [step for step in re.split(r"[/\\:]", path) if step not in ("", ".", "..")]


def is_meant(name: str, tag: str) -> bool:
    """True if a tag refers to a file, by quantisation or by file name."""
    if tag.lower().endswith(".gguf"):
        own, wanted = (PART.sub(".gguf", one).lower() for one in (name, tag))
        return f"/{own}".endswith(f"/{wanted}")
    return re.search(rf"(?:^|[-._/]){re.escape(tag)}(?=[-./])", name, re.IGNORECASE) is not None


def choose(repository: str, names: Sequence[str], tag: str | None) -> str:
    """The file that a tag refers to; for a split file, the first part."""
    if not names:
        raise BadInput(f"{repository} has no GGUF files; give a repository that has some")
    remedy = f"name one, such as hf.co/{repository}:{names[0]}"
    first = [name for name in names if (part := PART.search(name)) is None or part[1] == "00001"]
    for wanted in [tag] if tag else PREFERRED:
        found = [name for name in first if is_meant(name, wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(f"{repository} has several files of {wanted}: {', '.join(found)}; {remedy}")
    if tag is None and len(first) == 1:
        return first[0]
    asked = f"no file of {tag}" if tag else "files of several kinds"
    raise BadInput(f"{repository} has {asked}; it has {', '.join(first)}; {remedy}")


def parts(name: str) -> list[str]:
    """All files of a split model, in order."""
    part = PART.search(name)
    if part is None or not int(part[2]):
        return [name]
    return [f"{name[: part.start()]}-{at:05}-of-{part[2]}.gguf" for at in range(1, int(part[2]) + 1)]
