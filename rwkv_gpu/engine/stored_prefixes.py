"""Stores states of sequences by their tokens, and starts new sequences from the longest stored prefix."""

from collections.abc import Sequence

from ..errors import BadFile, CacheFull
from ..ops.vocabulary import PAGE
from .cache.prefix_index import TOKEN, Key, as_key, key_of
from .cache.prefixes import PrefixCache
from .cache.store import PrefixHandle
from .runner import Runner, StateArrays
from .sequence import TokenSequence

BY_CHANCE = 16  # common tokens of two texts that may be a coincidence
SCRATCH_SLOT = -1  # slot of a sequence that is only read or written, never stepped


class StoredPrefixes:
    """The stored prefixes of an engine, and the initial state that every text begins with, if any."""

    def __init__(self, runner: Runner, initial_state: StateArrays | None) -> None:
        config = runner.cache_config
        self._runner = runner
        self._store = runner.store
        self.cache = PrefixCache(self._store, config.cache_bytes, *runner.page_and_state_bytes, config.checkpoints)
        self.begun: list[int] = []  # placeholder tokens for an initial state
        self.initial: tuple[PrefixHandle, int] | None = None
        if initial_state is not None:
            self._begin_with(initial_state)

    def _begin_with(self, arrays: StateArrays) -> None:
        """Makes every text begin with this state, as if a placeholder token had produced it."""
        self.begun = [0]
        self._runner.write_state(SCRATCH_SLOT, 1, arrays)
        handle = self._store.keep(SCRATCH_SLOT, 1)
        assert handle is not None, "a state of one token"
        self.initial = handle, 1
        self._store.forget(SCRATCH_SLOT)

    # ---------------------------------------------------------------- of sequences

    def begin(self, sequence: TokenSequence) -> None:
        """Gives a sequence the longest stored prefix, and sets the lengths at which its states are stored."""
        request = sequence.request
        if sequence.cut:
            sequence.boundaries = frozenset()
        elif request.keep and not self._store.rewinds:
            marks = (mark + sequence.begun for mark in request.marks)
            sequence.boundaries = frozenset([*marks, sequence.prompt - 1])
        if sequence.salt.shared > sequence.begun and not self._store.rewinds:
            sequence.boundaries |= {sequence.salt.shared}
        found = (None if sequence.salt.once else self.cache.find(sequence.key())) or self.initial
        if found is not None:
            handle, sequence.fed = found
            self._store.adopt(sequence.slot, handle, sequence.fed)
        sequence.checkpoint = sequence.fed
        if not self._store.rewinds:
            # Two texts share this prefix, so a third may. From now on a state is stored here, but a few tokens earlier:
            # the last shared tokens may be a coincidence ("What is", "What is the").
            branch = self.cache.branch(sequence.key()) - BY_CHANCE
            if sequence.fed + PAGE <= branch < sequence.read_end:
                sequence.boundaries |= {branch}

    def share(self, sequence: TokenSequence) -> bool:
        """Stores the prompt read so far for other sequences with the same prompt; False if nothing was stored."""
        if sequence.cut or sequence.salt.once or not self.cache.stores:
            return False
        if not self._store.rewinds:
            sequence.boundaries |= {sequence.prompt - 1}
        return True

    def skip(self, sequence: TokenSequence) -> bool:
        """Moves a sequence forward to the end of a stored prefix that is longer than the part it has read."""
        found = self.cache.find(sequence.key(sequence.read_end))
        if found is None or found[1] <= sequence.fed:
            return False
        handle, length = found
        self._store.forget(sequence.slot)
        self._store.adopt(sequence.slot, handle, length)
        sequence.fed = sequence.checkpoint = sequence.reused = length
        return True

    def keep_prompt(self, sequence: TokenSequence, end: int) -> None:
        """Stores the result of a prompt's step: the whole prompt, or states within it."""
        asked, way = end in sequence.boundaries, end - sequence.checkpoint
        wanted = asked or (end == sequence.read_end and not self._store.recurrent)
        if not self._store.rewinds and end != sequence.read_end:
            wanted |= way >= self._runner.cache_config.checkpoint_interval
        if wanted:
            self.keep(sequence, end, asked=asked)

    def keep_answer(self, sequence: TokenSequence) -> None:
        """Stores states within an answer."""
        if self._store.rewinds or sequence.finish_reason:
            return
        known = min(sequence.fed, len(sequence.ids))
        if known - sequence.checkpoint >= self._runner.cache_config.checkpoint_interval:
            self.keep(sequence, known, asked=False)

    def keep_ended(self, sequence: TokenSequence) -> None:
        """Stores a sequence that has ended; if it failed, drops its stored prefix."""
        if sequence.finish_reason == "error":
            self.cache.forget(sequence.key())
        elif sequence.request.keep or (not self._store.recurrent and sequence.finish_reason != "abort"):
            self.keep(sequence, len(sequence.ids), asked=sequence.request.keep)

    def keep(self, sequence: TokenSequence, most: int, *, asked: bool) -> None:
        """Stores the prefix of a sequence. Without `asked`, leaves out a last page that is not full."""
        handle = None
        if sequence.salt.once:
            return
        try:
            handle = self._store.keep(sequence.slot, most, whole=not asked)
            if handle is not None:
                sequence.checkpoint = handle.length
                self.cache.store(sequence.key(handle.length), handle, wanted=asked)
        except Exception as error:  # noqa: BLE001  ends this request; reported in its last update
            sequence.finish_reason, sequence.error = "error", error
            if handle is not None:
                self._store.release(handle)

    # ---------------------------------------------------------------- of texts

    def length(self, ids: Sequence[int] | Key) -> int:
        """Length of the longest stored prefix of a text, without the placeholders."""
        found = self.cache.find(key_of(self.begun) + as_key(ids))
        return 0 if found is None else max(0, found[1] - len(self.begun))

    def forget(self, ids: Sequence[int] | Key) -> None:
        """Removes the stored prefixes of a text."""
        self.cache.forget(key_of(self.begun) + as_key(ids))

    def export(self, ids: Sequence[int] | Key) -> tuple[int, StateArrays] | None:
        """Returns the longest stored prefix of a text: its length, and its arrays by name."""
        found = self.cache.find(key_of(self.begun) + as_key(ids) + key_of([0]))  # the last token is never matched
        if found is None or found[1] <= len(self.begun):
            return None
        handle, length = found
        self._store.adopt(SCRATCH_SLOT, handle, length)
        try:
            return length - len(self.begun), self._runner.read_state(SCRATCH_SLOT)
        finally:
            self._store.forget(SCRATCH_SLOT)

    def restore(self, ids: Sequence[int] | Key, arrays: StateArrays) -> None:
        """Stores what `export` returned for these ids. The next request with this prefix continues from there."""
        key = key_of(self.begun) + as_key(ids)
        length = len(key) // TOKEN
        fitted = self._runner.fitted(length, arrays)
        if fitted is None:
            raise BadFile(f"the saved state is not one of {length:,} tokens of this model")
        try:
            while True:
                try:
                    self._runner.write_state(SCRATCH_SLOT, length, fitted)
                    break
                except CacheFull:
                    if not self.cache.evict():
                        raise
            handle = self._store.keep(SCRATCH_SLOT, length)
            if handle is not None:
                self.cache.store(key, handle, wanted=True)
        finally:
            self._store.forget(SCRATCH_SLOT)
