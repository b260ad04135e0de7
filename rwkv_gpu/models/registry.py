"""The supported architectures: their names in GGUF files, and the functions that load them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import BadInput
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, State, Tensor, Weight
from . import (
    arwkv7,
    bailingmoe3,
    deci,
    deepseek2,
    dense_families,
    encoders,
    falcon_h1,
    gemma3n,
    gemma4,
    granitehybrid,
    jamba,
    kimi_linear,
    lfm2,
    llama4,
    mamba,
    mamba2,
    minimax_01,
    mixture_families,
    nanbeige,
    nemotron_h,
    plamo2,
    qwen35,
    rwkv6,
    rwkv6qwen2,
    rwkv7,
    talkie,
)
from .half_files import refuse_half
from .layered import Layered
from .unsupported import refusal

ENCODER = "this model is an encoder: it makes embeddings of texts, and has no next tokens"


class Contents(Protocol):
    """What a model, or one part of it, has to keep in memory."""

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""

    @property
    def weights(self) -> Sequence[Weight]:
        """All its parameters: tensors of the file, and tensors joined from several."""

    @property
    def states(self) -> Sequence[State]:
        """The recurrent state of a sequence."""

    @property
    def caches(self) -> Sequence[Cache]:
        """The keys and values of a sequence, stored in pages."""

    @property
    def context(self) -> int | None:
        """The context length it was trained on, where that is a limit."""


class Model(Contents, Protocol):
    """A model, as the rest of the package uses it."""

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The logits of the requested rows, [R, V]"""

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, [R, D]"""


MODELS: dict[str, Callable[[GGUFFile], Model]] = {
    "arwkv7": arwkv7.load,
    "bailingmoe3": bailingmoe3.load,
    "deci": deci.load,
    "falcon-h1": falcon_h1.load,
    "gemma3n": gemma3n.load,
    "gemma4": gemma4.load,
    "granitehybrid": granitehybrid.load,
    "jamba": jamba.load,
    "kimi-linear": kimi_linear.load,
    "lfm2": lfm2.load,
    "lfm2moe": lfm2.load,
    "llama4": llama4.load,
    "mamba": mamba.load,
    "mamba2": mamba2.load,
    "minimax-01": minimax_01.load,
    "nanbeige": nanbeige.load,
    "nemotron_h": nemotron_h.load,
    "nemotron_h_moe": nemotron_h.load,
    "plamo2": plamo2.load,
    "qwen35": qwen35.load,
    "qwen35moe": qwen35.load,
    "qwen3next": qwen35.load,
    "rwkv6": rwkv6.load,
    "rwkv6qwen2": rwkv6qwen2.load,
    "rwkv7": rwkv7.load,
    "talkie": talkie.load,
    **dict.fromkeys(deepseek2.FORMS, deepseek2.load),
    **dict.fromkeys(encoders.FORMS, encoders.load),
    **dict.fromkeys(dense_families.FORMS, dense_families.load),
    **dict.fromkeys(mixture_families.FORMS, mixture_families.load),
}


def is_encoder(model: Contents) -> bool:
    """Whether it sees a whole text from both sides, or has no head: it makes embeddings, and generates nothing."""
    return isinstance(model, Layered) and not (model.ends.causal and model.ends.head)


def refuse_encoder(model: Contents) -> None:
    """For whoever wants next tokens."""
    if is_encoder(model):
        raise BadInput(ENCODER)


def load_model(file: GGUFFile) -> Model:
    """The model that a file describes."""
    refuse_half(file)
    name = file.str("general.architecture")
    if name not in MODELS:
        raise refusal(file, name, sorted(MODELS))
    return MODELS[name](file)


def load_generator(file: GGUFFile) -> Model:
    """The same, of one that generates; refuses others."""
    model = load_model(file)
    refuse_encoder(model)
    return model
