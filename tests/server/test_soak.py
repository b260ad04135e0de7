"""The short form of `tests.server.soak`: after many requests, a tenth of them aborted, no resource is missing."""

import socket
from argparse import Namespace

from tests.process import PATIENCE
from tests.server.serving import Served, serving
from tests.server.soak import clients_of, soak

SHORT = {"warm_up": 1, "warm_up_requests": 20, "rounds": 1, "clients": 8, "pause": 0.1, "seed": 0}


def test_requests_of_all_apis_leave_nothing_behind():
    ended, wrong, _ = soak(Namespace(seconds=6, patience=PATIENCE, **SHORT))
    assert wrong == []
    assert sum(count for how, count in ended.items() if how.endswith("broken off"))


def test_clients_without_answers_are_reported_once_the_server_makes_no_progress():
    with serving() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        mute = Served(server.runner, silent.getsockname()[1])
        ended = clients_of(mute, Namespace(patience=0.5, **SHORT), seconds=1, seed=0)
    assert ["WRONG" in how for how in ended] == [True]
