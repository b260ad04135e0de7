"""A talk in one file: its messages and settings, the ids that said them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..engine import state_file
from ..errors import BadFile, CacheFull, ContextFull
from . import validate
from .chat import Chat
from .chat_format import Message
from .completion import Settings
from .transcript import Cut, Transcript

if TYPE_CHECKING:
    from .model import LLM

KIND = "rwkv-gpu chat 1"
STATE = "state/"  # before the names of the model's own arrays


def save(path: str | os.PathLike[str], chat: Chat, llm: "LLM") -> None:
    """Writes the file, or leaves what was there."""
    said = chat._transcript
    kept = llm._driver.call(lambda engine: engine.export(said.ids)) if said.ids else None
    length, state = kept or (0, {})
    arrays: dict[str, npt.NDArray[Any]] = {
        "text": np.frombuffer(said.text, np.uint8),
        "ids": np.array(said.ids, np.uint32),
        "cuts": np.array([(cut.nbytes, cut.ids) for cut in said.cuts], np.uint32),
        **{STATE + name: array for name, array in state.items()},
    }
    notes = {
        "kind": KIND,
        "messages": [[m.role, m.content, m.reasoning, m.raw] for m in chat._messages],
        "template": chat.template.source,
        "think": chat.think,
        "length": length,
        "settings": {name: _plain(value) for name, value in chat.settings.items()},
    }
    state_file.save(validate.path("path", path), llm.info.fingerprint, arrays, notes)


def load(path: str | os.PathLike[str], llm: "LLM") -> Chat:
    """The talk that a file holds. BadFile says why where it cannot be."""
    arrays, notes = state_file.load(validate.path("path", path), llm.info.fingerprint)
    if notes.get("kind") != KIND:
        raise BadFile(f"{path}: holds no chat of this version; it cannot be read here")
    try:
        chat = _chat(notes, llm)
        cuts = tuple(Cut(int(nbytes), int(ids)) for nbytes, ids in arrays["cuts"])
        chat._transcript = Transcript(arrays["text"].tobytes(), tuple(arrays["ids"].tolist()), cuts)
        ids = chat._transcript.ids[: int(notes["length"])]
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{path}: is no chat as this version writes it: {error!r}") from None
    state = {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}
    if ids:
        with suppress(ContextFull, CacheFull):  # it does not fit here: it will be computed again, as far as it can be
            llm._driver.call(lambda engine: engine.restore(ids, state))
    return chat


def _chat(notes: Mapping[str, Any], llm: "LLM") -> Chat:
    settings: Settings = {**notes["settings"]}  # type: ignore[typeddict-item]
    if "logit_bias" in settings:
        settings["logit_bias"] = {int(token): bias for token, bias in settings["logit_bias"].items()}
    messages = [Message(role, content, reasoning, raw) for role, content, reasoning, raw in notes["messages"]]
    return Chat(llm, llm.chat_format_of(notes["template"]), messages=messages, think=notes["think"], settings=settings)


def _plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    return sorted(value) if isinstance(value, set | frozenset) else value
