"""`/file` adds the text of any file to the next message."""

import os
import re
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

posix = pytest.mark.skipif(os.name == "nt", reason="paths and programs of POSIX")


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
    monkeypatch.setattr(attachment, "MAX_BYTES", 10)
    (tmp_path / "a.txt").write_text("eleven char")
    with pytest.raises(BadInput, match="11 bytes"):
        attachment.file_text(tmp_path / "a.txt")


def test_without_the_package_a_pdf_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    (tmp_path / "b.pdf").write_bytes(pdf("x"))
    with pytest.raises(MissingExtra, match=r"need pypdf.*\[pdf\]"):
        attachment.file_text(tmp_path / "b.pdf")


@pytest.fixture
def seeing(conversation):
    """A chat with a model that takes images; `seen` collects what it is given."""
    seen = []
    keeping = SimpleNamespace(image=lambda source: seen.append(source) or SimpleNamespace(tokens=16))
    conversation.llm.media_input = SimpleNamespace(keeping=keeping)
    conversation.seen = seen
    return conversation


@posix
@pytest.mark.parametrize("name", ["a.png", "my pics/b c.JPG", "it's.png", 'say "a".mp3'])
def test_a_dropped_path_is_an_image_in_the_forms_of_all_terminals(seeing, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    quoted = "'" + str(path).replace("'", r"'\''") + "'"
    typed = [quoted, re.sub(r"([^\w/.-])", r"\\\1", str(path)), path.as_uri()]
    for form in typed if '"' in name else [*typed, f'"{path}"']:
        assert slash.take_media(seeing, f" {form} ") == ""
        assert slash.take_media(seeing, f"What's this?\n{form} It's what?") == "What's this?\n It's what?"
        slash.run(seeing, "image", form)
    assert slash.take_media(seeing, f" {path}\n") == ""
    assert {*seeing.seen} == {path}


def test_the_history_shows_what_a_message_has_besides_its_text(seeing, monkeypatch):
    shown = []
    monkeypatch.setattr(seeing.screen, "note", lambda text, _="": shown.append(text))
    chat = SimpleNamespace(messages=[{"role": "user", "content": "what?"}], media=lambda _: ["image", "audio"])
    monkeypatch.setattr(type(seeing), "chat", chat)
    slash.run(seeing, "history", "")
    assert shown == ["> [image] [audio] what?"]


def test_paths_of_other_files_and_relative_ones_stay_in_the_message(seeing, tmp_path, monkeypatch):
    for name in ("a.png", "a.txt"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    paths = f"{tmp_path}/none.png", f"{tmp_path}/a.txt", f"see:{tmp_path}/a.png", f"/{'a' * 5000}.png", "/a\0.png"
    for message in ("a.png", *paths, "it's 'so' \"\\"):
        assert slash.take_media(seeing, message) == message
    assert seeing.seen == []


def test_a_model_without_a_projector_reads_a_path_in_a_question_as_text(conversation, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    conversation.llm.media_input = None
    question = f"What does {tmp_path / 'a.png'} mean?"
    assert slash.take_media(conversation, question) == question
    with pytest.raises(BadInput, match="without a projector"):
        slash.take_media(conversation, str(tmp_path / "a.png"))


@posix
def test_image_without_a_file_is_that_of_the_clipboard(seeing, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":9")
    with pytest.raises(BadInput, match=r"no program that reads images .* is installed .*; give a file: /image"):
        slash.run(seeing, "image", "")
    program = tmp_path / "xclip"
    for code, message in (("exit 1", "the clipboard has no image; give a file"), ("printf PNG", None)):
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)
        if message is not None:
            with pytest.raises(BadInput, match=message):
                slash.run(seeing, "image", "")
    slash.run(seeing, "image", "")
    assert seeing.seen == [b"PNG"]
    assert "the clipboard: 16 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "name"), [("'my file.md'", "my file.md"), (r"my\ file.md", "my file.md")])
@posix
def test_names_of_other_files_may_be_quoted_as_in_a_shell(conversation, tmp_path, monkeypatch, typed, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("text", encoding="utf-8")
    slash.run(conversation, "file", typed)
    assert conversation.files == ["my file.md:\n```\ntext\n```\n\n"]
