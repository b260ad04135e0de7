"""Remembers which replica has seen the beginning of a conversation. Uses no network."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic

from ..call import dumps
from .policy import Name

MOST = 1 << 16  # remembered prefixes
TEXT = 512  # characters of a prompt between two hashed prefixes
LONGEST = 256  # prefixes per prompt
SYSTEM = ("system", "developer")
Beginning = bytes  # a digest


class Affinity(Generic[Name]):
    """The last replica that served each prefix; the oldest entries are dropped."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._replicas: OrderedDict[Beginning, Name] = OrderedDict()

    def find(self, beginnings: Sequence[Beginning]) -> Name | None:
        """The replica of the longest remembered prefix."""
        for beginning in reversed(beginnings):
            if beginning in self._replicas:
                return self._replicas[beginning]
        return None

    def remember(self, beginnings: Iterable[Beginning], replica: Name) -> None:
        """Records that a replica serves a request with these prefixes."""
        for beginning in beginnings:
            self._replicas[beginning] = replica
            self._replicas.move_to_end(beginning)
        while len(self._replicas) > self._most:
            self._replicas.popitem(last=False)

    def learn(self, beginnings: Iterable[Beginning], replica: Name) -> None:
        """Records prefixes that a replica reports; existing entries are newer, so they stay."""
        self.remember([one for one in beginnings if one not in self._replicas], replica)

    def forget(self, replica: Name) -> None:
        """Removes a replica that has lost its state."""
        for beginning in [one for one, where in self._replicas.items() if where == replica]:
            del self._replicas[beginning]


def beginnings_of(session: str, body: Mapping[str, Any], owner: bytes = b"") -> list[Beginning]:
    """Digests of the prefixes of a request, longest last. A session named by the client is its only prefix.

    They depend on the API key (`owner`) and the cache salt. A conversation has one for each message from the first
    question on; the system message alone is shared by many conversations.
    """
    if session:
        return [digest(b"", session.encode())]
    start = digest(owner, dumps([body.get(name) for name in ("cache_salt", "model", "system", "instructions")]))
    found: list[Beginning] = []
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, list):
        for message in messages[:LONGEST]:
            start = digest(start, dumps(message))
            if not isinstance(message, dict) or message.get("role") not in SYSTEM:
                found.append(start)
        return found
    text = body.get("prompt", messages)
    if isinstance(text, str):
        for at in range(0, min(len(text), TEXT * LONGEST), TEXT):
            start = digest(start, text[at : at + TEXT].encode("utf-8", "replace"))
            found.append(start)
    return found


def digest(before: Beginning, more: bytes) -> Beginning:
    """Digest of a prefix and what follows it."""
    return blake2b(before + more, digest_size=16).digest()
