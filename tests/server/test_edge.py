"""Authentication, and the checks of a request before its content is read."""

import json
import socket
import time

import pytest

from tests.process import PATIENCE
from tests.server.serving import Served, events, serving

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def locked():
    with serving(
        api_keys=("first-key", "second-key"), cors=("https://page.example",), allowed_hosts=("mine.example",)
    ) as one:
        yield one


def raw(server: Served, data: bytes, seconds: float = PATIENCE) -> bytes:
    """Sends some bytes. Returns the response."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(data)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


@pytest.mark.parametrize("headers", [{"authorization": "Bearer second-key"}, {"x-api-key": "first-key"}])
def test_each_key_is_accepted(locked, headers):
    assert locked.request("POST", CHAT, ASK, **headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"x-api-key": ""},
        {"x-key": "first-key"},
        {"cookie": "api_key=first-key"},
        {"authorization": "Bearer first-key second-key"},
    ],
)
@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/slots", "/metrics", "/props", "/v1/streams/a", "/nothing", "//v1/models", "/v1/models/../models"],
)
def test_wrong_or_missing_keys_are_refused_on_every_route(locked, path, headers):
    status, _, answer = locked.request("GET", path, **headers)
    assert status == 401
    assert answer["error"]["code"] == "invalid_api_key"


def test_a_key_in_the_query_is_not_accepted(locked):
    assert locked.request("GET", "/v1/models?api_key=first-key&key=first-key")[0] == 401


def test_health_needs_no_key_and_names_nothing_but_models(locked):
    assert locked.get("/health") == {"status": "ok", "models": [{"id": "quiet", "state": "ready"}]}


@pytest.mark.parametrize("root", ["/llm", "llm/"])
@pytest.mark.parametrize("sent", ["", "/llm"])
def test_a_proxy_may_mount_the_server_and_remove_the_path_or_not(root, sent):
    with serving(api_keys=("first-key",), root_path=root) as one:
        for path in ("/", "/health", "/v1/health"):
            assert one.request("GET", sent + path)[0] == 200, "needs no key"
        assert one.request("GET", sent + "/v1/models")[0] == 401
        assert one.request("POST", sent + CHAT, ASK, x_api_key="first-key")[0] == 200
        assert one.request("POST", sent + "/v1/messages", {})[2]["type"] == "error", "errors have their API's shape"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:8080", 200), ("10.1.2.3", 200), ("mine.example:80", 200),
        ("MINE.example", 200), ("evil.example", 403), ("mine.example.evil.example", 403), ("", 403),
        ("localhost.evil.example", 403),
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused(locked, host, status):
    assert locked.request("GET", "/v1/models", host=host, x_api_key="first-key")[0] == status


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_origin_is_refused_and_gets_no_headers(server, method):
    body = None if method == "GET" else ASK
    for origin in ("https://evil.example", "null", f"http://localhost:{server.port + 1}"):
        status, headers, _ = server.request(method, CHAT if body else "/v1/models", body, origin=origin)
        assert status == 403
        assert "access-control-allow-origin" not in headers


def test_pages_of_this_machine_are_allowed_by_one_word():
    local = ("http://localhost", "http://localhost:3000", "https://127.0.0.1:1", "http://[::1]:80")
    foreign = (
        "http://localhost.evil.example",
        "http://notlocalhost",
        "http://localhost:3000/x",
        "http://[",
        "http://a@[::1",
    )
    with serving(cors=("localhost",)) as server:
        for origin in (*local, *foreign):
            status, headers, _ = server.request("GET", "/v1/models", origin=origin)
            assert (status, headers.get("access-control-allow-origin")) == (
                (200, origin) if origin in local else (403, None)
            )


def test_a_page_of_the_servers_own_origin_may_use_the_api(server):
    assert server.request("GET", "/v1/models", origin=f"http://localhost:{server.port}")[0] == 200


def test_a_page_of_an_allowed_origin_may_use_the_api(locked):
    status, headers, _ = locked.request("GET", "/v1/models", origin="https://page.example", x_api_key="first-key")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
    for origin, expected in [("https://page.example", 204), ("https://evil.example", 403)]:
        asked = {"origin": origin, "access_control_request_method": "POST"}
        names = "authorization,content-type,x-stainless-lang, x-stainless-retry-count"  # of OpenAI's library
        status, headers, _ = locked.request("OPTIONS", CHAT, **asked, access_control_request_headers=names)
        assert (status, headers.get("access-control-allow-headers")) == (expected, names if expected == 204 else None)
    asked = {"origin": "https://page.example", "access_control_request_method": "POST"}
    for names in ("", "a b", "a,", "*"):
        headers = locked.request("OPTIONS", CHAT, **asked, access_control_request_headers=names)[1]
        assert "access-control-allow-headers" not in headers


def test_compressed_bodies_are_refused_unread(server):
    status, _, _ = server.request("POST", CHAT, b"\x1f\x8b" + bytes(100), content_encoding="gzip")
    assert status == 415


def test_a_body_that_is_too_large_is_refused_at_once():
    with serving(max_body=1000) as server:
        answer = raw(server, b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n")
        assert b" 413 " in answer.splitlines()[0]
        pieces = b"".join(b"64\r\n" + b"a" * 100 + b"\r\n" for _ in range(20))
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        assert b" 413 " in raw(server, head + pieces).splitlines()[0]
        assert server.request("GET", "/health")[0] == 200


@pytest.mark.parametrize("head", [b"content-length: 8000000", b"transfer-encoding: chunked"])
def test_a_client_that_sends_a_large_body_first_reads_why_it_is_refused(head):
    """Closing while a body comes would reset the connection, and the client would lose the response."""
    with serving(max_body=1000) as server:
        body = bytes(8_000_000) if b"length" in head else (b"10000\r\n" + bytes(65536) + b"\r\n") * 120 + b"0\r\n\r\n"
        for _ in range(3):
            answer = raw(server, b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n" + body)
            assert b" 413 " in answer.splitlines()[0] and b"--max-body" in answer


def test_a_head_of_a_megabyte_is_refused(server):
    for head in (b"x-long: " + b"a" * (1 << 20), b"".join(b"x-%d: a\r\n" % n for n in range(60_000))):
        try:
            answer = raw(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n")
        except ConnectionError:
            answer = b""  # the server closed it during the write
        assert not answer or b" 431 " in answer.splitlines()[0]
    assert server.request("GET", "/health")[0] == 200


def test_a_head_without_end_is_cut_off_at_once(server, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.protocol.HEAD_SECONDS", PATIENCE)  # so no timeout cuts it off
    try:
        answer = raw(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * (1 << 18))
    except ConnectionError:
        answer = b""
    assert not answer or b" 431 " in answer.splitlines()[0]


def test_a_client_that_sends_headers_too_slowly_is_disconnected(monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.protocol.HEAD_SECONDS", 0.2)
    with serving() as server:
        for begun in (b"", b"GET /health HTTP/1.1\r\nhost: loc"):
            assert raw(server, begun) == b""
        monkeypatch.undo()
        assert server.request("GET", "/health")[0] == 200


def test_a_client_that_sends_a_body_too_slowly_is_disconnected(monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.body.PATIENCE", 0.2)
    with serving() as server:
        answer = raw(server, b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{")
        assert b" 408 " in answer.splitlines()[0]


@pytest.mark.parametrize(
    ("line", "piece", "expected"),
    [
        (b"POST /v1/completions", b" ", b" 408 "),
        (b"POST /v1/completions", b"1\r\n \r\n", b" 408 "),
        (b"GET /health", b" ", b" 408 "),
        (b"POST /nothing", b" ", b" 404 "),
        (b"POST http://evil/v1/completions", b" ", b" 403 "),
    ],
    ids=["length", "chunks", "get", "unknown route", "refused"],
)  # fmt: skip
def test_a_body_that_trickles_has_a_deadline_also_where_it_is_not_read(monkeypatch, line, piece, expected):
    """Each byte arrives in time, but the whole body does not."""
    monkeypatch.setattr("rwkv_gpu.server.body.PATIENCE", 0.3)
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        host = b"evil" if b"evil" in line else b"localhost"
        length = b"content-length: 100000" if len(piece) == 1 else b"transfer-encoding: chunked"
        connection.sendall(line + b" HTTP/1.1\r\nhost: " + host + b"\r\n" + length + b"\r\n\r\n")
        answer, end = b"", time.monotonic() + PATIENCE
        connection.settimeout(0.02)
        while time.monotonic() < end:
            try:
                connection.sendall(piece)
                received = connection.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                received = b""
            if not received:
                break
            answer += received
        assert time.monotonic() < end
        assert expected in answer.splitlines()[0]


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        (b"1;x=", b"a" * 5_000_000),
        (b"1;x=%s\r\n \r\n" % (b"a" * 30) * 10_000,),
        (b"1\r\n \r\n0\r\nx: ", b"a" * 3_000_000),
        (b"1\r\n \r\n0\r\n", b"x: y\r\n" * 500_000),
    ],
    ids=["one extension", "many extensions", "one trailer", "many trailers"],
)
def test_chunk_extensions_and_trailers_have_the_limit_of_headers(server, parts):
    try:
        answer = raw(server, CHUNKED + b"".join(parts))
    except ConnectionError:
        answer = b""  # the server closed it during the write
    assert not answer or b" 431 " in answer.splitlines()[0]
    assert server.request("GET", "/health")[0] == 200


def test_a_body_in_chunks_of_one_byte_is_read(server):
    body = json.dumps({**ASK, "metadata": {"a": "b" * 20_000}}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = CHUNKED.replace(b"/v1/completions", CHAT.encode())
    assert raw(server, head + chunks + asking("/health", None, "connection: close\r\n")).count(b" 200 OK") == 2


UPGRADE = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


def asking(
    path: str, body: bytes | None = None, more: str = "", version: str = "1.1", host: str = "localhost"
) -> bytes:
    """Returns a request as bytes."""
    length = "" if body is None else f"content-length: {len(body)}\r\n"
    named = f"host: {host}\r\n" if host else ""
    line = f"{'GET' if body is None else 'POST'} {path} HTTP/{version}\r\n"
    return (line + named + more + length + "\r\n").encode() + (body or b"")


def test_a_request_that_offers_another_protocol_is_answered_in_this_one(server):
    """Java's client offers HTTP/2 with each first request. The body is read, and the connection continues."""
    body = json.dumps(ASK).encode()
    one, last = asking(CHAT, body, UPGRADE), asking("/health", None, "connection: close\r\n")
    for sent in (one + last, asking("/health", None, UPGRADE) * 3 + one + last):
        found = raw(server, sent)
        assert found.count(b"HTTP/1.1 200 OK") == sent.count(b"HTTP/1.1\r\n")
        assert found.count(b'"chat.completion"') == 1
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        for at in range(0, len(one), 40):  # head and body in pieces
            connection.sendall(one[at : at + 40])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
    assert b" 400 " in raw(server, b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n").splitlines()[0]


def test_http_1_0_gets_no_chunks(server):
    """A stream ends with its connection. nginx uses HTTP/1.0 by default."""
    streamed = {**ASK, "stream": True, "temperature": 0}
    texts = []
    for version in ("1.0", "1.1"):
        head, _, content = raw(
            server, asking(CHAT, json.dumps(streamed).encode(), "connection: close\r\n", version)
        ).partition(b"\r\n\r\n")
        assert (b"chunked" in head) == (version == "1.1")
        assert content.startswith(b"data: ") == (version == "1.0")
        chunks = [one for one in events(content)[:-1] if isinstance(one, dict)]
        texts.append("".join(one["choices"][0]["delta"].get("content") or "" for one in chunks))
    assert texts[0] == texts[1]
    assert raw(server, asking("/health", version="1.0")).endswith(b"}")


def test_bytes_after_a_body_are_not_parsed_as_headers(server):
    body = b"%x\r\n%s\r\n" % (len(json.dumps(ASK)), json.dumps(ASK).encode())
    more = b"host: evil.example\r\n" + b"x: y\r\n" * 10_000
    one = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + body
    found = raw(server, one + b"0\r\n" + more + b"\r\n" + asking("/health", None, "connection: close\r\n"))
    assert found.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("hosts", [b"localhost evil.example", b"evil.example localhost", b"localhost localhost"])
def test_a_request_names_one_host(server, hosts):
    lines = b"".join(b"host: %s\r\n" % host for host in hosts.split())
    answer = raw(server, b"GET /v1/models HTTP/1.1\r\n" + lines + b"connection: close\r\n\r\n")
    assert b" 400 " in answer.splitlines()[0]


def test_only_http_1_0_needs_no_host(locked):
    """Load balancers send such requests; a browser always sends a Host header."""
    assert b" 200 " in raw(locked, asking("/health", version="1.0", host="")).splitlines()[0]
    assert b" 401 " in raw(locked, asking("/v1/models", version="1.0", host="")).splitlines()[0]
    assert b" 403 " in raw(locked, asking("/health", None, "connection: close\r\n", host="")).splitlines()[0]
    assert b" 403 " in raw(locked, asking("/health", version="1.0", host="evil.example")).splitlines()[0]


def test_requests_that_no_route_matches_get_404(server):
    for line in ("OPTIONS *", "GET //", "GET /%0d%0aa"):
        found = raw(server, f"{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        assert b" 404 " in found.splitlines()[0] and b'"error"' in found


def test_a_line_break_behind_a_body_ends_no_stream(monkeypatch):
    """Some clients send a line break after the body. It must not count as an incomplete head."""
    monkeypatch.setattr("rwkv_gpu.server.protocol.HEAD_SECONDS", 0.2)
    with serving() as server:
        body = json.dumps({"prompt": "a", "max_tokens": 3000, "stream": True, "logit_bias": {"0": -1000}, "timeout": 1})
        found = raw(server, asking("/v1/completions", body.encode(), "connection: close\r\n") + b"\r\n")
        assert b"took more than 1 seconds" in found and b"[DONE]" in found


def test_bytes_that_are_not_http_are_refused(server):
    assert b" 400 " in raw(server, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").splitlines()[0]
    assert server.request("GET", "/health")[0] == 200


def test_field_names_that_a_header_cannot_have_are_escaped_in_it(server):
    body = {**ASK, "a\r\nset-cookie: b": 1, "\x00\x7f": 1, "é\U0001f600": 1}
    status, headers, _ = server.request("POST", CHAT, body)
    assert status == 200 and "set-cookie" not in headers
    assert headers["x-ignored-fields"] == "a\\r\\nset-cookie: b, \\x00\\x7f, \\xe9\\U0001f600"
