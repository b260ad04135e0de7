"""Requests as attackers send them, to every API: each is refused in one printable sentence, and nothing waits or fails.

Fields with wrong values: test_bodies.py. Bytes that are not HTTP, and slow clients: test_edge.py.
"""

import pytest

from rwkv_gpu.server.batches import TARGETS
from rwkv_gpu.server.errors import LONGEST
from tests.server.gate import until
from tests.server.test_management import KEY, lines, managed
from tests.server.test_preparing import load_slow

HI = [{"role": "user", "content": "Hi"}]
CHATS = {"/api/chat": {"messages": HI}, "/api/generate": {"prompt": "Hi"}, "/v1/messages": {"messages": HI}}
EVIL = "\x1b]0;title\x07\x1b[2J\r\nset-cookie: a=b"
NAMES = ["../../etc/passwd", "a\0b", "\ud800", "x" * 100_000, EVIL, "file:///etc/passwd", "http://169.254.169.254/x"]
ESCAPED = ("..%2f..%2fetc%2fpasswd", "%00", "%ff", "a" * 4000, "%1b%5b2J", "%0d%0aset-cookie:%20a=b")
BY_ID = [
    ("GET", "/v1/files/{}"), ("GET", "/v1/files/{}/content"), ("DELETE", "/v1/files/{}"), ("GET", "/v1/batches/{}"),
    ("POST", "/v1/batches/{}/cancel"), ("GET", "/v1/messages/batches/{}"), ("GET", "/v1/messages/batches/{}/results"),
    ("POST", "/v1/messages/batches/{}/cancel"), ("DELETE", "/v1/messages/batches/{}"), ("GET", "/v1/responses/{}"),
    ("DELETE", "/v1/streams/{}"), ("GET", "/v1/models/{}"), ("GET", "/{}"), ("POST", "/api/{}"),
]  # fmt: skip
BODIES = {
    "nested 100,000 deep": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "NaN": b'{"model": NaN}', "a number of 5,000 digits": b'{"model": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"model": "\xff"}', "UTF-16": '{"model": "given"}'.encode("utf-16"), "two objects": b"{}{}",
    "a list": b"[{}]", "null": b"null", "nothing": b"",
}  # fmt: skip
MODELFILES = ["ADAPTER /etc/shadow", 'FROM given\nTEMPLATE """{{ if', "\0", "FROM given\n" * 9999, "FROM " + EVIL]
PROXY = [
    {"name": "none"}, {"name": 7}, {"name": EVIL}, {"name": "x" * 10**6}, {}, {"name": "a", "arguments": 7},
    {"name": "a", "arguments": {"a": 1}},
]  # fmt: skip
OF_BATCHES = [
    {}, {"requests": 7}, {"requests": [7]}, {"requests": [{"custom_id": "a"}]}, {"requests": [{"custom_id": EVIL}]},
    {"requests": [{"custom_id": str(n), "params": {}} for n in range(50_001)]},
]  # fmt: skip


@pytest.fixture(scope="module")
def hosting(tmp_path_factory):
    with managed(tmp_path_factory.mktemp("models"), load=load_slow) as server:
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        yield server
        until(lambda: not server.service._calls)
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})


def refuses(server, method, path, body=None):
    """A request gets a status of the client's fault, and one sentence that a terminal can show."""
    status, headers, answer = server.request(method, path, body, **KEY)
    if isinstance(answer, bytes):  # lines of JSON
        answer = lines(answer)[-1]
    error = answer["error"]
    message = error if isinstance(error, str) else error["message"]
    assert 400 <= status < 500 or status == 501, (status, message)
    assert message.isprintable() and 0 < len(message) <= LONGEST, message
    assert "set-cookie" not in headers


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("body", BODIES)
def test_bodies_that_are_no_requests_are_refused(hosting, path, body):
    if (path, body) != ("/api/chat", "nothing"):
        refuses(hosting, "POST", path, BODIES[body])


@pytest.mark.parametrize("path", [*CHATS, "/api/show", "/api/pull", "/api/copy", "/api/create", "/models/load"])
@pytest.mark.parametrize("name", [*NAMES, {"$gt": ""}, ["given"]], ids=lambda name: ascii(name)[:20])
def test_names_of_models_that_are_paths_addresses_or_escapes_are_refused(hosting, path, name):
    named = dict.fromkeys(("model", "source", "destination", "from"), name)
    refuses(hosting, "POST", path, {**CHATS.get(path, {}), **named, "max_tokens": 1, "stream": False})


@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_ids_that_are_paths_or_escapes_are_refused(hosting, method, path):
    for id in ESCAPED:
        refuses(hosting, method, path.format(id), {} if method == "POST" else None)


@pytest.mark.parametrize("text", MODELFILES, ids=lambda text: ascii(text)[:20])
def test_modelfiles_with_errors_are_refused(hosting, text):
    refuses(hosting, "POST", "/api/create", {"model": "evil", "modelfile": text, "stream": False})


@pytest.mark.parametrize("field", ["keep_alive", "think", "format"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_long_value_is_not_repeated_whole(hosting, path, field):
    refuses(hosting, "POST", path, {**CHATS[path], field: EVIL * 1000, "options": {"num_predict": 1}})


@pytest.mark.parametrize("body", PROXY, ids=lambda body: ascii(body)[:30])
def test_calls_of_tools_that_are_not_offered_are_refused(hosting, body):
    refuses(hosting, "POST", "/v1/mcp/call", body)


@pytest.mark.parametrize("body", OF_BATCHES, ids=lambda body: ascii(body)[:30])
def test_batches_without_valid_requests_are_refused(hosting, body):
    refuses(hosting, "POST", "/v1/messages/batches", body)


@pytest.mark.parametrize("name", [*NAMES, 7, None], ids=lambda name: ascii(name)[:20])
def test_batches_of_files_that_are_not_here_are_refused(hosting, name):
    for target in TARGETS:
        body = {"endpoint": target, "completion_window": "24h", "input_file_id": name}
        refuses(hosting, "POST", "/v1/batches", body)
    refuses(hosting, "POST", "/v1/batches", {"endpoint": name, "completion_window": "24h", "input_file_id": "a"})


def test_ids_in_a_batch_come_back_escaped(hosting):
    """A custom id may be any text. It is data of its client, and cannot end a line of the results."""
    batch = hosting.post("/v1/messages/batches", {"requests": [{"custom_id": EVIL, "params": {}}]}, **KEY)
    path = f"/v1/messages/batches/{batch['id']}"
    until(lambda: hosting.get(path, **KEY)["processing_status"] == "ended")
    results = hosting.get(f"{path}/results", **KEY)
    assert [one["custom_id"] for one in lines(results)] == [EVIL]
    assert b"\x1b" not in results and b"\r" not in results
