"""The short form of `tests.server.soak`: after many requests, a tenth of them aborted, no resource is missing."""

import socket
from argparse import Namespace

import pytest

from tests.process import PATIENCE
from tests.server.serving import Served, serving
from tests.server.soak import MAX_GROWTH, MEASURES, clients_of, growth, soak

SHORT = {"warm_up": 1, "warm_up_requests": 20, "rounds": 1, "clients": 8, "pause": 0.1, "seed": 0}


def test_requests_of_all_apis_leave_nothing_behind():
    ended, wrong, _ = soak(Namespace(seconds=6, patience=PATIENCE, **SHORT))
    assert wrong == []
    assert sum(count for how, count in ended.items() if how.endswith("broken off"))


@pytest.mark.parametrize("measure", range(3))
def test_growth_that_goes_on_is_told_from_caches_that_fill(measure):
    def rounds(value):
        return [tuple(value(n) if at == measure else 1000 for at in range(3)) for n in range(13)]

    filling = growth(rounds(lambda n: 1000 + 40 * min(n, 4) / 4 + (10 if n % 2 else -10)))
    leak = growth(rounds(lambda n: 1000 + 8 * n + (10 if n % 2 else -10)))
    assert max(filling.values()) <= MAX_GROWTH < leak[MEASURES[measure]]
    assert growth([(1000, 0, 1000), (1000, 0, 1000)]).keys() == {MEASURES[0], MEASURES[2]}  # without glibc


def test_clients_without_answers_are_reported_once_the_server_makes_no_progress():
    with serving() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        mute = Served(server.runner, silent.getsockname()[1])
        ended = clients_of(mute, Namespace(patience=0.5, **SHORT), seconds=1, seed=0)
    assert ["WRONG" in how for how in ended] == [True]
