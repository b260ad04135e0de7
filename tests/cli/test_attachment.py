"""`/file` adds the text of any file to the next message."""

import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from rwkv_gpu.cli import attachment, slash
from rwkv_gpu.cli.conversation import Conversation
from rwkv_gpu.cli.screen import Screen
from rwkv_gpu.errors import BadInput, MissingExtra
from tests.cli.fake_chat import FakeChat, FakeLLM
from tests.pdf_files import pdf


@pytest.fixture
def conversation():
    chat = FakeChat()
    return Conversation(FakeLLM(), Screen(color=False), SimpleNamespace(), [chat])


def test_a_file_is_sent_with_the_next_message_only_and_its_tokens_are_shown(conversation, tmp_path, capsys):
    (tmp_path / "a.py").write_text("print('sea')\n", encoding="utf-8")
    (tmp_path / "b.pdf").write_bytes(pdf("The sea is wide."))
    for name in ("a.py", "b.pdf"):
        assert slash.run(conversation, "file", str(tmp_path / name)) is None
    parts = ["a.py:\n```\nprint('sea')\n```\n\n", "b.pdf:\n```\nThe sea is wide.\n```\n\n"]
    assert conversation.files == parts
    shown = " ".join(capsys.readouterr().err.split())
    assert all(f"{len(part)} tokens; it goes with your next message" in shown for part in parts)
    for text, sent in (("explain", "".join(parts) + "explain"), ("more", "more")):
        list(conversation.ask(text)())
        assert conversation.last_question() == sent


def test_no_content_of_a_file_ends_its_block():
    part = attachment.message_part("x.md", "a\n```\nb\n````\n")
    assert part == "x.md:\n`````\na\n```\nb\n````\n`````\n\n"


def test_an_unreadable_file_is_reported_in_one_line_and_adds_nothing(conversation, tmp_path):
    whole = pdf("The sea is wide.")
    files = {
        "empty.txt": (b" \n", "has no text"),
        "binary": (b"GGUF\0\0", "is not text"),
        "latin.txt": (b"caf\xe9", "not UTF-8 at byte 3"),
        "scan.pdf": (pdf(""), "are its pages scanned"),
        "long.txt": (b"x" * 5000, "and the context 4,096"),
        "head.pdf": (b"%PDF-", "cannot be read as PDF"),
    }
    for name, (data, says) in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadInput, match=says) as raised:
            slash.run(conversation, "file", str(tmp_path / name))
        assert "\n" not in str(raised.value)
    for path, says in ((tmp_path, "is a folder"), (tmp_path / "none", "is not a file"), ("", "give a text")):
        with pytest.raises(BadInput, match=says):
            slash.run(conversation, "file", str(path))
    cut = tmp_path / "cut.pdf"
    for end in range(0, len(whole), 23):  # a damaged PDF is repaired or refused
        for data in (whole[:end], whole[:end] + b"\xff<<[" + whole[end + 4 :]):
            cut.write_bytes(data)
            with suppress(BadInput):
                attachment.file_text(cut)
    assert conversation.files == []


def test_a_large_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(attachment, "MOST_BYTES", 10)
    (tmp_path / "a.txt").write_text("eleven char")
    with pytest.raises(BadInput, match="11 bytes"):
        attachment.file_text(tmp_path / "a.txt")


def test_without_the_package_a_pdf_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    (tmp_path / "b.pdf").write_bytes(pdf("x"))
    with pytest.raises(MissingExtra, match=r"need pypdf.*\[pdf\]"):
        attachment.file_text(tmp_path / "b.pdf")
