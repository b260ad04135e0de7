"""The architectures that are known: what a GGUF file calls each, and what makes the model of it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, State, Tensor, Weight
from . import ernie4_5, llama, qwen2, qwen3, qwen3moe, rwkv7
from .unsupported import refusal


class Model(Protocol):
    """What the rest of the package knows of a model."""

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""

    @property
    def weights(self) -> Sequence[Weight]:
        """Every parameter it names: tensors of the file, and what is to be joined of them."""

    @property
    def states(self) -> Sequence[State]:
        """What a sequence carries from step to step."""

    @property
    def caches(self) -> Sequence[Cache]:
        """The keys and values that a sequence leaves behind in pages."""

    @property
    def context(self) -> int | None:
        """The positions that it was trained on, where these are a limit."""

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The logits of the rows that they are asked for, [R, V]"""

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """What the head makes logits of, [R, D]"""


MODELS: dict[str, Callable[[GGUFFile], Model]] = {
    "ernie4_5": ernie4_5.load,
    "llama": llama.load,
    "qwen2": qwen2.load,
    "qwen3": qwen3.load,
    "qwen3moe": qwen3moe.load,
    "rwkv7": rwkv7.load,
}


def load_model(file: GGUFFile) -> Model:
    """The model that a file describes."""
    name = file.str("general.architecture")
    if name not in MODELS:
        raise refusal(file, name, list(MODELS))
    return MODELS[name](file)
