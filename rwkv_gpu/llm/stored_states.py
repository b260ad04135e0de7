"""Chat states in an external store, so that another process can continue a conversation.

The key of a state is a digest of the model file, the layout, the tenant and the token ids, which contain the salt of
their request. To find the longest stored prefix of a prompt in a few requests, the store also holds a list of lengths
for each whole block of tokens. Missing, wrong or damaged states are recomputed.
"""

import json
import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..engine import state_file
from ..engine.cache.kv import Compact
from ..engine.cache.prefix_index import TOKEN, Key, as_key
from ..engine.runner import StateArrays
from ..errors import BadFile, BadInput
from ..stores import DirectoryStore, Store, StoreDown, open_store
from ..stores.sealed import SealedStore
from . import validate
from .exchange import Found
from .fetch_rule import FetchRule
from .model_file import ModelFile

BLOCK = 64  # tokens per list of lengths; shorter states are not worth a request
AT_A_TIME = 64  # lists per request
MAX_LENGTHS = 16  # lengths per list
MAX_WAITING = 1 << 30  # bytes of states waiting to be written
MAX_FETCHES = 32  # simultaneous fetches; further requests compute instead
MAX_KNOWN = 1 << 16  # remembered states that the store has
QUIET = 60.0  # seconds between two log lines about damaged values
LOG = logging.getLogger("rwkv_gpu.states")
LOG.addHandler(logging.NullHandler())  # the library prints nothing by itself
REST = 5.0  # seconds without requests after a store failure

Listed = tuple[int, int, str]  # length, bytes of its state, and key of the longer state that it is cut from


@dataclass
class Counts:
    """Statistics of state lookups and writes."""

    fetched: int = 0
    tokens: int = 0  # tokens that were not computed
    skipped: int = 0  # computing was faster
    hedged: int = 0  # arrived while their tokens were being computed
    late: int = 0  # arrived when their tokens were computed, or nearly
    refused: int = 0  # damaged
    stored: int = 0
    failures: int = 0  # errors of the store


class StoredStates:
    """Fetches and stores states on its own threads. After an error, the store is not used for a while."""

    def __init__(
        self, store: SealedStore, model: ModelFile, layout: str, tenant: str, compact: Compact | None = None
    ) -> None:
        self.counts = Counts()
        self.rule = FetchRule()
        self._store = store
        self._model = model
        self._layout = layout
        self._tenant = tenant
        self._compact = compact
        self._stored: OrderedDict[bytes, None] = OrderedDict()  # digests of prefixes whose states the store has
        self._down_until = 0.0
        self._logged_at = -math.inf  # last log line about a damaged value
        self._unlogged = 0  # damaged values since then
        self._fetches = 0
        self._waiting = 0  # bytes
        self._written = threading.Condition()
        self._dropping = False  # waiting states are no longer written
        self._fetching = ThreadPoolExecutor(4, "rwkv-gpu-fetch")
        self._writing = ThreadPoolExecutor(1, "rwkv-gpu-store")
        model.start()

    def wants(self, missing: int) -> bool:
        """True if a state that saves `missing` tokens may be worth fetching."""
        return missing > BLOCK and time.monotonic() >= self._down_until and self._fetches < MAX_FETCHES

    def patience(self, missing: int) -> float:
        """Seconds to wait for a state before these tokens are computed in parallel."""
        return self.rule.patience(missing)

    def fetch(self, text: Key, known: int, then: Callable[[Found | None], None], wait: Callable[[float], None]) -> None:
        """Looks for a prefix longer than `known`.

        On another thread, `wait` gets a new patience, and `then` the result.
        """
        with self._written:
            self._fetches += 1

        def done(future: "Future[Found | None]") -> None:
            with self._written:
                self._fetches -= 1
            then(None if future.cancelled() or future.exception() else future.result())

        self._fetching.submit(self.find, text, known, wait).add_done_callback(done)

    def pays_to_restore(self, found: Found, missing: int) -> bool:
        """True if restoring a fetched state is faster than computing the `missing` tokens of the prompt."""
        pays = self.rule.pays_to_restore(nbytes_of(found[1]), missing)
        self.counts.late += not pays
        return pays

    def restored(self, found: Found, seconds: float, saved: int, *, hedged: bool) -> None:
        """Records that a state was restored in `seconds` and saved `saved` tokens;

        `hedged` if they were being computed.
        """
        self.rule.restored.add(nbytes_of(found[1]), seconds)
        self.counts.fetched += 1
        self.counts.tokens += saved
        self.counts.hedged += hedged

    def keep(self, text: Key, state: StateArrays, beginnings: Sequence[int] = ()) -> None:
        """Stores a state in the background, if fetching it would pay. Drops it if too much is waiting.

        It is also listed for the prefix lengths in `beginnings`, which can be cut from it: it has keys and values only.
        """
        nbytes, compact = nbytes_of(state), False
        tokens = len(text) // TOKEN
        if not self._pays(nbytes, tokens):
            compact = self._compact is not None and self._pays(self._compact.nbytes(state), tokens)
            if not compact:
                return
        if time.monotonic() < self._down_until:
            return
        with self._written:
            if self._waiting and self._waiting + nbytes > MAX_WAITING:
                return
            self._waiting += nbytes
        self._writing.submit(self._keep, text, state, nbytes, compact, beginnings)

    @property
    def is_full(self) -> bool:
        """True if the write queue is full: further states may be dropped."""
        return self._waiting > MAX_WAITING // 2

    def lacks(self, text: Key) -> bool:
        """True if a state is long enough and not known to be stored."""
        return len(text) >= TOKEN * BLOCK and sha256(text).digest() not in self._stored

    def measured(self, tokens: int, seconds: float) -> None:
        """Records that `tokens` prompt tokens were computed in `seconds`."""
        if tokens >= BLOCK:
            self.rule.computed.add(tokens, seconds)

    def try_again(self) -> None:
        """Uses a failed store again at once."""
        self._down_until = 0.0

    def flush(self, end: float) -> None:
        """Waits until everything is written or the deadline `end` (by `time.monotonic`); then drops the rest."""
        with self._written:
            self._written.wait_for(lambda: not self._waiting, max(0.0, end - time.monotonic()))
        self._dropping = True

    def close(self) -> None:
        """Writes the pending states, and stops."""
        self._fetching.shutdown(cancel_futures=True)
        self._writing.shutdown()

    # ---------------------------------------------------------------- on other threads

    def find(
        self, ids: Sequence[int] | Key, known: int = 0, wait: Callable[[float], None] | None = None
    ) -> Found | None:
        """Fetches the longest stored prefix that is worth fetching. The last token is left to be computed."""
        text = as_key(ids)
        prefixes = self._prefixes(text)
        try:
            for length, nbytes, key in self._lengths(prefixes, known, len(text) // TOKEN - 1):
                if not self._pays(nbytes, length - known):
                    self.counts.skipped += 1
                    return None
                if wait is not None:
                    wait(self.rule.waits(nbytes, length - known))
                state = self._fetched(key or prefixes.state(length), length)
                if state is not None:
                    self._note(text[: TOKEN * length])
                    return text[: TOKEN * length], state
        except StoreDown:
            self._rest()
        return None

    def write(self, text: Key, state: StateArrays, beginnings: Sequence[int] = ()) -> None:
        """Stores the state of a prefix, and adds its length to the list of its block; likewise for `beginnings`."""
        prefixes, tokens = self._prefixes(text), len(text) // TOKEN
        value = state_file.dumps(self._model.model_id(), state, {"length": tokens})
        key = prefixes.state(tokens)
        try:
            began = time.monotonic()
            self._store.put(key, value)
            self.rule.stored.add(len(value), time.monotonic() - began)
            for length in (tokens, *beginnings):
                self._list(prefixes, (length, len(value), "" if length == tokens else key))
                self._note(text[: TOKEN * length])
            self.counts.stored += 1
        except StoreDown:
            self._rest()

    def _list(self, prefixes: "Prefixes", new: Listed) -> None:
        """Adds a length to the list of its block."""
        block = prefixes.block(new[0] // BLOCK * BLOCK)
        others = [one for one in _lengths(self._store.get([block], self._damaged)[0]) if one[0] != new[0]]
        self._store.put(block, json.dumps([new, *others][:MAX_LENGTHS]).encode())

    def _keep(self, text: Key, state: StateArrays, nbytes: int, compact: bool, beginnings: Sequence[int]) -> None:
        try:
            if not self._dropping:
                self.write(text, self._compact(state) if compact and self._compact is not None else state, beginnings)
        finally:
            with self._written:
                self._waiting -= nbytes
                self._written.notify_all()

    def _lengths(self, prefixes: "Prefixes", known: int, most: int) -> Iterator[Listed]:
        """Yields states that the store may have, longest first."""
        blocks = [*range(most // BLOCK * BLOCK, max(0, known - BLOCK), -BLOCK)]
        for at in range(0, len(blocks), AT_A_TIME):
            keys = [prefixes.block(block) for block in blocks[at : at + AT_A_TIME]]
            began = time.monotonic()
            values = self._store.get(keys, self._damaged)
            self.rule.asked.add(1, time.monotonic() - began)
            for value in values:
                yield from (one for one in sorted(_lengths(value), reverse=True) if known < one[0] <= most)

    def _fetched(self, key: str, length: int) -> StateArrays | None:
        """Fetches a state by key; None if missing or damaged."""
        began = time.monotonic()
        [value] = self._store.get([key], self._damaged)
        if value is None:
            return None
        try:
            saved = state_file.loads(value)
        except BadFile as error:
            self._damaged(key, str(error))
            return None
        seconds = time.monotonic() - began
        latency = 1 / self.rule.asked.value if self.rule.asked.value else 0.0
        self.rule.fetched.add(len(value), max(seconds - latency, seconds / 2))
        whole = saved.notes.get("length")
        if not isinstance(whole, int) or whole < length:
            self._damaged(key, f"it has {whole} tokens, and must have {length} or more")
            return None
        return saved.arrays if whole == length else {name: array[:length] for name, array in saved.arrays.items()}

    def _damaged(self, key: str, why: str = "it was not written with this store's key, or was changed since") -> None:
        """Counts a damaged value, and logs it; at most one line a minute, with the number of the others."""
        now = time.monotonic()
        with self._written:
            self.counts.refused += 1
            self._unlogged += 1
            if now < self._logged_at + QUIET:
                return
            others, self._unlogged, self._logged_at = self._unlogged - 1, 0, now
        fields = {"key": key, "reason": why, "others": others}
        LOG.warning("the store has a damaged state; it is computed again", extra={"fields": fields})

    def _pays(self, nbytes: int, tokens: int) -> bool:
        return tokens >= BLOCK and self.rule.pays(nbytes, tokens)

    def _note(self, text: Key) -> None:
        """Records that the store has the state of this prefix."""
        with self._written:
            self._stored[sha256(text).digest()] = None
            if len(self._stored) > MAX_KNOWN:
                self._stored.popitem(last=False)

    def _rest(self) -> None:
        self.counts.failures += 1
        self._down_until = time.monotonic() + REST

    def _prefixes(self, text: Key) -> "Prefixes":
        digest = self._model.digest()
        if digest is None:  # the file has changed: these states cannot be assigned to a model
            raise BadFile("the model's file has changed since it was loaded; load it again")
        about = (digest, self._layout, self._tenant)
        return Prefixes(self._store, [part.encode() for part in about], text)


class Prefixes:
    """The store keys of the prefixes of a sequence."""

    def __init__(self, store: SealedStore, about: Sequence[bytes], text: Key) -> None:
        self._store = store
        self._about = about  # model, layout and tenant
        self._text = text
        self._blocks = [sha256()]  # hash after each whole block

    def state(self, length: int) -> str:
        """The key of the state after `length` tokens."""
        return self._store.key(b"state", *self._about, sha256(self._text[: TOKEN * length]).digest())

    def block(self, length: int) -> str:
        """The key of the list of lengths for the block that begins at `length` tokens."""
        while (at := (len(self._blocks) - 1) * BLOCK) < length:
            digest = self._blocks[-1].copy()
            digest.update(self._text[TOKEN * at : TOKEN * (at + BLOCK)])
            self._blocks.append(digest)
        return self._store.key(b"lengths", *self._about, self._blocks[length // BLOCK].digest())


def nbytes_of(state: StateArrays) -> int:
    """Size of a state."""
    return sum(array.nbytes for array in state.values())


def _lengths(value: bytes | None) -> list[Listed]:
    """Parses a stored list of lengths."""
    if value is None:
        return []
    with suppress(ValueError, TypeError, ArithmeticError, RecursionError):
        return [(int(length), int(nbytes), str(key)) for length, nbytes, key in json.loads(value)]
    return []


def stored_states(
    store: str | os.PathLike[str] | Store, key: bytes | None, tenant: str, model: ModelFile, layout: str,
    compact: Compact | None = None,
) -> StoredStates:  # fmt: skip
    """Opens a store for a model; `store` is as `load` takes it."""
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
        raise BadInput("this store needs a store_key of at least 16 bytes: whoever knows it can read and write states")
    return StoredStates(SealedStore(opened, key), model, layout, tenant, compact)
