"""Presets and the files of their models: makes a preset of a model, and checks one before it is written."""

from pathlib import Path

from ..builtin import builtin_model
from ..engine.adapters import adapters_of
from ..errors import BadInput
from ..gguf.file import GGUFFile
from ..models.registry import load_generator
from ..text.template import ChatTemplate
from .hub_names import BUILTIN, is_preset
from .preset import Preset, read_preset


def preset_of(path: str) -> Preset:
    """The preset in a file, or that of a model alone."""
    if is_preset(path):
        return read_preset(path)
    return Preset(BUILTIN if path == BUILTIN or Path(path) == builtin_model() else str(Path(path).resolve()))


def base_path(preset: Preset) -> Path:
    """The file of a preset's model, which is a path or `builtin`."""
    return builtin_model() if preset.base == BUILTIN else Path(preset.base)


def check_preset(preset: Preset, base: Path) -> None:
    """Raises an error if the model cannot generate, an adapter does not fit it, or the template is wrong."""
    with GGUFFile.open(base) as file:
        load_generator(file)
        adapters_of([*preset.adapters], file)
        if preset.template is not None:
            template = ChatTemplate.from_metadata(file.metadata, name=preset.template)
            if not template.render([{"role": "user", "content": "a-question"}]).count("a-question"):
                raise BadInput("the template leaves out the user's message")
