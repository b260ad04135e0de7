"""Generation with diffusion models: an answer begins as masks; each step replaces the most certain ones.

The answer is decided block by block, from left to right. Each step reads prompt and answer with its masks, samples a
token for each mask of the block, and keeps those that are most certain. A complete block is delivered.
"""

import math

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, CacheFull
from ..models.layered import Diffusion
from ..ops.batch import Batch
from .runner import Runner
from .sampling import Sampled
from .sequence import TokenSequence
from .slots import Slots

BLOCK = 32  # tokens of a block, which are decided together
BLOCK_STEPS = 16  # maximum number of steps for a block
CANVAS = 256  # maximum masks after the text
DIFFUSION = "this model generates by diffusion: it"


class Canvas:
    """The text of a request followed by masks, and the tokens decided in the present block."""

    def __init__(self, sequence: TokenSequence, mask: int) -> None:
        self.start = len(sequence.ids)  # start of the block
        self.ids = [*sequence.ids, *[mask] * min(CANVAS, sequence.max_length - sequence.length)]
        self.decided: dict[int, Sampled] = {}  # by position
        self.begin_block()

    def begin_block(self) -> None:
        """Plans the steps of the block at `start`. If tokens do not divide evenly, earlier steps decide one more."""
        self.end = min(self.start + BLOCK, len(self.ids))
        count = self.end - self.start
        steps = min(BLOCK_STEPS, count)
        self.counts = [count // steps + (step < count % steps) for step in range(steps)] if steps else []

    @property
    def open(self) -> list[int]:
        """Positions of the block that are undecided."""
        return [at for at in range(self.start, self.end) if at not in self.decided]

    def decide(self, found: dict[int, tuple[float, Sampled]]) -> None:
        """Keeps the most certain of the tokens that a step found; earlier positions first if equally certain."""
        best = sorted(found, key=lambda at: (-found[at][0], at))[: self.counts.pop(0)]
        for at in best:
            self.decided[at] = found[at][1]
            self.ids[at] = found[at][1].token


class DiffusionDecoder:
    """Runs the steps of a diffusion model for the requests of an engine."""

    def __init__(self, runner: Runner, slots: Slots, how: Diffusion) -> None:
        self._runner = runner
        self._slots = slots
        self._how = how
        self._canvases: dict[TokenSequence, Canvas] = {}

    def check(self, sequence: TokenSequence) -> None:
        """Refuses requests with options that diffusion models do not support."""
        if sequence.request.grammar is not None:
            raise BadInput(f"{DIFFUSION} takes no schema, regular expression or grammar")
        if sequence.adapters is not None:
            raise BadInput(f"{DIFFUSION} takes no adapter scales for a request; give them when it is loaded")

    def step(self) -> int:
        """Runs one step for each request that has a slot. Returns the number of these requests."""
        for sequence in self._slots.admit():
            sequence.started = True
            sequence.sample_on_host(True)
        self._canvases = {one: canvas for one, canvas in self._canvases.items() if one in self._slots.running}
        ready = [one for one in self._slots.running if not (one.paused or one.finish_reason)]
        for sequence in ready:
            self._advance(sequence)
        return len(ready)

    def _advance(self, sequence: TokenSequence) -> None:
        if sequence.length >= sequence.max_length:
            sequence.end("length")
            return
        canvas = self._canvases.get(sequence)
        if canvas is None:
            canvas = self._canvases[sequence] = Canvas(sequence, self._how.mask)
        logits, first = self._logits(sequence, canvas)
        try:
            self._decide(sequence, canvas, logits, first)
        except Exception as error:  # noqa: BLE001  ends this request; reported in its last update
            sequence.end("error", error)
        if not canvas.open:
            self._deliver(sequence, canvas)

    def _decide(self, sequence: TokenSequence, canvas: Canvas, logits: npt.NDArray[np.float32], first: int) -> None:
        """Samples a token for each mask of the block, and keeps the most certain."""
        params, found = sequence.request.params, {}
        for at in canvas.open:
            row = logits[max(at - self._how.shifted, 0) - first].copy()
            row[self._how.mask] = -np.inf
            if at < sequence.prompt + params.min_tokens:
                row[list(params.stop_ids)] = -np.inf
            sampled = sequence.sampler.sample(row)
            found[at] = certainty(row, sampled.token), sampled
        canvas.decide(found)

    def _logits(self, sequence: TokenSequence, canvas: Canvas) -> tuple[npt.NDArray[np.float32], int]:
        """The logits of the rows that predict the block and later tokens, and the position of the first row."""
        first = max(0, canvas.start - 1)
        batch = Batch.of([(sequence.slot, 0, canvas.ids)], wanted=[len(canvas.ids) - first])
        while True:
            try:
                return self._runner.step(batch), first
            except CacheFull:
                if not self._slots.free_pages():
                    raise
            finally:
                self._runner.store.forget(sequence.slot)  # the next step reads another text

    def _deliver(self, sequence: TokenSequence, canvas: Canvas) -> None:
        """Adds the tokens of a complete block to the answer, up to its end, and begins the next block."""
        for at in range(canvas.start, canvas.end):
            if sequence.finish_reason:
                break
            sequence.append(canvas.decided[at])
            sequence.sampler.accept(canvas.decided[at].token)
        self._slots.updated[sequence] = None
        canvas.start = canvas.end
        canvas.begin_block()
        if canvas.start == len(canvas.ids):
            del self._canvases[sequence]


def certainty(logits: npt.NDArray[np.float32], token: int) -> float:
    """The probability of a token."""
    return math.exp(float(logits[token]) - float(np.logaddexp.reduce(logits.astype(np.float64))))
