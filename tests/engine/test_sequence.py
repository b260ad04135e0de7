"""One request inside the engine: its limits, its rows, and its results on the host."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine import host_work
from rwkv_gpu.engine.cache.prefix_index import Salt
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import Sampled
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.ops.sampling import FROM_SLOT


def made(prompt: int, most: int = 50, context: int | None = None, **how) -> TokenSequence:
    """Returns a sequence with a prompt of ones."""
    request = {name: how.pop(name) for name in ("grammar", "salt", "marks") if name in how}
    return TokenSequence(Request([1] * prompt, SamplingParams(max_tokens=most), **request), 10, context, **how)


def test_a_draft_leaves_room_for_the_token_after_it():
    sequence = made(3, 50)
    sequence.ids += [2] * 4
    assert sequence.room == 45
    sequence.in_flight = 2
    assert sequence.room == 43
    shifting = made(3, 50, context=20, shifts=True)
    shifting.ids += [2] * 4
    assert shifting.room == 13, "it must not pass the end of the context"
    shifting.max_length = 10
    assert shifting.room == 2


def test_a_token_that_is_not_known_yet_is_a_reference_to_its_slot_and_its_draft_follows():
    sequence = made(4)
    sequence.slot, sequence.draft = 3, [5, 6, 7]
    assert sequence.rows(4, 7) == [FROM_SLOT | 3, 5, 6]
    assert sequence.rows(4, 5) == [FROM_SLOT | 3]
    assert sequence.rows(3, 6) == [1, 5, 6]
    assert sequence.rows(2, 4) == [1, 1]


@pytest.mark.parametrize("keep", [2, 3, 5])
@pytest.mark.parametrize("shared", [0, 4, 20])
def test_a_cut_keeps_the_first_tokens_and_the_last_half_and_no_salt_is_lost(keep, shared):
    sequence = made(10, context=10, shifts=True, salt=Salt(7, shared))
    sequence.ids = [*range(11)]
    sequence.cut_middle(keep)
    assert sequence.ids == [*range(keep), *range(keep + (11 - keep) // 2, 11)]
    assert sequence.salt.shared == min(keep, shared), "tokens after the cut are no longer those of others"
    assert (sequence.length, sequence.read_end) == (11, len(sequence.ids))


def test_an_update_counts_the_prompt_as_fed_until_the_answer_begins_and_without_placeholders():
    sequence = made(5, begun=1)
    for fed, done in ((0, 0), (1, 0), (4, 3), (6, 5)):
        sequence.fed = fed
        assert (sequence.update().prompt_done, sequence.update().prompt_tokens) == (done, 5)
    sequence.append(Sampled(2, 0.0, ()))
    sequence.fed = 0  # it lost its pages
    assert sequence.update().prompt_done == 5


@pytest.mark.parametrize(("more", "counted"), [({"typical_p": 0.5}, {1: 1, 2: 2}), ({}, {})])
def test_a_sampler_on_the_host_begins_with_the_tokens_of_the_prompt(more, counted):
    sequence = TokenSequence(Request([1, 2, 2], SamplingParams(presence_penalty=1.0, **more)), 10, None)
    assert dict(zip(*sequence.sampler._counts.seen(), strict=True)) == counted


def test_rows_are_sampled_in_order_for_a_grammar_or_penalties():
    assert not made(3).samples_in_order
    assert made(3, grammar=SimpleNamespace()).samples_in_order
    penalised = Request([1], SamplingParams(presence_penalty=1.0))
    assert TokenSequence(penalised, 10, None).samples_in_order


@pytest.mark.parametrize(
    ("tokens", "done", "reason"),
    [(0, False, None), (0, True, "stop"), (1, False, None), (2, False, "length"), (2, True, "stop")],
)
def test_host_work_is_an_update_if_it_has_tokens_or_ends_the_answer(tokens, done, reason):
    sequence = made(2, 2, grammar=SimpleNamespace())
    sequence.work, sequence._in_work = Future(), (5,)
    sequence.work.set_result(([Sampled(5, 0.0, ())] * tokens, None, done))
    assert sequence.take_work() is bool(tokens or done)
    assert (sequence.ids[2:], sequence.finish_reason) == ([5] * tokens, reason)


def test_host_work_after_the_end_of_an_answer_is_dropped():
    sequence = made(2)
    sequence.work = Future()
    sequence.work.set_result(([Sampled(5, 0.0, ())], None, False))
    sequence.end("abort")
    assert not sequence.take_work()
    assert (sequence.ids, sequence.work) == ([1, 1], None)


def test_a_sequence_that_loses_its_slot_while_the_host_samples_keeps_all_that_was_sampled():
    """The draft is lost with the slot, but the sampler and the grammar have advanced by three tokens."""
    sequence = TokenSequence(Request([1, 2], SamplingParams(max_tokens=50, temperature=0.0)), 10, None)
    sequence.sample_on_host(True)
    begun = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(begun.wait)  # the work waits for its thread
        sequence.start_work(executor, logits=np.eye(10, dtype=np.float32)[[5, 6, 7]], draft=[5, 6])
        sequence.slot = -1
        begun.set()
        assert sequence.work is not None
        sequence.work.result()
    assert sequence.take_work()
    assert sequence.ids == [1, 2, 5, 6, 7]
    assert sequence.rows_right == 3


class Working:
    """A sequence with host work."""

    def __init__(self, work: Future | None = None, paused: bool = False, delivers: bool = True) -> None:
        self.work, self.paused, self.delivers = work, paused, delivers

    def take_work(self) -> bool:
        return self.delivers


def test_a_step_waits_once_for_new_host_work_and_longer_only_if_there_is_nothing_else_to_do(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(host_work, "wait", lambda _, seconds: waits.append(seconds))
    work, first, second = host_work.HostWork(), Working(Future()), Working(Future())

    def taken(*sequences: Working, idle: bool = True) -> tuple[list[Working], list[float]]:
        waits.clear()
        return work.take(sequences, idle=idle), [*waits]

    assert taken(Working()) == ([], [])
    assert taken(first) == ([], [host_work.GRACE])
    assert taken(first, Working(paused=True)) == ([], [host_work.PATIENCE])
    assert taken(first, Working()) == taken(first, idle=False) == ([], [])
    assert taken(first, second) == ([], [host_work.GRACE])
    second.work.set_result(None)
    assert taken(first, second)[0] == [second]
    first.work.set_result(None)
    first.delivers = False
    assert taken(first)[0] == []
    work.close()
