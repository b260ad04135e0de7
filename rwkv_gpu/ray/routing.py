"""Chooses the replica of a request, as a request router of Ray Serve. Uses the policy of the single-machine router.

A session keeps its replica. Otherwise, the replica with the longest prefix of the conversation is chosen. Without one,
it is the replica with the shorter wait of two drawn at random, weighted by measured speed. Prefixes are learned from
routed requests and from replicas' reports. So several fronts, or a restarted one, send a conversation to the same
replica.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from rwkv_gpu.server.replicas.affinity import Affinity
from rwkv_gpu.server.replicas.policy import Load, home_of_session, ranked

from .ask import RoutedRequest

SPEED, BEGINNINGS = "speed", "beginnings"  # keys in the reports of replicas


class ConversationRouter(RequestRouter):  # type: ignore[misc]
    """Sends a conversation to the replica that has it; any other request to a lightly loaded one."""

    def initialize_state(self, **_: Any) -> None:
        """Called once by Ray."""
        self._affinity: Affinity[str] = Affinity()
        self._draw = Random()
        self._reports: dict[str, Any] = {}  # by replica: the last reported prefixes

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Handles added or removed replicas, and their reports."""
        names = {one.replica_id.unique_id for one in replicas}
        for name in self._reports.keys() - names:
            self._forget(name)
        for one in replicas:
            name, report = one.replica_id.unique_id, one.routing_stats.get(BEGINNINGS, ())
            if report != self._reports.get(name, ()):
                self._affinity.learn(report, name)
            self._reports[name] = report
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Handles a lost replica, before the controller has noticed."""
        super().on_replica_actor_died(replica_id)
        self._forget(replica_id.unique_id)

    def _forget(self, name: str) -> None:
        self._reports.pop(name, None)
        self._affinity.forget(name)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The candidates, best first: Ray takes the first that has room."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        by_name = {one.replica_id.unique_id: one for one in candidate_replicas}
        ask = asked(pending_request)
        names: list[str] = []
        for group in by_model(candidate_replicas, ask.model):
            loads = [self._load(one) for one in group]
            home = self._home(ask, loads)
            order = ranked(loads, home, self._draw)
            names += sorted(order, key=lambda name: name != home) if ask.is_bound else order
        return [[by_name[name]] for name in names]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:  # noqa: ARG002
        """Records that a replica now has the conversation of a request."""
        self._affinity.remember(asked(pending_request).beginnings, replica_id.unique_id)

    def _home(self, ask: RoutedRequest, loads: Sequence[Load[str]]) -> str | None:
        """The replica that has a conversation; for an unknown session or model, chosen by hash."""
        known = ask.home or self._affinity.find(ask.beginnings)
        by_hash = ask.session or ask.model.encode()
        return known or (home_of_session(by_hash, loads) if by_hash else None)

    def _load(self, replica: RunningReplica) -> Load[str]:
        running = self.replica_queue_len_cache.get(replica.replica_id) or 0
        speed = float(replica.replica_metadata.get(SPEED, 1.0))
        return Load(replica.replica_id.unique_id, running, speed if speed > 0 else 1.0)


def asked(pending: PendingRequest | None) -> RoutedRequest:
    """The request that is to be routed."""
    found = next((one for one in pending.args if isinstance(one, RoutedRequest)), None) if pending is not None else None
    return found or RoutedRequest({}, b"")


def by_model(replicas: Sequence[RunningReplica], model: str) -> list[list[RunningReplica]]:
    """Replicas that have a model loaded, then the others, those with the fewest models first."""
    if not model:
        return [[*replicas]]
    counts = sorted({len(one.multiplexed_model_ids) for one in replicas if model not in one.multiplexed_model_ids})
    having = [one for one in replicas if model in one.multiplexed_model_ids]
    others = [one for one in replicas if model not in one.multiplexed_model_ids]
    groups = [[one for one in others if len(one.multiplexed_model_ids) == count] for count in counts]
    return [having, *groups] if having else groups
