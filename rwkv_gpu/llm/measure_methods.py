"""The methods of a model that look at texts as they are: logits, log probabilities, perplexity, embeddings,
and how well documents answer a query."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import overload

import numpy as np
import numpy.typing as npt

from ..engine.request import Request
from ..errors import BadInput
from . import measures, validate
from .open_model import OpenModel, Prompt


class MeasureMethods(OpenModel):
    """`logits`, `logprobs`, `perplexity`, `embed` and `rerank`."""

    def logits(self, ids: Sequence[int], *, chunk_size: int | None = None) -> npt.NDArray[np.float32]:
        """The logits of every position, from a fresh state. [T, V]"""
        ids, rows = validate.token_ids("ids", ids), validate.number("chunk_size", chunk_size, validate.CHUNK)
        Request(ids).check(self.vocab_size, self.context)
        return self._driver.work(partial(measures.logits, ids=ids, chunk_size=rows))

    def logprobs(self, text: Prompt) -> npt.NDArray[np.float64]:
        """The log probability of each token but the first, after those before it. [T - 1]"""
        return self._driver.work(partial(measures.logprobs, ids=self._ids(text, name="text")))

    def perplexity(
        self, text: Prompt, *, window: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> float:
        """exp of the mean of -log p, over each token but the first.

        What is longer than `window` tokens, or than the context, goes through windows that overlap by half.
        `progress` gets how many tokens are done, and of how many.
        """
        validate.called("progress", progress)
        window = validate.number("window", window, validate.WINDOW)
        ids = self._tokens(text, "text")
        if len(ids) < 2:
            raise BadInput(f"the text has {len(ids)} tokens; perplexity needs at least 2")
        Request(ids).check(self.vocab_size, None)
        if self.context is not None:
            window = validate.number("context", min(window or self.context, self.context), validate.WINDOW)
        return self._driver.work(partial(measures.perplexity, ids=ids, window=window, progress=progress))

    @overload
    def embed(self, texts: str, *, dimensions: int | None = None) -> npt.NDArray[np.float32]: ...
    @overload
    def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> npt.NDArray[np.float32]: ...
    def embed(self, texts: str | Sequence[str], *, dimensions: int | None = None) -> npt.NDArray[np.float32]:
        """The embedding of a text, of length one. [D], or [N, D] of many

        It is the mean of its final hidden states, or that of its first or last token, as the file has it; with
        `dimensions`, the first so many numbers of that, as models allow that were trained for it.
        """
        many = [texts] if isinstance(texts, str) else validate.several("texts", texts, "texts")
        if not many:
            raise BadInput("texts is empty; give at least one")
        rows = self._driver.work(self.embedding_work(self._texts("texts", many), dimensions))
        return rows[0] if isinstance(texts, str) else rows

    def rerank(self, query: str, documents: Sequence[str]) -> npt.NDArray[np.float64]:
        """How well each document answers the query, by a model that ranks: the higher the better. [N]"""
        return self._driver.work(self.ranking_work(self.prepare_ranking(query, documents)))
