"""An answer pauses while its reader is behind, and resumes after half of the events are read."""

from types import SimpleNamespace

from rwkv_gpu.errors import QueueFull
from rwkv_gpu.llm.answer import Answer
from rwkv_gpu.llm.batches import AHEAD, wait_all


def test_an_answer_pauses_above_its_limit_and_resumes_at_half_of_it():
    answer = Answer(None, 0, lambda _: None, max_unread=4)
    paused = []
    for _ in range(6):
        answer._put(None)
        paused.append(answer.overflows())
    assert paused == [False, False, False, False, True, False]
    assert [answer.taken() for _ in range(6)] == [False, False, False, True, False, False]
    for _ in range(5):
        answer._put(None)
    assert answer.overflows()


def test_an_answer_without_a_limit_never_pauses():
    answer = Answer(None, 0, lambda _: None, max_unread=None)
    for _ in range(10_000):
        answer._put(None)
    assert not answer.overflows() and not answer.taken()


def test_a_batch_requests_a_limited_number_of_answers_ahead_or_as_many_as_the_model_accepts():
    for accepted, most in ((1000, 2 * AHEAD), (3, 3)):
        running, highest = [], []

        def start(item, accepted=accepted, running=running, highest=highest):
            if len(running) == accepted:
                raise QueueFull("full")
            running.append(item)
            highest.append(len(running))
            return SimpleNamespace(wait=lambda: running.remove(item) or item, close=lambda: None)

        assert wait_all(start, range(40), 2) == [*range(40)]
        assert max(highest) == most
