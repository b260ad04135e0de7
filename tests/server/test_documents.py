"""The text of PDF files over HTTP: page by page, within limits, and without harm to other requests."""

import base64
import json
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("pypdf", reason="the extra `pdf` is not installed")

from rwkv_gpu.errors import BadInput
from rwkv_gpu.server import pdf_reader
from rwkv_gpu.text import pdf_process
from rwkv_gpu.text.pdf_process import Limits, PdfProcess
from tests.pdf_files import pdf
from tests.process import until

TYPE = "multipart/form-data; boundary=b"
ENDLESS = "import sys; sys.stdin.buffer.read(); import time; time.sleep(3600)"

URL = "data:application/pdf;base64,"


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


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def file(content: bytes, name: str = "sea.pdf"):
    """Returns a PDF as part of a chat completion."""
    return {"type": "file", "file": {"file_data": URL + encoded(content), "filename": name}}


def tokens(server, content):
    body = {"messages": [{"role": "user", "content": content}]}
    return server.post("/v1/chat/completions/input_tokens", body)["input_tokens"]


@pytest.mark.long
def test_every_api_takes_pdf_files_in_messages(server):
    data, asked = pdf("The sea is wide.", "Foxes bark."), {"type": "text", "text": "Why?"}
    count = tokens(server, [{"type": "text", "text": "The sea is wide.\n\nFoxes bark.\n"}, asked])
    assert tokens(server, [file(data), asked]) == count > tokens(server, [asked])
    body = {"messages": [{"role": "user", "content": [file(data)]}]}
    assert "Foxes bark." in server.post("/apply-template", body)["prompt"]
    source = {"type": "base64", "media_type": "application/pdf", "data": encoded(data)}
    document = {"type": "document", "source": source, "title": "sea.pdf"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [document]}
    use = {"type": "tool_use", "id": "1", "name": "read", "input": {}}
    called = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [use]}]
    for before, content in (([], [document, asked]), (called, [result, asked])):
        messages = [*before, {"role": "user", "content": content}]
        found = server.post("/v1/messages/count_tokens", {"messages": messages})["input_tokens"]
        assert (found == count) if not before else (found > count)
        assert server.post("/v1/messages", {"messages": messages, "max_tokens": 1})["usage"]
    for given in (URL + encoded(data), encoded(data)):
        parts = [{"type": "input_file", "file_data": given, "filename": "a"}, {"type": "input_text", "text": "Why?"}]
        body = {"input": [{"role": "user", "content": parts}]}
        assert server.post("/v1/responses/input_tokens", body)["input_tokens"] == count
        assert server.post("/v1/responses", {**body, "max_output_tokens": 1})["usage"]["input_tokens"] == count
    blocks = {"type": "content", "content": [{"type": "text", "text": "The sea"}]}
    texts = [blocks, {**blocks, "content": "The sea"}, {"type": "text", "media_type": "text/plain", "data": "The sea"}]
    counts = {
        server.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [each]}]})["input_tokens"]
        for each in ({"type": "document", "source": one} for one in texts)
    }
    assert len(counts) == 1


def lines_of(text: str) -> str:
    """Base64 with line breaks, as mail and openssl write it."""
    return "\r\n".join(textwrap.wrap(text, 76)) + "\n"


def test_files_may_be_data_urls_or_base64_with_line_breaks(server):
    data = encoded(pdf("The sea is wide."))
    plain = tokens(server, [{"type": "text", "text": "The sea is wide.\n"}])
    for given in (data, lines_of(data), URL + lines_of(data), URL.upper() + data, "data:;base64," + data):
        assert tokens(server, [{"type": "file", "file": {"file_data": given}}]) == plain, given[:40]
        source = {"type": "base64", "media_type": "application/pdf", "data": given}
        for path, field, part in (
            ("/v1/messages/count_tokens", "messages", {"type": "document", "source": source}),
            ("/v1/responses/input_tokens", "input", {"type": "input_file", "file_data": given}),
        ):
            body = {field: [{"role": "user", "content": [part]}]}
            assert server.post(path, body)["input_tokens"] == plain, (path, given[:40])


def test_wrong_files_in_messages_are_refused(server):
    bad = {
        "is not a PDF": [file(b"text")], "are its pages scanned": [file(pdf(""))], "cannot be read": [file(b"%PDF-")],
        "without file_data": [{"type": "file", "file": {"file_id": "file-1"}}], "not base64": [file(b"") | {
            "file": {"file_data": URL + "!"}}], "more than 16 files": [file(b"%PDF-")] * 17,
    }  # fmt: skip
    bad["without file_data; send"] = [{"type": "file"}]
    for says, content in bad.items():
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        status, _, answer = server.request("POST", "/v1/chat/completions", body)
        assert status == 400 and says in answer["error"]["message"], answer
    sources = [{"type": "url", "url": "http://a/b.pdf"}, {"type": "file", "file_id": "1"}, None, {"type": "base64"},
               {"type": "base64", "media_type": "application/msword", "data": "AAAA"}]  # fmt: skip
    for source in sources:
        body = {"messages": [{"role": "user", "content": [{"type": "document", "source": source}]}], "max_tokens": 1}
        assert server.request("POST", "/v1/messages", body)[0] == 400, source


@pytest.mark.long
def test_an_unreadable_pdf_is_refused_in_one_line(server):
    whole = pdf("The sea is wide.")
    cases = {
        b"plain text": "is not a PDF", b"PK\x03\x04 docx": "is not a PDF", pdf(""): "are its pages scanned",
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


def test_other_requests_continue_and_a_disconnected_client_ends_its_process(server, monkeypatch):
    monkeypatch.setattr(pdf_process, "PROGRAM", ENDLESS)
    monkeypatch.setattr(pdf_reader, "MAX_WAITING", 3)
    started = []
    start = PdfProcess._start

    def starting(self):
        started.append(start(self))
        return started[-1]

    monkeypatch.setattr(PdfProcess, "_start", starting)
    clients = [server.connect() for _ in range(3)]
    for client in clients:
        client.request("POST", "/v1/documents/text", form(b"%PDF-"), {"content-type": TYPE})
    until(lambda: len(started) == pdf_reader.PROCESSES and server.service.unfinished == 3)
    assert send(server, form(b"%PDF-"))[0] == 429
    assert server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 2, "temperature": 0})["usage"]
    for client in clients:
        client.close()
    until(lambda: server.service.unfinished == 0 and all(process.poll() is not None for process in started))


def test_a_warning_on_standard_output_is_not_part_of_the_document():
    program = """
import os
from rwkv_gpu.text import pdf
pdf.pages_of = lambda *_: os.write(1, b"a warning") and pdf.Document(["a page"], 1)
pdf.main("a", 1 << 30, 1, 100)
"""
    run = subprocess.run([sys.executable, "-c", program], input=b"", capture_output=True, check=True)
    assert json.loads(run.stdout) == {"pages": ["a page"], "total": 1}


def test_without_pypdf_the_remedy_is_named(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    status, answer = send(server, form(b"%PDF-"))
    assert status == 501 and "pdf" in answer["error"]["message"]
