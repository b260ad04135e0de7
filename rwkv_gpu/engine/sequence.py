"""One request inside the engine: its tokens, how many of them were fed, and its pending updates."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.sampling import FROM_SLOT
from .cache.prefix_index import TOKEN, Key, Salt, key_of
from .device_sampling import draw_row, penalises, samples_on_device, skipped_row
from .media import Spans
from .request import Request, Update
from .sampling import Sampled, Sampler
from .speculation.acceptance import DraftState

FAMILY = 20  # bits of a token id; the bits above are the family
Mask = npt.NDArray[np.uint32]  # one bit per token, set if it is allowed; [ceil(V / 32)]
Logits = npt.NDArray[np.float32]  # [R, V]
# Sampled tokens, mask for the next token, whether the grammar is done
Computed = tuple[list[Sampled], Mask | None, bool]


class TokenSequence:
    """A request from acceptance to its last update.

    The device samples tokens before the host sees them, so steps may be submitted that feed tokens still unknown to the
    host. Results after the end of the answer are dropped.
    """

    def __init__(
        self,
        request: Request,
        vocabulary: int,
        context: int | None,
        *,
        shifts: bool = False,
        begun: int = 0,
    ) -> None:
        """Checks the request, and does everything slow for a long prompt. Any thread may create one."""
        # Prompt and answer, after placeholder tokens for what an initial state has seen.
        self.ids = [0] * begun + request.check(vocabulary, context)
        self.begun = begun
        self.salt = replace(request.salt, shared=begun + request.salt.shared)
        self.images = Spans(request.images, begun=begun, salt=self.salt.number)
        self.id = 0  # carried by its updates; set when it is added to the engine
        self.request = request
        self.prompt = len(self.ids)  # tokens
        self.read_end = self.prompt  # tokens read before sampling starts: the prompt, or what is left after a cut
        self.prompt_hash = hash(tuple(self.ids))  # the same for sequences with the same prompt
        self.adapters: npt.NDArray[np.float32] | None = None  # scale of each adapter column for its rows, [R]
        self.family = 0  # number of its adapter scales: prefixes are shared within a family only
        self._key: Key = b""  # cached prefix of its key, extended on demand
        self.sampler = Sampler(request.params, vocabulary)
        self.on_host = not samples_on_device(request.params)
        self.drafting: DraftState | None = None  # None if drafting is not possible
        self._in_work: tuple[int, ...] = ()  # the draft that host work verifies
        self.draft: list[int] = []  # tokens that the next step verifies
        self.rows_right = 0  # correct rows of its last step, until `Speculation.accept` reads them
        self.rows_drafted = 0  # drafted tokens of that step
        self.unverified = 0  # drafted tokens in flight whose number of right ones is counted on the device
        if self.on_host:
            self.sampler.accept_all(self.images.text(self.ids))
        room = request.params.max_tokens if context is None or shifts else context - self.prompt
        self.context = context if shifts else None  # positions, if it continues without its middle when they are full
        self.cut = 0  # tokens that were cut from its middle
        self.max_length = self.prompt + min(request.params.max_tokens, room)  # limit for prompt and answer together
        self.slot = -1  # -1 while it has none
        self.fed = 0  # tokens in its pages or state once all submitted steps are done
        self.in_flight = 0  # sampled tokens that the host does not know yet
        # Lengths at which a step must end, because a state is stored there
        self.boundaries: frozenset[int] = frozenset()
        self.checkpoint = 0  # length at which its last state was stored
        self.paused = False  # no steps for now: its output is not being read
        self.reused = 0
        self.started = False
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.mask: Mask | None = None  # tokens that its grammar allows next
        self.work: Future[Computed] | None = None  # host computation in progress; no steps until it is done
        self._sampled: list[Sampled] = []  # not delivered by an update yet

    @property
    def synchronous(self) -> bool:
        """True if the host must know each token before the next step."""
        drafts = self.drafting is not None and self.drafting.on
        return self.on_host or self.request.grammar is not None or drafts

    @property
    def ahead(self) -> float:
        """Maximum look-ahead of this sequence: steps in flight in addition to the next one."""
        if self.synchronous:
            return int(self.unverified > 0)
        return 1 if self.request.params.logprobs else math.inf  # the logits of each step take host memory

    @property
    def to_feed(self) -> int:
        """Number of tokens that can be fed now."""
        known, fed = len(self.ids), self.fed
        if known > fed:
            wanted = known - fed + len(self.draft)
        elif self.synchronous or self.unverified:  # with a draft, the step follows one whose result is not known yet
            wanted = 1 + len(self.draft) if self.draft else 0
        else:  # the last token may not be known to the host yet
            wanted = fed < known + self.in_flight < self.max_length - self.cut
        return wanted if self.context is None else min(wanted, self.context - fed)

    @property
    def length(self) -> int:
        """Tokens of the prompt and the answer so far, including cut ones."""
        return len(self.ids) + self.cut

    @property
    def prompt_key(self) -> tuple[int, int, Salt]:
        """A key that is equal for two sequences if they may share the pages and states of their prompts."""
        return self.prompt_hash, self.family, self.salt

    def key(self, length: int | None = None) -> Key:
        """Returns the key under which the prefix of `length` tokens is stored (all by default).

        Computed incrementally.
        """
        length = len(self.ids) if length is None else length
        known = len(self._key) // TOKEN
        if known < length:
            new = self.ids[known:length]
            new = [token + (self.family << FAMILY) for token in new] if self.family else new
            self._key += key_of(new, self.salt, known)
        return self._key[: length * TOKEN]

    @property
    def room(self) -> int:
        """Number of tokens that may be drafted.

        One position stays free: the row of the last draft also produces a token.
        """
        room = self.max_length - self.length - 1
        return (room if self.context is None else min(room, self.context - len(self.ids))) - self.in_flight

    @property
    def full(self) -> bool:
        """True if no position is left for its next token."""
        busy = self.in_flight or self.work or self.finish_reason
        return self.context is not None and len(self.ids) > self.context and not busy

    def cut_middle(self, keep: int) -> None:
        """Keeps the first `keep` tokens after those of an initial state, and the last half of the others."""
        assert self.context is not None
        keep = min(self.begun + max(keep, *self.request.marks[:1], 0), self.context // 2)
        start, end = self.images.cut(keep, keep + (self.context - keep + 1) // 2)
        del self.ids[start:end]
        self._key = b""
        self.salt = replace(self.salt, shared=min(start, self.salt.shared))
        self.cut += end - start
        self.read_end = len(self.ids)
        if self.on_host:
            self.sampler.restart(self.length - self.prompt, self.images.text(self.ids))

    def rows(self, start: int, end: int) -> Sequence[int]:
        """The tokens at some positions.

        A token unknown to the host is replaced by a reference to its slot's last sample.
        """
        if end > len(self.ids) > start:
            return [*self.ids[start:], *self.draft[: end - len(self.ids)]]
        ids: Sequence[int] = self.ids[start:end]
        if self.images.spans:
            ids = self.images.text(ids, start)
        return ids or [FROM_SLOT | self.slot, *self.draft[: end - start - 1]]

    def draw(self) -> npt.NDArray[Any]:
        """Its sampling parameters as a row of `draws`, without the fields that change every step."""
        if self.on_host:
            return skipped_row()
        masked = self.request.grammar is not None
        return draw_row(self.request.params, self.sampler.seed, self.slot, masked=masked)

    @property
    def samples_in_order(self) -> bool:
        """True if a row can only be sampled after the rows before it.

        Then the host must sample, because a device samples all rows at once.
        """
        return self.request.grammar is not None or penalises(self.request.params)

    def sample_on_host(self, on_host: bool) -> None:
        """Moves sampling to the host or back. The new sampler starts without knowledge of earlier tokens."""
        self.on_host = on_host
        if on_host:
            self.sampler.restart(self.length - self.prompt, self.images.text(self.ids))

    # ---------------------------------------------------------------- its tokens

    def append(self, sampled: Sampled) -> None:
        """Adds a sampled token to the answer, or ends the answer."""
        if sampled.token in self.request.params.stop_ids:
            self.end("stop")
            return
        self.ids.append(sampled.token)
        self._sampled.append(sampled)
        if self.request.grammar is None and self.length >= self.max_length:
            self.end("length")

    def verify(self, sampled: Iterable[Sampled], draft: Sequence[int]) -> None:
        """Appends the tokens sampled from a step's rows up to the first wrong row, and counts the right ones."""
        right = 0
        for one in sampled:
            self.append(one)
            right += 1
            if self.finish_reason or right > len(draft) or one.token != draft[right - 1]:
                break
        self.rows_right, self.rows_drafted = right, len(draft)

    def start_work(
        self,
        executor: Executor,
        *,
        token: int | None = None,
        logits: Logits | None = None,
        draft: Sequence[int] = (),
    ) -> None:
        """Starts work on a host thread.

        It samples from the logits of rows, which verify a draft, and feeds the sampled tokens, or `token`, to the
        grammar.
        """
        self._in_work = tuple(draft)
        self.work = executor.submit(self._compute, token, logits, self._in_work)

    def _compute(self, token: int | None, logits: Logits | None, draft: Sequence[int]) -> Computed:
        """Runs on another thread.

        Returns the sampled tokens, the mask for the next one, and whether the grammar is done.

        A drafted row is sampled only if the rows before it were right, so sampler and grammar never go back.
        """
        sampled: list[Sampled] = []
        done, mask = False, self.mask
        for number, row in enumerate(() if logits is None else logits):
            if number and sampled[-1].token != draft[number - 1]:
                break
            sampled.append(self.sampler.sample(row, mask))
            token = sampled[-1].token
            if token in self.request.params.stop_ids:
                return sampled, None, False
            self.sampler.accept(token)
            done, mask = self._follow(token)
            if done:
                break
        if logits is None:
            done, mask = self._follow(token)
        return sampled, mask, done

    def _follow(self, token: int | None) -> tuple[bool, Mask | None]:
        """Feeds a token to the grammar. Returns whether it is done, and the mask for the next token."""
        grammar = self.request.grammar
        if grammar is None:
            return False, None
        if token is not None:
            grammar.accept(token)
        return (True, None) if grammar.done else (False, grammar.mask())

    def take_work(self) -> bool:
        """Takes the finished host result. Returns True if there is an update to deliver."""
        work, self.work = self.work, None
        assert work is not None, "work has finished"
        if self.finish_reason:
            return False
        try:
            sampled, self.mask, done = work.result()
        except Exception as error:  # noqa: BLE001  ends this request; reported in its last update
            self.end("error", error)
            return True
        self.verify(sampled, self._in_work)
        if done:
            self.end("stop")
        elif self.length >= self.max_length:
            self.end("length")
        return bool(sampled) or self.finish_reason is not None

    def end(self, reason: str, error: Exception | None = None) -> None:
        """Ends the answer. Only the first reason counts."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error

    def update(self) -> Update:
        """Returns what happened since the last update."""
        sampled, self._sampled = tuple(self._sampled), []
        done = self.prompt if self.length > self.prompt else min(self.fed, self.prompt)
        drafting = self.drafting
        drafts = (drafting.drafted, drafting.accepted, drafting.gain.factor) if drafting else (0, 0, None)
        reason, error, begun = self.finish_reason, self.error, self.begun
        done, prompt, reused = max(0, done - begun), max(0, self.prompt - begun), max(0, self.reused - begun)
        return Update(self.id, sampled, done, prompt, reused, reason, error, *drafts)
