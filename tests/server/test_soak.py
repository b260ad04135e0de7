"""The short form of `tests.server.soak`: after many requests, a tenth of them aborted, no resource is missing."""

from argparse import Namespace

from tests.process import PATIENCE
from tests.server.soak import soak


def test_requests_of_all_apis_leave_nothing_behind():
    options = Namespace(
        seconds=6, warm_up=1, warm_up_requests=20, rounds=1, clients=8, pause=0.1, patience=PATIENCE, seed=0
    )
    ended, wrong, _ = soak(options)
    assert wrong == []
    assert sum(count for how, count in ended.items() if how.endswith("broken off"))
