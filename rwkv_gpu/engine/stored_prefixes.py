"""Stores states of sequences by their tokens, and gives new sequences the longest stored prefix to begin with."""

from collections.abc import Sequence

from ..errors import BadFile, CacheFull
from ..ops.vocabulary import PAGE
from .cache.prefixes import PrefixCache
from .cache.store import PrefixHandle
from .runner import Runner, StateArrays
from .sequence import TokenSequence

BY_CHANCE = 16  # tokens that two texts may share behind what they have in common
SCRATCH_SLOT = -1  # of a sequence that is read or written, and never steps


class StoredPrefixes:
    """The prefixes that an engine has stored, and the initial state that every text begins with where there is one."""

    def __init__(self, runner: Runner, initial_state: StateArrays | None) -> None:
        config = runner.cache_config
        self._runner = runner
        self._store = runner.store
        self.cache = PrefixCache(self._store, config.cache_bytes, *runner.page_and_state_bytes, config.checkpoints)
        self.begun: list[int] = []  # tokens that stand for an initial state
        self.initial: tuple[PrefixHandle, int] | None = None
        if initial_state is not None:
            self._begin_with(initial_state)

    def _begin_with(self, arrays: StateArrays) -> None:
        """Every text begins with this state, as if a token had been fed that left it."""
        self.begun = [0]
        self._runner.write_state(SCRATCH_SLOT, 1, arrays)
        handle = self._store.keep(SCRATCH_SLOT, 1)
        assert handle is not None, "a state of one token"
        self.initial = handle, 1
        self._store.forget(SCRATCH_SLOT)

    # ---------------------------------------------------------------- of sequences

    def begin(self, sequence: TokenSequence) -> None:
        """A sequence that has its slot adopts the longest stored prefix, and knows where states of it are kept."""
        request = sequence.request
        if sequence.cut:
            sequence.boundaries = frozenset()
        elif request.keep and not self._store.rewinds:
            marks = (mark + sequence.begun for mark in request.marks)
            sequence.boundaries = frozenset([*marks, sequence.prompt - 1])
        found = self.cache.find(sequence.key()) or self.initial
        if found is not None:
            handle, sequence.fed = found
            self._store.adopt(sequence.slot, handle, sequence.fed)
        sequence.checkpoint = sequence.fed
        if not self._store.rewinds:
            # Two texts begin alike up to here, so a third may: from now on there is a state, a few tokens before, since
            # what differs may begin alike by chance ("What is", "Where is").
            branch = self.cache.branch(sequence.key()) - BY_CHANCE
            if sequence.fed + PAGE <= branch < sequence.read_end:
                sequence.boundaries |= {branch}

    def share(self, sequence: TokenSequence) -> bool:
        """Has a sequence store the prompt that it reads, for others who have the same; false where none is stored."""
        if sequence.cut or not self.cache.stores:
            return False
        if not self._store.rewinds:
            sequence.boundaries |= {sequence.prompt - 1}
        return True

    def skip(self, sequence: TokenSequence) -> bool:
        """A sequence that reads its prompt goes on from a stored prefix, if one is longer than what it has read."""
        found = self.cache.find(sequence.key(sequence.read_end))
        if found is None or found[1] <= sequence.fed:
            return False
        handle, length = found
        self._store.forget(sequence.slot)
        self._store.adopt(sequence.slot, handle, length)
        sequence.fed = sequence.checkpoint = sequence.reused = length
        return True

    def keep_prompt(self, sequence: TokenSequence, end: int) -> None:
        """Stores what a step of a prompt has come to: a whole prompt, or states on the way through it."""
        asked, way = end in sequence.boundaries, end - sequence.checkpoint
        wanted = asked or (end == sequence.read_end and not self._store.recurrent)
        if not self._store.rewinds and end != sequence.read_end:
            wanted |= way >= self._runner.cache_config.checkpoint_interval
        if wanted:
            self.keep(sequence, end, asked=asked)

    def keep_answer(self, sequence: TokenSequence) -> None:
        """Stores states on the way through an answer."""
        if self._store.rewinds or sequence.finish_reason:
            return
        known = min(sequence.fed, len(sequence.ids))
        if known - sequence.checkpoint >= self._runner.cache_config.checkpoint_interval:
            self.keep(sequence, known, asked=False)

    def keep_ended(self, sequence: TokenSequence) -> None:
        """Stores a sequence that has ended, or forgets what is stored of it where it failed."""
        if sequence.finish_reason == "error":
            self.cache.forget(sequence.key())
        elif sequence.request.keep or (not self._store.recurrent and sequence.finish_reason != "abort"):
            self.keep(sequence, len(sequence.ids), asked=sequence.request.keep)

    def keep(self, sequence: TokenSequence, most: int, *, asked: bool) -> None:
        """Stores the prefix of a sequence; if no request asked for it, only what is whole."""
        handle = None
        try:
            handle = self._store.keep(sequence.slot, most, whole=not asked)
            if handle is not None:
                sequence.checkpoint = handle.length
                self.cache.store(sequence.key(handle.length), handle, wanted=asked)
        except Exception as error:  # noqa: BLE001  it ends this request, and is told by its last update
            sequence.finish_reason, sequence.error = "error", error
            if handle is not None:
                self._store.release(handle)

    # ---------------------------------------------------------------- of texts

    def export(self, ids: Sequence[int]) -> tuple[int, StateArrays] | None:
        """The longest stored prefix of a text: its length, and its arrays by name."""
        found = self.cache.find([*self.begun, *ids, 0])  # the last would be left out
        if found is None or found[1] <= len(self.begun):
            return None
        handle, length = found
        self._store.adopt(SCRATCH_SLOT, handle, length)
        try:
            return length - len(self.begun), self._runner.read_state(SCRATCH_SLOT)
        finally:
            self._store.forget(SCRATCH_SLOT)

    def restore(self, ids: Sequence[int], arrays: StateArrays) -> None:
        """Stores what `export` gave for these ids: the next request that begins with them goes on from there."""
        ids = [*self.begun, *ids]
        fitted = self._runner.fitted(len(ids), arrays)
        if fitted is None:
            raise BadFile(f"the saved state is not one of {len(ids):,} tokens of this model")
        try:
            while True:
                try:
                    self._runner.write_state(SCRATCH_SLOT, len(ids), fitted)
                    break
                except CacheFull:
                    if not self.cache.evict():
                        raise
            handle = self._store.keep(SCRATCH_SLOT, len(ids))
            if handle is not None:
                self.cache.store(ids, handle, wanted=True)
        finally:
            self._store.forget(SCRATCH_SLOT)
