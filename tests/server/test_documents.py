"""The text of PDF files over HTTP: page by page, within limits, and without harm to other requests."""

import sys

import pytest

pytest.importorskip("pypdf", reason="the extra `pdf` is not installed")

from rwkv_gpu.errors import BadInput
from rwkv_gpu.server import documents
from rwkv_gpu.text import pdf_process
from rwkv_gpu.text.pdf_process import Limits, PdfProcess
from tests.pdf_files import pdf
from tests.process import until

TYPE = "multipart/form-data; boundary=b"
ENDLESS = "import sys; sys.stdin.buffer.read(); import time; time.sleep(3600)"


def form(content: bytes, name: str = "sea.pdf", field: str = "file") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--b--\r\n"


def send(server, body):
    status, _, answer = server.request("POST", "/v1/documents/text", body, content_type=TYPE)
    return status, answer


def test_each_page_of_a_pdf_comes_with_its_text(server):
    found = send(server, form(pdf("The sea is wide.", "", "Foxes bark.")))
    pages = ["The sea is wide.", "", "Foxes bark."]
    assert found == (200, {"object": "document.text", "pages": pages, "total_pages": 3})


def test_an_unreadable_pdf_is_refused_in_one_line(server):
    whole = pdf("The sea is wide.")
    cases = {
        b"plain text": "is no PDF", b"PK\x03\x04 docx": "is no PDF", pdf(""): "are its pages scanned",
        b"%PDF-": "cannot be read as PDF", b"%PDF-1.4\n" + b"[" * 5000: "cannot be read as PDF",
    }  # fmt: skip
    cases |= {whole[:end]: "" for end in range(5, len(whole), 97)}  # repaired or refused
    for content, says in cases.items():
        status, answer = send(server, form(content, "a\x01b.pdf"))
        assert status == (400 if says else status), content
        if status != 200:
            message = answer["error"]["message"]
            assert status == 400 and message.startswith("a\\x01b.pdf") and says in message and "\n" not in message
    for body in (form(whole, field="other"), b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--'):
        assert send(server, body)[1]["error"]["param"] == "file"
    assert server.request("POST", "/v1/documents/text", form(whole))[0] == 415


def test_pages_and_characters_are_limited():
    data = pdf("The sea is wide.", "Foxes bark.", "Owls hoot.")
    assert PdfProcess("a", Limits(pages=2)).read(data).pages == ["The sea is wide.", "Foxes bark."]
    cut = PdfProcess("a", Limits(characters=20)).read(data)
    assert (cut.pages, cut.total) == (["The sea is wide.", "Foxe"], 3)


def test_a_file_that_takes_too_long_or_too_much_memory_ends_its_process_alone(monkeypatch):
    with pytest.raises(BadInput, match="8 MiB") as raised:
        PdfProcess("a", Limits(memory=8 << 20)).read(pdf("The sea is wide."))
    assert "\n" not in str(raised.value)
    monkeypatch.setattr(pdf_process, "PROGRAM", ENDLESS)
    endless = PdfProcess("a", Limits(seconds=0.01))
    with pytest.raises(BadInput, match=r"more than 0\.01 seconds"):
        endless.read(b"%PDF-")
    assert endless._process.poll() is not None


def test_other_requests_continue_and_a_client_that_leaves_ends_its_process(server, monkeypatch):
    monkeypatch.setattr(pdf_process, "PROGRAM", ENDLESS)
    monkeypatch.setattr(documents, "MOST_WAITING", 3)
    started = []
    start = PdfProcess._start

    def starting(self):
        started.append(start(self))
        return started[-1]

    monkeypatch.setattr(PdfProcess, "_start", starting)
    clients = [server.connect() for _ in range(3)]
    for client in clients:
        client.request("POST", "/v1/documents/text", form(b"%PDF-"), {"content-type": TYPE})
    until(lambda: len(started) == documents.PROCESSES and server.service.unfinished == 3)
    assert send(server, form(b"%PDF-"))[0] == 429
    assert server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 2, "temperature": 0})["usage"]
    for client in clients:
        client.close()
    until(lambda: server.service.unfinished == 0 and all(process.poll() is not None for process in started))


def test_without_pypdf_the_remedy_is_named(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    status, answer = send(server, form(b"%PDF-"))
    assert status == 501 and "pdf" in answer["error"]["message"]
