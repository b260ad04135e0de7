"""The JavaScript library in Chromium: failing downloads, wrong manifests, and a model that Python also loads."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.export.files import export_plan, script
from rwkv_gpu.export.page import WORKER
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.session import read
from tests.export.browser import (
    NODE,
    decode_only,
    needs_chromium,
    needs_javascript,
    run_in_browser,
    run_in_node,
    run_without_gpu,
)
from tests.gguf.writer import text_key, with_keys, written
from tests.golden_files import golden

MODEL = golden("quiet-rwkv7.gguf")
GREEDY = {"temperature": 0, "max_tokens": 12}


def run(folder: Path, name: str, runs=run_in_browser) -> dict:
    for one in WORKER:
        (folder / one).write_text(script(one))
    shutil.copy(Path(__file__).with_name("library.js"), folder / "cases.js")
    return runs(folder, f'export {{ {name} as default }} from "./cases.js";')


def is_sentence(text: str) -> bool:
    return text.startswith("ExportError: ") and text.endswith(".") and len(text) < 140


@needs_chromium
def test_failed_downloads_continue_or_report_the_reason(tmp_path):
    found = run(tmp_path, "downloads")
    for name in ("cut", "long", "changed", "missing", "offline"):
        assert is_sentence(found[name]), found[name]
    assert found["resumed"] == "no error"
    assert found["ranges"] == ["all", "bytes=300-", "bytes=600-", "bytes=900-"]
    assert found["progress"] == [300, 600, 900, 1000]
    assert found["stored"] == "no error", "what was downloaded once needs no network"
    assert found["repaired"] == ["no error", 1], "a damaged copy is downloaded again"
    assert found["tidy"] == ["a.bin"]
    assert found["tabs"] == 1
    assert found["full"] == [1000, "The browser has no room to store the model, so the next visit downloads it again."]
    assert found["aborted"] == "DOMException"


@pytest.mark.skipif(NODE is None, reason="needs Node: a browser's WebGPU cannot be replaced")
def test_the_error_names_the_feature_or_limit_that_a_browser_lacks(tmp_path):
    with GGUFFile.open(MODEL) as file:
        export_plan(file, tmp_path, "0" * 64)
    found = run(tmp_path, "adapters", run_in_node)
    assert found.pop("fine") == "no error"
    for name, text in found.items():
        assert text.startswith("ExportError: ") and text.endswith("."), (name, text)
    assert "https or localhost" in found["nothing"]
    assert "hardware acceleration" in found["no adapter"]
    assert "smaller context" in found["small buffers"]
    assert "(busy)" in found["no device"]
    assert "lacks an_extension" in found["no features"]


@pytest.mark.skipif(NODE is None, reason="needs Node: a browser's WebGPU cannot be replaced")
def test_a_gpu_that_is_lost_at_any_stage_is_named_and_nothing_waits_for_it(tmp_path):
    with GGUFFile.open(MODEL) as file:
        manifest = export_plan(file, tmp_path, "0" * 64)
    (tmp_path / "model.json").write_text(json.dumps(decode_only(manifest)))
    found = run(tmp_path, "losses", run_in_node)
    lost = "ExportError: The browser lost the GPU (It crashed); ask again to reload the model."
    assert len(found) == 14 and set(found.values()) == {lost}, found


@needs_javascript
def test_manifests_with_false_sizes_are_refused(tmp_path):
    with GGUFFile.open(MODEL) as file:
        export_plan(file, tmp_path, "0" * 64)
    found = run(tmp_path, "manifests", run_without_gpu)
    assert found.pop("fine") == "no error"
    for name, text in found.items():
        assert is_sentence(text), (name, text)


@pytest.mark.long
@needs_chromium
def test_the_library_gives_the_texts_of_python_and_reports_bad_downloads(tmp_path):
    with rwkv_gpu.load(MODEL, device="cpu") as llm, GGUFFile.open(MODEL) as file:
        manifest = export_plan(file, tmp_path, llm.model_file.digest())
        # Steps of one token compute prompts as well; the other plans take most of the time to compile.
        (tmp_path / "model.json").write_text(json.dumps(decode_only(manifest)))
        talk = llm.chat("Be brief.", **GREEDY)
        talk.send("Hi")
        talk.save(tmp_path / "talk.rwkvchat")
        text = llm.generate("Hello there", **GREEDY).text
        found = run(tmp_path, "model")
        answer = talk.send("So?")
        (tmp_path / "back.rwkvchat").write_bytes(base64.b64decode(found["saved"]))
        back = llm.load_chat(tmp_path / "back.rwkvchat")
        following = back.send("And then?")
        (tmp_path / "half.rwkvchat").write_bytes(base64.b64decode(found["savedHalf"]))
        half = llm.load_chat(tmp_path / "half.rwkvchat").send("And then?")
        expected = talk.send("And then?")
    assert found["text"] == text
    for name in ("limited", "unknown", "empty", "foreign", "misshapen", "notThere", "lost"):
        assert is_sentence(found[name]), (name, found[name])
    assert found["state"][1]
    assert found["continued"] == [one["content"] for one in talk.messages[:5]]
    assert found["tokens"][-len(answer.tokens) :] == list(answer.tokens)
    assert following.tokens == expected.tokens
    assert following.stats.reused_tokens > 20, "Python continues from the state of the browser"
    assert half.stats.reused_tokens > 20, "Python continues from a state in float16"
    assert found["half"][0] < 0.6 and found["half"][1] > 10
    assert found["stopped"] == [2, True, True]
    assert found["regenerated"] == [2, 1, True, True]
    assert found["edited"] == [3, 2, "Another question"]
    assert found["selected"] == 4
    assert found["linked"] == 3
    assert found["together"]
    assert found["again"]


def tell(model: Path, session: Path, device: str, question: str, *more: str) -> None:
    """Continues a conversation by the command, with an answer of 100 tokens."""
    options = ["--session", session, "--device", device, "--temperature", 0, "--max-tokens", 100, *more]
    done = CliRunner().invoke(cli, ["chat", str(model), *map(str, options)], input=f"{question}\n")
    assert done.exit_code == 0, done.output


@pytest.mark.long
@needs_chromium
def test_the_next_tokens_of_a_conversation_are_the_same_in_numpy_on_a_gpu_and_in_a_page(tmp_path, adapter):
    data = with_keys(golden("tiny-deep-rwkv7.gguf").read_bytes(), [text_key("tokenizer.chat_template", "rwkv-g1")])
    model = written(tmp_path, data)
    with rwkv_gpu.load(model, device="cpu") as llm, GGUFFile.open(model) as file:
        manifest = export_plan(file, tmp_path, llm.model_file.digest())
        (tmp_path / "model.json").write_text(json.dumps(decode_only(manifest)))
        tell(model, tmp_path / "talk.rwkvchat", "cpu", "Hi", "--no-think")
        found = run(tmp_path, "continued")
        assert found["thought"] is False, "the page continues without reasoning"
        for name in ("saved", "last"):
            (tmp_path / name).write_bytes(base64.b64decode(found[name]))
        for name, device in (("numpy", "cpu"), ("gpu", str(adapter.index))):
            shutil.copy(tmp_path / "talk.rwkvchat", tmp_path / name)
            tell(model, tmp_path / name, device, "So?")
        chats = [read(tmp_path / name, llm.model_file, llm.vocab_size).chats[0] for name in ("numpy", "gpu", "saved")]
        assert len(chats[0].transcript.ids) > 200
        assert chats[0] == chats[1] == chats[2]
        for name in ("numpy", "saved"):  # Python goes on from its own file, and from the page's
            tell(model, tmp_path / name, "cpu", "And then?", "--think")
        chats = [read(tmp_path / name, llm.model_file, llm.vocab_size).chats[0] for name in ("numpy", "saved", "last")]
        assert len(chats[0].transcript.ids) > 300 and chats[0].messages[-1].reasoning
        assert chats[0] == chats[1] == chats[2]
