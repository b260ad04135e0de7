"""Sampling on the GPU equals the reference: the candidates, the chosen token, and the sampler state."""

import math

import numpy as np
import pytest

from rwkv_gpu.engine.device_sampling import draw_row, remember, skipped_row
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.draw import exponentials
from rwkv_gpu.ops.lowering.sampling import LIST
from rwkv_gpu.ops.memory import Caches, Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.sampler_state import GpuSamplerState, HostSamplerState
from rwkv_gpu.ops.sampling import DRAW, FROM_SLOT, NO_TOKEN, Drawing, Reason, draw_words, sample
from rwkv_gpu.ops.vocabulary import Cache, Weight
from tests.recording import POISON

SLOTS = 6
LARGE = 3 * LIST + 1  # a vocabulary too large for a list; its last block is short
HOT = {"temperature": 1000.0}  # all remaining tokens are about equally likely


class Both:
    """A plan that samples rows of V logits, and the reference."""

    def __init__(self, device, vocabulary, rows, how="any", joins=None):
        self.device, self.vocabulary, self.rows = device, vocabulary, rows
        self.sampler_state, self.host = GpuSamplerState(device, SLOTS, vocabulary), HostSamplerState(SLOTS, vocabulary)
        self.scratch = Scratch(device)
        weights = upload_weights(device, {"w": np.arange(vocabulary, dtype=np.float32)[:, None]})
        tuning = default_tuning(device.capabilities)
        tuning = tuning.changed(last_workgroup_reduces=tuning.fusion.last_workgroup_reduces if joins is None else joins)
        recorder = Recorder(device, weights, rows, self.scratch, tuning, sampler_state=self.sampler_state)
        logits = recorder.input("logits", np.float32, (rows, vocabulary))
        ids = recorder.input("ids", np.uint32, (rows,))
        embedded = recorder.embed(Weight("w", (vocabulary, 1)), ids)
        self.plan = recorder.finish({"chosen": recorder.sample(logits, how=how), "embedded": embedded})

    def run(self, logits, draws, masks=None, ids=None):
        """Returns the tokens that the device chooses, and advances the sampler state of the reference."""
        for buffer in self.scratch.buffers:
            self.device.write(buffer, np.full(buffer.nbytes // 4, POISON, np.uint32))
        rows = len(logits)
        ids = np.zeros(rows, np.uint32) if ids is None else ids
        inputs = {"logits": logits, "draws": draw_words(draws), "ids": ids}
        self.plan.run(rows, inputs if masks is None else {**inputs, "masks": masks})
        self.embedded = self.plan.read("embedded", rows)[:, 0]
        return self.plan.read("chosen", rows)

    def check(self, logits, draws, masks=None):
        """Checks that both choose the same tokens, and returns them."""
        got = self.run(logits, draws, masks)
        expected = sample(logits, Drawing(self.host, draws, masks))
        assert got[:, 0].tolist() == expected[:, 0].tolist()
        assert got[:, 2:].tolist() == expected[:, 2:].tolist()
        # Sums of exponentials in another order; the logarithm of a whole is about 10.
        np.testing.assert_allclose(got[:, 1].view(np.float32), expected[:, 1].view(np.float32), atol=1e-5)
        return got[:, 0]


def rows_of(count, first=0, seed=11, **settings):
    """Returns draws of one request, from number `first` on."""
    row = draw_row(SamplingParams(**settings), seed, 0)
    rows = np.repeat(row[None], count)
    rows["number"] = np.arange(first, first + count)
    return rows


def normal(*shape, spread=3.0, seed=0):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * spread).astype(np.float32)


SETTINGS = [
    {"temperature": 0},
    {},
    {"temperature": 0.2},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 40, **HOT},
    {"top_p": 0.3, **HOT},
    {"top_p": 0.95},
    {"min_p": 0.2, **HOT},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "temperature": 2.0},
    {"top_k": 700, "top_p": 0.5},
    {"top_p": 0.8, "min_p": 0.1},
]


@pytest.mark.parametrize(("vocabulary", "joins"), [(1, False), (6, True), (1025, False), (3000, True)])
def test_every_setting_chooses_as_the_reference(device, vocabulary, joins):
    both = Both(device, vocabulary, 16, joins=joins)
    logits = normal(16, vocabulary)
    logits[5, : vocabulary // 2] = -np.inf
    logits[6] = np.round(logits[6])  # many ties
    logits[7] = 0
    plain = Both(device, vocabulary, 16, how="plain", joins=joins)
    for seed, settings in enumerate(SETTINGS):
        rows = rows_of(16, seed=seed << 33 | 5, **settings)
        both.check(logits, rows)
        if SamplingInputs.of(rows).how == "plain":
            plain.check(logits, rows)


@pytest.mark.parametrize(
    ("settings", "stay"),
    [
        ({"top_k": 3}, {4, 0, 2}),
        ({"top_p": 0.69}, {4, 0}),  # 0.4 + 0.3
        ({"top_p": 0.71}, {4, 0, 2}),
        ({"min_p": 0.2}, {4, 0, 2, 3}),
        ({"top_k": 3, "top_p": 0.9}, {4, 0, 2}),  # 0.7 of the remaining 0.85 is 0.82
        ({"top_k": 3, "top_p": 0.8}, {4, 0}),
        ({"top_p": 0.99, "min_p": 0.12}, {4, 0, 2, 3}),
    ],
    ids=str,
)
def test_the_kept_tokens_match_the_definitions_of_the_samplers(device, settings, stay):
    p = np.array([0.3, 0.04, 0.15, 0.1, 0.4, 0.01])
    logits = np.tile(np.log(p).astype(np.float32), (64, 1)) - 7
    drawn = Both(device, len(p), 64).check(logits, rows_of(64, **HOT, **settings))
    assert set(drawn.tolist()) == stay


@pytest.mark.parametrize("settings", [{"top_k": 5}, {"top_p": 4.9 / 1025}, {"top_k": 700, "top_p": 4.9 / 700}], ids=str)
def test_of_equal_tokens_the_first_are_kept(device, settings):
    drawn = Both(device, 1025, 64).check(np.full((64, 1025), 1.5, np.float32), rows_of(64, **settings))
    assert set(drawn.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("settings", [{"top_p": 0.7}, {"top_p": 0.99}, {"top_k": 2 * LIST, "top_p": 0.9}], ids=str)
def test_a_flat_row_too_long_for_the_list_is_truncated_exactly(device, settings):
    both = Both(device, LARGE, 3)
    logits = normal(3, LARGE, spread=0.1)
    logits[1] = np.round(logits[1], 1)
    logits[2, 5] = 12.9  # e^12.9 is 0.94 of the sum: far less likely tokens must stay as well
    for first in (0, 3):
        both.check(logits, rows_of(3, first=first, **HOT, **settings))


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99])
def test_few_tokens_in_many_blocks_are_truncated_exactly(device, top_p):
    """Few candidates are listed, or found by bins, for one row and for many."""
    logits = np.stack([np.random.default_rng(row).permutation(normal(LARGE, spread=0.5)) for row in range(4)])
    great = np.random.default_rng(9).permutation(LARGE)[:40]
    logits[:, great] += np.linspace(8, 14, 40, dtype=np.float32)
    logits[1, great] = np.round(logits[1, great])
    logits[2, great[:20]] = 15  # the greatest of several blocks tie
    logits[3, great] = np.flip(np.sort(great)) / 1e3
    for count in (1, 4):
        both = Both(device, LARGE, count)
        for row in range(0, 4, count):
            both.check(logits[row : row + count], rows_of(count, first=row, top_p=top_p, **HOT))


def test_draws_follow_the_distribution(device):
    p = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    both = Both(device, len(p), 256)
    for settings, expected in (({}, p), ({"temperature": 0.5}, p**2), ({"top_k": 4, "top_p": 0.7}, p * (p > 0.2))):
        logits = np.tile(np.log(p).astype(np.float32), (256, 1))
        tokens = np.concatenate([both.run(logits, rows_of(256, 256 * i, **settings))[:, 0] for i in range(10)])
        possible = expected > 0
        counts = np.bincount(tokens, minlength=len(p))
        wanted = expected[possible] / expected.sum() * len(tokens)
        assert counts[~possible].sum() == 0
        # The 0.9999 quantile of chi-square for 5 degrees of freedom; seeds are fixed, so the test passes always or
        # never.
        assert ((counts[possible] - wanted) ** 2 / wanted).sum() < 25.74


def test_exponentials_have_their_distribution_down_to_the_smallest():
    tokens = np.arange(1 << 20)
    e = np.sort(np.concatenate([exponentials(seed, 3, tokens) for seed in range(4)])).astype(np.float64)
    assert e[0] > 0
    # Kolmogorov-Smirnov, 0.9999 quantile; and the hundred smallest, whose mean is 50 / n with a deviation of 10%.
    uniform = (np.arange(len(e)) + 0.5) / len(e)
    assert np.abs(-np.expm1(-e) - uniform).max() < 2.23 / math.sqrt(len(e))
    assert e[:100].mean() * len(e) == pytest.approx(50, rel=0.3)


def test_the_same_seed_draws_the_same_token_in_any_batch(device):
    logits = normal(8, 1025)
    alone, many = Both(device, 1025, 1), Both(device, 1025, 8)
    for settings in ({}, {"top_p": 0.9}, {"top_k": 20}):
        together = many.run(logits, rows_of(8, **settings))[:, 0]
        turned = many.run(logits[::-1], rows_of(8, **settings)[::-1])[:, 0]
        each = [alone.run(logits[i : i + 1], rows_of(1, i, **settings))[0, 0] for i in range(8)]
        assert together.tolist() == turned[::-1].tolist() == each


def test_penalties_look_back_as_the_reference_does(device):
    ways = [
        {"repetition_penalty": 1.5, "penalty_last_n": 3},
        {"presence_penalty": 0.7, "frequency_penalty": 0.4, "penalty_last_n": -1},
        {"frequency_penalty": 0.9, "presence_penalty": -0.5, "penalty_decay": 0.8},
        {"frequency_penalty": 1.0, "penalty_decay": 0.0, "temperature": 0},
        {"repetition_penalty": 1.2, "penalty_last_n": 1024},
        {"repetition_penalty": 1.2, "penalty_last_n": 0},
    ]
    both, prompt = Both(device, 6, SLOTS), [3, 3, 3, 4, 5, 0]
    params = [SamplingParams(**way) for way in ways]
    draws = np.array([draw_row(p, 5, slot) for slot, p in enumerate(params)], DRAW)
    for slot, row in enumerate(draws):
        for sampler_state in (both.sampler_state, both.host):
            sampler_state.remember(slot, prompt, int(row["window"]), params[slot].penalty_decay)
    for number in range(12):
        draws["number"], draws["tokens"] = number, len(prompt) + number
        both.check(normal(SLOTS, 6, seed=number), draws)


@pytest.mark.parametrize(("vocabulary", "joins"), [(6, True), (1025, False), (3000, True)])
def test_biases_are_added_first_and_to_their_rows_only(device, vocabulary, joins):
    """One to all tokens have a bias, at the ends of words and blocks. Other rows of the step have none."""
    some = {token: (-1) ** token * 2.5 for token in (0, 31, 32, 63, 1023, 1024, vocabulary - 1) if token < vocabulary}
    ways = [
        {"logit_bias": {vocabulary - 1: 100.0}, "temperature": 0},
        {},
        {"logit_bias": some, "repetition_penalty": 1.5, "presence_penalty": 0.7, "frequency_penalty": 0.4},
        {"logit_bias": dict.fromkeys(range(1, vocabulary), -math.inf), "top_k": 3},
        {"repetition_penalty": 1.5, "temperature": 0},
        {"logit_bias": {token: token % 7 - 3.0 for token in range(0, vocabulary, 3)}, "top_p": 0.9, **HOT},
    ]
    both, prompt = Both(device, vocabulary, SLOTS, joins=joins), [3, 0, 3, 4, 5, 0]
    params = [SamplingParams(**way) for way in ways]
    draws = np.array([draw_row(p, 5, slot) for slot, p in enumerate(params)], DRAW)
    for state in (both.sampler_state, both.host):
        for slot in reversed(range(SLOTS)):  # no table reaches into the counts of the next slot
            state.bias(slot, dict.fromkeys(range(vocabulary), 9.0))  # of an earlier sequence
            remember(state, slot, prompt, params[slot])
    for number in range(8):
        draws["number"], draws["tokens"] = number, len(prompt) + number
        tokens = both.check(normal(SLOTS, vocabulary, seed=number), draws)
        assert tokens[0] == vocabulary - 1 and tokens[3] == 0


def test_masked_tokens_are_never_drawn_and_rows_without_a_mask_are_free(device):
    vocabulary = 1025
    both = Both(device, vocabulary, 4, how="masked")
    logits = normal(4, vocabulary)
    words = np.zeros((4, -(-vocabulary // 32)), np.uint32)
    few = [1, 31, 32, 1024]
    for token in few:
        words[:3, token // 32] |= np.uint32(1 << token % 32)
    rows = rows_of(4, **HOT)
    rows["flags"] |= np.array([8, 8, 0, 8], np.uint32)  # the mask of the last row forbids all tokens
    tokens = both.check(logits, rows, words)
    assert tokens[0] in few and tokens[1] in few and tokens[2] not in few and tokens[3] == NO_TOKEN
    for settings in ({"temperature": 0}, {"top_k": 2}, {"top_p": 0.5}):
        rows = rows_of(4, **settings)
        rows["flags"] |= 8
        assert set(both.check(logits, rows, words)[:3].tolist()) <= set(few)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 3}], ids=str)
def test_rows_with_bad_numbers_get_no_token_and_do_not_affect_other_rows(device, settings):
    how = SamplingInputs.of(rows_of(6, **settings)).how
    both = Both(device, 1025, 6, how=how)
    logits = normal(6, 1025)
    healthy = both.check(logits, rows_of(6, **settings))
    logits[1, 1024], logits[2, 3], logits[3] = np.nan, np.inf, -np.inf
    draws = rows_of(6, **settings)
    draws[4] = skipped_row()
    words = both.run(logits, draws)
    assert words[1:5, 0].tolist() == [NO_TOKEN] * 4
    assert words[1:5, 2].tolist() == [Reason.BAD_NUMBERS, Reason.BAD_NUMBERS, Reason.NOTHING_LEFT, Reason.SKIPPED]
    assert words[[0, 5], 0].tolist() == healthy[[0, 5]].tolist()


def test_embedding_reads_the_last_token_of_a_slot(device):
    both = Both(device, 6, 4)
    draws = rows_of(4)
    draws["slot"] = [3, 0, 5, 1]
    tokens = both.check(normal(4, 6), draws)
    both.sampler_state.put(2, 4)
    ids = np.array([FROM_SLOT | 3, 1, FROM_SLOT | 5, FROM_SLOT | 2], np.uint32)
    both.run(normal(4, 6), np.array([skipped_row()] * 4, DRAW), ids=ids)
    assert both.embedded.tolist() == [tokens[0], 1, tokens[2], 4]
    weights = {"w": np.arange(6, dtype=np.float32)[:, None]}
    both.host.put(2, 4)
    reference = Reference(weights, drawing=Drawing(both.host, draws))
    assert reference.embed(Weight("w", (6, 1)), ids)[:, 0].tolist() == both.embedded.tolist()


def test_a_step_that_follows_another_has_the_positions_that_its_right_drafts_give(device):
    """Each slot has its own number of right drafts. The host assumes all of them to be right."""
    vocabulary, cache = 40, Cache("keys", 1, 4)
    state = GpuSamplerState(device, SLOTS, vocabulary, drafts=2)
    table = np.arange(64 * 4, dtype=np.float32)[:, None].repeat(2, axis=1)
    weights = upload_weights(device, {"w": table})
    recorder = Recorder(
        device, weights, 8, Scratch(device), default_tuning(device.capabilities), sampler_state=state,
        caches=Caches({}, "f32", 4), follows=True,
    )  # fmt: skip
    ids = recorder.input("ids", np.uint32, (8,))
    chosen = recorder.sample(recorder.input("logits", np.float32, (8, vocabulary)), how="plain")
    positions = recorder.embed_positions(Weight("w", table.shape), cache)
    recorder.accept(ids, chosen)
    plan = recorder.finish({"chosen": chosen, "positions": positions})

    def run(batch, answers, numbers, **how):
        draws = np.stack([draw_row(SamplingParams(**how), 5, segment.slot) for segment in batch.segments])
        draws = draws[np.repeat(np.arange(len(draws)), [segment.count for segment in batch.segments])]
        draws["number"] = numbers
        logits = np.zeros((batch.rows, vocabulary), np.float32)
        logits[np.arange(batch.rows), answers] = 9.0 if not how.get("temperature") else 0.0
        inputs = {**batch.arrays(), "logits": logits, "draws": draw_words(draws)}
        plan.run(batch.rows, inputs, len(batch.segments), batch.rows)
        lengths = np.frombuffer(device.read(state.lengths.buffer, 8 * SLOTS), np.uint32).reshape(-1, 2)
        last = np.frombuffer(device.read(state.sampled.buffer, 4 * SLOTS), np.uint32)
        found = plan.read("positions", batch.rows)[:, 0].tolist(), plan.read("chosen", batch.rows)[:, 0].tolist()
        return *found, lengths, last

    state.put(state.draft_place(1, 0), 21)
    rows = [(4, 60, [3, 11, 12]), (1, 9, [4, FROM_SLOT | state.draft_place(1, 0)]), (0, 7, [5]), (2, 100, [6, 13, 14])]
    placements = [((0, 1), (20, 30), (), (28, 29)), ((2, 3), (21, 33), (), (32,)), ((1,), (22, 34), (), ()),
                  ((3, 0), (23, 37), (), (35, 36))]  # fmt: skip
    # slot 4: one of two drafts is right; slot 1: the only one; slot 0 has none; slot 2: only the second one, too late
    answers = [11, 15, 16, 21, 22, 23, 24, 14, 17]
    batch = Batch.of(rows[:3], every=True, placements=placements[:3]).following({})
    found, tokens, lengths, last = run(batch, answers[:6], range(6), temperature=0)
    assert (found, tokens) == ([60, 61, 62, 9, 10, 7], answers[:6])
    assert lengths[[4, 1, 0]].tolist() == [[62, 29], [11, 33], [8, 34]]
    assert last[[4, 1, 0]].tolist() == [15, 22, 23]
    batch = Batch.of(rows[3:], every=True, placements=placements[3:]).following({})
    *_, lengths, last = run(batch, answers[6:], range(3), temperature=0)
    assert (lengths[2].tolist(), last[2]) == ([101, 35], 24)

    assumed = Batch.of(
        [(4, 63, [FROM_SLOT | 4, 1]), (1, 11, [FROM_SLOT | 1, 2]), (2, 103, [FROM_SLOT | 2, 3])],
        every=True, placements=[placements[0], placements[1], placements[3]],
    ).following({4: 63, 2: 103})  # fmt: skip
    found, tokens, *_ = run(assumed, [0] * 6, [3, 4, 2, 3, 3, 4], temperature=1.0)
    assert found == [62, 63, 11, 12, 101, 102]
    _, expected, *_ = run(batch.following({}), [0] * 3, [1, 2, 3], temperature=1.0)
    assert tokens[4:] == expected[:2], "the draws have the numbers of the true positions"
