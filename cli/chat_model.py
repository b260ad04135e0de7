"""The model of a chat, and its replacement by another one."""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rwkv_gpu import LLM, Chat, Settings
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import BadInput, RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.completion import CHAT_DEFAULTS
from rwkv_gpu.llm.hub_names import BUILTIN, SUFFIX, is_preset
from rwkv_gpu.llm.preset import read_preset
from rwkv_gpu.models.registry import load_generator
from rwkv_gpu.text.template import ChatTemplate

from .load_model import load_model
from .model_name import ModelName
from .screen import Screen
from .signals import Signals

FOR_BUILTIN: Settings = {"temperature": 0.6}  # a small model needs a lower temperature
# Options of loading that belong to one model. `no_mmproj` (mmproj=False) stays for the next model.
OF_A_MODEL = (
    "draft", "draft_tokens", "lora", "initial_state", "mmproj", "override_kv", "rope_scaling", "rope_scale",
    "yarn_orig_ctx",
)  # fmt: skip
Agree = Callable[[str, str], bool]  # asks a question; the second text is the error if there is no terminal


class ChatModel:
    """The loaded model of a chat. `change` loads another one, with the same options."""

    def __init__(self, path: str, screen: Screen, signals: Signals, loading: Mapping[str, Any], *, warm: bool) -> None:
        self.path = path
        self._screen, self._signals, self._warm = screen, signals, warm
        self.loading = dict(loading)
        self.llm = load_model(path, screen, warm=warm, **loading)

    @property
    def defaults(self) -> Settings:
        """The settings of a chat with this model."""
        return self.llm.default_settings({**CHAT_DEFAULTS, **(FOR_BUILTIN if self._is_builtin else Settings())})

    @property
    def where(self) -> dict[str, str]:
        """Its preset, or else its file, after a label."""
        return {"preset": Path(self.path).name.removesuffix(SUFFIX)} if self.llm.preset else {"file": self.path}

    @property
    def system(self) -> str | None:
        """The system prompt of the model's preset."""
        return None if self.llm.preset is None else self.llm.preset.system

    @property
    def _is_builtin(self) -> bool:
        preset = self.llm.preset
        return self.path == str(builtin_model()) if preset is None else preset.base == BUILTIN

    def close(self) -> None:
        """Frees the model."""
        self.llm.close()

    def change(self, name: str, agree: Agree, *, own_template: bool) -> bool:
        """Replaces the model by the one with this name; False if it is the same one.

        With `own_template`, refuses a model without a chat template. The old model is freed first, as both may not fit
        into memory. If the new one cannot be loaded, or the user presses Ctrl-C, the old one is loaded again.
        """
        path = ModelName.path(name, agree)
        assert path is not None
        if os.path.realpath(path) == os.path.realpath(self.path):
            return False
        _check(Path(path), own_template=own_template)
        others = {option: value for option, value in self.loading.items() if option not in OF_A_MODEL}
        others["mmproj"] = False if self.loading.get("mmproj") is False else None
        self.llm.close()
        try:
            self.llm = self._load(path, others)
        except (RwkvGpuError, KeyboardInterrupt):
            self.llm = load_model(self.path, self._screen, warm=self._warm, **self.loading)
            raise
        left_out = [option for option in OF_A_MODEL if self.loading.get(option)]
        if left_out:
            flags = ", ".join(f"--{option.replace('_', '-')}" for option in left_out)
            self._screen.note(f"without {flags}, which belonged to the previous model")
        self.path, self.loading = path, others
        return True

    def _load(self, path: str, loading: Mapping[str, Any]) -> LLM:
        """Loads a model; Ctrl-C raises KeyboardInterrupt."""
        stopped = False

        def stop(number: int) -> None:
            nonlocal stopped
            if stopped or number != signal.SIGINT:
                self._signals.leave(number)
            stopped = True

        def check() -> None:
            if stopped:
                raise KeyboardInterrupt

        before, self._signals.on_signal = self._signals.on_signal, stop
        try:
            return load_model(path, self._screen, warm=self._warm, on_progress=check, **loading)
        finally:
            self._signals.on_signal = before


def with_model(chat: Chat, model: ChatModel, before: Settings, system: str | None) -> Chat:
    """The chat with a model.

    Settings and a system prompt that were the previous model's defaults become the defaults of this model.
    """
    settings = {name: value for name, value in chat.settings.items() if before.get(name) != value}
    chat = chat.with_model(model.llm)
    if chat.system == system:
        chat.system = model.system
    chat.settings = {**model.defaults, **settings}  # type: ignore[typeddict-item]
    return chat


def _check(path: Path, *, own_template: bool) -> None:
    """Refuses a file that is not a chat model, before the model in use is freed."""
    if not path.is_file():
        raise BadInput(f"{path}: No such file")
    preset = read_preset(path) if is_preset(path) else None
    if preset is not None and preset.template is not None:
        own_template = False
    with GGUFFile.open(path if preset is None else ModelName.file(str(path)) or path) as file:
        load_generator(file)
        if own_template:
            ChatTemplate.from_metadata(file.metadata)
