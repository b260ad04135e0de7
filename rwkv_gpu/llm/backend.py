"""The protocol of a loaded model for chats and replies. `LLM` implements it; it avoids an import cycle."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ..engine.cache.prefix_index import Salt
from ..engine.request import Request
from ..text.base import Tokenizer
from ..text.template import ChatTemplate
from .chat_format import ChatFormat
from .completion import Settings
from .driver import Driver
from .generation import Reading
from .images import MediaInput
from .info import Info
from .model_file import ModelFile
from .preset import Preset
from .reader import Reader
from .transcript import Transcript

R = TypeVar("R", bound=Reading)


class RecentTranscript(NamedTuple):
    """A transcript of an answered request, reused with the same salt only."""

    salt: int
    transcript: Transcript


class Backend(Protocol):
    """A loaded model, as used by a chat."""

    tokenizer: Tokenizer
    info: Info
    vocab_size: int
    context: int | None  # maximum tokens of a sequence; None is unlimited
    _driver: Driver
    model_file: ModelFile
    media_input: MediaInput | None  # encodes images; None for models without vision
    preset: Preset | None  # the preset that named the model
    _recent: deque[RecentTranscript]  # for prompts that continue answered requests: they keep the ids

    def default_settings(self, usual: Settings) -> Settings:
        """The settings that apply if a request gives no others."""

    @property
    def has_chat_format(self) -> bool:
        """True if `chat_format` is compiled already."""

    @property
    def chat_format(self) -> ChatFormat:
        """The chat format of the model's own template."""

    def chat_format_of(self, template: str | ChatTemplate | None) -> ChatFormat:
        """The chat format of another template."""

    def _salt(self, cache_salt: str, ids: Sequence[int], *, once: bool = False) -> Salt:
        """The salt of a prompt. A shared prompt at its beginning has none."""

    def _read(self, reading: Callable[..., R], request: Request, reader: Reader, **more: Any) -> R:
        """Submits a request, read by `reading`."""
