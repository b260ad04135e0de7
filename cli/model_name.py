"""Names of files and models on the command line."""

import difflib
import os
import re
from typing import Any

import click
from click.shell_completion import CompletionItem

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.llm.hub_names import REPOSITORY, is_hub_name

from .folders import pull, store

# No space, no mark of a sentence, and a digit, a slash or a colon in it.
NAME_FORM = re.compile(r"(?=.*[/\\:0-9])[A-Za-z./\\~][\w./\\:+~-]*\w", re.ASCII)
BUILTIN = "builtin"  # the model that ships with the package


class FileName(click.ParamType[str]):
    """A path as typed. The library checks the file, in the same way for every caller."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="file")]


class ModelName(FileName):
    """The path of a model, the name of one that was pulled or is on the hub, or `builtin`."""

    name = "model"

    @staticmethod
    def path(name: str | None) -> str | None:
        """The file with that name. A model on the hub is pulled if missing."""
        if name == BUILTIN:
            return str(builtin_model())
        if name is None or os.path.exists(name):
            return name
        here = store().find(name)
        if here is not None:
            return str(here)
        if is_hub_name(name):
            return pull(name)
        if name.lower().endswith(".gguf") or name[:1] in "./~" or os.sep in name[:3]:
            return name  # a path: loading says what is wrong with it
        raise BadInput(f"no model {shown(name)}: {_remedy(name)}")


def _remedy(name: str) -> str:
    """What to do about a name that no model here has."""
    pulled = {part.removesuffix("-GGUF").lower(): part for one in store().models() for part in one.name.split("/")[1:]}
    near = difflib.get_close_matches(name.lower(), pulled, 1)
    if near:
        return (
            f"did you mean {pulled[near[0]].removesuffix('-GGUF')}? `rwkv-gpu list` shows the models that were pulled"
        )
    if REPOSITORY.fullmatch(name.partition(":")[0]):
        return f"for the one on the hub give hf.co/{name}"
    return "`rwkv-gpu pull hf.co/OWNER/NAME:Q4_K_M` pulls one, `rwkv-gpu list` shows those that were pulled"


def could_be_model(argument: str) -> bool:
    """Whether an argument has the form of a model's name: llama3.2, qwen3:4b, owner/name, ./file. Words do not."""
    return looks_like_model(argument) or NAME_FORM.fullmatch(argument) is not None


def looks_like_model(argument: str, *, exists: bool = True) -> bool:
    """True if an argument names a model: `builtin`, *.gguf, a hub name, and by default an existing path."""
    if argument == BUILTIN or argument.lower().endswith(".gguf") or is_hub_name(argument):
        return True
    return exists and (os.path.exists(argument) or bool(store().matching(argument)))
