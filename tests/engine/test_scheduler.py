"""The rows of a step: decode first, short prompts next to long ones, and never more rows than allowed."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rwkv_gpu.engine.media import Span, Spans
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.scheduler import schedule
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.engine.slots import Slots
from rwkv_gpu.ops.vocabulary import PAGE


@dataclass
class Made:
    """A sequence of a given length, of which a given part is computed."""

    prompt: int
    answer: int
    fed: int
    in_flight: int
    boundaries: frozenset[int] = field(default_factory=frozenset)

    def sequence(self, slot: int) -> TokenSequence:
        made = TokenSequence(Request([1] * self.prompt, SamplingParams(max_tokens=50)), 10, None)
        made.slot, made.boundaries = slot, self.boundaries
        made.ids += [2] * self.answer
        made.fed = min(self.fed, len(made.ids) + self.in_flight)
        made.in_flight = self.in_flight if made.fed >= len(made.ids) else 0
        return made


sequences = st.builds(
    Made,
    prompt=st.integers(1, 30),
    answer=st.integers(0, 5),
    fed=st.integers(0, 40),
    in_flight=st.integers(0, 3),
    boundaries=st.frozensets(st.integers(1, 30), max_size=3),
)


@given(st.lists(sequences, max_size=8), st.integers(1, 40))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_step_computes_answers_first_and_then_prompts(made, rows):
    running = [one.sequence(slot) for slot, one in enumerate(made)]
    chunks = schedule(running, rows)
    feedable = [one for one in running if one.to_feed]
    assert sum(chunk.end - chunk.start for chunk in chunks) <= rows
    assert bool(chunks) == bool(feedable)
    # Answers in order of arrival, then the oldest prompt, then the other prompts by length.
    prompts = [one for one in running if one.fed < one.prompt]

    def place(one):
        if one.fed >= one.prompt:
            return 0, running.index(one)
        return (1, 0) if one is prompts[0] else (2, one.to_feed)

    order = [place(chunk.sequence) for chunk in chunks]
    assert order == sorted(order)
    assert len({chunk.slot for chunk in chunks}) == len(chunks)
    left_out = [one for one in feedable if all(chunk.sequence is not one for chunk in chunks)]
    for one in left_out:  # only if earlier chunks have used up the rows
        before = [chunk for chunk, at in zip(chunks, order, strict=True) if at <= place(one)]
        assert sum(chunk.end - chunk.start for chunk in before) == rows
    for chunk in chunks:
        sequence = chunk.sequence
        assert (chunk.slot, chunk.start) == (sequence.slot, sequence.fed)
        assert chunk.start < chunk.end <= chunk.start + sequence.to_feed
        assert not any(chunk.start < boundary < chunk.end for boundary in sequence.boundaries)
        assert chunk.samples == (chunk.end >= len(sequence.ids))


@dataclass(frozen=True)
class Picture:
    """An image that one step must read."""

    tokens: int
    whole: str = "all"


@given(
    st.lists(st.tuples(sequences, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12)), max_size=4)), max_size=6),
    st.integers(12, 14),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)
def test_images_that_one_step_must_read_are_divided_by_no_chunk_and_block_nothing(given, rows):
    running = []
    for slot, (made, images) in enumerate(given):
        spans, end = [], 0
        for gap, tokens in images:
            spans.append(Span(end + gap, Picture(tokens)))
            end = spans[-1].end
        one = replace(made, prompt=max(made.prompt, end)).sequence(slot)
        one.images = Spans(spans)
        before = one.images.within(one.fed)
        one.fed = before.start if before else one.fed  # a chunk never ends inside an image
        if spans and not one.in_flight and slot % 2:
            one.fed = spans[-1].start
        running.append(one)
    chunks = schedule(running, rows)
    assert sum(chunk.end - chunk.start for chunk in chunks) <= rows
    assert bool(chunks) == any(one.to_feed for one in running)
    for chunk in chunks:
        assert chunk.start < chunk.end
        assert not chunk.sequence.images.divides(chunk.end)
    oldest = next((one for one in running if one.fed < one.read_end), None)
    if oldest is not None and oldest.images.least(oldest.fed):  # answers leave room for its image
        assert any(chunk.sequence is oldest for chunk in chunks)


def with_image(start: int, tokens: int, **made) -> TokenSequence:
    """A prompt of which one step must read a range."""
    sequence = Made(30, 0, start, 0, **made).sequence(9)
    sequence.images = Spans([Span(start, Picture(tokens))])
    return sequence


def test_answers_leave_the_rows_that_the_image_of_the_oldest_prompt_needs_and_use_all_others():
    answers = [Made(3, 1, 3, 0).sequence(slot) for slot in range(12)]
    chunks = schedule([*answers, with_image(5, 8), Made(40, 0, 0, 0).sequence(20)], 12)
    assert [chunk.slot for chunk in chunks] == [0, 1, 2, 3, 9]
    assert (chunks[-1].start, chunks[-1].end) == (5, 13)
    assert [chunk.slot for chunk in schedule(answers, 12)] == list(range(12))


def test_a_boundary_inside_an_image_is_passed_and_one_at_its_end_is_met():
    [chunk] = schedule([with_image(0, 8, boundaries=frozenset({3}))], 12)
    assert (chunk.start, chunk.end) == (0, 12)
    [chunk] = schedule([with_image(0, 8, boundaries=frozenset({3, 8, 10}))], 12)
    assert (chunk.start, chunk.end) == (0, 8)
    [chunk] = schedule([with_image(2, 8, boundaries=frozenset({2, 5}))], 12)
    assert (chunk.start, chunk.end) == (2, 14)


def test_while_a_result_is_awaited_a_step_needs_a_draft_if_the_host_must_know_each_token_or_drafts_are_unsure():
    sequence = Made(3, 1, 4, 1).sequence(0)
    assert (sequence.ahead, sequence.to_feed) == (math.inf, 1)
    sequence.unverified = 2
    assert sequence.to_feed == 0
    sequence.draft = [5, 6]
    assert sequence.to_feed == 3
    for rows in (3, 2, 1):  # the token before the draft is not known, and has a row, too
        [chunk] = schedule([sequence], rows)
        assert (chunk.end - chunk.start, chunk.samples) == (rows, rows)
    sequence.sample_on_host(True)
    assert (sequence.ahead, sequence.to_feed) == (1, 3)
    sequence.unverified, sequence.draft = 0, []
    assert (sequence.ahead, sequence.to_feed) == (0, 0)
    sequence.ids.append(2)
    assert sequence.to_feed == 1
    room = sequence.room
    sequence.in_flight += 2
    assert sequence.room == room - 2


def test_rows_left_over_go_to_prompts():
    decoding, prompt = Made(3, 1, 3, 0).sequence(0), Made(30, 0, 0, 0).sequence(1)
    assert [(chunk.slot, chunk.start, chunk.end) for chunk in schedule([prompt, decoding], 10)] == [
        (0, 3, 4),
        (1, 0, 9),
    ]


def fed_in_a_step(lengths, rows):
    prompts = [Made(length, 0, 0, 0).sequence(slot) for slot, length in enumerate(lengths)]
    return {chunk.slot: chunk.end - chunk.start for chunk in schedule(prompts, rows)}


def test_a_short_prompt_does_not_wait_for_a_long_one():
    assert fed_in_a_step([1000, 5], 64) == {0: 59, 1: 5}
    assert fed_in_a_step([1000, 500, 5], 64) == {0: 32, 2: 5, 1: 27}


def test_a_long_prompt_gets_half_of_the_rows_however_many_short_ones_come():
    assert fed_in_a_step([1000, *[30] * 8], 64)[0] == 32


def test_a_paused_sequence_keeps_its_slot_until_another_waits_and_none_is_free():
    idle = {"evaluating": True, "preempted": True, "running": []}
    for waiting, free in (([], []), ([], [0]), ([object()], [0]), ([object()], [])):
        parked: list[bool] = []
        slots = SimpleNamespace(**idle, waiting=waiting, free=free, park=lambda parked=parked: parked.append(True))
        assert not list(Slots.admit(slots))
        assert bool(parked) == bool(waiting and not free)


@pytest.mark.parametrize(
    ("read_end", "fed", "changed", "waits"),
    [
        (PAGE, 0, {}, False), (PAGE + 1, 0, {}, True), (PAGE + 1, PAGE - 1, {}, True), (PAGE + 1, PAGE, {}, False),
        (PAGE + 1, 0, {"paused": True}, False), (PAGE + 1, 0, {"prompt_key": "other"}, False),
    ],
)  # fmt: skip
def test_an_equal_prompt_waits_until_all_but_the_last_token_of_another_are_read(read_end, fed, changed, waits):
    one = SimpleNamespace(**{"read_end": read_end, "fed": fed, "paused": False, "prompt_key": "same", **changed})
    equal = SimpleNamespace(prompt_key="same", length=read_end, prompt=read_end, in_flight=0)
    prefixes = SimpleNamespace(share=lambda _: True)
    slots = SimpleNamespace(running=[one], waiting=[equal], _prefixes=prefixes)
    assert Slots._next(slots) is (None if waits else equal)
    prefixes.share = lambda _: False
    assert Slots._next(slots) is equal
    equal.length += 1  # its answer has begun
    assert Slots._next(slots) is equal
    equal.in_flight = 1
    assert Slots._next(slots) is None
