"""Saved slots: states of token sequences in a store, under names that clients choose."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from ..engine import state_file
from ..engine.cache.prefix_index import Salt, key_of
from ..engine.media import IMAGE
from ..errors import BadFile, BadInput
from ..stores import DirectoryStore
from ..stores.sealed import SealedStore
from .open_model import OpenModel


@dataclass(frozen=True)
class Counted:
    """The tokens and bytes that were saved or restored."""

    tokens: int
    nbytes: int


class SavedSlots:
    """Saves states in a directory. Only requests with the same cache salt find them again."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        store = DirectoryStore(path, max_bytes, math.inf)
        self._most = max_bytes
        self._store = SealedStore(store, store.secret())

    def save(self, llm: OpenModel, name: str, ids: Sequence[int], salt: Salt) -> Counted:
        """Writes the longest stored state of a sequence."""
        found = llm._driver.call(lambda engine: engine.export(key_of(ids, salt)))
        if found is None:
            raise BadInput("the slot has no state: it was erased, or other requests needed its memory")
        length, state = found
        value = state_file.dumps(llm.model_file.model_id(), state, {"ids": [*ids[:length]]})
        if len(value) > self._most:
            raise BadInput(f"the state has {len(value):,} bytes; all saved slots may have {self._most:,}")
        self._store.put(self._key(name, salt), value)
        return Counted(length, len(value))

    def restore(self, llm: OpenModel, name: str, salt: Salt) -> tuple[list[int], Counted]:
        """Reads a state, from which the next request with these tokens continues. Returns its tokens."""
        wrong: list[str] = []
        [value] = self._store.get([self._key(name, salt)], wrong.append)
        if value is None:
            raise BadFile(f"the saved slot {name!r} {'is damaged' if wrong else 'does not exist'}")
        about = llm.model_file.model_id()
        saved = state_file.loads(value, f"the saved slot {name!r}", about.fingerprint)
        if saved.model != about:
            raise BadFile(f"the saved slot {name!r} is of another model")
        ids = saved.notes.get("ids")
        if not isinstance(ids, list) or not all(map(partial(_is_id, llm.vocab_size), ids)):
            raise BadFile(f"the saved slot {name!r} is damaged")
        llm._driver.call(lambda engine: engine.restore(key_of(ids, salt), saved.arrays))
        return ids, Counted(len(ids), len(value))

    def erase(self, llm: OpenModel, ids: Sequence[int], salt: Salt) -> None:
        """Removes the states of a sequence from memory."""
        llm._driver.call(lambda engine: engine.forget(key_of(ids, salt)))

    def _key(self, name: str, salt: Salt) -> str:
        owner = salt.number.to_bytes(8, "big")
        return self._store.key(b"slot", owner, sha256(name.encode("utf-8", "surrogatepass")).digest())


def _is_id(vocabulary: int, token: object) -> bool:
    """True for the id of a token, or of a row of an image."""
    return type(token) is int and (0 <= token < vocabulary or IMAGE <= token < 2 * IMAGE)
