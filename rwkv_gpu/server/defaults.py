"""Defaults of answers if a request does not set them: settings, reasoning and a system prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.preset import Preset

NOTHING = Preset("")


@dataclass(frozen=True)
class Defaults:
    """Defaults for all models, and for single models.

    A preset overrides the defaults for all models. The defaults of a single model override its preset.
    """

    of_all: Preset = NOTHING
    of_models: Mapping[str, Preset] = field(default_factory=dict)  # by name or alias of a model

    def apply(self, llm: LLM, path: str, names: tuple[str, ...]) -> None:
        """Gives a loaded model its defaults."""
        named = [self.of_models[name] for name in names if name in self.of_models]
        if not named and self.of_all == NOTHING:
            return
        llm.preset = (llm.preset or Preset(Path(path).name)).over(self.of_all)
        for preset in named:
            llm.preset = preset.over(llm.preset)
