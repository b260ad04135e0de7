"""Chats in one file: branches of a conversation with messages, settings and token ids, and the current state.

The state lets the model continue the current branch at once. It is used only with the identical model file; another
copy of the model recomputes it. Another model reads the messages again, with its own template.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..engine import state_file
from ..errors import BadFile, BadInput
from ..text.messages import check_messages
from ..writer_lock import WriterLock
from . import validate
from .chat_format import Message
from .completion import Settings, own_names
from .images import MediaInput
from .model_file import ModelFile
from .saved_images import PREFIX, SavedImages, arrays_of, check_ids, id_type, rows_of, same_images
from .transcript import TokenBoundary, Transcript

OLD_KIND, KIND = "rwkv-gpu chat 1", "rwkv-gpu chat 2"
STATE = "state/"  # prefix for the names of the model's arrays
IMAGES = 6  # index of the images in the row of a message


@dataclass(frozen=True)
class SavedChat:
    """One branch of a conversation."""

    messages: tuple[Message, ...]
    transcript: Transcript
    template: str | None  # jinja2 source; None is the model's own
    think: bool | None
    settings: Settings
    truncate: Literal["left"] | None = None
    first: int = 0  # index of the first message in prompts, after the system prompt


@dataclass(frozen=True)
class SavedSession:
    """All branches, the index of the current one, and the state after the first `length` ids of its transcript."""

    chats: Sequence[SavedChat]
    current: int = 0
    length: int = 0
    state: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


def halved(state: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """A state in float16. Arrays with numbers beyond its range stay in float32."""
    return {name: _half(array) if array.dtype == np.float32 else array for name, array in state.items()}


def _half(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.isfinite(half).all() else array


def write(
    path: str | os.PathLike[str],
    session: SavedSession,
    model: ModelFile,
    *,
    lock: WriterLock | None = None,
) -> None:
    """Writes the file. If that fails, the old file stays."""
    state_file.save(validate.path("path", path), model.model_id(), *_parts(session), lock=lock)


def dumps(session: SavedSession, model: ModelFile) -> bytes:
    """Returns what `write` would write, as bytes."""
    return state_file.dumps(model.model_id(), *_parts(session))


def _parts(session: SavedSession) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and the notes of a saved chat."""
    arrays: dict[str, npt.NDArray[Any]] = {STATE + name: array for name, array in session.state.items()}
    for number, chat in enumerate(session.chats):
        arrays |= {f"{number}/{name}": array for name, array in _arrays(chat.transcript).items()}
    arrays |= arrays_of(message for chat in session.chats for message in chat.messages)
    notes = {
        "kind": KIND,
        "current": session.current,
        "length": session.length,
        "chats": [_notes(chat) for chat in session.chats],
    }
    return arrays, notes


def read(
    path: str | os.PathLike[str], model: ModelFile, vocabulary: int, media_input: MediaInput | None = None
) -> SavedSession:
    """Reads a session. Raises BadFile with the reason if there is none.

    Waits for the digest of the model's file if there is a state to use.
    """
    saved = state_file.load(validate.path("path", path), model.fingerprint, PREFIX)
    return _session(saved, path, model, vocabulary, media_input)


def loads(data: bytes, model: ModelFile, vocabulary: int, media_input: MediaInput | None = None) -> SavedSession:
    """Reads a session from bytes, like `read`."""
    saved = state_file.loads(data, "the file", model.fingerprint, PREFIX)
    return _session(saved, "the file", model, vocabulary, media_input)


def _session(
    saved: state_file.Saved,
    path: str | os.PathLike[str],
    model: ModelFile,
    vocabulary: int,
    media_input: MediaInput | None,
) -> SavedSession:
    """The session of a file that is called `path` in errors."""
    same = saved.model.fingerprint == model.fingerprint
    notes, kind, images = saved.notes, saved.notes.get("kind"), SavedImages(saved.arrays, media_input)
    if kind not in (OLD_KIND, KIND):
        raise BadFile(f"{path}: holds no chat that this version can read")
    try:
        if kind == OLD_KIND:
            chats, current = [_chat(notes, saved.arrays, "", images, same=same)], 0
        else:
            each = enumerate(notes["chats"])
            chats = [_chat(chat, saved.arrays, f"{number}/", images, same=same) for number, chat in each]
            current = notes["current"]
        if not isinstance(current, int) or not 0 <= current < len(chats):
            raise ValueError(f"there is no branch {current!r}")
        for chat in chats:
            check_ids(chat.transcript.ids, vocabulary, chat.messages)
            _check_cuts(chat.transcript)
        length = int(notes["length"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, BadInput) as error:
        raise BadFile(f"{path}: is not a chat as this version writes it: {error!r}") from None
    state = {name.removeprefix(STATE): array for name, array in saved.arrays.items() if name.startswith(STATE)}
    if not 0 < length <= len(chats[current].transcript.ids) or saved.model.digest is None:
        return SavedSession(chats, current)
    if model.digest() != saved.model.digest:
        return SavedSession(chats, current)
    return SavedSession(chats, current, length, state)


def _arrays(transcript: Transcript) -> dict[str, npt.NDArray[Any]]:
    return {
        "text": np.frombuffer(transcript.text, np.uint8),
        "ids": np.array(transcript.ids, id_type(transcript.ids)),
        "cuts": np.array([(cut.nbytes, cut.ids) for cut in transcript.cuts], np.uint64),
    }


def _notes(chat: SavedChat) -> dict[str, Any]:
    return {
        "messages": [_row(message) for message in chat.messages],
        "template": chat.template,
        "think": chat.think,
        "truncate": chat.truncate,
        "first": chat.first,
        "settings": {name: _plain(value) for name, value in own_names(chat.settings).items() if name != FUNCTIONS},
    }


def _chat(
    notes: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], prefix: str, images: SavedImages, *, same: bool
) -> SavedChat:
    """A branch. For another model, its ids and its template are dropped."""
    settings: Settings = {**notes["settings"]}  # type: ignore[typeddict-item]
    if "logit_bias" in settings:
        settings["logit_bias"] = {int(token): bias for token, bias in settings["logit_bias"].items()}
    rows = [row[IMAGES] if len(row) > IMAGES else [] for row in notes["messages"]]
    messages = tuple(_message(*row[:IMAGES]) for row in notes["messages"])
    messages = tuple(images.restored(*pair) if pair[1] else pair[0] for pair in zip(messages, rows, strict=True))
    transcript, template = Transcript(), notes["template"] if same else None
    if same and same_images(messages, rows):
        cuts = tuple(TokenBoundary(int(nbytes), int(ids)) for nbytes, ids in arrays[prefix + "cuts"])
        ids = tuple(arrays[prefix + "ids"].tolist())
        transcript = Transcript(arrays[prefix + "text"].tobytes(), ids, cuts)
    first = notes.get("first", 0)  # not written by earlier versions
    if type(first) is not int or not 0 <= first <= len(messages):
        raise ValueError(f"the first message of the prompt is {first!r}, and there are {len(messages)}")
    return SavedChat(messages, transcript, template, notes["think"], settings, notes.get("truncate"), first)


def _row(message: Message) -> list[Any]:
    row: list[Any] = [message.role, message.content, message.reasoning, message.raw]
    images = [rows_of(message)] if message.images else []
    return [*row, [*message.calls], message.call, *images] if message.calls or message.call or images else row


def _message(role: Any, content: Any, reasoning: Any, raw: Any, calls: Any = (), call: Any = None) -> Message:
    texts = (role, content, reasoning, "" if raw is None else raw, *(call or ()))
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a message is not made of texts")
    every = check_messages([{"role": "assistant", "tool_calls": list(calls)}])[0].get("tool_calls", [])
    if any(not isinstance(one.get("function", {}).get("name"), str) for one in every):
        raise TypeError("a call of a tool has no name")
    return Message(role, content, reasoning, raw, calls=tuple(calls), call=None if call is None else tuple(call))


def _check_cuts(transcript: Transcript) -> None:
    """Refuses cuts that are out of range or order."""
    whole = TokenBoundary(len(transcript.text), len(transcript.ids))
    if transcript.cuts[:1] != (TokenBoundary(0, 0),):
        raise ValueError("a transcript does not begin at its start")
    for cut, after in zip(transcript.cuts, (*transcript.cuts[1:], whole), strict=True):
        if cut.nbytes > after.nbytes or cut.ids > after.ids:
            raise ValueError("a transcript is out of order")


FUNCTIONS = "logits_processors"  # the only setting that cannot be saved


def _plain(value: Any) -> Any:
    """Converts a setting for JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    return sorted(value) if isinstance(value, set | frozenset) else value
