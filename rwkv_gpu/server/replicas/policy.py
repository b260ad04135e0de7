"""Chooses the replica for a request. Pure functions, shared by the router of one machine and that of a Ray cluster.

The first choice is the replica that has the conversation, unless it is much busier than another. Otherwise it is the
one with the shortest wait, of all or of two drawn at random. A router draws if it knows the load only roughly, so that
several routers do not all choose the same replica.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Generic, TypeVar

SLACK = 4  # additional requests that a replica may have over the idlest one, to keep its conversations
CHOICES = 2  # number of replicas drawn
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Load(Generic[Name]):
    """A replica and its load."""

    name: Name
    running: int  # requests in progress
    speed: float = 1.0  # relative to the others, as measured

    @property
    def wait(self) -> float:
        """Approximate duration of one more request there."""
        return (self.running + 1) / self.speed


def ranked(loads: Sequence[Load[Name]], home: Name | None = None, draw: Random | None = None) -> list[Name]:
    """All replicas, best first. `home` has the conversation; with `draw`, two random ones come next."""
    if not loads:
        return []
    order = sorted(loads, key=lambda one: one.wait)
    idlest = order[0]
    if draw is not None:
        drawn = draw.sample(order, min(CHOICES, len(order)))  # in random order, to alternate between equal ones
        order = sorted(drawn, key=lambda one: one.wait) + [one for one in order if one not in drawn]
    owner = next((one for one in loads if one.name == home), None)
    if owner is not None and owner.wait <= idlest.wait + SLACK / owner.speed:
        order.sort(key=lambda one: one is not owner)
    return [one.name for one in order]


def home_of_session(session: bytes, loads: Sequence[Load[Name]]) -> Name | None:
    """The replica of a session that is new to all routers. All routers choose the same one without communication.

    Weighted rendezvous hashing: adding or removing a replica moves only its share of the sessions.
    """

    def weight(load: Load[Name]) -> float:
        digest = blake2b(session + repr(load.name).encode(), digest_size=8).digest()
        return -load.speed / math.log((int.from_bytes(digest, "little") + 0.5) / 2**64)

    return max(loads, key=weight).name if loads else None
