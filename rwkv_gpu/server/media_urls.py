"""Fetches the images that messages name by URL: from allowed hosts only, and never from private addresses.

The connection goes to the checked address itself, so a second DNS look-up cannot change it.
"""

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httptools

from rwkv_gpu.llm.images import KINDS, MAX_BYTES, MAX_IMAGES, url_of

from .errors import ApiError

PATIENCE = 20.0  # seconds for all images of a request
MAX_HEAD = 1 << 16  # bytes of a response before its body
MAX_REDIRECTS = 5
MAX_URL = 1 << 13  # characters of a URL
MAX_ADDRESSES = 4  # addresses of a host that are tried
FETCHES = 16  # concurrent fetches of all requests
PIECE = 1 << 16  # bytes read at a time
MOVED = 301, 302, 303, 307, 308
TRANSLATED = ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16"), ipaddress.ip_network("2001::/32")
PLAIN = "!$%&'()*+,-./:;=?@_~"  # characters of a path and query that are not escaped

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # returns the addresses of a host and port
Connect = Callable[[str, int, str | None], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def resolved(host: str, port: int) -> Sequence[str]:
    """The addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def connected(address: str, port: int, secure: str | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to an address, with TLS for the host `secure`."""
    return await asyncio.open_connection(address, port, ssl=None if secure is None else _tls(), server_hostname=secure)


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def is_public(address: str) -> bool:
    """True for an address of the public internet. False for IPv6 addresses that gateways translate to IPv4."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if any(ip in network for network in TRANSLATED):
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


@dataclass(frozen=True)
class Target:
    """A URL, and its parts."""

    url: str
    host: str
    port: int
    secure: bool
    path: str  # path and query

    @property
    def request(self) -> bytes:
        """The request for it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        host += "" if self.port == (443 if self.secure else 80) else f":{self.port}"
        headers = f"Host: {host}\r\nUser-Agent: rwkv-gpu\r\nAccept: image/*\r\nConnection: close\r\n\r\n"
        return f"GET {self.path} HTTP/1.1\r\n{headers}".encode()


@dataclass
class Budget:
    """The number of bytes that a request may still fetch."""

    left: int = MAX_BYTES

    def spend(self, count: int) -> None:
        """Subtracts bytes; raises ValueError if too few are left."""
        self.left -= count
        if self.left < 0:
            raise ValueError(f"the images of a request may have {MAX_BYTES >> 20} MiB in all")


@dataclass
class Answer:
    """An HTTP answer that is being parsed; its fields are set by callbacks of the parser."""

    budget: Budget
    body: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    begun: bool = False  # whether all headers are known
    complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Ends the headers."""
        self.begun = True

    def on_body(self, data: bytes) -> None:
        """Adds a piece of the body."""
        if self.begun:
            self.body += data

    def on_message_complete(self) -> None:
        """Ends the answer."""
        self.complete = True

    async def read(self, reader: asyncio.StreamReader) -> int:
        """Reads the answer to its end, or only its headers if the status is not 200. Returns the status."""
        parser, head = httptools.HttpResponseParser(self), MAX_HEAD
        while not self.complete and (data := await reader.read(PIECE)):
            self.budget.spend(len(data))
            parser.feed_data(data)
            head -= 0 if self.begun else len(data)
            if head < 0:
                raise ValueError("its headers are too long")
            if self.begun and parser.get_status_code() != 200:
                return parser.get_status_code()
        framed = self.headers.keys() & {"content-length", "transfer-encoding"}
        if not self.begun or (framed and not self.complete):
            raise ValueError("the answer ends early")
        return parser.get_status_code()


@dataclass
class MediaUrls:
    """Fetches images from the hosts of `--allow-media-urls`."""

    hosts: Sequence[str]
    resolve: Resolve = resolved
    connect: Connect = connected
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        self._running = asyncio.Semaphore(FETCHES)

    async def fetched(self, messages: Any) -> Any:
        """Returns the messages with the bytes of images in place of their URLs."""
        found = dict(_urls(messages))
        if not found:
            return messages
        if len(found) > MAX_IMAGES:
            raise ApiError(400, f"there are more than {MAX_IMAGES} images; send fewer", param="messages")
        budget = Budget()
        try:
            async with asyncio.timeout(self.patience), asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(self.image(url, where, budget)) for url, where in found.items()}
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        except TimeoutError:
            raise ApiError(
                400, f"fetching images takes longer than {self.patience:g} seconds; send data URLs"
            ) from None
        images = {url: task.result() for url, task in tasks.items()}
        return [_filled(message, images) for message in messages]

    async def image(self, url: str, where: str, budget: "Budget") -> bytes:
        """The bytes at a URL."""
        base = url
        for _ in range(MAX_REDIRECTS + 1):
            target = self._target(url, base, where)
            async with self._running:
                try:
                    status, answer = await self._get(target, budget)
                except (OSError, ValueError, httptools.HttpParserError) as error:
                    raise _refused(where, f"{target.host} cannot be read ({error or type(error).__name__})") from None
            moved = answer.headers.get("location") if status in MOVED else None
            if moved is None and status != 200:
                raise _refused(where, f"{target.host} answers with status {status}")
            if moved is None:
                return bytes(answer.body)
            base, url = target.url, moved
        raise _refused(where, f"there are more than {MAX_REDIRECTS} redirects")

    def _target(self, url: str, base: str, where: str) -> "Target":
        """Parses a URL, which may be relative to another, and checks that its host is allowed."""
        try:
            url = urljoin(base, url)
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode().rstrip(".").lower()
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise _refused(where, "its URL is not valid") from None
        if len(url) > MAX_URL or parts.scheme not in ("http", "https") or "@" in parts.netloc or not host:
            raise _refused(where, "its URL must be data:, http: or https:, and short, with a host and without a user")
        if host not in self.hosts:
            raise _refused(where, f"the server fetches nothing from {host[:100]}; send a data URL, or allow the host "
                           "with --allow-media-urls")  # fmt: skip
        query = f"?{quote(parts.query, safe=PLAIN)}" if parts.query else ""
        path = (quote(parts.path, safe=PLAIN) or "/") + query
        return Target(url, host, port, parts.scheme == "https", path)

    async def _get(self, target: "Target", budget: "Budget") -> tuple[int, "Answer"]:
        reader, writer = await self._opened(target)
        try:
            writer.write(target.request)
            answer = Answer(budget)
            return await answer.read(reader), answer
        finally:
            writer.transport.abort()

    async def _opened(self, target: "Target") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first public address that accepts it."""
        found = [one for one in await self.resolve(target.host, target.port) if is_public(one)]
        error: OSError = ConnectionError("it has no public address")
        for address in found[:MAX_ADDRESSES]:
            try:
                return await self.connect(address, target.port, target.host if target.secure else None)
            except OSError as failed:
                error = failed
        raise error


def _parts(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


def _url(part: Any) -> str | None:
    """The http or https URL of a content part; None if it has none."""
    url = url_of(part) if isinstance(part, Mapping) and part.get("type") in KINDS else None
    return url if isinstance(url, str) and url.lower().startswith(("http:", "https:")) else None


def _urls(messages: Any) -> Iterator[tuple[str, str]]:
    """The URLs to fetch, each with its place in the messages."""
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        for n, part in enumerate(_parts(message)):
            if (url := _url(part)) is not None:
                yield url, f"messages[{i}].content[{n}]"


def _filled(message: Any, images: Mapping[str, bytes]) -> Any:
    """A message with these images in place of their URLs."""
    if not any(map(_url, _parts(message))):
        return message
    parts = [
        part if (url := _url(part)) is None else {"type": "image", "image": images[url]} for part in _parts(message)
    ]
    return {**message, "content": parts}


def _refused(where: str, why: str) -> ApiError:
    return ApiError(400, f"{where}: the image cannot be fetched: {why}", param="messages")
