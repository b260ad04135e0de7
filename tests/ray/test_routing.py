"""Tests of the request router with fake replicas, which have only names."""

import asyncio
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra `ray` is not installed")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own
    from ray.serve.request_router import RequestRouter

from rwkv_gpu.ray.ask import RoutedRequest
from rwkv_gpu.ray.routing import BEGINNINGS, SPEED, ConversationRouter
from rwkv_gpu.server.replicas.affinity import beginnings_of
from rwkv_gpu.server.replicas.policy import SLACK


class Routing:
    """A router with fake replicas."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **replicas: dict[str, Any]) -> None:
        monkeypatch.setattr(RequestRouter, "update_replicas", lambda *_: None)
        monkeypatch.setattr(RequestRouter, "on_replica_actor_died", lambda *_: None)
        self.running = dict.fromkeys(replicas, 0)
        self.router = ConversationRouter.__new__(ConversationRouter)
        self.router._replica_queue_len_cache = SimpleNamespace(get=lambda one: self.running[one.unique_id])
        self.router.initialize_state()
        self.replicas = {name: self.replica(name, **more) for name, more in replicas.items()}
        self.update()

    def replica(self, name: str, speed: float = 1.0, models: tuple[str, ...] = (), has: tuple[bytes, ...] = ()) -> Any:
        return SimpleNamespace(
            replica_id=SimpleNamespace(unique_id=name), replica_metadata={SPEED: speed},
            multiplexed_model_ids=set(models), routing_stats={BEGINNINGS: [*has]},
        )  # fmt: skip

    def update(self) -> None:
        self.router.update_replicas([*self.replicas.values()])

    def choose(self, ask: RoutedRequest, *, goes: bool = True) -> list[str]:
        """Returns the replicas that the router proposes, best first. With `goes`, records that the first got the
        request.
        """
        pending = SimpleNamespace(args=[ask], routing_context=SimpleNamespace(should_backoff=False))
        ranks = asyncio.run(self.router.choose_replicas([*self.replicas.values()], pending))
        assert pending.routing_context.should_backoff
        assert all(len(rank) == 1 for rank in ranks)
        names = [rank[0].replica_id.unique_id for rank in ranks]
        assert sorted(names) == sorted(self.replicas)  # a full one has all others behind it
        if goes:
            self.router.on_request_routed(pending, ranks[0][0].replica_id, None)
        return names


def talk(*texts: str, **more: Any) -> RoutedRequest:
    body = {"messages": [{"role": "user", "content": text} for text in texts]}
    return RoutedRequest({}, b"", beginnings_of("", body), **more)


def test_a_growing_conversation_stays_and_does_not_attract_others(monkeypatch):
    routing = Routing(monkeypatch, a={}, b={}, c={})
    first = routing.choose(talk("one"))[0]
    routing.running[first] = SLACK
    assert routing.choose(talk("one", "two"))[0] == first
    others = {routing.choose(talk(f"another {n}"), goes=False)[0] for n in range(40)}
    assert first not in others


def test_independent_routers_send_a_session_to_the_same_replica(monkeypatch):
    for n in range(20):
        ask = RoutedRequest({}, b"", beginnings_of(f"session {n}", {}), session=f"session {n}".encode())
        chosen = {Routing(monkeypatch, a={}, b={}, c={}).choose(ask)[0] for _ in range(4)}
        assert len(chosen) == 1


def test_a_new_router_learns_the_prefixes_of_its_replicas(monkeypatch):
    has = tuple(talk("one").beginnings)
    for name in "abc":
        routing = Routing(monkeypatch, **{other: {"has": has if other == name else ()} for other in "abc"})
        assert {routing.choose(talk("one", "two"), goes=False)[0] for _ in range(20)} == {name}


def test_requests_routed_here_are_newer_than_reports_of_replicas(monkeypatch):
    routing = Routing(monkeypatch, a={}, b={})
    first = routing.choose(talk("one"))[0]
    other = {"a": "b", "b": "a"}[first]
    routing.replicas[other].routing_stats[BEGINNINGS] = talk("one").beginnings
    routing.update()
    assert routing.choose(talk("one"))[0] == first


def test_a_removed_replica_has_no_prefixes(monkeypatch):
    routing = Routing(monkeypatch, a={}, b={}, c={})
    first = routing.choose(talk("one"))[0]
    del routing.replicas[first]
    routing.update()
    routing.replicas[first] = routing.replica(first)
    routing.update()
    assert {routing.choose(talk("one"), goes=False)[0] for _ in range(60)} == {"a", "b", "c"}


def test_replicas_of_different_speed_get_work_by_their_speed(monkeypatch):
    routing = Routing(monkeypatch, server={"speed": 9.0}, laptop={"speed": 1.0})
    for n in range(200):
        routing.running[routing.choose(talk(f"question {n}"))[0]] += 1
    assert 15 <= routing.running["laptop"] <= 25


def test_a_stream_is_resumed_by_its_own_replica_however_busy_that_is(monkeypatch):
    routing = Routing(monkeypatch, a={}, b={})
    routing.running["a"] = 100
    assert routing.choose(RoutedRequest({}, b"", home="a", is_bound=True))[0] == "a"
    assert routing.choose(RoutedRequest({}, b"", home="a"))[0] == "b"


def test_a_model_goes_where_it_is_loaded_then_where_the_fewest_are(monkeypatch):
    routing = Routing(monkeypatch, a={"models": ("x", "y")}, b={"models": ("y",)}, c={"models": ("y", "z", "v")})
    assert routing.choose(RoutedRequest({}, b"", model="z"))[0] == "c"
    assert routing.choose(RoutedRequest({}, b"", model="new"), goes=False) == ["b", "a", "c"]
