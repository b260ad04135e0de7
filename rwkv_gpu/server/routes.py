"""A route: a path, its methods and its handler. A family of APIs is a list of routes."""

from dataclasses import dataclass

from .endpoint import Endpoint


@dataclass(frozen=True)
class Route:
    """One route; `{name}` in a path is a variable part, `{name:path}` one that may contain slashes."""

    path: str
    methods: tuple[str, ...]
    endpoint: Endpoint


def get(path: str, endpoint: Endpoint) -> Route:
    """A GET route."""
    return Route(path, ("GET",), endpoint)


def post(path: str, endpoint: Endpoint) -> Route:
    """A POST route."""
    return Route(path, ("POST",), endpoint)


def delete(path: str, endpoint: Endpoint) -> Route:
    """A DELETE route."""
    return Route(path, ("DELETE",), endpoint)
