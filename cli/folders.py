"""This user's models, and questions before they are downloaded."""

import sys
from typing import Any

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.folders import models_folder
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.store import Store

from .echo import CONTROLS

# Values of options that commands with models share.
YES, CATALOGUE, MMPROJ, NO_MMPROJ = (f"rwkv_gpu.{name}" for name in ("yes", "catalogue", "mmproj", "no_mmproj"))
HEADER = "rwkv_gpu.header"  # the name on the hub of the model of which only the header was read
CHOICE = len(" [Y/n]: ")  # width of the choice that is printed after a question


def chosen(option: str) -> Any:
    """The value of --yes or --catalogue of the running command; None outside a command."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(option)


def agreed(question: str, without_terminal: str, *, default: bool = True) -> bool:
    """Asks the user a question; True with --yes. Without a terminal, raises BadInput with `without_terminal`."""
    if chosen(YES):
        return True
    if not (sys.stdin and sys.stderr and sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(without_terminal)
    from .printing import rendered, terminal_width  # not needed to look up a name

    width = terminal_width(err=True)
    asked = question if width is None else rendered(question, max(1, width - CHOICE))
    return click.confirm(asked.translate(CONTROLS), default=default, err=True)


def store() -> Store:
    """The folder of models."""
    return Store(models_folder())


def hub(**options: Any) -> Hub:
    """The hub that the environment names, with the options of the running command."""
    options = {"catalogue": chosen(CATALOGUE), "projectors": not (chosen(MMPROJ) or chosen(NO_MMPROJ)), **options}
    return Hub(**options)


def header(name: str) -> str:
    """Path of a copy of a model on the hub without its weights. It is deleted at the end of the command."""
    from tempfile import TemporaryDirectory  # not needed to look up a name

    from .printing import print_text

    context = click.get_current_context()
    context.meta[HEADER] = name
    print_text(f"rwkv-gpu: {name} is not downloaded; only its header is read", err=True)
    return str(hub(folder=context.with_resource(TemporaryDirectory(prefix="rwkv-gpu-"))).header(name))


def pull(name: str, **options: Any) -> str:
    """Path of a model on the hub; downloads it with a bar if missing. The options are those of `Hub`."""
    from .bars import download_bar  # not needed to look up a name
    from .screen import Screen

    with download_bar(Screen()) as bar:
        return str(hub(progress=lambda file, done, total: bar.update(done, total, file), **options).pull(name))
