"""The states of conversations in a store beyond this process: another process goes on where this one ended.

A state is found by the digest of the model's file, its layout, the tenant and the token ids that it has seen. So that
the longest prefix of a prompt is found in a few requests, the store also has a list of lengths for each whole block of
tokens. What is wrong, missing or damaged is computed again.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..engine import state_file
from ..engine.cache.prefix_index import TOKEN, key_of
from ..engine.runner import StateArrays
from ..errors import BadFile, BadInput
from ..stores import DirectoryStore, Store, StoreDown, open_store
from ..stores.sealed import SealedStore
from . import validate
from .model_file import ModelFile

BLOCK = 64  # tokens between two lists of lengths; fewer are not worth a request
AT_A_TIME = 64  # lists that are asked for in one request
MOST_LENGTHS = 16  # of one list
MOST_WAITING = 1 << 30  # bytes of states that wait to be written
REST = 5.0  # seconds that a store which is down is left alone

Found = tuple[Sequence[int], StateArrays]


@dataclass
class Counts:
    """What became of the states that were looked for or stored."""

    fetched: int = 0
    tokens: int = 0  # that were not computed
    missed: int = 0
    skipped: int = 0  # since computing was faster
    refused: int = 0  # that were damaged
    stored: int = 0
    failures: int = 0  # of the store


class Rate:
    """How much was done in a second, lately; None before the first."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, amount: float, seconds: float) -> None:
        """So much took so long."""
        new = amount / max(seconds, 1e-6)
        self.value = new if self.value is None else 0.7 * self.value + 0.3 * new


class StoredStates:
    """Fetches and stores states on threads of its own. A store that is down is left alone for a while."""

    def __init__(self, store: SealedStore, model: ModelFile, layout: str, tenant: str) -> None:
        self.counts = Counts()
        self._store = store
        self._model = model
        self._layout = layout
        self._tenant = tenant
        self._bytes, self._tokens = Rate(), Rate()  # fetched, and computed, in a second
        self._down_until = 0.0
        self._waiting = 0  # bytes
        self._lock = threading.Lock()
        self._fetching = ThreadPoolExecutor(4, "rwkv-gpu-fetch")
        self._writing = ThreadPoolExecutor(1, "rwkv-gpu-store")
        model.start()

    def wants(self, missing: int) -> bool:
        """Whether a state may save so many tokens."""
        return missing > BLOCK and time.monotonic() >= self._down_until

    def fetch(self, ids: Sequence[int], known: int, then: Callable[[Found | None], None]) -> None:
        """Looks for a prefix longer than what is known. `then` is called on another thread."""

        def done(future: "Future[Found | None]") -> None:
            then(None if future.cancelled() or future.exception() else future.result())

        self._fetching.submit(self.find, ids, known).add_done_callback(done)

    def keep(self, ids: Sequence[int], state: StateArrays) -> None:
        """Stores a state in the background, if it pays to fetch it. Where too much waits, it is dropped."""
        nbytes = sum(array.nbytes for array in state.values())
        if not self._pays(nbytes, len(ids)) or time.monotonic() < self._down_until:
            return
        with self._lock:
            if self._waiting and self._waiting + nbytes > MOST_WAITING:
                return
            self._waiting += nbytes
        self._writing.submit(self._keep, ids, state, nbytes)

    def measured(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt took so long."""
        if tokens >= BLOCK:
            self._tokens.add(tokens, seconds)

    def close(self) -> None:
        """Writes what is to be written, and ends."""
        self._fetching.shutdown(cancel_futures=True)
        self._writing.shutdown()

    # ---------------------------------------------------------------- on other threads

    def find(self, ids: Sequence[int], known: int = 0) -> Found | None:
        """The state of the longest prefix of a prompt that is worth fetching. The last token is left to be computed."""
        prefixes = self._prefixes(ids)
        try:
            for length, nbytes in self._lengths(prefixes, known, len(ids) - 1):
                if not self._pays(nbytes, length - known):
                    self.counts.skipped += 1
                    return None
                state = self._fetched(prefixes.state(length), length)
                if state is not None:
                    self.counts.fetched += 1
                    self.counts.tokens += length - known
                    return ids[:length], state
        except StoreDown:
            self._rest()
        self.counts.missed += 1
        return None

    def write(self, ids: Sequence[int], state: StateArrays) -> None:
        """Stores the state of a prefix, and its length with those of its block."""
        prefixes = self._prefixes(ids)
        value = state_file.dumps(self._model.model_id(), state, {"length": len(ids)})
        block = len(ids) // BLOCK * BLOCK
        key = prefixes.block(block)
        try:
            self._store.put(prefixes.state(len(ids)), value)
            lengths = [one for one in _lengths(self._store.get([key])[0]) if one[0] != len(ids)]
            self._store.put(key, json.dumps([(len(ids), len(value)), *lengths][:MOST_LENGTHS]).encode())
            self.counts.stored += 1
        except StoreDown:
            self._rest()

    def _keep(self, ids: Sequence[int], state: StateArrays, nbytes: int) -> None:
        try:
            self.write(ids, state)
        finally:
            with self._lock:
                self._waiting -= nbytes

    def _lengths(self, prefixes: "Prefixes", known: int, most: int) -> Iterator[tuple[int, int]]:
        """The lengths, and the bytes, of states that the store may have, the longest first."""
        blocks = [*range(most // BLOCK * BLOCK, max(0, known - BLOCK), -BLOCK)]
        for at in range(0, len(blocks), AT_A_TIME):
            for value in self._store.get([prefixes.block(block) for block in blocks[at : at + AT_A_TIME]]):
                for length, nbytes in sorted(_lengths(value), reverse=True):
                    if known < length <= most:
                        yield length, nbytes

    def _fetched(self, key: str, length: int) -> StateArrays | None:
        """The state of a key, if it is there and whole."""
        began = time.monotonic()
        [value] = self._store.get([key])
        if value is None:
            return None
        self._bytes.add(len(value), time.monotonic() - began)
        try:
            saved = state_file.loads(value)
        except BadFile:
            self.counts.refused += 1
            return None
        return saved.arrays if saved.notes.get("length") == length else None

    def _pays(self, nbytes: int, tokens: int) -> bool:
        """Whether fetching is faster than computing, as both were measured; until then it is tried."""
        fetching, computing = self._bytes.value, self._tokens.value
        return tokens >= BLOCK and (fetching is None or computing is None or nbytes / fetching < tokens / computing)

    def _rest(self) -> None:
        self.counts.failures += 1
        self._down_until = time.monotonic() + REST

    def _prefixes(self, ids: Sequence[int]) -> "Prefixes":
        digest = self._model.digest()
        if digest is None:  # the file has changed since: nobody can tell whose states these are
            raise BadFile("the model's file has changed since it was loaded; load it again")
        about = (digest, self._layout, self._tenant)
        return Prefixes(self._store, [part.encode() for part in about], key_of(ids))


class Prefixes:
    """The keys of the prefixes of a sequence."""

    def __init__(self, store: SealedStore, about: Sequence[bytes], ids: bytes) -> None:
        self._store = store
        self._about = about  # the model, the layout and the tenant
        self._ids = ids
        self._blocks = [sha256()]  # after each whole block

    def state(self, length: int) -> str:
        """The key of the state after so many tokens."""
        return self._store.key(b"state", *self._about, sha256(self._ids[: TOKEN * length]).digest())

    def block(self, length: int) -> str:
        """The key of the lengths that begin with so many tokens: whole blocks."""
        while (at := (len(self._blocks) - 1) * BLOCK) < length:
            digest = self._blocks[-1].copy()
            digest.update(self._ids[TOKEN * at : TOKEN * (at + BLOCK)])
            self._blocks.append(digest)
        return self._store.key(b"lengths", *self._about, self._blocks[length // BLOCK].digest())


def _lengths(value: bytes | None) -> list[tuple[int, int]]:
    """A list of lengths and bytes as it was stored."""
    if value is None:
        return []
    with suppress(ValueError, TypeError):
        return [(int(length), int(nbytes)) for length, nbytes in json.loads(value)]
    return []


def stored_states(
    store: str | os.PathLike[str] | Store, key: bytes | None, tenant: str, model: ModelFile, layout: str
) -> StoredStates:
    """A store as `load` takes it, for a model."""
    if key is not None and (not isinstance(key, bytes) or len(key) < 16):
        raise BadInput("store_key must be at least 16 bytes that others cannot guess")
    validate.text("tenant", tenant)
    opened: Any = store
    if isinstance(store, str | os.PathLike):
        validate.path("store", store)
        opened = open_store(store)
    if key is None and isinstance(opened, DirectoryStore):
        key = opened.secret()
    if key is None:
        raise BadInput("this store needs a store_key of at least 16 bytes: who has it can read and write states")
    return StoredStates(SealedStore(opened, key), model, layout, tenant)
