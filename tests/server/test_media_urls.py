"""Images that a server fetches by URL: allowed hosts, public addresses, and limits on bytes, time and redirects."""

import asyncio
import contextlib

import pytest

pytest.importorskip("starlette", reason="the extra `server` is not installed")

from rwkv_gpu.server import media_urls
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.media_urls import MediaUrls, is_public

PUBLIC = "93.184.216.34"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Hosts:
    """A local server that takes the place of every public address, and records its requests."""

    def __init__(self, answers, addresses=(PUBLIC,)):
        self.answers, self.addresses = answers, list(addresses)
        self.asked, self.connected = [], []

    async def resolve(self, *_):
        """Returns the addresses of a name, which may differ at each look-up."""
        found = self.addresses.pop(0) if isinstance(self.addresses[0], list) else self.addresses
        return [found] if isinstance(found, str) else found

    async def connect(self, address, port, secure):
        """Connects to the local server in place of a public address."""
        self.connected.append((address, port, secure))
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def _answer(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            answer = self.answers[head.split()[1]]
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                if callable(answer):
                    await answer(writer)
                else:
                    writer.write(answer)
                    await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def run(self, use):
        """Runs a coroutine while the server is up."""
        self._tasks = set()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            return await use
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def fetch(self, *urls, **options):
        """Fetches the images of one message."""
        urls_of = MediaUrls(("images.example", "other.example"), self.resolve, self.connect, **options)
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        [message] = asyncio.run(self.run(urls_of.fetched([{"role": "user", "content": parts}])))
        return [part.get("image") for part in message["content"]]


def redirect(to):
    """An answer that redirects."""
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def refused(hosts, *urls, **options):
    """Returns the message of a refusal, which must be one line."""
    with pytest.raises(ApiError) as caught:
        hosts.fetch(*urls, **options)
    assert caught.value.status == 400 and "\n" not in caught.value.message
    return caught.value.message


def test_images_are_fetched_from_the_address_that_was_checked():
    hosts = Hosts({"/a%20b.png?q=%C3%A9": OK, "/b": b"HTTP/1.1 200 OK\r\n\r\nto the end"})
    found = hosts.fetch("https://Images.Example/a b.png?q=é#part", "http://images.example:8000/b", "data:,x")
    assert found == [b"hello", b"to the end", None]
    assert sorted(hosts.connected) == [(PUBLIC, 443, "images.example"), (PUBLIC, 8000, None)]
    assert any("\r\nHost: images.example\r\n" in head for head in hosts.asked)


def test_chunked_answers_and_redirects_are_followed():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    hosts = Hosts({"/a": redirect("/b"), "/b": redirect("//other.example/c"), "/c": chunked})
    assert hosts.fetch("https://images.example/a") == [b"hello world"]
    assert [secure for _, _, secure in hosts.connected] == ["images.example", "images.example", "other.example"]


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/a", "http://images.example.evil.example/", "http://evil.example#images.example",
        "http://images.example@evil.example/", "http://u:p@images.example/a", "http://[::1", "http://images.example:x/",
        "http:///a", "http://" + "a" * 300 + "/", "http://images.example/" + "a" * 9000, "http:images.example",
    ],
)  # fmt: skip
def test_other_hosts_and_odd_urls_are_refused(url):
    hosts = Hosts({})
    assert "cannot be fetched" in refused(hosts, url)
    assert not hosts.connected


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
        "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%lo", "fc00::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_private_addresses_are_never_connected_to(address):
    hosts = Hosts({"/": OK}, [address])
    assert not is_public(address)
    assert "no public address" in refused(hosts, "http://images.example/")
    assert not hosts.connected


def test_addresses_are_checked_again_after_a_redirect():
    """The address of a name may change between the check and the connection."""
    hosts = Hosts({"/": redirect("/b"), "/b": OK}, [[PUBLIC], ["127.0.0.1"]])
    assert "no public address" in refused(hosts, "http://images.example/")
    assert len(hosts.connected) == 1
    hosts = Hosts({"/": OK}, [["127.0.0.1", "10.0.0.1", PUBLIC]])
    assert hosts.fetch("http://images.example/") == [b"hello"]
    assert [address for address, _, _ in hosts.connected] == [PUBLIC]


@pytest.mark.parametrize(
    "to", ["http://127.0.0.1/", "http://evil.example/", "file:///etc/passwd", "ftp://images.example/", "http://[::1"]
)
def test_redirects_lead_to_allowed_hosts_only(to):
    assert "cannot be fetched" in refused(Hosts({"/": redirect(to)}), "http://images.example/")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (redirect("/"), "redirects"), (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"), (b"nonsense\r\n\r\n", "read"),
        (b"", "ends early"), (OK[:-1], "ends early"), (b"HTTP/1.1 200 OK\r\n", "ends early"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20000, "headers"), (b"HTTP/1.1 302 Found\r\n\r\n", "302"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "ends early"),
    ],
)  # fmt: skip
def test_bad_answers_are_refused_in_one_line(answer, why):
    assert why in refused(Hosts({"/": answer}), "http://images.example/")


def test_bytes_of_all_images_of_a_request_are_bounded(monkeypatch):
    monkeypatch.setattr(media_urls, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(media_urls.Budget.__init__, "__defaults__", (1 << 20,))
    sent = []

    async def endless(writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            sent.append(1 << 14)
            writer.write(bytes(1 << 14))
            await writer.drain()

    half = b"HTTP/1.1 200 OK\r\n\r\n" + bytes(600_000)
    hosts = Hosts({"/": endless, "/half": half, "/other": half})
    assert "MiB" in refused(hosts, "http://images.example/")
    assert len(hosts.fetch("http://images.example/half")[0]) == 600_000
    assert "MiB" in refused(hosts, "http://images.example/half", "http://images.example/other")
    assert sum(sent) < 32 << 20  # sockets buffer the rest


def test_a_slow_host_is_left_when_its_request_times_out():
    async def never(_):
        await asyncio.Event().wait()

    assert "takes longer" in refused(Hosts({"/": never}), "http://images.example/", patience=0.05)


def test_a_real_name_is_resolved_and_connected_to(monkeypatch):
    hosts = Hosts({"/": OK})

    async def use():
        urls = MediaUrls(("localhost",))
        part = {"type": "image_url", "image_url": {"url": f"http://localhost:{hosts.port}/"}}
        messages = [{"role": "user", "content": [part]}]
        with pytest.raises(ApiError, match="no public address"):
            await urls.fetched(messages)
        monkeypatch.setattr(media_urls, "is_public", lambda _: True)
        return await urls.fetched(messages)

    assert asyncio.run(hosts.run(use()))[0]["content"][0]["image"] == b"hello"
    assert len(hosts.asked) == 1
