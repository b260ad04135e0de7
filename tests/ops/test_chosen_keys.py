"""Attention to blocks of keys that an indexer chooses: the GPU equals numpy, and numpy equals the definition."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from rwkv_gpu.ops.kv_format import KV_FORMATS
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import NO_KEY, PAGE, Attention, Cache, KeyIndex, Rope
from tests.ops.test_attention import Case, OnGpu, assert_same, history, normal

HALVES = Rope("neox", 32, 10000.0)
BY_HEAD = KeyIndex(2, HALVES, 3, block=16, by_head=True, recent=1)
INDEX = Cache("index", 1, 32, 32)


@dataclass(frozen=True)
class Chosen(Case):
    """Heads that attend to blocks of positions."""

    how: KeyIndex = BY_HEAD
    whole: bool = False  # True if queries and keys of the indexer are small integers, so that scores are exact

    def pages(self):
        empty = np.full((self.pool, PAGE, 1, INDEX.size), np.nan, self.index_type)
        return (*super().pages(), empty)

    @property
    def index_type(self):
        return KV_FORMATS[self.kind].dtype

    def stored(self, arrays):
        return {"kv": tuple(arrays[:2]), "index": tuple(arrays[2:])}

    def inputs(self, rows, seed=0):
        index = {"iq": normal(rows, self.how.heads * 32, seed=seed + 7), "ik": normal(rows, 32, seed=seed + 8)}
        return super().inputs(rows, seed) | {n: np.rint(x / 2) if self.whole else x for n, x in index.items()}

    def says(self, g, w, q, k, v, iq, ik):  # noqa: ARG002
        chosen = g.choose_keys(iq, ik, None, INDEX, self.how)
        how = Attention(self.heads, self.rope, self.size**-0.5)
        return g.attention(q, k, v, self.cache, how, chosen=chosen)


CASES = {
    "each KV head": Chosen(),
    "each KV head, no recent blocks": Chosen(how=KeyIndex(2, HALVES, 2, block=24, by_head=True)),
    "each of three, ties": Chosen(
        6, 3, 72, kind="f16", how=KeyIndex(3, None, 3, block=8, by_head=True, recent=2), whole=True
    ),
    "all heads": Chosen(8, how=KeyIndex(4, HALVES, 6, block=4)),
    "all heads, ties": Chosen(kind="f16", how=KeyIndex(2, None, 12, block=4), whole=True),
    "single keys": Chosen(how=KeyIndex(2, HALVES, 20)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("length", "step"), [(70, 0), (150, 20), (331, 1)])
def test_attention_to_chosen_blocks_on_the_gpu_equals_the_reference(fast_device, name, length, step):
    """Some rows have fewer blocks than are chosen, and the last block may be incomplete."""
    assert_same(CASES[name], fast_device, history(CASES[name], length, step))


@pytest.mark.parametrize("name", ["each KV head", "all heads"])
@pytest.mark.parametrize("single", [True, False])
def test_sequences_choose_among_their_own_blocks(fast_device, name, single):
    """All other positions in the pages are NaN."""
    case, lengths = CASES[name], {0: 65, 2: 3, 4: 140}
    before = [step for slot, length in lengths.items() for step in history(case, length, slot=slot)]
    counts = dict.fromkeys(lengths, 1) if single else {0: 3, 2: 1, 4: 17}
    batch = case.batch([(slot, lengths[slot], count) for slot, count in counts.items()])
    assert_same(case, fast_device, [*before, (batch, case.inputs(batch.rows, seed=9))])


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("name", ["each KV head", "all heads"])
def test_an_indexer_that_keeps_all_blocks_changes_nothing(fast_device, name, on_gpu):
    case = replace(CASES[name], how=replace(CASES[name].how, count=50))
    steps, plain = history(case, 150, 20), Case(case.heads)
    expected, _ = plain.on_cpu([(batch, {n: inputs[n] for n in "qkv"}) for batch, inputs in steps])
    gpu = OnGpu(case, fast_device)
    found = [gpu.step(*step) for step in steps] if on_gpu else case.on_cpu(steps)[0]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["each KV head, no recent blocks", "each of three, ties", "all heads, ties"])
def test_the_chosen_blocks_are_those_with_the_largest_scores(name):
    """By the definition, in float64, position by position."""
    case = replace(CASES[name], kind="f32", how=replace(CASES[name].how, rope=None))
    how, [(batch, inputs)] = case.how, history(case, 100)
    reference = Reference(case.weights(), {}, batch, case.stored(case.pages()))
    chosen = reference.choose_keys(inputs["iq"], inputs["ik"], None, INDEX, how)
    q, k = inputs["iq"].astype(np.float64).reshape(100, how.heads, -1), inputs["ik"].astype(np.float64)
    for t in range(100):
        blocks = [range(b, min(b + how.block, t + 1)) for b in range(0, t + 1, how.block)]
        for head in range(how.lists):
            scored = blocks if how.by_head else [block for block in blocks if len(block) == how.block]
            if how.by_head:
                scores = [max(q[t, head] @ k[j] for j in block) for block in scored]
                scores[len(scores) - how.recent :] = [np.inf] * how.recent if how.recent else []
            else:
                scores = [sum(max(q[t, h] @ k[block[-1]], 0) for h in range(how.heads)) for block in scored]
            best = sorted(sorted(range(len(scored)), key=lambda b: (-scores[b], b))[: how.count])
            seen = [j for b in best for j in scored[b]]
            seen += [] if how.by_head else [j for block in blocks[len(scored) :] for j in block]
            assert chosen[t, head].tolist() == seen + [NO_KEY] * (how.width - len(seen))
