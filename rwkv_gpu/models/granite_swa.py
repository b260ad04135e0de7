"""Granite with windows: attention sinks, and layers that the file names see a window, or do not turn."""

from dataclasses import replace

from ..gguf.file import GGUFFile
from .dense import DenseFile, build
from .granite import granite_form
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures
from .transformer import Transformer

ARCH, PERIOD = "granite_swa", 4  # layers from one that sees all to the next, the first


def load(file: GGUFFile) -> Transformer | MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    rope, turns = source.rope("normal"), source.flags("attention.rope_pattern", default=True)
    form = replace(
        granite_form(source),
        ropes=[rope if turn else None for turn in turns],
        windows=source.windows(PERIOD, full_first=True),
        sinks="all",
    )
    if file.int(f"{ARCH}.expert_count", default=0):
        return build_mixtures(source, form, ExpertForm(normalise=True, shared=None))
    return build(source, form)
