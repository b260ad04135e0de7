"""A path, the methods that it takes, and who answers. A family of APIs is a list of these."""

from dataclasses import dataclass

from .endpoint import Endpoint


@dataclass(frozen=True)
class Route:
    """One route; `{name}` in a path is a variable part, `{name:path}` one with slashes."""

    path: str
    methods: tuple[str, ...]
    endpoint: Endpoint


def get(path: str, endpoint: Endpoint) -> Route:
    """A route that reads."""
    return Route(path, ("GET",), endpoint)


def post(path: str, endpoint: Endpoint) -> Route:
    """A route that asks for something."""
    return Route(path, ("POST",), endpoint)


def delete(path: str, endpoint: Endpoint) -> Route:
    """A route that ends something."""
    return Route(path, ("DELETE",), endpoint)
