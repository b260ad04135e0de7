"""Puts the routes of all families together into one ASGI application."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from . import openai, operations
from .body import Receive
from .call import Family, Scope, Send, Whole, send_whole
from .edge import OPEN_PATHS, App, Edge
from .errors import ApiError
from .routes import Route
from .service import Service

# One module for each family of APIs: its `routes(service)`.
FAMILIES: tuple[Callable[[Service], list[Route]], ...] = (openai.routes, operations.routes)
# The shape of errors by the beginning of a path; the first that fits counts.
SHAPES: tuple[tuple[str, Family], ...] = (("/", openai.FAMILY),)
PAGE = Path(__file__).parent / "page"
TYPES = {".html": b"text/html; charset=utf-8", ".svg": b"image/svg+xml", ".ico": b"image/x-icon"}


def create_app(service: Service) -> App:
    """The application: all routes, and the page at / where there is one."""
    routes = [
        StarletteRoute(route.path, Named(route), methods=[*route.methods])
        for family in FAMILIES
        for route in family(service)
    ]
    pages = {f"/{path.name}": path for path in sorted(PAGE.iterdir())} if PAGE.is_dir() else {}
    if "/index.html" in pages:
        pages["/"] = pages["/index.html"]
    routes += [StarletteRoute(path, Page(file), methods=["GET"]) for path, file in pages.items()]
    router: Any = Router(routes, redirect_slashes=False, default=_not_found)
    open_paths = frozenset({*OPEN_PATHS, *pages})  # the page asks for the key itself
    return Edge(_routed(router), service, family_of, open_paths)


def family_of(path: str) -> Family:
    """The family whose shape errors of a path have."""
    return next(family for beginning, family in SHAPES if path.startswith(beginning))


class Named:
    """A route that says its path, for the metrics: paths as clients send them are endless."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["rwkv_gpu.call"].route = self._route.path
        await self._route.endpoint(scope, receive, send)


class Page:
    """A file of the page; read at each request, since it is small and may change."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        media_type = TYPES.get(self._path.suffix, b"application/octet-stream")
        headers = {"cache-control": "no-cache", "x-content-type-options": "nosniff"}
        await send_whole(
            send, Whole(self._path.read_bytes(), media_type=media_type, headers=headers), scope["rwkv_gpu.call"]
        )


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    raise ApiError(404, f"there is no {scope['method']} {scope['path'][:100]} here; docs/server.md lists the routes")


def _routed(router: Any) -> App:
    """The router; a wrong method becomes an error of ours, which has the shape of its family."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # has Starlette raise where it would write an answer of its own
        try:
            await router(scope, receive, send)
        except HTTPException as error:
            allowed = (error.headers or {}).get("Allow", "")
            raise ApiError(error.status_code, f"{scope['path'][:100]} takes {allowed}, not {scope['method']}") from None

    return app
