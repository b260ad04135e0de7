"""The supported architectures: their names in GGUF files, and the functions that load them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Protocol, cast

from ..errors import BadInput
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, Ops, State, Tensor, Weight
from .half_files import refuse_half
from .layered import Diffusion, Layered
from .unsupported import refusal

ENCODER = "this model is an encoder: it makes embeddings of texts, and has no next tokens"
DECIDES = "this model decides between options, and writes no text: use POST /v1/systemone, or decide() in Python"


class Contents(Protocol):
    """The weights, states and caches that a model, or a part of it, needs in memory."""

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""

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
        """The context length it was trained on; None if its length is unlimited."""


class Model(Contents, Protocol):
    """A model, as the rest of the package uses it."""

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The logits of the requested rows, [R, V]"""

    def hidden(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The input of the head for these rows, [R, D]"""


Loader = Callable[[GGUFFile], Model]

# The module of each architecture, and the modules whose FORMS name several.
MODULES = {
    "arwkv7": "arwkv7",
    "bailingmoe3": "bailingmoe3",
    "deci": "deci",
    "deepseek4": "deepseek4",
    "falcon-h1": "falcon_h1",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "granitehybrid": "granitehybrid",
    "glm5next": "glm5next",
    "graniteswitch": "granite_switch",
    "hrm_text": "hrm_text",
    "jamba": "jamba",
    "kimi-k3": "kimi_k3",
    "kimi-linear": "kimi_linear",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2",
    "llama4": "llama4",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "minimax-01": "minimax_01",
    "qwen4exp": "qwen4exp",
    "nanbeige": "nanbeige",
    "nemotron_h": "nemotron_h",
    "nemotron_h_moe": "nemotron_h",
    "plamo2": "plamo2",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "qwen3next": "qwen35",
    "rwkv4": "rwkv4",
    "rwkv6": "rwkv6",
    "rwkv6qwen2": "rwkv6qwen2",
    "rwkv7": "rwkv7",
    "t5": "t5",
    "talkie": "talkie",
}
ALIASES = {"glm5-next": "glm5next", "clef": "qwen35"}  # further names of architectures, and variants of them
OF_FORMS = "dense_families", "mixture_families", "deepseek2", "encoders"


class Architectures(Mapping[str, Loader]):
    """The function that loads a model, by architecture. Its module is imported when it is looked up."""

    def __getitem__(self, name: str) -> Loader:
        name = ALIASES.get(name, name)
        if name in MODULES:
            return cast(Loader, _module(MODULES[name]).load)
        for module in map(_module, OF_FORMS):
            if name in module.FORMS:
                return cast(Loader, module.load)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from MODULES
        for module in map(_module, OF_FORMS):
            yield from module.FORMS

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _module(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)


MODELS = Architectures()


def diffusion_of(model: Contents) -> Diffusion | None:
    """How a diffusion model generates; None for other models."""
    return model.ends.diffusion if isinstance(model, Layered) else None


def start_of(model: Contents) -> int | None:
    """The token before an answer of an encoder-decoder; None for all other models."""
    return model.ends.start if isinstance(model, Layered) else None


def reads_prompts_whole(model: Contents) -> bool:
    """True if the tokens of a prompt see all of it, so that one step must hold the prompt."""
    return isinstance(model, Layered) and model.ends.prefix


def refuse_source(model: Contents) -> None:
    """Refuses an encoder-decoder for uses in which tokens continue a text."""
    if start_of(model) is not None:
        raise BadInput("this is an encoder-decoder, whose answers do not continue a text; another model is needed")


def is_encoder(model: Contents) -> bool:
    """True if the model is an encoder: attention in both directions, or no output matrix."""
    if not isinstance(model, Layered) or model.ends.diffusion:
        return False
    return not (model.ends.causal and model.ends.head)


def reads_whole_texts(model: Contents) -> bool:
    """True if a step must hold a whole text or prompt: for all models that do not read it from left to right."""
    apart = diffusion_of(model) is not None or start_of(model) is not None
    return apart or (is_encoder(model) and not decides(model)) or reads_prompts_whole(model)


def decides(model: Contents) -> bool:
    """True if the model only decides between options: it reads from left to right, and has no output matrix."""
    return isinstance(model, Layered) and model.ends.causal and not model.ends.head


def refuse_encoder(model: Contents) -> None:
    """Refuses an encoder for uses that need next tokens."""
    if is_encoder(model):
        raise BadInput(DECIDES if decides(model) else ENCODER)


def load_model(file: GGUFFile) -> Model:
    """The model that a file describes."""
    refuse_half(file)
    name = file.str("general.architecture")
    try:
        load = MODELS[name]
    except KeyError:
        raise refusal(file, name, sorted(MODELS)) from None
    return load(file)


def load_next_token_model(file: GGUFFile) -> Model:
    """The model of a file that reads and generates token by token; refuses others, such as diffusion models."""
    model = load_generator(file)
    if diffusion_of(model):
        raise BadInput(f"{file.path}: this model generates by diffusion; one that generates token by token is needed")
    refuse_source(model)
    if reads_prompts_whole(model):
        raise BadInput(f"{file.path}: in this model the tokens of a prompt see all of it; another model is needed")
    return model


def load_generator(file: GGUFFile) -> Model:
    """Loads a model that generates text; refuses encoders."""
    model = load_model(file)
    refuse_encoder(model)
    return model
