"""Python and exported pages write the same conversation files. Chromium reads and writes them without a GPU."""

import base64
import hashlib
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.export.files import script
from rwkv_gpu.export.page import WORKER
from rwkv_gpu.export.words import CONVERSATIONS, chat_data, tokenizer_data
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.chat_format import ChatFormat
from rwkv_gpu.llm.session import read
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.export.browser import needs_chromium, run_in_browser
from tests.golden_files import golden

SCRIPT = Path(__file__).with_name("conversation.js")


@pytest.fixture
def folder(tmp_path):
    for name in WORKER:
        (tmp_path / name).write_text(script(name))
    shutil.copy(SCRIPT, tmp_path / "cases.js")
    return tmp_path


@needs_chromium
def test_prompts_and_their_ids_are_those_of_python(folder):
    cases = []
    for path in (builtin_model(), golden("tiny-lfm2.gguf"), golden("tiny-gemma3.gguf")):
        with GGUFFile.open(path) as file:
            metadata = file.metadata
        size = len(metadata["tokenizer.ggml.tokens"])
        chat = ChatFormat(load_tokenizer(metadata), ChatTemplate.from_metadata(metadata), size)
        rows = []
        for messages in CONVERSATIONS:
            asked = chat.prompt(messages).transcript
            rows.append([messages, asked.text.decode("latin-1"), asked.ids, [[c.nbytes, c.ids] for c in asked.cuts]])
        cases.append([tokenizer_data(metadata), chat_data(metadata, size), rows])
    (folder / "given.json").write_text(json.dumps(cases))
    found = run_in_browser(folder, 'export { prompts as default } from "./cases.js";')
    assert found == []


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(golden("quiet-rwkv7.gguf"), device="cpu") as llm:
        yield llm


@needs_chromium
def test_files_of_python_and_of_a_page_are_equal(folder, llm):
    """A page reads Python's file and writes the same content: messages, settings, ids, and the state."""
    chat = llm.chat(system="Be höflich 😀.", temperature=0, max_tokens=5, seed=7)
    chat.send("Hi")
    chat.send("And?")
    chat.save(folder / "talk.rwkvchat")
    other = chat.fork()
    other.undo()
    model = {"fingerprint": llm.info.fingerprint, "digest": llm.model_file.digest(), "vocabulary": llm.vocab_size}
    (folder / "given.json").write_text(json.dumps(model))
    found = run_in_browser(folder, 'export { files as default } from "./cases.js";')
    assert found["messages"] == [[one["role"], one["content"]] for one in chat.messages]
    assert found["other"] == [None, []]
    assert found["linked"]
    (folder / "again.rwkvchat").write_bytes(base64.b64decode(found["written"]))
    first, second = (
        read(folder / name, llm.model_file, llm.vocab_size) for name in ("talk.rwkvchat", "again.rwkvchat")
    )
    assert (first.chats, first.current, first.length) == (second.chats, second.current, second.length)
    assert first.length > 0
    assert all((first.state[name] == second.state[name]).all() for name in first.state)
    assert llm.load_chat(folder / "again.rwkvchat").send("So?").stats.reused_tokens > 0


@needs_chromium
def test_states_in_float16_are_rounded_as_by_numpy(folder):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[:-1] + halves[1:]) / 2
    near = np.concatenate([halves, between, np.nextafter(between, np.float32(1)), [1e-40, 2.9802322e-08, 65519]])
    numbers = np.concatenate([near, -near]).astype(np.float32)
    (folder / "numbers.bin").write_bytes(numbers.tobytes())
    (folder / "given.json").write_text("{}")
    kind, half, wide, large = run_in_browser(folder, 'export { halves as default } from "./cases.js";')
    rounded = numbers.astype(np.float16)
    assert (kind, large) == ("float16", "float32")
    assert bytes(half) == hashlib.sha256(rounded.tobytes()).digest()
    assert bytes(wide) == hashlib.sha256(rounded.astype(np.float32).tobytes()).digest()


def deflated(data: bytes) -> str:
    packed = zlib.compressobj(wbits=-15)
    return base64.urlsafe_b64encode(packed.compress(data) + packed.flush()).decode().rstrip("=")


@needs_chromium
def test_damaged_and_hostile_files_and_links_are_refused_in_one_sentence(folder, llm):
    chat = llm.chat(temperature=0, max_tokens=3)
    chat.send("Hi")
    chat.save(folder / "talk.rwkvchat")
    data = (folder / "talk.rwkvchat").read_bytes()
    digest = llm.model_file.digest()
    links = [deflated(b"\0" * (200 << 20)), "!!!", "AAAA", deflated(b"<script>alert(1)</script>"), "A" * (2 << 20)]
    model = {"fingerprint": "", "digest": digest, "vocabulary": llm.vocab_size}
    (folder / "given.json").write_text(json.dumps({"model": model, "links": links}))
    files = {
        "cut": data[: len(data) // 2], "changed": data[:100] + bytes([data[100] ^ 1]) + data[101:], "empty": b"",
        "other": b"GGUF" + data[4:], "long": data[:8] + b"\xff" * 8 + data[16:],
    }  # fmt: skip
    for name, bad in files.items():
        (folder / name).write_bytes(bad)
    found = run_in_browser(folder, 'export { hostile as default } from "./cases.js";')
    assert found.pop("fine") == "no error"
    assert found.pop("state") == "ExportError: The state belongs to another model."
    for name, text in found.items():
        assert text.startswith("ExportError: The "), (name, text)
        assert text.endswith(".") and len(text) < 120, (name, text)
    assert found["link 0"] == "ExportError: The link holds a conversation that is too long."
