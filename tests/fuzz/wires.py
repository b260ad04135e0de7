"""Network and store data other than JSON: forms (multipart), event streams, responses of replicas, stores."""

import asyncio
import json
import os
import re
import tempfile
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rwkv_gpu.server.anthropic import event as anthropic_event
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.multipart import LONGEST_FIELD, MAX_PARTS, Upload, parse_form
from rwkv_gpu.server.openai import event as openai_event
from rwkv_gpu.server.replicas.upstream import ReplicaLost, Upstream
from rwkv_gpu.server.streams import Recording
from rwkv_gpu.stores.directory import KEY_BYTES, DirectoryStore
from rwkv_gpu.stores.store import StoreDown

LINE_END = re.compile(r"\r\n|\n|\r")  # separators of event streams, by their specification

# ---------------------------------------------------------------- forms

BOUNDARIES = st.text("ab-'()+_,./:=?", min_size=1, max_size=12) | st.just("x" * 70)
NAMES = st.text("abc é.\\;=", min_size=1, max_size=8)
CONTENTS = st.binary(max_size=40) | st.lists(
    st.sampled_from([b"\r\n", b"--", b"\r\n--", b"a", b"\r", b"\n", b"\0", b": ", b"Content-Disposition"]), max_size=12
).map(b"".join)  # fmt: skip
PARTS = st.lists(st.tuples(NAMES, NAMES | st.none(), CONTENTS), max_size=5)
FORMS = st.tuples(BOUNDARIES, PARTS, st.lists(st.tuples(st.floats(0, 1), CONTENTS, st.integers(0, 9)), max_size=3))


def form_of(boundary: str, parts: list[tuple[str, str | None, bytes]]) -> bytes:
    """Returns the body of a form."""
    out = b""
    for name, filename, content in parts:
        names = {"name": name} if filename is None else {"name": name, "filename": filename}
        given = "".join(f'; {key}="{_quoted(value)}"' for key, value in names.items())
        out += f"--{boundary}\r\nContent-Disposition: form-data{given}\r\n\r\n".encode() + content + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def check_multipart(given: tuple[str, list[tuple[str, str | None, bytes]], Any]) -> None:
    """Checks that a form is read as it was written, and a damaged one as Python's mail parser reads it, or refused."""
    boundary, parts, edits = given
    body, kind = form_of(boundary, parts), f'multipart/form-data; boundary="{boundary}"'
    names = [name for name, _, _ in parts]
    is_plain = all(
        f"\r\n--{boundary}".encode() not in b"\r\n" + content
        and (filename is not None or (len(content) <= LONGEST_FIELD and _is_text(content)))
        for _, filename, content in parts
    )
    if len(set(names)) == len(names) and 0 < len(names) <= MAX_PARTS and is_plain:
        wanted = {name: content.decode() if file is None else Upload(file, content) for name, file, content in parts}
        assert parse_form(body, kind.encode()) == wanted
    for where, data, size in edits:
        at = int(where * len(body))
        body = body[:at] + data + body[at + size :]
    refusal = None
    try:
        found = parse_form(body, kind.encode())
    except ApiError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400 and refusal.message.isprintable() and len(refusal.message) < 2000, refusal.message
        return
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    assert len(found) <= len(message.get_payload()) or not found
    assert sum(len(one.content if isinstance(one, Upload) else one) for one in found.values()) <= len(body)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# ---------------------------------------------------------------- streams of events

TEXTS = st.text(max_size=20) | st.lists(
    st.sampled_from(
        ["\n", "\r", "\r\n", "\n\n", "data: ", "id: 7", "event: x", ":", "\u2028", "\x85", "\0", "é", "[DONE]"]
    ),
    max_size=8,
).map("".join)  # fmt: skip
STREAMS = st.tuples(
    st.lists(TEXTS, min_size=1, max_size=12), st.lists(st.integers(1, 4), max_size=12), st.integers(0, 14)
)


def events_in(data: bytes) -> list[dict[str, str]]:
    """Returns the events of a stream as a browser reads them."""
    found, fields = [], dict[str, str]()
    for line in LINE_END.split(data.decode()):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line and name:
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
        elif not line and "data" in fields:
            found.append(fields)
            fields = {}
    return found


def check_stream(given: tuple[list[str], list[int], int]) -> None:
    """Checks for each API that any text arrives as it was sent, and that a stream continues after any event."""
    texts, sizes, after = given
    for text in texts:
        [one] = events_in(openai_event({"text": text}))
        assert json.loads(one["data"]) == {"text": text}
        [one] = events_in(anthropic_event("content_block_delta", text=text))
        assert (one["event"], json.loads(one["data"])["text"]) == ("content_block_delta", text)

    async def resumed() -> bytes:
        recording, at = Recording(b"", lambda: None), 0
        events = [openai_event({"text": text}) for text in texts]
        for size in [*sizes, len(events)]:
            recording.add(b"".join(events[at : at + size]))
            at += size
        recording.end()
        return b"".join([piece async for piece in recording.read(after)])

    found = events_in(asyncio.run(resumed()))
    assert [int(one["id"]) for one in found] == list(range(after + 1, len(texts) + 1))
    assert [json.loads(one["data"])["text"] for one in found] == texts[after:]


# ---------------------------------------------------------------- responses of a replica

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in [b"data: 1\n\n", b"data: 2\n\n"]) + b"0\r\n\r\n"
RESPONSES = st.tuples(
    st.lists(st.tuples(st.floats(0, 1), CONTENTS, st.integers(0, 9)), max_size=3),
    st.lists(st.integers(1, 40), max_size=9),
)


class _Writer:
    def write(self, data: bytes) -> None:
        """Sends nothing."""

    def close(self) -> None:
        """Closes nothing."""


def check_response(given: tuple[Any, list[int]]) -> None:
    """Checks that the response of a replica is passed on, or is treated as that of a lost replica."""
    edits, sizes = given
    data = WHOLE
    for where, more, size in edits:
        at = int(where * len(data))
        data = data[:at] + more + data[at + size :]

    async def read() -> bytes:
        reader = asyncio.StreamReader()
        upstream, at = Upstream(reader, _Writer()), 0  # type: ignore[arg-type]
        for size in [*sizes, len(data)]:
            reader.feed_data(data[at : at + size])
            at += size
        reader.feed_eof()
        return b"".join([piece async for piece in upstream.body()])

    try:
        found = asyncio.run(read())
    except ReplicaLost:
        return
    assert edits or found == b"data: 1\n\ndata: 2\n\n"
    assert len(found) <= len(data)


# ---------------------------------------------------------------- a store in a folder

KINDS = ("absent", "empty", "whole", "short", "long", "folder", "link", "loop", "sparse", "unfinished")
KINDS += ("pipe",) * hasattr(os, "mkfifo")
FOLDERS = st.tuples(
    st.sampled_from(KINDS), st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(KINDS)), max_size=4)
)
MOST = 1 << 20  # bytes of the store


def _put(path: Path, kind: str, size: int) -> None:
    if os.path.lexists(path) or kind == "absent":
        return
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("link", "loop"):
        path.symlink_to(path if kind == "loop" else "nothing")
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "unfinished":
        (path.parent / f".{'0' * 16}").write_bytes(b"half")
    else:
        path.write_bytes(b"k" * {"empty": 0, "whole": size, "short": size // 2, "long": size + 1}[kind])


def check_store(given: tuple[str, list[tuple[str, str]]]) -> None:
    """Checks that a store in a folder with arbitrary contents works, or reports in one line that it does not."""
    key, values = given
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _put(folder / "key", key, KEY_BYTES)
        for name, kind in values:
            _put(folder / f"{name}.state", kind, 100)
        store = DirectoryStore(folder, max_bytes=MOST)
        for use in (store.secret, lambda: store.get(["a", "b", "c"]), lambda: store.put("a", b"new"), store.secret):
            found, refusal = b"k" * KEY_BYTES, "none"
            try:
                found = use()
            except StoreDown as error:
                refusal = str(error)
            assert refusal.isprintable() and len(refusal) < 500, refusal
            assert not isinstance(found, bytes) or len(found) == KEY_BYTES
        if not (folder / "a.state").is_dir():
            assert store.get(["a"]) == [b"new"]
