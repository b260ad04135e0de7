"""A small model that drafts tokens for a large one. It samples with the same seeds, so that both choose alike.

A token is drawn by a hash of seed, number of the draw and token. Where both models give a token a similar probability,
the same draw chooses it in both: drafts are right as often as the models agree, at any temperature.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...models.registry import Model
from ...ops.batch import Batch
from ...ops.sampling import DRAW, FROM_SLOT
from ..cache.config import CacheConfig, CacheOptions
from ..device_sampling import draw_row
from ..runner import Runner
from ..sampling_params import SamplingParams
from ..scheduler import ScheduledChunk
from ..sequence import TokenSequence
from ..step_result import PendingStep, SamplingInputs
from .proposer import Proposer

FOLLOWING = 2  # tokens after a correct draft that the draft model has not seen: the last drafted, and the one sampled


def draft_options(model: Model, target: CacheConfig) -> CacheOptions:
    """Cache options of a draft model: as many sequences as the target, with its context if the training length allows.

    All steps of a draft may be in flight at once, so that they share submits.
    """
    context = min(model.context or 0, target.context or model.context or 0) or None
    return {
        "slots": target.slots, "context": context, "kv": target.kind, "cache_bytes": 0,
        "look_ahead": target.drafts, "rewind": target.drafts + 1,
    }  # fmt: skip


@dataclass
class DraftSlot:
    """A sequence of the draft model. It outlives its request, and serves a later one with the same beginning."""

    slot: int
    fed: list[int] = field(default_factory=list)  # tokens that it has seen
    sequence: TokenSequence | None = None
    checked: int = 0  # number of these known to match the sequence
    cut: int = 0  # tokens cut from the middle of the sequence when these were fed


class DraftModel(Proposer):
    """Drafts for several sequences at once; each step drafts one token per sequence."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._slots = [DraftSlot(slot) for slot in range(runner.slots)]

    @property
    def compile_seconds(self) -> float:
        """Seconds spent so far on recording plans and compiling their shaders."""
        return self._runner.compile_seconds

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        """Drafts up to the wanted number of tokens for each.

        A sequence gets no draft if the draft model first had to read more of its text.
        """
        rows = self._runner.chunk_size
        self.steps, self.read = 0, False  # `read`: whether it read more than the tokens since the last drafts
        reading: list[TokenSequence] = []
        drafting: list[tuple[DraftSlot, int]] = []
        for sequence, most in wanted:
            slot = self._slot_of(sequence)
            most = min(most, (self._runner.context or 1 << 40) - len(sequence.ids))
            if slot is None or most < 1:
                continue
            if max(sequence.ids[len(slot.fed) :], default=0) >= self._runner.vocabulary:
                continue  # a padding id of the larger model, unknown to this one
            missing = len(sequence.ids) - len(slot.fed)
            self.read |= missing > FOLLOWING
            if missing > max(rows - len(wanted), 1):
                self._read(slot, rows)
                reading.append(sequence)
            elif missing <= rows:
                drafting.append((slot, most))
                rows -= missing
        return self._draft(drafting) | {sequence: [] for sequence in reading}

    def close(self) -> None:
        """Frees all memory."""
        self._runner.close()

    # ---------------------------------------------------------------- inside

    def _slot_of(self, sequence: TokenSequence) -> DraftSlot | None:
        """The slot of a sequence, truncated to the common prefix of both."""
        slot = next((one for one in self._slots if one.sequence is sequence), None)
        if slot is None:
            free = [one for one in self._slots if one.sequence is None or one.sequence.slot < 0]
            if not free:
                return None
            slot = max(free, key=lambda one: _common(one.fed, sequence.ids, 0))
            slot.sequence, slot.checked = sequence, 0
        if slot.cut != sequence.cut:
            slot.checked, slot.cut = 0, sequence.cut
        common = min(_common(slot.fed, sequence.ids, slot.checked), len(sequence.ids) - 1)
        if common < len(slot.fed):
            common = self._runner.store.truncate(slot.slot, common)
            del slot.fed[common:]
        slot.checked = common
        return slot

    def _read(self, slot: DraftSlot, rows: int) -> None:
        """Reads a chunk of a text, without drafting."""
        assert slot.sequence is not None
        start = len(slot.fed)
        self._step([(slot, slot.sequence.ids[start : start + rows])], sampled=False).wait()

    def _draft(self, drafting: Sequence[tuple[DraftSlot, int]]) -> dict[TokenSequence, list[int]]:
        """Submits all steps before reading the first result: each feeds the tokens sampled by the step before."""
        steps: list[tuple[PendingStep, list[DraftSlot]]] = []
        self.steps = max((most for _, most in drafting), default=0)
        for number in range(self.steps):
            going = [slot for slot, most in drafting if most > number]
            feed = [(slot, _next(slot) if not number else [FROM_SLOT | slot.slot]) for slot in going]
            steps.append((self._step(feed, number), going))
        drafts: dict[TokenSequence, list[int]] = {}
        for step, going in steps:
            for slot, row in zip(going, step.wait().rows, strict=True):
                assert slot.sequence is not None
                drafts.setdefault(slot.sequence, []).append(row.token)
        for slot, _ in drafting:  # replaces placeholders by the sampled tokens
            assert slot.sequence is not None
            fed = [*slot.sequence.ids, *drafts[slot.sequence]]
            slot.fed[slot.checked :] = fed[slot.checked : len(slot.fed)]
        return drafts

    def _step(
        self, feed: Sequence[tuple[DraftSlot, Sequence[int]]], number: int = 0, *, sampled: bool = True
    ) -> PendingStep:
        chunks, draws = [], []
        for slot, ids in feed:
            assert slot.sequence is not None
            start = len(slot.fed)
            chunks.append(ScheduledChunk(slot.slot, start, start + len(ids), int(sampled), slot.sequence))
            if sampled:
                draws.append(draft_row(slot.sequence, slot.slot, number))
        placements = self._runner.store.place(chunks)
        rows = [(chunk.slot, chunk.start, ids) for chunk, (_, ids) in zip(chunks, feed, strict=True)]
        batch = Batch.of(rows, wanted=[chunk.samples for chunk in chunks], placements=placements)
        pending = self._runner.submit(batch, SamplingInputs.of(np.array(draws, DRAW)))
        for slot, ids in feed:
            slot.fed.extend(ids)
        return pending


def _next(slot: DraftSlot) -> list[int]:
    """Tokens of the sequence that the slot has not seen."""
    assert slot.sequence is not None
    return slot.sequence.ids[len(slot.fed) :]


def draft_row(sequence: TokenSequence, slot: int, number: int) -> npt.NDArray[Any]:
    """The row of draws of a drafted token: as for the sequence, without settings that depend on earlier tokens."""
    own = sequence.request.params
    row = _request_row(own.temperature, own.top_k, own.top_p, own.min_p, sequence.sampler.seed).copy()
    row["slot"] = slot
    row["tokens"] = len(sequence.ids) + sequence.in_flight + number
    row["number"] = sequence.length - sequence.prompt + sequence.in_flight + number
    return row


@functools.lru_cache(1024)
def _request_row(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> npt.NDArray[Any]:
    """Returns the draw values that all rows of a request share. Callers must copy it."""
    return draw_row(SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p), seed, slot=0)


def _common(fed: Sequence[int], ids: Sequence[int], start: int) -> int:
    """Length of the common prefix, given that the texts agree up to `start`."""
    end = min(len(fed), len(ids))
    while start < end and fed[start] == ids[start]:
        start += 1
    return start
