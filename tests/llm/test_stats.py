"""Rates of an answer count what was computed in the measured time."""

import pytest

from rwkv_gpu.llm.completion import Stats, shorten


@pytest.mark.parametrize(("new", "rate", "each"), [(0, 0, 0), (1, 0, 0), (2, 0.25, 4000), (5, 1, 1000)])
def test_the_first_token_comes_with_the_prompt(new, rate, each):
    stats = Stats(10, 4, new, 2.0, 4.0)
    assert (stats.decode_rate, stats.timings["predicted_per_token_ms"]) == (rate, each)
    assert stats.timings["predicted_per_second"] == rate


def test_reused_tokens_are_not_counted():
    stats = Stats(10, 4, 3, 2.0, 4.0, drafted_tokens=5, accepted_tokens=2)
    timings = stats.timings
    assert stats.prompt_rate == timings["prompt_per_second"] == 3
    assert (timings["cache_n"], timings["prompt_n"], timings["prompt_per_token_ms"]) == (4, 6, 2000 / 6)
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (5, 2)
    assert Stats(4, 4, 0, 2.0, 0.0).timings["prompt_per_token_ms"] == 0
    assert "draft_n" not in Stats(4, 4, 0, 2.0, 0.0).timings


def test_no_time_gives_no_rate():
    assert Stats(10, 4, 3, 0.0, 0.0).prompt_rate == Stats(10, 4, 3, 0.0, 0.0).decode_rate == 0


@pytest.mark.parametrize(("read", "seconds"), [(4, 0.0), (5, 2.0)])
def test_reading_takes_time_after_the_reused_tokens(read, seconds):
    assert Stats(10, 4, 3, 2.0, 4.0).at(read) == Stats(read, 4, 0, seconds, 0.0)


@pytest.mark.parametrize(("text", "shown"), [("abcd", "'abcd'"), ("abcde", "'abc…'")])
def test_a_text_of_the_limit_is_shown_whole(text, shown):
    assert shorten(text, 4) == shown
