"""Entry of all requests: assigns an id, checks access, and writes a log line at the end."""

import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rwkv_gpu.llm.unique import unique

from .admin import same_origin
from .body import Receive
from .call import Call, Family, Scope, Send, below_root, send_error
from .errors import ApiError
from .keys import opens, owner_of
from .replicas.upstream import FORWARDED, ROUTER_KEY
from .service import Service
from .spans import Spans

App = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")
LOCAL = ("localhost", "127.0.0.1", "::1")
LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
OPEN_PATHS = ("/health", "/v1/health")  # need no key, and reveal nothing
HEADER_NAMES = re.compile(rb"[\w.-]+( *, *[\w.-]+)*")
GONE = 499  # status in the log if the client disconnected before its response, as in nginx
LOG = logging.getLogger("rwkv_gpu.access")


class Edge:
    """Accepts or refuses a request, and logs its outcome."""

    def __init__(
        self, app: App, service: Service, family_of: Callable[[str], Family], open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._service = service
        self._family_of = family_of
        self._open_paths = open_paths
        self._spans = Spans()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope = below_root(scope)
        headers = {name.lower(): value for name, value in scope["headers"]}
        call = Call(scope, _request_id(headers), headers, owner=owner_of(headers))
        scope["rwkv_gpu.call"] = call
        status = 0
        cors = self._cors_headers(headers.get(b"origin", b"").decode("latin-1"))

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", call.id.encode()), *cors]
            await send(message)

        try:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                self._check_host(call)
                await _preflight(sending, headers.get(b"access-control-request-headers", b"").strip(), bool(cors))
                return
            self._check(call)
            await self._app(scope, receive, sending)
        except ApiError as error:
            await send_error(sending, self._family_of(scope["path"]), error, call)
        finally:
            self._log(call, status)

    def _check(self, call: Call) -> None:
        """Refuses foreign hosts, pages of other origins, and wrong or missing keys."""
        path, headers = call.scope["path"], call.headers
        self._check_host(call)
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not same_origin(headers) and not self._allows_origin(origin):
            raise ApiError(403, f"pages of {origin[:100]} may not call this server; --cors allows them")
        keys = self._service.config.api_keys
        if keys and path not in self._open_paths and not opens(call.owner, (*keys, *self._service.config.admin_keys)):
            raise ApiError(
                401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'", code="invalid_api_key"
            )

    def _check_host(self, call: Call) -> None:
        """Refuses unknown hosts: after DNS rebinding, a page sends its own name as the host."""
        if b"host" not in call.headers and call.scope["http_version"] == "1.0":
            return  # not a browser: for example a load balancer's health check
        if sum(name.lower() == b"host" for name, _ in call.scope["headers"]) > 1:
            raise ApiError(400, "the request has several Host headers; send one")  # a proxy might use another one
        config = self._service.config
        host = _name(call.headers.get(b"host", b"").decode("latin-1"))
        if "*" in config.allowed_hosts or host in LOCAL or host in config.host.split(",") or _is_address(host):
            return
        for allowed in config.allowed_hosts:
            if host == allowed.lower() or (allowed.startswith("*.") and host.endswith(allowed[1:].lower())):
                return
        if config.api_keys and not config.allowed_hosts and not all(map(_is_local, config.host.split(","))):
            return  # after DNS rebinding, a page has no key
        raise ApiError(
            403,
            f"this server does not answer to the name {host[:100]!r}; --allowed-hosts adds names",
            code="host_not_allowed",
        )

    def _allows_origin(self, origin: str) -> bool:
        cors = self._service.config.cors
        return origin in cors or "*" in cors or ("localhost" in cors and LOCAL_ORIGIN.fullmatch(origin) is not None)

    def _cors_headers(self, origin: str) -> list[tuple[bytes, bytes]]:
        if not origin or not self._allows_origin(origin):
            return []
        exposed = b"x-request-id, x-stream-id, x-ignored-fields, retry-after"
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", exposed),
            (b"vary", b"origin"),
        ]

    def _client(self, call: Call) -> str:
        """The address of the client, as reported by the router of replicas if that is authenticated."""
        sent, key = call.headers.get(ROUTER_KEY, b""), self._service.config.router_key
        if key and hmac.compare_digest(sent, key.encode()):
            return call.headers.get(FORWARDED, b"").decode("latin-1")
        client = call.scope.get("client")
        return client[0] if client else ""

    def _log(self, call: Call, status: int) -> None:
        status = status or GONE
        line = {
            "request_id": call.id,
            "client": self._client(call),
            "method": call.scope["method"],
            "path": call.scope["path"],
            "status": status,
            "seconds": round(time.monotonic() - call.began, 4),
            **call.notes,
        }
        if call.ignored:
            line["ignored_fields"] = call.ignored
        self._spans.write(call, status)
        metrics = self._service.metrics
        metrics.requests[call.route, str(status)] += 1
        if call.fault is not None:
            metrics.errors[call.fault.code or call.fault.kind] += 1
        if "prompt_tokens" in call.notes:
            metrics.request.add(time.monotonic() - call.began)
        quiet = call.scope["path"] in OPEN_PATHS and status == 200
        LOG.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": line})


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The id that the client sent, or a new one."""
    sent = headers.get(b"x-request-id", b"")
    return sent.decode("ascii", "replace") if REQUEST_ID.fullmatch(sent) else f"req_{unique()}"


def _name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_local(host: str) -> bool:
    """True if an address to listen on is reachable from this machine only."""
    host = host.strip()
    if host in LOCAL:
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


async def _preflight(send: Send, names: bytes, allowed: bool) -> None:
    """Answers a browser that asks whether a page may send headers with these names.

    Any header is allowed, as clients send their own, such as the version of OpenAI's library. None of them grants
    access.
    """
    headers = [(b"content-length", b"0")]
    if allowed:
        headers += [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-max-age", b"600"),
        ]
        if HEADER_NAMES.fullmatch(names):
            headers.append((b"access-control-allow-headers", names))
    await send({"type": "http.response.start", "status": 204 if allowed else 403, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
