"""API keys: which one a request came with, and whether it opens the server."""

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256


def owner_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The digest of the key that came; of one length, whatever was sent."""
    given = headers.get(b"authorization", b"")
    sent = given[7:].strip() if given[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")
    return sha256(sent).digest()


def opens(owner: bytes, keys: Sequence[str]) -> bool:
    """Whether it is one of the keys, in time that does not depend on how much of it is right."""
    return sum(hmac.compare_digest(owner, sha256(key.encode()).digest()) for key in keys) > 0
