"""Names of files and models on the command line."""

import os
from typing import Any

import click
from click.shell_completion import CompletionItem

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.llm.hub_names import is_hub_name

from .folders import pull, store

BUILTIN = "builtin"  # the model that comes with the package


class FileName(click.ParamType[str]):
    """A path as typed. The library checks what the file is, the same for every caller."""

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
        """The file of that name. A model of the hub is pulled if it is not here yet."""
        if name == BUILTIN:
            return str(builtin_model())
        if name is None or os.path.exists(name):
            return name
        here = store().find(name)
        if here is not None:
            return str(here)
        return pull(name) if is_hub_name(name) else name


def looks_like_model(argument: str, *, exists: bool = True) -> bool:
    """Whether an argument names a model: `builtin`, any *.gguf or hub name, and by default what exists here."""
    if argument == BUILTIN or argument.lower().endswith(".gguf") or is_hub_name(argument):
        return True
    return exists and (os.path.exists(argument) or bool(store().matching(argument)))
