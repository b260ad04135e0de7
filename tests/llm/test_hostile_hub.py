"""Bad answers of a false hub: each is refused in one line, and no file is written outside the folder."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.repository import _Redirect

DATA = b"a model"


class Handler(BaseHTTPRequestHandler):
    """Serves the file list and the files that a test sets."""

    listed = b"[]"
    body = DATA
    reason = "OK"

    def log_message(self, *given: object) -> None:
        """Writes no log."""

    def do_GET(self) -> None:
        data = self.listed if "/tree/" in self.path else self.body
        self.send_response(200 if self.reason == "OK" else 500, self.reason)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[tuple[type[Handler], str]]:
    class Own(Handler):
        """The answers of one test."""

    hub = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield Own, f"http://127.0.0.1:{hub.server_port}"
    hub.shutdown()
    hub.server_close()
    thread.join()


def entry(path: object = "m.gguf", **more: object) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(DATA), **more}


LISTS = {
    "a number": 5, "an object": {"error": "no"}, "numbers": [1], "null": [None], "no path": [{"type": "file"}],
    "path of a number": [entry(7)], "no size": [entry(size=None)], "size of text": [entry(size="x")],
    "negative": [entry(size=-1)], "fraction": [entry(size=1.5)], "true": [entry(size=True)],
    "lfs of text": [entry(lfs="x")], "lfs of numbers": [entry(lfs=[1])], "nothing": [],
    "sum of a number": [entry(lfs={"oid": 5, "size": 7})], "wrong sum": [entry(lfs={"oid": "x", "size": 7})],
    "parts that are not there": [entry("m-00001-of-99999.gguf")], "huge": [entry(size=1 << 62)],
    "two": [entry("a\n\x1b[2Jb.gguf"), entry("c.gguf")], "too long": [entry(f"{'a' * 5000}.gguf"), entry("b.gguf")],
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_files_that_makes_no_sense_is_refused_in_one_line(server, tmp_path, name):
    answers, url = server
    answers.listed = json.dumps(LISTS[name]).encode()
    with pytest.raises(BadInput) as failure:
        Hub(folder=tmp_path, endpoint=url).pull("hf.co/owner/name")
    assert "names no model" not in str(failure.value), "the server was not asked"
    assert str(failure.value).isprintable()
    assert len(str(failure.value)) < 5000
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".part"]


def test_a_name_with_zero_parts_is_an_ordinary_file(server, tmp_path):
    answers, url = server
    answers.listed = json.dumps([entry("m-00001-of-00000.gguf")]).encode()
    assert Hub(folder=tmp_path, endpoint=url).pull("hf.co/owner/name").read_bytes() == DATA


@pytest.mark.parametrize("listed", [b"", b"<html>", b"[" * 200_000, b"\xff\xfe", b"[ ]"])
def test_a_list_that_is_not_json_too_deep_or_too_long_is_refused(server, tmp_path, listed):
    answers, url = server
    answers.listed = listed.replace(b" ", b" " * (65 << 20))
    with pytest.raises(BadInput) as failure:
        Hub(folder=tmp_path, endpoint=url).pull("hf.co/owner/name")
    assert str(failure.value).isprintable()


@pytest.mark.parametrize("path", ["../../m.gguf", "/etc/m.gguf", "..\\m.gguf", "sub/../../m.gguf"])
def test_no_file_is_written_outside_of_the_folder(server, tmp_path, path):
    answers, url = server
    answers.listed = json.dumps([entry(path)]).encode()
    folder = tmp_path / "deep" / "models"
    found = Hub(folder=folder, endpoint=url).pull("hf.co/owner/name")
    assert folder in found.resolve().parents
    assert found.read_bytes() == DATA


def test_a_file_longer_than_announced_is_not_written_further(server, tmp_path):
    answers, url = server
    answers.listed = json.dumps([entry()]).encode()
    answers.body = bytes(1 << 22)
    with pytest.raises(BadInput, match="sends more than the 7 bytes"):
        Hub(folder=tmp_path, endpoint=url).pull("hf.co/owner/name")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= len(DATA)


def test_a_status_line_with_control_characters_is_one_printable_line(server, tmp_path):
    answers, url = server
    answers.reason = "no \x1b[2J\x07way"
    with pytest.raises(BadInput, match="500") as failure:
        Hub(folder=tmp_path, endpoint=url).pull("hf.co/owner/name")
    assert str(failure.value).isprintable()


@pytest.mark.parametrize(
    ("target", "keeps"),
    [("https://hub.example/b", True), ("https://other.example/b", False), ("http://hub.example/b", False)],
)
def test_a_token_goes_to_its_host_alone_and_never_unencrypted(target, keeps):
    given = Request("https://hub.example/a", headers={"Authorization": "Bearer secret"})
    request = _Redirect().redirect_request(given, None, 302, "Found", {}, target)
    assert request is not None
    assert request.has_header("Authorization") is keeps


def test_a_download_must_match_its_checksum(server, tmp_path):
    answers, url = server
    answers.listed = json.dumps([entry(lfs={"oid": hashlib.sha256(DATA).hexdigest(), "size": len(DATA)})]).encode()
    assert Hub(folder=tmp_path, endpoint=url).pull("hf.co/owner/name").read_bytes() == DATA
