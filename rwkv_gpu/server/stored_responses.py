"""Responses of the Responses API that later requests may continue: in memory, limited, visible to their owner only."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from .call import Json, dumps
from .errors import ApiError

MOST = 1024  # responses
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Stored:
    """A response, and the items of its conversation: all inputs before it and its output."""

    owner: bytes
    response: Json
    items: list[Any]
    nbytes: int


class StoredResponses:
    """The latest responses. New ones replace the oldest. A response is visible to its owner only."""

    def __init__(self, most: int = MOST, max_bytes: int = MAX_BYTES) -> None:
        self._most, self._max_bytes = most, max_bytes
        self._found: OrderedDict[str, Stored] = OrderedDict()
        self._items: dict[str, Stored] = {}  # by the ids of output items
        self._nbytes = 0

    def add(self, owner: bytes, response: Json, items: list[Any]) -> None:
        """Stores a response, unless it is larger than the store."""
        nbytes = len(dumps([response, items]))
        if nbytes > self._max_bytes:
            return
        stored = self._found[response["id"]] = Stored(owner, response, items, nbytes)
        self._items |= {item["id"]: stored for item in response["output"]}
        self._nbytes += nbytes
        while len(self._found) > self._most or self._nbytes > self._max_bytes:
            self._remove(next(iter(self._found)))

    def get(self, id: str, owner: bytes, param: str | None = None) -> Stored:
        """The response with that id."""
        found = self._found.get(id)
        if found is None or found.owner != owner:
            message = f"there is no response {id[:80]!r} here; the server keeps the latest {self._most:,} in memory"
            raise ApiError(404 if param is None else 400, message, code="response_not_found", param=param)
        return found

    def delete(self, id: str, owner: bytes) -> None:
        """Removes a response."""
        self.get(id, owner)
        self._remove(id)

    def item(self, id: object, owner: bytes) -> Any:
        """The item with that id in the output of a response."""
        stored = self._items.get(id) if isinstance(id, str) else None
        if stored is None or stored.owner != owner:
            message = f"there is no item {str(id)[:80]!r} here; send the item itself, or store its response"
            raise ApiError(400, message, code="item_not_found", param="input")
        return next(item for item in stored.response["output"] if item["id"] == id)

    def _remove(self, id: str) -> None:
        stored = self._found.pop(id)
        self._nbytes -= stored.nbytes
        for item in stored.response["output"]:
            del self._items[item["id"]]
