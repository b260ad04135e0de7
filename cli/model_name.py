"""Names of files and models on the command line."""

import os
from typing import Any

import click
from click.shell_completion import CompletionItem

from rwkv_gpu.builtin import builtin_model

BUILTIN = "builtin"  # the model that comes with the package


class FileName(click.ParamType[str]):
    """A path as typed. The library checks what the file is, the same for every caller."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="file")]


class ModelName(FileName):
    """The path of a model, or `builtin`."""

    name = "model"

    @staticmethod
    def path(name: str | None) -> str | None:
        """The file of that name."""
        return str(builtin_model()) if name == BUILTIN else name


def looks_like_model(argument: str, *, exists: bool = True) -> bool:
    """Whether an argument names a model: `builtin`, any *.gguf, and by default any path that exists."""
    if argument == BUILTIN or argument.lower().endswith(".gguf"):
        return True
    return exists and os.path.exists(argument)
