"""API keys: identifies the key of a request, and checks it."""

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256


def owner_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The digest of the key that was sent, of constant length."""
    given = headers.get(b"authorization", b"")
    sent = given[7:].strip() if given[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")
    return sha256(sent).digest()


def salt_of(owner: bytes, given: str) -> str:
    """The cache salt for an API key and the salt in its request. It reveals neither of them."""
    return sha256(owner + given.encode("utf-8", "surrogatepass")).hexdigest()


def opens(owner: bytes, keys: Sequence[str]) -> bool:
    """True if it is one of the keys. The comparison time does not depend on how many characters match."""
    return sum(hmac.compare_digest(owner, sha256(key.encode()).digest()) for key in keys) > 0
