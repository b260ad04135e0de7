"""Names of files and models on the command line."""

import os
import re
from typing import Any

import click
from click.shell_completion import CompletionItem

from rwkv_gpu.builtin import builtin_model

HUB = re.compile(r"(https?://)?(hf\.co|huggingface\.co)/")
BUILTIN = "builtin"  # the model that comes with the package


class FileName(click.ParamType[str]):
    """A path as typed. The library checks what the file is, the same for every caller."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="file")]


class ModelName(FileName):
    """The path of a model, `builtin`, or a name of the Hugging Face hub such as hf.co/OWNER/NAME:Q4_K_M."""

    name = "model"

    @staticmethod
    def path(name: str | None) -> str | None:
        """The file of that name; one of the hub is downloaded at first use."""
        if name is not None and HUB.match(name):
            from rwkv_gpu.llm import hub

            return str(hub.find(name))
        return str(builtin_model()) if name == BUILTIN else name


def looks_like_model(argument: str, *, exists: bool = True) -> bool:
    """Whether an argument names a model: `builtin`, any *.gguf, hf.co/..., and by default any path that exists."""
    if argument == BUILTIN or argument.lower().endswith(".gguf") or HUB.match(argument):
        return True
    return exists and os.path.exists(argument)
