"""Combines the routes of all families into one ASGI application."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from .. import page
from . import (
    absent,
    anthropic,
    batches,
    conversations,
    decisions,
    documents,
    llama_server,
    management,
    message_batches,
    ollama,
    openai,
    operations,
    rerank,
    responses,
    tools,
    transcriptions,
)
from .body import Receive
from .call import Family, Scope, Send, Whole, send_whole
from .edge import OPEN_PATHS, App, Edge
from .errors import ApiError
from .routes import Route
from .service import Service

# One module per family of APIs, each with `routes(service)`.
FAMILIES: tuple[Callable[[Service], list[Route]], ...] = (
    openai.routes,
    responses.routes,
    anthropic.routes,
    batches.routes,
    message_batches.routes,
    ollama.routes,
    management.routes,
    llama_server.routes,
    rerank.routes,
    decisions.routes,
    transcriptions.routes,
    documents.routes,
    tools.routes,
    conversations.routes,
    operations.routes,
    absent.routes,
)
# Error format by path prefix; the first match applies.
SHAPES: tuple[tuple[str, Family], ...] = (
    ("/v1/messages", anthropic.FAMILY),
    ("/api/", ollama.FAMILY),
    ("", openai.FAMILY),  # the default, also for the path *
)


def create_app(service: Service) -> App:
    """The application: all routes, and the page at /."""
    routes = [
        StarletteRoute(route.path, NamedRoute(route), methods=[*route.methods])
        for family in FAMILIES
        for route in family(service)
    ]
    whole = page.assemble()
    pages = {"/": File(whole.html.encode(), b"text/html; charset=utf-8", whole.headers)}
    pages |= {path: File(content, media_type) for path, (content, media_type) in page.files().items()}
    routes += [StarletteRoute(path, file, methods=["GET"]) for path, file in pages.items()]
    router: Any = Router(routes, redirect_slashes=False, default=_not_found)
    open_paths = frozenset({*OPEN_PATHS, *pages})  # the page itself asks the user for the key
    return Edge(_routed(router), service, family_of, open_paths)


def family_of(path: str) -> Family:
    """The family whose error format applies to a path."""
    return next(family for beginning, family in SHAPES if path.startswith(beginning))


class NamedRoute:
    """A route that reports its path pattern for the metrics, because there is no limit to the number of paths."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["rwkv_gpu.call"].route = self._route.path
        await self._route.endpoint(scope, receive, send)


class File:
    """A static file."""

    def __init__(self, content: bytes, media_type: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._content, self._media_type = content, media_type
        self._headers = {"cache-control": "no-cache", "x-content-type-options": "nosniff", **(headers or {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        response = Whole(self._content, media_type=self._media_type, headers=self._headers)
        await send_whole(send, response, scope["rwkv_gpu.call"])


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    raise ApiError(404, f"there is no {scope['method']} {scope['path'][:100]} here; docs/server.md lists the routes")


def _routed(router: Any) -> App:
    """The router; a wrong method raises an ApiError, formatted for its family."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # so that Starlette raises instead of responding itself
        try:
            await router(scope, receive, send)
        except HTTPException as error:
            # Sorted, because it is a set
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            message = f"{scope['path'][:100]} takes {allowed}, not {scope['method']}"
            raise ApiError(error.status_code, message, allow=allowed) from None

    return app
