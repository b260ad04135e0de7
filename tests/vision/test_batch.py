"""Images in lines of `rwkv-gpu batch`: data URLs, and files next to the input."""

import base64
import json
import shutil

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from tests.golden.record_images import image
from tests.golden_files import OWN
from tests.vision.test_chat import png

TEXT = {"type": "text", "text": "hello"}


@pytest.fixture
def folder(tmp_path):
    """A folder with a model, its projector, and two images."""
    shutil.copy(OWN / "tiny-qwen2vl.gguf", tmp_path / "model.gguf")
    shutil.copy(OWN / "vision" / "qwen2vl.gguf", tmp_path / "mmproj-model.gguf")
    (tmp_path / "photos").mkdir()
    for seed in (0, 1):
        (tmp_path / "photos" / f"{seed}.png").write_bytes(png(image(40, 24, seed)))
    return tmp_path


def answered(folder, *parts):
    """The results of lines, each of which has one image and a text."""
    rows = [{"messages": [{"role": "user", "content": [part, TEXT]}]} for part in parts]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--device", "cpu", "--context", "256", "-n", "6", "--template", "chatml"]
    given = ["batch", folder / "model.gguf", folder / "in.jsonl", folder / "out.jsonl", *options]
    ended = CliRunner().invoke(cli, [*map(str, given)])
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return ended, [line for _, line in sorted((line["id"], line) for line in lines)]


def test_forms_of_an_image_give_the_answer_of_a_chat(folder, monkeypatch):
    monkeypatch.chdir("/")
    data = base64.b64encode(png(image(40, 24))).decode()
    urls = "photos/0.png", str(folder / "photos" / "0.png"), f"data:image/png;base64,{data}"
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    ended, lines = answered(folder, *parts, {"type": "image", "image": "photos/0.png"})
    assert ended.exit_code == 0, ended.stderr
    with rwkv_gpu.load(folder / "model.gguf", device="cpu", context=256) as llm:
        chat = llm.chat(template="chatml", temperature=0, max_tokens=6)
        expected = chat.send("hello", images=[folder / "photos" / "0.png"])
    assert expected.text
    assert {line["text"] for line in lines} == {expected.text}
    assert {line["prompt_tokens"] for line in lines} == {expected.stats.prompt_tokens}


def test_a_bad_image_is_the_error_of_its_line_alone(folder):
    (folder / "photos" / "cut.png").write_bytes(png(image(40, 24))[:99])
    names = "photos/2.png", "photos", "in.jsonl", "photos/cut.png", "http://127.0.0.1/a.png", "", "a\0b", "a" * 5000, 7
    parts = [{"type": "image_url", "image_url": {"url": name}} for name in names]
    ended, lines = answered(folder, *parts, {"type": "image_url"}, {"type": "image_url", "image_url": "photos/1.png"})
    assert ended.exit_code == 1
    assert all("error" in line and "\n" not in line["error"] for line in lines[:-1])
    assert lines[-1]["text"]
