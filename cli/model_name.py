"""Names of files and models on the command line."""

import os
import re
import shlex
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.llm.hub_names import BUILTIN, is_hub_name, is_path, is_preset
from rwkv_gpu.llm.preset import read_preset
from rwkv_gpu.measure.sizes import sized

from .folders import agreed, header, hub, pull, store
from .printing import print_text

# Neither spaces nor punctuation of sentences, and at least one digit, slash or colon.
NAME_FORM = re.compile(r"(?=.*[/\\:0-9])[A-Za-z./\\~][\w./\\:+~-]*\w", re.ASCII)
TYPOS = ".ggu", ".guf"
OTHER_FILES = ".safetensors", ".pth", ".pt", ".st", ".prefab", ".bin", ".ckpt", ".ggml", ".onnx", *TYPOS
Command = Callable[..., Any]


class FileName(click.ParamType[str]):
    """A path as typed. The library checks the file, in the same way for every caller."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="file")]


class ModelName(FileName):
    """The path of a model, a short name, the name of a preset, a pulled model or one on the hub, or `builtin`."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [entry.name for entry in hub().names.entries if incomplete and entry.name.startswith(incomplete)]
        return [*super().shell_complete(ctx, param, incomplete), *map(CompletionItem, names)]

    @staticmethod
    def file(name: str | None, *, weights: bool = True) -> str | None:
        """The GGUF file with that name; for a preset, the file of its model."""
        path = ModelName.path(name, weights=weights)
        return ModelName.path(read_preset(path).base) if path is not None and is_preset(path) else path

    @staticmethod
    def path(name: str | None, agree: Callable[[str, str], bool] = agreed, *, weights: bool = True) -> str | None:
        """The file with that name. A checkpoint is converted once. A model on the hub is pulled if missing.

        One with a short name is pulled after a question, which `agree` asks. Without `weights`, a missing model is not
        pulled; the path is that of a copy that has only the header.
        """
        if name == BUILTIN:
            return str(builtin_model())
        if name is None:
            return None
        here = hub()
        found = here.locate(name)
        if isinstance(found, str) and not weights:
            try:
                return header(found)
            except BadInput as error:
                estimate = f"; `rwkv-gpu models {name}` has an estimate" if is_short(name) else ""
                raise BadInput(f"{error}{estimate}") from None
        if isinstance(found, str):
            return pull(found) if is_hub_name(name) else offer(name, found, agree)
        if found is None and not is_path(name):
            raise here.unknown(name)
        if found is None:
            return name  # loading will report what is wrong with the path
        if is_preset(found):
            ModelName.path(read_preset(found).base, agree)  # pulls the preset's model if missing
            return str(found)
        from .converted import converted  # not needed to look up a name

        return converted(str(found))


class AdapterName(FileName):
    """The path of a LoRA adapter, or the name of one that was pulled or is on the hub."""

    @staticmethod
    def path(name: str) -> str:
        """The file with that name. An adapter on the hub is pulled if missing."""
        if os.path.exists(name) or is_path(name):
            from .converted import converted  # not needed to look up a name

            return converted(name, adapter=True)
        found = store().find(name)
        if found is None and not is_hub_name(name):
            raise BadInput(f"no LoRA adapter {shown(name)}: give a GGUF file, or a name of `rwkv-gpu list` or the hub")
        return pull(name) if found is None else str(found)


def offer(name: str, hub_name: str, agree: Callable[[str, str], bool]) -> str:
    """Pulls a model if the user agrees: with --yes, or when asked."""
    entry = hub().names.entry(name)
    size = sized(entry.nbytes) if entry is not None and entry.hub_name == hub_name else ""
    what = f"{hub_name}{size and f', {size}'}"
    refusal = f"{name} is not downloaded yet ({what}): `rwkv-gpu pull {shlex.quote(name)}` downloads it, and so does -y"
    if not agree(f"{name} is not downloaded yet. Download {size or 'it'} from {hub_name.partition(':')[0]}?", refusal):
        raise click.exceptions.Exit(1)
    print_text(f"rwkv-gpu: downloading {what}", err=True)
    return pull(hub_name)


def _remembered(name: str, *flags: str, **more: Any) -> Callable[[Command], Command]:
    """Defines an option that is not passed to commands; they read it by `chosen`."""
    return click.option(*flags, name, expose_value=False, callback=remember, **more)


def remember(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Stores the value of an option for `chosen`."""
    ctx.meta[f"rwkv_gpu.{option.name}"] = value
    return value


catalogue_option = _remembered(
    "catalogue", "--catalogue", metavar="FILE|URL", help="Additional short names of models, in TOML."
)


def yes_option(text: str = "Download a missing model without asking.") -> Callable[[Command], Command]:
    """The option that answers each question with yes."""
    return _remembered("yes", "-y", "--yes", is_flag=True, help=text)


def naming_options(function: Command) -> Command:
    """Adds the options about names of models."""
    return yes_option()(catalogue_option(function))


def could_be_model(argument: str) -> bool:
    """True if an argument has the form of a model's name: llama3.2, qwen3:4b, owner/name, ./file."""
    if looks_like_model(argument) or is_short(argument) or NAME_FORM.fullmatch(argument):
        return True
    return argument.lower().endswith(OTHER_FILES) or hub().names.resembles(argument)


def is_short(argument: str) -> bool:
    """True if the catalogue has this name."""
    return hub().names.hub_name(argument) is not None


def looks_like_model(argument: str, *, exists: bool = True) -> bool:
    """True if an argument names a model: `builtin`, *.gguf, a hub name, and by default an existing path."""
    if argument == BUILTIN or argument.lower().endswith(".gguf") or is_hub_name(argument):
        return True
    return exists and (os.path.exists(argument) or bool(store().matching(argument)))
