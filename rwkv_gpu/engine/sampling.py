"""Chooses the next token from logits, on the host: one sampler per sequence. Token ids only.

The order is llama.cpp's: processors, logit bias, penalties, DRY, top-k, typical, top-p, min-p, XTC, temperature, draw.
A grammar's mask is applied before top-k. Sampling on a device gives the same tokens (see `device_sampling.py`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, BadNumbers
from ..ops.draw import draw, toss
from ..ops.sampling import allowed
from ..ops.truncation import Logits, Places, min_p, softmax, surprising, top_k, top_p, typical, xtc
from .penalties import TokenCounts, TokenHistory, break_repetitions, penalise
from .sampling_params import LogitsProcessor, SamplingParams

__all__ = ["Sampled", "Sampler", "SamplingParams"]


class Sampled(NamedTuple):
    """A chosen token. Log probabilities are the model's, before logits are changed."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the `logprobs` most likely tokens


class Sampler:
    """Chooses a sequence's tokens. The result depends only on params, seed, draw number and logits.

    Call `accept` for every token, including the prompt's if penalties and processors should see them.
    """

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        params.check_vocabulary(vocab_size)
        self.params = params
        self.vocab_size = vocab_size
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if params.seed is None else params.seed
        self._number = 0  # number of draws so far
        self._biased = np.array(list(params.logit_bias), np.int64)
        self._biases = np.array(list(params.logit_bias.values()), np.float32)
        self._counts = TokenCounts(params.penalty_last_n, params.penalty_decay) if params.penalises else None
        self._history = TokenHistory() if params.dry_multiplier > 0 else None
        self._ids: list[int] = []  # tokens so far, for the processors
        self._mu = 2 * params.mirostat_tau
        # Tokens, logits and temperature of the last draw
        self._drawn_from: tuple[npt.NDArray[Any], npt.NDArray[Any], float]
        self._ends = np.array(sorted(params.stop_ids), np.int64)
        truncations: tuple[tuple[bool, Callable[[Logits], Places]], ...] = (
            (params.top_k > 0, partial(top_k, k=params.top_k)),
            (params.typical_p < 1, partial(typical, mass=params.typical_p)),
            (params.top_p < 1, partial(top_p, p=params.top_p)),
            (params.min_p > 0, partial(min_p, p=params.min_p)),
            (params.xtc_probability > 0, self._xtc),
        )
        self._truncations = [keep for active, keep in truncations if active]

    def restart(self, number: int, ids: Sequence[int]) -> None:
        """Continues after these tokens and `number` draws made by a device."""
        seed, mu = self.seed, self._mu
        self.__init__(self.params, self.vocab_size)  # type: ignore[misc]
        self.seed, self._number, self._mu = seed, number, mu
        self.accept_all(ids)

    def accept(self, token: int) -> None:
        """Records a token of the prompt or the answer."""
        if not 0 <= token < self.vocab_size:
            raise BadInput(f"token {token} is not in the vocabulary of {self.vocab_size:,}")
        if self.params.logits_processors:
            self._ids.append(token)
        if self._counts is not None:
            self._counts.add(token)
        if self._history is not None:
            self._history.add(token)

    def accept_all(self, tokens: Iterable[int]) -> None:
        """Records tokens, such as those of a prompt."""
        for token in tokens:
            self.accept(token)

    def sample(self, logits: npt.NDArray[np.float32], mask: npt.NDArray[np.uint32] | None = None) -> Sampled:
        """Returns the next token. Leaves the logits, [V], unchanged.

        A mask, [ceil(V / 32)], has bit i of word w set if token 32 w + i is allowed.
        """
        if logits.shape != (self.vocab_size,):
            raise BadInput(f"logits have the shape {logits.shape}; the vocabulary needs ({self.vocab_size},)")
        changed = self._changed(logits)
        if mask is not None:
            changed = np.where(allowed(mask, self.vocab_size), changed, np.float32(-np.inf))
        best = int(changed.argmax())
        check(logits, changed, best)
        self._drawn_from = np.array([best]), np.zeros(1), 1.0
        if self.params.temperature == 0:
            token = best
        elif self.params.mirostat_tau > 0:
            token = self._draw_mirostat(changed)
        else:
            token = self._draw(changed)
        self._number += 1
        return self._after_sampling(token) if self.params.post_sampling_probs else self._report(logits, token)

    def _changed(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The logits after processors, bias and penalties; the same array if there are none."""
        processors = self.params.logits_processors
        early = self._number < self.params.min_tokens
        plain = self._counts is None and self._history is None and not processors
        if plain and not len(self._biased) and not early:
            return logits
        changed = logits.astype(np.float32)
        for processor in processors:
            changed = self._processed(processor, changed)
        changed[self._biased] += self._biases
        if early:
            changed[self._ends] = -np.inf
        if self._counts is not None:
            penalise(changed, self._counts, self.params)
        if self._history is not None:
            break_repetitions(changed, self._history, self.params)
        return changed

    def _processed(self, processor: LogitsProcessor, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Applies a processor to the logits; its errors end the request."""
        check(logits, logits, int(logits.argmax()))
        name = getattr(processor, "__name__", type(processor).__name__)
        try:
            changed = np.array(processor(np.array(self._ids, np.int32), logits.copy()), np.float32)
        except BaseException as error:  # SystemExit, too: it would end the engine's thread
            raise BadInput(f"the logits processor {name} failed: {type(error).__name__}: {error}") from error
        if changed.shape != logits.shape:
            raise BadInput(
                f"the logits processor {name} returned the shape {changed.shape}; it must keep the shape {logits.shape}"
            )
        if np.isnan(changed).any() or np.isposinf(changed).any():
            raise BadInput(f"the logits processor {name} returned NaN or infinity; -inf bans a token")
        return changed

    def _draw(self, x: Logits) -> int:
        """Applies the truncations, and draws from softmax(x / temperature)."""
        ids: npt.NDArray[np.intp] | None = None  # None is all, in order
        for keep in self._truncations:
            kept = keep(x)
            x = x[kept]
            ids = kept if ids is None else ids[kept]
        tokens = np.arange(len(x)) if ids is None else ids
        self._drawn_from = tokens, x, self.params.temperature
        return int(tokens[draw(x, tokens, self.params.temperature, self.seed, self._number)])

    def _xtc(self, x: Logits) -> Places:
        """Applies XTC, with its probability."""
        hit = toss(self.seed, self._number) < self.params.xtc_probability
        return xtc(x, self.params.xtc_threshold) if hit else np.arange(len(x))

    def _draw_mirostat(self, x: Logits) -> int:
        """Samples by mirostat v2.

        It drops tokens with a surprise above mu, draws, and moves mu by the deviation of the surprise from tau.
        """
        scaled = scale(x, self.params.temperature)
        kept = surprising(scaled, self._mu)
        p = softmax(scaled[kept])
        self._drawn_from = kept, scaled[kept], 1.0
        at = draw(scaled[kept], kept, 1.0, self.seed, self._number)
        self._mu -= self.params.mirostat_eta * (-math.log2(float(p[at])) - self.params.mirostat_tau)
        return int(kept[at])

    def _after_sampling(self, token: int) -> Sampled:
        """The token and its alternatives, with log probabilities among the tokens that it was drawn from."""
        tokens, drawn, temperature = self._drawn_from
        x = scale(drawn, temperature)
        logprobs = x - x.max() - math.log(float(np.exp(x - x.max()).sum()))
        order = np.argsort(-logprobs, kind="stable")[: self.params.logprobs]
        top = [(int(tokens[at]), float(logprobs[at])) for at in order if np.isfinite(logprobs[at])]
        return Sampled(token, float(logprobs[np.flatnonzero(tokens == token)[0]]), tuple(top))

    def _report(self, logits: npt.NDArray[np.float32], token: int) -> Sampled:
        most = logits.max()
        total = float(most) + math.log(float(np.exp(logits - most).sum()))
        return Sampled(token, float(logits[token]) - total, most_likely(logits, self.params.logprobs, total))


def most_likely(logits: npt.NDArray[np.float32], count: int, total: float) -> tuple[tuple[int, float], ...]:
    """The `count` most likely tokens and their log probabilities; `total` is log(sum(exp(x)))."""
    if not count:
        return ()
    ids = top_k(logits, count)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    return tuple(zip(ids.tolist(), (logits[ids].astype(np.float64) - total).tolist(), strict=True))


def scale(x: Logits, temperature: float) -> npt.NDArray[np.float64]:
    """(x - max(x)) / temperature"""
    scaled: npt.NDArray[np.float64] = (x - x.max()).astype(np.float64) / temperature
    return scaled


def check(logits: npt.NDArray[Any], changed: npt.NDArray[Any], best: int) -> None:
    """Refuses logits that contain NaN or infinity (found by max), or allow no token."""
    if math.isfinite(changed[best]) and math.isfinite(logits.max()):
        return
    wrong = np.flatnonzero(np.isnan(logits) | np.isposinf(logits))
    if len(wrong):
        raise BadNumbers(
            f"{len(wrong)} of {len(logits)} logits are NaN or infinite, first for token {wrong[0]}; "
            "the model file may be damaged or the device at fault: try --device cpu, or rwkv-gpu doctor"
        )
    raise BadNumbers("no token is possible: every logit is -inf; ban fewer tokens")
