"""One request on its way through the engine: its tokens, how many of them were fed, and the news of it."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.sampling import FROM_SLOT
from .cache.prefix_index import TOKEN, Key, key_of
from .device_sampling import draw_row, penalises, samples_on_device, skipped_row
from .request import Request, Update
from .sampling import Sampled, Sampler
from .speculation.acceptance import Drafting

FAMILY = 20  # bits of a token id; those above it tell families apart
Mask = npt.NDArray[np.uint32]  # a bit for each token, set where it is allowed; [ceil(V / 32)]
Logits = npt.NDArray[np.float32]  # of rows, [R, V]
Computed = tuple[list[Sampled], Mask | None, bool]  # tokens, what may follow them, whether nothing can


class TokenSequence:
    """A request from when it is accepted to its last update.

    The device knows the sampled tokens first. Steps may be submitted that feed tokens which the host has not seen yet;
    what they compute past the end of the answer is dropped.
    """

    def __init__(
        self, request: Request, vocabulary: int, context: int | None, *, shifts: bool = False, begun: int = 0
    ) -> None:
        """Any thread may make one: it checks the request, and does all that takes long for a long prompt."""
        # Prompt and answer; behind tokens that stand for what an initial state has seen.
        self.ids = [0] * begun + request.check(vocabulary, context)
        self.begun = begun
        self.id = 0  # of its updates, once the engine has it
        self.request = request
        self.prompt = len(self.ids)  # tokens
        self.read_end = self.prompt  # tokens that are read before it samples: the prompt, or all that a cut has left
        self.prompt_hash = hash(tuple(self.ids))  # of others with the same prompt it is the same
        self.adapters: npt.NDArray[np.float32] | None = None  # what its rows want of each column of adapters, [R]
        self.family = 0  # of sequences with the same adapters: a prefix of one family is none of another
        self._key: Key = b""  # of its first tokens, as far as it was asked for
        self.sampler = Sampler(request.params, vocabulary)
        self.on_host = not samples_on_device(request.params)
        self.drafting: Drafting | None = None  # where tokens may be drafted for it
        self.draft: list[int] = []  # tokens that the next step verifies, or that the step in flight does
        self.rows_right = 0  # rows of its last step that were right, until `Speculation.accept` takes the number
        if self.on_host:
            self.sampler.accept_all(self.ids)
        room = request.params.max_tokens if context is None or shifts else context - self.prompt
        self.context = context if shifts else None  # positions, where it goes on without its middle at their end
        self.cut = 0  # tokens of its middle that it goes on without
        self.max_length = self.prompt + min(request.params.max_tokens, room)  # tokens it may come to
        self.slot = -1  # while it runs
        self.fed = 0  # tokens that its pages or its state have seen, or will when all is done that was submitted
        self.in_flight = 0  # tokens that were sampled, or will be, and are not known here yet
        self.boundaries: frozenset[int] = frozenset()  # where a step must end, since a state is kept there
        self.checkpoint = 0  # its length when a state of it was stored last
        self.paused = False  # whether it has no steps for now: nobody reads what it has generated
        self.reused = 0
        self.started = False
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.mask: Mask | None = None  # what its grammar allows next
        self.work: Future[Computed] | None = None  # what the host computes for it: it has no steps until then
        self._sampled: list[Sampled] = []  # that no update has told of

    @property
    def synchronous(self) -> bool:
        """Whether each token must be known here before the next step."""
        drafts = self.drafting is not None and self.drafting.on
        return self.on_host or self.request.grammar is not None or drafts

    @property
    def ahead(self) -> float:
        """Steps that may be under way beside it."""
        if self.synchronous:
            return 0
        return 1 if self.request.params.logprobs else math.inf  # the logits of each take memory of the host

    @property
    def to_feed(self) -> int:
        """Tokens that can be fed now."""
        known, fed = len(self.ids), self.fed
        if known > fed:
            wanted = known - fed + len(self.draft)
        else:  # maybe one that is not known here yet
            wanted = fed < known + self.in_flight < self.max_length - self.cut and not self.synchronous
        return wanted if self.context is None else min(wanted, self.context - fed)

    @property
    def length(self) -> int:
        """Tokens of the prompt and the answer so far, with those that were cut."""
        return len(self.ids) + self.cut

    @property
    def prompt_key(self) -> tuple[int, int]:
        """What those have in common whose prompts leave the same pages and states."""
        return self.prompt_hash, self.family

    def key(self, length: int | None = None) -> Key:
        """What the prefix of so many of its tokens is stored by, or that of all; only what is new is computed."""
        length = len(self.ids) if length is None else length
        known = len(self._key) // TOKEN
        if known < length:
            new = self.ids[known:length]
            self._key += key_of([token | self.family << FAMILY for token in new] if self.family else new)
        return self._key[: length * TOKEN]

    @property
    def room(self) -> int:
        """Tokens that may be drafted: the row after the last one gives a token, too."""
        room = self.max_length - self.length - 1
        return room if self.context is None else min(room, self.context - len(self.ids))

    @property
    def full(self) -> bool:
        """Whether its next token has no position."""
        busy = self.in_flight or self.work or self.finish_reason
        return self.context is not None and len(self.ids) > self.context and not busy

    def cut_middle(self, keep: int) -> None:
        """Goes on with its first tokens and half of the others, the last."""
        assert self.context is not None
        keep = min(max(keep, *self.request.marks[:1], 0), self.context // 2)
        count = (self.context - keep + 1) // 2
        del self.ids[keep : keep + count]
        self._key = b""
        self.cut += count
        self.read_end = len(self.ids)
        if self.on_host:
            self.sampler.restart(self.length - self.prompt, self.ids)

    def rows(self, start: int, end: int) -> Sequence[int]:
        """The tokens of some positions; what is not known here is what its slot has sampled last."""
        if end > len(self.ids) > start:
            return [*self.ids[start:], *self.draft[: end - len(self.ids)]]
        return self.ids[start:end] or [FROM_SLOT | self.slot]

    def draw(self) -> npt.NDArray[Any]:
        """Its row of draws, but for what changes from step to step."""
        if self.on_host:
            return skipped_row()
        masked = self.request.grammar is not None
        return draw_row(self.request.params, self.sampler.seed, self.slot, masked=masked)

    @property
    def samples_in_order(self) -> bool:
        """Whether the row of a token can only be sampled after those before it: a device samples all at a time."""
        return self.request.grammar is not None or penalises(self.request.params)

    def sample_on_host(self, on_host: bool) -> None:
        """Moves the sampling of what comes next; the sampler there knows nothing of the tokens so far."""
        self.on_host = on_host
        if on_host:
            self.sampler.restart(self.length - self.prompt, self.ids)

    # ---------------------------------------------------------------- its tokens

    def append(self, sampled: Sampled) -> None:
        """A token was sampled: it belongs to the answer, or ends it."""
        if sampled.token in self.request.params.stop_ids:
            self.end("stop")
            return
        self.ids.append(sampled.token)
        self._sampled.append(sampled)
        if self.request.grammar is None and self.length >= self.max_length:
            self.end("length")

    def verify(self, sampled: Iterable[Sampled]) -> None:
        """Appends what was sampled of the rows of a step as long as the rows were right, and counts these."""
        right = 0
        for one in sampled:
            self.append(one)
            right += 1
            if self.finish_reason or right > len(self.draft) or one.token != self.draft[right - 1]:
                break
        self.rows_right = right

    def start_work(self, executor: Executor, *, token: int | None = None, logits: Logits | None = None) -> None:
        """Has the host sample from the logits of rows, and the grammar accept these tokens, or the one given."""
        self.work = executor.submit(self._compute, token, logits)

    def _compute(self, token: int | None, logits: Logits | None) -> Computed:
        """On another thread: what was sampled, what the grammar allows next, and whether it is done.

        A drafted row is sampled only if the rows before it were right, so that sampler and grammar never go back.
        """
        sampled: list[Sampled] = []
        done, mask = False, self.mask
        for number, row in enumerate(() if logits is None else logits):
            if number and sampled[-1].token != self.draft[number - 1]:
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
        """Has the grammar accept a token: whether it is done, and what it allows next."""
        grammar = self.request.grammar
        if grammar is None:
            return False, None
        if token is not None:
            grammar.accept(token)
        return (True, None) if grammar.done else (False, grammar.mask())

    def take_work(self) -> bool:
        """Takes what was computed; whether there is something to tell."""
        work, self.work = self.work, None
        if work is None or self.finish_reason:
            return False
        try:
            sampled, self.mask, done = work.result()
        except Exception as error:  # noqa: BLE001  it ends this request, and is told by its last update
            self.end("error", error)
            return True
        self.verify(sampled)
        if done:
            self.end("stop")
        elif self.length >= self.max_length:
            self.end("length")
        return bool(sampled) or self.finish_reason is not None

    def end(self, reason: str, error: Exception | None = None) -> None:
        """Nothing more is generated; the first reason counts."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error

    def update(self) -> Update:
        """What happened since the last one."""
        sampled, self._sampled = tuple(self._sampled), []
        done = self.prompt if self.length > self.prompt else min(self.fed, self.prompt)
        drafted, accepted = (self.drafting.drafted, self.drafting.accepted) if self.drafting else (0, 0)
        reason, error, begun = self.finish_reason, self.error, self.begun
        done, prompt, reused = max(0, done - begun), max(0, self.prompt - begun), max(0, self.reused - begun)
        return Update(self.id, sampled, done, prompt, reused, reason, error, drafted, accepted)
