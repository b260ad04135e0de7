"""Names of models on the Hugging Face hub, `hf.co/OWNER/NAME:Q4_K_M`, and which files of a repository they mean."""

import re
from collections.abc import Sequence

from ..errors import BadInput

NAME = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/([\w.-]+/[\w.-]+)(?::([\w.-]+))?/?", re.ASCII)
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")  # where nobody says which
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def is_hub_name(path: object) -> bool:
    """Whether it names a repository of the hub, and no file here."""
    return isinstance(path, str) and NAME.fullmatch(path) is not None


def parse(name: str, file: str | None) -> tuple[str, str | None]:
    """The repository that a name means, and the quantisation; beside a file it is the repository alone."""
    match = NAME.fullmatch(name) or (NAME.fullmatch(f"hf.co/{name}") if file is not None else None)
    if match is None:
        raise BadInput(f"{name!r} names no model of the hub; give hf.co/OWNER/NAME:Q4_K_M, or OWNER/NAME and a file")
    if file is not None and match[2]:
        raise BadInput(f"{name} says which file by {match[2]}, and file is {file!r}; give one of them")
    return match[1], match[2]


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


def parts(name: str) -> list[str]:
    """All files that a model is in, the first of them first."""
    part = PART.search(name)
    if part is None or not int(part[2]):
        return [name]
    return [f"{name[: part.start()]}-{at:05}-of-{part[2]}.gguf" for at in range(1, int(part[2]) + 1)]
