"""Prompts are checked token by token, and steps of any size use few plans."""

import pytest

from rwkv_gpu.engine.plan_sizes import bucket, common_steps, outputs_for
from rwkv_gpu.engine.request import PIECE, Request, check_length
from rwkv_gpu.errors import BadInput, ContextFull


@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, 2 * PIECE])
def test_a_token_beyond_the_vocabulary_is_found_at_any_place(place):
    ids = [3] * (2 * PIECE + 1)
    for token in (9, -1, 1 << 64):
        ids[place] = token
        with pytest.raises(BadInput, match=f"token id {token} at place {place} is not in the vocabulary of 9"):
            Request(ids).check(9, None)
    ids[place] = 8
    assert Request(ids).check(9, None) == ids


def test_a_prompt_fills_the_context_and_has_a_token():
    assert Request([1] * 5).check(9, 5) == [1] * 5
    with pytest.raises(ContextFull, match="a prompt of 6 tokens exceeds the available context size of 5"):
        Request([1] * 6).check(9, 5)
    with pytest.raises(ContextFull, match="at least 6 tokens"):
        check_length(6, 5, least=True)
    check_length(1 << 40, None)
    with pytest.raises(BadInput, match="has no tokens"):
        Request([]).check(9, 5)


def test_a_bucket_is_the_next_power_of_two_up_to_the_most():
    assert [bucket(count, 12) for count in (0, 1, 2, 3, 4, 5, 8, 9, 12)] == [1, 1, 2, 4, 4, 8, 8, 12, 12]


@pytest.mark.parametrize(
    ("outputs", "sequences", "expected"),
    [(1, 99, 1), (2, 99, 8), (8, 99, 8), (9, 99, 64), (9, 16, 16), (9, 17, 32), (5, 4, 5), (64, 99, 64), (2, 2, 2)],
)
def test_steps_with_prompts_have_one_of_few_numbers_of_outputs(outputs, sequences, expected):
    assert outputs_for(64, outputs, sequences) == expected


@pytest.mark.parametrize(
    ("sequences", "rows", "steps"),
    [
        (9, 1, [[1]]),
        (1, 2, [[2], [1], [1]]),
        (2, 4, [[4], [2], [1], [1, 1], [1, 1], [3, 1]]),
        (9, 16, [[16], [8], [4], [2], *([1] * count for count in (1, 2, 4, 8, 9)), [15, 1], [7, 1], [3, 1],
                 [8, *[1] * 8]]),
        (8, 9, [[9], [8], [4], [2], *([1] * count for count in (1, 2, 4, 8, 8)), [8, 1], [7, 1], [3, 1]]),
    ],
)  # fmt: skip
def test_typical_steps_have_each_size(sequences, rows, steps):
    assert [[one.end - one.start for one in batch.segments] for batch in common_steps(sequences, rows)] == steps
