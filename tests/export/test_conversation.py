"""Python and exported pages write the same conversation files. JavaScript reads and writes them without a GPU."""

import base64
import hashlib
import itertools
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
from tests.export.browser import needs_javascript, run_without_gpu
from tests.golden_files import golden
from tests.text import template_matrix

SCRIPT = Path(__file__).with_name("conversation.js")


# Templates that leave out the reasoning of earlier answers, each in a different way.
TEMPLATES = (
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1", "google-gemma-4-31B-it", "MiniMax-M2",
    "LFM2.5-8B-A1B", "poolside-Laguna-XS-2.1",
    "mistralai-Mistral-Nemo-Instruct-2407",  # the system text goes to the last question
)  # fmt: skip
THOUGHTFUL = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 2.\n"},
    {"role": "user", "content": "two"},
]


@pytest.fixture
def folder(tmp_path):
    for name in WORKER:
        (tmp_path / name).write_text(script(name))
    shutil.copy(SCRIPT, tmp_path / "cases.js")
    return tmp_path


@pytest.mark.long
@needs_javascript
def test_prompts_and_their_ids_equal_those_of_python(folder):
    cases, files = [], []
    for path in (builtin_model(), golden("tiny-lfm2.gguf"), golden("tiny-gemma3.gguf")):
        with GGUFFile.open(path) as file:
            files.append(file.metadata)
    files += [{**files[0], "tokenizer.chat_template": template_matrix.load()[0][name]} for name in TEMPLATES]
    for metadata in files:
        size = len(metadata["tokenizer.ggml.tokens"])
        chat = ChatFormat(load_tokenizer(metadata), ChatTemplate.from_metadata(metadata), size)
        rows = []
        for messages, think in itertools.product((*CONVERSATIONS, THOUGHTFUL), (None, True, False)):
            asked = chat.prompt(messages, think=think).transcript
            cuts = [[cut.nbytes, cut.ids] for cut in asked.cuts]
            rows.append([messages, think, asked.text.decode("latin-1"), asked.ids, cuts])
        cases.append([tokenizer_data(metadata), chat_data(metadata, size), rows])
    (folder / "given.json").write_text(json.dumps(cases))
    found = run_without_gpu(folder, 'export { prompts as default } from "./cases.js";')
    assert found == []


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(golden("quiet-rwkv7.gguf"), device="cpu") as llm:
        yield llm


@needs_javascript
def test_files_of_python_and_of_a_page_are_equal(folder, llm):
    """A page reads Python's file and writes the same content: messages, settings, ids, and the state."""
    chat = llm.chat(system="Be höflich 😀.", temperature=0, max_tokens=5, seed=7, repetition_penalty=1.5)
    chat.send("Hi")
    chat.send("And?")
    chat.save(folder / "talk.rwkvchat")
    other = chat.fork()
    other.undo()
    model = {"fingerprint": llm.info.fingerprint, "digest": llm.model_file.digest(), "vocabulary": llm.vocab_size}
    (folder / "given.json").write_text(json.dumps(model))
    found = run_without_gpu(folder, 'export { files as default } from "./cases.js";')
    assert found["messages"] == [[one["role"], one["content"]] for one in chat.messages]
    assert found["other"] == [[None, True], [None, False]], "another copy has its ids, another model has not"
    assert found["others"] == {"repetition_penalty": 1.5}
    assert found["linked"]
    (folder / "again.rwkvchat").write_bytes(base64.b64decode(found["written"]))
    first, second = (
        read(folder / name, llm.model_file, llm.vocab_size) for name in ("talk.rwkvchat", "again.rwkvchat")
    )
    assert (first.chats, first.current, first.length) == (second.chats, second.current, second.length)
    assert first.length > 0
    assert all((first.state[name] == second.state[name]).all() for name in first.state)
    assert llm.load_chat(folder / "again.rwkvchat").send("So?").stats.reused_tokens > 0


ANSWERS = {  # options of a reader and a text; the answer, the reasoning and the end that Python separates
    "no reasoning": ({}, "\n It is 2.\n\nUser: more", ["It is 2.", "", "\n\nUser:"]),
    "reasoning": ({}, "<think>\nhm\n\nUser: x\n</think>\n\nIt is 2.", ["It is 2.", "hm\n\nUser: x\n", None]),
    "begun": ({"begun": "<think>\n"}, "hm</think>yes", ["yes", "hm", None]),
    "begun in part": ({"begun": "<think", "due": ">"}, ">\nhm</think>yes", ["yes", "hm", None]),
    "closed in part": ({"begun": "<think>\n\n</think", "due": ">"}, ">\n\nplain", ["plain", "", None]),
    "cut off": ({}, "<think>hm </thi", ["", "hm </thi", None]),
    "wrapped": (
        {"wraps": ["<response>", "</response>"]},
        "<think>a</think> <response>ok</response>",
        ["ok", "a", None],
    ),
}


@needs_javascript
def test_reasoning_and_ends_are_found_in_pieces_of_any_size(folder):
    marks = {"thoughts": ["<think>", "</think>"], "ends": ["\n\nUser:"], "thoughtEnds": []}
    given = [[{**marks, **options}, text] for options, text, _ in ANSWERS.values()]
    (folder / "given.json").write_text(json.dumps(given))
    found = run_without_gpu(folder, 'export { answers as default } from "./cases.js";')
    for name, (_, _, expected), results in zip(ANSWERS, ANSWERS.values(), found, strict=True):
        assert all(result == expected for result in results), (name, results)


@needs_javascript
def test_states_in_float16_are_rounded_as_by_numpy(folder):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[:-1] + halves[1:]) / 2
    near = np.concatenate([halves, between, np.nextafter(between, np.float32(1)), [1e-40, 2.9802322e-08, 65519]])
    numbers = np.concatenate([near, -near]).astype(np.float32)
    (folder / "numbers.bin").write_bytes(numbers.tobytes())
    (folder / "given.json").write_text("{}")
    kind, half, wide, large = run_without_gpu(folder, 'export { halves as default } from "./cases.js";')
    rounded = numbers.astype(np.float16)
    assert (kind, large) == ("float16", "float32")
    assert bytes(half) == hashlib.sha256(rounded.tobytes()).digest()
    assert bytes(wide) == hashlib.sha256(rounded.astype(np.float32).tobytes()).digest()


def deflated(data: bytes) -> str:
    packed = zlib.compressobj(wbits=-15)
    return base64.urlsafe_b64encode(packed.compress(data) + packed.flush()).decode().rstrip("=")


@needs_javascript
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
    found = run_without_gpu(folder, 'export { hostile as default } from "./cases.js";')
    assert found.pop("fine") == "no error"
    assert found.pop("state") == "ExportError: The state belongs to another model."
    for name, text in found.items():
        assert text.startswith("ExportError: The "), (name, text)
        assert text.endswith(".") and len(text) < 120, (name, text)
    assert found["link 0"] == "ExportError: The conversation in the link is too long."
