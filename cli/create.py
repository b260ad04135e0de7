"""`rwkv-gpu create`: gives a new name to a model with a system prompt, settings and a template."""

from pathlib import Path

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.modelfile import parse
from rwkv_gpu.llm.preset import Preset, write_preset
from rwkv_gpu.llm.preset_check import base_path, check_preset, preset_of

from .folders import store
from .model_name import AdapterName, FileName, ModelName, naming_options
from .options import adapter
from .page import Page
from .printing import print_text
from .replacing import may_replace
from .texts import MAX_SETTING, read_text


@click.command("create", cls=Page, epilog="Example: rwkv-gpu create mario -f Modelfile; rwkv-gpu run mario")
@click.argument("name", metavar="NAME")
@click.option("-f", "--file", "path", type=FileName(), default="Modelfile", show_default=True, help="The Modelfile.")
@naming_options
def command(name: str, path: str) -> None:
    """Create the preset NAME from an ollama Modelfile: a model with a system prompt, settings, template and adapters.

    All commands, the library and the server know the name. Instructions are FROM (a name, a GGUF file, or a checkpoint
    that `rwkv-gpu convert` reads), SYSTEM, PARAMETER, TEMPLATE (in Go or jinja2), ADAPTER (FILE or FILE:SCALE), MESSAGE
    and LICENSE. `rwkv-gpu rm NAME` deletes the preset, but not the model.
    """
    file, folder = parse(read_text(path, MAX_SETTING), path), Path(path).parent
    target = store().preset_path(name)
    base = base_preset(_near(file.base, folder))
    preset = Preset.of(file, base, [_adapter(one, folder) for one in file.adapters])
    check_preset(preset, base_path(preset))
    if not may_replace(target):
        raise click.exceptions.Exit(1)
    write_preset(target, preset)
    for what in file.ignored:
        print_text(f"rwkv-gpu: {what} has no effect here", err=True)
    print_text(f"created {name}; `rwkv-gpu run {name}` chats with it", err=True)


def base_preset(name: str) -> Preset:
    """The preset with a name; for a plain model, a preset with the model only."""
    path = ModelName.path(name)
    if path is None or not Path(path).exists():
        raise BadInput(f"{name}: No such file")
    return preset_of(path)


def _adapter(text: str, folder: Path) -> tuple[str, float]:
    """The path of a LoRA adapter and its scale: FILE or FILE:SCALE"""
    near = _near(text, folder)
    name, scale = (near, 1.0) if near != text else adapter(text)
    return str(Path(AdapterName.path(_near(name, folder))).resolve()), scale


def _near(name: str, folder: Path) -> str:
    """A path relative to the Modelfile's folder; other names are unchanged."""
    return str(folder / name) if (folder / name).exists() else name
