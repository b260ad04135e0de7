"""Workloads to measure: prompts, decodes and embeddings of given lengths, as lists of steps."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import BadInput
from ..ops.batch import Batch
from ..ops.memory import MAX_SEGMENTS

BY_DEVICE = 0  # a workload with this chunk takes the default of the device
FIRST_ID, LAST_ID = 3, 250  # token ids that exist in every vocabulary
LABELS = {"pp": "pp", "tg": "tg", "embed": "pp"}  # llama-bench's names of the kinds


@dataclass(frozen=True)
class Workload:
    """A prompt read in chunks, tokens decoded by several sequences from a depth on, or texts embedded by an encoder.

    Each text is embedded whole, in a single step. In a step of kind "draft", the model's head drafts a token for each
    sequence.
    """

    kind: str  # pp, tg, embed or draft
    tokens: int  # per sequence
    depth: int
    batch: int  # number of sequences
    chunk: int  # rows of a step

    @property
    def name(self) -> str:
        """Name in llama-bench's format: tg128 @ d512"""
        return f"{LABELS[self.kind]}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def total(self) -> int:
        """Total tokens of all sequences."""
        return self.tokens * self.batch

    @property
    def together(self) -> int:
        """Sequences of a step: all, or as many whole texts as fit."""
        return min(self.batch, self.chunk // self.tokens, MAX_SEGMENTS) if self.kind == "embed" else self.batch

    @property
    def end(self) -> int:
        """Final number of positions of a sequence."""
        return self.depth + self.tokens

    def ids(self) -> list[list[int]]:
        """The ids of each sequence; they differ, so that rows choose different experts."""
        ids: list[list[int]] = np.random.default_rng(0).integers(FIRST_ID, LAST_ID, (self.batch, self.tokens)).tolist()
        return ids

    def steps(self) -> list[Batch]:
        """The steps as batches, in order."""
        ids = self.ids()
        if self.kind == "embed":
            starts = range(0, self.batch, self.together)
            texts = [ids[at : at + self.together] for at in starts]
            return [Batch.of([(slot, 0, text) for slot, text in enumerate(some)], every=True) for some in texts]
        each = self.chunk if self.kind == "pp" else 1
        return [
            Batch.of([(slot, self.depth + at, ids[slot][at : at + each]) for slot in range(self.batch)])
            for at in range(0, self.tokens, each)
        ]


def workloads(
    prompts: Sequence[int],
    tokens: Sequence[int],
    depths: Sequence[int],
    batches: Sequence[int],
    chunks: Sequence[int],
) -> list[Workload]:
    """Every prompt by depth and chunk, then every decode by depth and batch; lengths of 0 are left out."""
    if max(batches) > MAX_SEGMENTS:
        raise BadInput(f"a batch of {max(batches)} is over the {MAX_SEGMENTS} sequences that a step can have")
    prefill = [Workload("pp", p, d, 1, c) for p, d, c in itertools.product(prompts, depths, chunks) if p]
    decode = [Workload("tg", n, d, b, b) for n, d, b in itertools.product(tokens, depths, batches) if n]
    if not prefill + decode:
        raise BadInput("nothing to measure: give a prompt (-p) or tokens to generate (-n) above 0")
    return prefill + decode


def by_device(works: Sequence[Workload], chunk: int) -> list[Workload]:
    """The workloads, with the device's default chunk for those without one."""
    return [replace(work, chunk=chunk) if work.chunk == BY_DEVICE else work for work in works]


def embeddings(prompts: Sequence[int], batches: Sequence[int], chunks: Sequence[int]) -> list[Workload]:
    """Texts of every length by batch and chunk; a step has room for at least one text."""
    works = [Workload("embed", p, 0, b, max(c, p)) for p, b, c in itertools.product(prompts, batches, chunks) if p]
    if not works:
        raise BadInput("nothing to measure: give a length of texts (-p) above 0")
    return works
