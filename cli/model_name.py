"""Names of files and models on the command line."""

import os
from typing import Any

import click
from click.shell_completion import CompletionItem

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.llm.hub_names import is_hub_name

from .folders import pull, store

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
        return pull(name) if is_hub_name(name) else name


def looks_like_model(argument: str, *, exists: bool = True) -> bool:
    """True if an argument names a model: `builtin`, *.gguf, a hub name, and by default an existing path."""
    if argument == BUILTIN or argument.lower().endswith(".gguf") or is_hub_name(argument):
        return True
    return exists and (os.path.exists(argument) or bool(store().matching(argument)))
