"""`/create` in the chat: saves its model, system prompt, settings and template under a new name."""

from pathlib import Path

from rwkv_gpu import Chat
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.completion import CHAT_DEFAULTS
from rwkv_gpu.llm.modelfile import Modelfile
from rwkv_gpu.llm.preset import Preset, write_preset

from .chat_model import ChatModel
from .create import base_preset
from .folders import store

NOT_SAVED = ("logits_processors", "lora")  # settings that a file cannot have


def save_preset(chat: Chat, model: ChatModel, name: str) -> None:
    """Writes the preset. Raises BadInput if a model or another preset has the name."""
    target = store().preset_path(name)
    if target.exists():
        raise BadInput(f"there is a preset {name} already; `rwkv-gpu rm {name}` deletes it, or give another name")
    write_preset(target, preset_of(chat, model))


def preset_of(chat: Chat, model: ChatModel) -> Preset:
    """Returns what a chat adds to its model, except its messages, as a preset."""
    usual = {**CHAT_DEFAULTS}
    settings = {
        setting: value
        for setting, value in chat.settings.items()
        if setting not in NOT_SAVED and usual.get(setting) != value
    }
    template = None if chat.has_own_template else chat.template.source
    file = Modelfile("", chat.system, template, settings, model.loading.get("context"))
    return Preset.of(file, base_preset(model.path), adapters_of(model))


def adapters_of(model: ChatModel) -> list[tuple[str, float]]:
    """The adapters of the command line, and their scales."""
    return [(str(Path(path).resolve()), scale) for path, scale in model.loading.get("lora") or []]
