"""This user's cache folder, and its models."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.folders import default_folder
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.hub_names import ENDPOINT
from rwkv_gpu.llm.store import Store

from .echo import CONTROLS

# Values of options that commands with models share.
YES, CATALOGUE, MMPROJ, NO_MMPROJ = (f"rwkv_gpu.{name}" for name in ("yes", "catalogue", "mmproj", "no_mmproj"))
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


def cache_folder() -> Path:
    """The system's usual cache folder, or RWKV_GPU_CACHE."""
    if named := os.environ.get("RWKV_GPU_CACHE"):
        return Path(named)
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "rwkv-gpu" / "cache"
    if sys.platform not in ("win32", "darwin") and (caches := os.environ.get("XDG_CACHE_HOME")):
        return Path(caches) / "rwkv-gpu"
    return default_folder()


def tuned_folder() -> Path:
    """Where `rwkv-gpu tune` saves its results, and verdicts on drivers are kept."""
    return cache_folder() / "tuned"


def models_folder() -> Path:
    """The folder where `rwkv-gpu pull` stores models."""
    return cache_folder() / "models"


def store() -> Store:
    """The folder of models."""
    return Store(models_folder())


def hub(**options: Any) -> Hub:
    """The hub that the environment names, with the access token."""
    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    options = {"catalogue": chosen(CATALOGUE), "projectors": not (chosen(MMPROJ) or chosen(NO_MMPROJ)), **options}
    return Hub(models_folder(), endpoint, os.environ.get("HF_TOKEN"), **options)


def pull(name: str, **options: Any) -> str:
    """Path of a model on the hub; downloads it with a bar if missing. The options are those of `Hub`."""
    from .bars import download_bar  # not needed to look up a name
    from .screen import Screen

    with download_bar(Screen()) as bar:
        return str(hub(progress=lambda file, done, total: bar.update(done, total, file), **options).pull(name))
