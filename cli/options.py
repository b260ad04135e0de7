"""Options and arguments that several commands share."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from rwkv_gpu.builtin import builtin_model


def numbers(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"'{text}' is no list of whole numbers like 1,4,16")
    return [int(part) for part in parts]


def chunk_size(text: str) -> int | Literal["auto"]:
    """A number of tokens, or auto."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 16:
        raise click.BadParameter(f"'{text}' is neither auto nor a whole number from 1 to {1 << 16}")
    return int(text)


device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cpu|INDEX|NAME",
    help="The GPU to run on: an index or a part of a name from `rwkv-gpu devices`, or cpu for numpy.",
)

chunk_option = click.option(
    "--chunk-size",
    type=chunk_size,
    default="512",
    show_default=True,
    metavar="N|auto",
    help="Prompt tokens in one step; auto is what `rwkv-gpu tune` found.",
)

context_option = click.option(
    "--context",
    type=click.IntRange(1),
    help="Tokens that a sequence may have, for transformers: as many as trained on, but 4096 at most by default.",
)

kv_option = click.option(
    "--kv",
    type=click.Choice(["f16", "f32"]),
    default="f16",
    show_default=True,
    help="How keys and values are stored, for transformers.",
)


def opening_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of how a model is opened; the function gets them as one dict, `opening`."""

    @functools.wraps(function)
    def collected(
        *given: Any, device: str, chunk_size: int | Literal["auto"], context: int | None, kv: str, **more: Any
    ) -> Any:
        opening = {"device": device, "chunk_size": chunk_size, "context": context, "kv": kv}
        return function(*given, opening=opening, **more)

    for option in (device_option, kv_option, context_option, chunk_option):
        collected = option(collected)
    return collected


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

BUILTIN = "builtin"  # the name of the model that comes with the package


class FileName(click.ParamType[str]):
    """A path, as it was typed: whether the file exists and what it is, the library says, the same on every way in."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="file")]


class ModelName(FileName):
    """The path of a model; `builtin` is the one in the package."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(builtin_model()) if value == BUILTIN else str(value)


model_argument = click.argument("model", metavar="MODEL.gguf", type=ModelName())
model_or_builtin = click.argument("model", metavar="[MODEL.gguf]", type=ModelName(), default=BUILTIN)

synthetic_option = click.option(
    "--synthetic", metavar="NAME", help="Random weights of a true shape, such as rwkv7-2.9b-q4_k_m, in place of a file."
)
