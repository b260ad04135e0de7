"""Methods that evaluate texts: logits, log probabilities, perplexity, embeddings, and relevance of documents."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ..engine.request import Request
from ..errors import BadInput
from . import measures, validate
from .open_model import OpenModel, Prompt


class MeasureMethods(OpenModel):
    """`logits`, `logprobs`, `perplexity`, `embed`, `rerank` and `decide`."""

    def logits(self, ids: Sequence[int], *, chunk_size: int | None = None) -> npt.NDArray[np.float32]:
        """The logits of every position, starting from an empty state. [T, V]"""
        ids, rows = validate.token_ids("ids", ids), validate.number("chunk_size", chunk_size, validate.CHUNK)
        Request(ids).check(self.vocab_size, self.context)
        return self._driver.work(partial(measures.logits, ids=ids, chunk_size=rows))

    def logprobs(self, text: Prompt) -> npt.NDArray[np.float64]:
        """The log probability of each token given its prefix, except the first. [T - 1]"""
        self._refuse_diffusion()
        return self._driver.work(partial(measures.logprobs, ids=self._ids(text, name="text")))

    def perplexity(
        self, text: Prompt, *, window: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> float:
        """Perplexity: exp of the mean of -log p over all tokens except the first.

        A text longer than `window` tokens, or than the context, is read in windows that overlap by half. `progress`
        gets the number of tokens done, and the total.
        """
        self._refuse_diffusion()
        validate.called("progress", progress)
        window = validate.number("window", window, validate.WINDOW)
        ids = self._tokens(text, "text")
        if len(ids) < 2:
            raise BadInput(f"the text has {len(ids)} tokens; perplexity needs at least 2")
        Request(ids).check(self.vocab_size, None)
        if self.context is not None:
            window = validate.number("context", min(window or self.context, self.context), validate.WINDOW)
        return self._driver.work(partial(measures.perplexity, ids=ids, window=window, progress=progress))

    def _refuse_diffusion(self) -> None:
        if self.info.diffusion:
            raise BadInput("this is a diffusion model: it does not predict the next token of a prefix")

    @overload
    def embed(self, texts: str, *, dimensions: int | None = None) -> npt.NDArray[np.float32]: ...
    @overload
    def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> npt.NDArray[np.float32]: ...
    def embed(self, texts: str | Sequence[str], *, dimensions: int | None = None) -> npt.NDArray[np.float32]:
        """Embeds a text as a unit vector. [D], or [N, D] for a list

        The vector is the mean of the final hidden states, or the state of the first or last token, as the file
        specifies. With `dimensions`, it uses only that many leading components, for models trained to allow this.
        """
        many = [texts] if isinstance(texts, str) else validate.several("texts", texts, "texts")
        if not many:
            raise BadInput("texts is empty; give at least one")
        rows = self._driver.work(self.embedding_work(self._texts("texts", many), dimensions))
        return rows[0] if isinstance(texts, str) else rows

    def rerank(self, query: str, documents: Sequence[str]) -> npt.NDArray[np.float64]:
        """Scores how well each document answers the query, with a reranking model: higher is better. [N]"""
        return self._driver.work(self.ranking_work(self.prepare_ranking(query, documents)))

    def decide(self, state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
        """Answers questions about a state with a decision model: the probability of each option.

        `state` is a text, or any JSON. A question is {"type": "noul" | "choice" | "score", "instructions": ...,
        "criteria": ...}: a proposition, a choice between {option: description}, or a score in a list of levels. All
        questions are decided together. Answers have the form of TypeSafe's System One API.
        """
        asked = self.prepare_decisions(state, questions)
        return self.decided(asked, self._driver.work(self.decision_work(asked)))
