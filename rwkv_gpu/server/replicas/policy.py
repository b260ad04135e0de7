"""Which replica answers a request. Pure functions: the router of one machine and that of a Ray cluster share them.

First the replica that knows the conversation, unless it has much more to do than another. Else the one with the
shortest wait, of all or of a few drawn at random: a router that knows the others' work only roughly draws, so that
several routers do not send everything to the same replica.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Generic, TypeVar

SLACK = 4  # requests that a replica may have more than the idlest one, to keep its conversations
CHOICES = 2  # replicas that are drawn
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Load(Generic[Name]):
    """A replica and its work."""

    name: Name
    running: int  # requests that it has
    speed: float = 1.0  # relative to the others, as measured

    @property
    def wait(self) -> float:
        """About how long one more request takes there."""
        return (self.running + 1) / self.speed


def ranked(loads: Sequence[Load[Name]], home: Name | None = None, draw: Random | None = None) -> list[Name]:
    """All replicas, the best one first. `home` knows the conversation; with `draw`, two random ones come next."""
    if not loads:
        return []
    order = sorted(loads, key=lambda one: one.wait)
    idlest = order[0]
    if draw is not None:
        drawn = draw.sample(order, min(CHOICES, len(order)))  # in random order, so that equal ones take turns
        order = sorted(drawn, key=lambda one: one.wait) + [one for one in order if one not in drawn]
    owner = next((one for one in loads if one.name == home), None)
    if owner is not None and owner.wait <= idlest.wait + SLACK / owner.speed:
        order.sort(key=lambda one: one is not owner)
    return [one.name for one in order]


def home_of_session(session: bytes, loads: Sequence[Load[Name]]) -> Name | None:
    """The replica of a session that no router has seen: all of them come to the same one, without asking each other.

    Weighted rendezvous hashing: a replica that comes or goes moves only its own share of the sessions.
    """

    def weight(load: Load[Name]) -> float:
        digest = blake2b(session + repr(load.name).encode(), digest_size=8).digest()
        return -load.speed / math.log((int.from_bytes(digest, "little") + 0.5) / 2**64)

    return max(loads, key=weight).name if loads else None
