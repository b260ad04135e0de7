"""Scores of a text are computed from the rows of a step, however many of them come at once."""

import numpy as np
import pytest

from rwkv_gpu.llm.measures import logprobs, perplexity, scores

WORDS = 5
IDS = [3, 1, 4, 1, 0, 2, 4]
LOGITS = np.random.default_rng(1).standard_normal((len(IDS), WORDS)).astype(np.float32)
EXACT = LOGITS - np.log(np.exp(LOGITS.astype(np.float64)).sum(axis=1, keepdims=True))


class Engine:
    """Computes rows in pieces of some sizes."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.read = sizes, []

    def evaluate(self, ids, chunk_size):  # noqa: ARG002
        self.read.append([*ids])
        rows, at = LOGITS[[IDS.index(ids[0])] if len(ids) == 1 else range(len(ids))], 0
        for size in [*self.sizes, len(ids)]:
            yield rows[at : at + size]
            at += size


def result(steps):
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("sizes", [(), (1, 2), (0, 6, 0), (7,)])
def test_each_token_is_scored_by_the_row_before_it(sizes):
    expected = EXACT[np.arange(len(IDS) - 1), IDS[1:]]
    done = []
    np.testing.assert_allclose(result(logprobs(Engine(*sizes), IDS, done.append)), expected)
    assert done[-1] == len(IDS) - 1 and done == sorted(done)
    for top in (0, 1, WORDS - 1, WORDS, WORDS + 1):
        found = result(scores(Engine(*sizes), IDS, top))
        np.testing.assert_allclose([one.logprob for one in found], expected)
        for one, row in zip(found, EXACT, strict=False):
            order = np.argsort(-row)[:top]
            assert [token for token, _ in one.top] == order.tolist()
            np.testing.assert_allclose([logprob for _, logprob in one.top], row[order])


@pytest.mark.parametrize("ids", [[], [3]])
def test_a_text_of_one_token_has_no_scores(ids):
    assert result(logprobs(Engine(), ids)).shape == (0,)
    assert result(scores(Engine(), ids, 2)) == []


@pytest.mark.parametrize(("window", "read"), [(None, [(0, 7)]), (7, [(0, 7)]), (4, [(0, 4), (2, 6), (4, 7)])])
def test_windows_overlap_by_half_and_progress_ends_at_the_last_token(window, read):
    engine, done = Engine(), []
    result(perplexity(engine, IDS, window, lambda now, total: done.append((now, total))))
    assert engine.read == [IDS[start:stop] for start, stop in read]
    assert done[0] == (read[0][1], len(IDS)) and done[-1] == (len(IDS), len(IDS))
