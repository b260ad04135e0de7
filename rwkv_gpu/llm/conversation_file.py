"""Conversation files as bytes, for programs that keep messages themselves, such as the server's page.

States are stored under a cache salt. So a forged state in a file cannot reach other conversations.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..engine.cache.prefix_index import Salt, key_of
from ..errors import BadInput, CacheFull, ContextFull
from ..text.messages import check_messages, joined
from . import session
from .backend import Backend, RecentTranscript
from .chat_format import Message
from .completion import Settings, sampling
from .images import marked
from .saved_images import as_parts
from .session import SavedChat, SavedSession

Json = dict[str, Any]


def opened(llm: Backend, data: bytes, cache_salt: str) -> Json:
    """The branches of a file, and the index of the current one.

    Its state is stored for prompts with this salt if it is of the identical model file; `state` says so. Without a
    salt, the model reads the messages again.
    """
    saved = session.loads(data, llm.model_file, llm.vocab_size, llm.media_input)
    branches = [
        {"messages": [*map(_as_dict, chat.messages)], "settings": chat.settings, "think": chat.think}
        for chat in saved.chats
    ]
    used = bool(cache_salt and saved.length) and _restored(llm, saved, cache_salt)
    return {"current": saved.current, "branches": branches, "state": used}


def _restored(llm: Backend, saved: SavedSession, cache_salt: str) -> bool:
    transcript = saved.chats[saved.current].transcript
    ids = transcript.ids[: saved.length]
    salt = llm._salt(cache_salt, ids)
    with suppress(ContextFull, CacheFull):  # no room for the state: the next prompt recomputes it
        llm._driver.call(lambda engine: engine.restore(key_of(ids, salt), saved.state))
        llm._recent.append(RecentTranscript(salt.number, transcript))  # so that the prompt keeps these ids
        return True
    return False


def _as_dict(message: Message) -> Json:
    """A message as an API's client has it."""
    row = {**replace(message, raw=None).for_template(), "content": as_parts(message)}
    row.pop("images", None)
    return {**row, "reasoning_content": message.reasoning} if message.reasoning else row


def written(llm: Backend, branches: Sequence[Mapping[str, Any]], current: int, cache_salt: str) -> bytes:
    """A file of branches, each with messages and settings. If the current branch has a stored state, it is included."""
    chats = [_saved(llm, f"branches[{number}]", one, cache_salt) for number, one in enumerate(branches)]
    ids = chats[current].transcript.ids
    found = llm._driver.call(lambda engine: engine.export(key_of(ids, llm._salt(cache_salt, ids))))
    length, state = found or (0, {})
    return session.dumps(SavedSession(chats, current, length, state), llm.model_file)


def _saved(llm: Backend, where: str, branch: Mapping[str, Any], cache_salt: str) -> SavedChat:
    settings: Settings = branch.get("settings") or Settings()
    sampling(None, Settings(), settings)  # refuses wrong ones
    texts, images = marked(branch["messages"], None if llm.media_input is None else llm.media_input.keeping)
    rows = check_messages(texts)
    reasonings = [row.pop("reasoning_content", "") for row in rows]
    number = Salt.of(cache_salt).number
    known = [one.transcript for one in [*llm._recent] if one.salt == number]
    for row in rows:
        row["images"] = [image for mark, image in images.items() if mark in joined(row["content"])]
    asked = llm.chat_format.prompt(rows, known, opens=False, salt=number)
    if not all(isinstance(text, str) for text in reasonings):
        raise BadInput(f"{where} has reasoning that is not text")
    think = branch.get("think")
    if not isinstance(think, bool | None):
        raise BadInput(f"{where}.think must be true, false or null")
    messages = tuple(map(_message, rows, reasonings))
    return SavedChat(messages, asked.transcript, llm.chat_format.template.source, think, settings)


def _message(row: Json, reasoning: str) -> Message:
    call = (str(row.get("tool_call_id", "")), str(row.get("name", ""))) if row["role"] == "tool" else None
    content, images, calls = joined(row["content"]), tuple(row["images"]), tuple(row.get("tool_calls", ()))
    return Message(row["role"], content, reasoning, images=images, calls=calls, call=call)
