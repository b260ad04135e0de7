"""The output of `export web`, without a browser: manifest, shards, digests, the single-file page, and refusals."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu import page
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import FileInUse
from rwkv_gpu.export import files
from rwkv_gpu.export import page as page_module
from rwkv_gpu.export.files import SCRIPTS, script
from rwkv_gpu.export.page import WORKER, bundle, export_single_file, export_web, page_files
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.writer_lock import WriterLock
from tests.golden_files import golden

ROOT = Path(__file__).resolve().parents[2]
PAGE = page_files()
JAVASCRIPT = sorted({*WORKER, "api.js", "offline.js"})


@pytest.fixture(scope="module")
def tiny():
    with GGUFFile.open(golden("tiny-rwkv7.gguf")) as file:
        yield file


def test_shards_have_the_sizes_and_digests_of_the_manifest(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SHARD", 100_000)
    manifest = export_web(tiny, tmp_path, "0" * 64)
    assert json.loads((tmp_path / "model.json").read_text(encoding="utf-8")) == manifest
    shards = [(tmp_path / one["file"]).read_bytes() for one in manifest["shards"]]
    assert len(shards) > 2
    assert all(len(data) == 100_000 for data in shards[:-1])
    for one, data in zip(manifest["shards"], shards, strict=True):
        assert (one["bytes"], one["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    starts = [one["data"] for one in manifest["buffers"] if "data" in one]
    sizes = [one["bytes"] for one in manifest["buffers"] if "data" in one]
    assert starts == [sum(sizes[:n]) for n in range(len(sizes))]
    assert sum(sizes) == sum(map(len, shards))
    assert {path.name for path in tmp_path.iterdir()} >= {*SCRIPTS, *PAGE}


def test_a_folder_has_one_writer_and_only_the_shards_of_its_manifest(tiny, tmp_path):
    left = ["shard-000-0123456789ab.bin", ".shard-001-0123456789ab.bin.saving-0123456789abcdef"]
    others = ["shard-000.bin", "notes.txt"]
    for name in (*left, *others):
        (tmp_path / name).write_text("x")
    with WriterLock(tmp_path / "model.json"), pytest.raises(FileInUse, match="is writing it"):
        export_web(tiny, tmp_path, "0" * 64)
    assert sorted(os.listdir(tmp_path)) == sorted([*left, *others])
    shards = [one["file"] for one in export_web(tiny, tmp_path, "0" * 64)["shards"]]
    assert sorted(os.listdir(tmp_path)) == sorted([*shards, *others, *SCRIPTS, *PAGE, "model.json"])


@pytest.mark.long
def test_an_export_is_the_same_in_every_process(tmp_path):
    for seed in ("0", "1"):
        command = [sys.executable, "-m", "rwkv_gpu.cli.main", "export", "plan", str(tiny_path()), str(tmp_path / seed)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
    first, second = (tmp_path / seed / "model.json" for seed in ("0", "1"))
    assert first.read_bytes() == second.read_bytes()


def tiny_path() -> Path:
    return golden("tiny-rwkv7.gguf")


def test_the_builtin_model_is_one_page_under_12_megabytes(tmp_path):
    target = tmp_path / "chat.html"
    with GGUFFile.open(builtin_model()) as file:
        manifest = export_single_file(file, target, "0" * 64)
    assert target.stat().st_size < 12_000_000
    text = target.read_text(encoding="utf-8")
    [inside] = re.findall(r'<script type="application/json" id="manifest">(.*?)</script>', text, re.DOTALL)
    assert json.loads(inside) == manifest
    shards = re.findall(r'<script type="text/plain" class="shard">(.*?)</script>', text)
    assert [hashlib.sha256(base64.b64decode(one)).hexdigest() for one in shards] == [
        one["sha256"] for one in manifest["shards"]
    ]
    assert re.findall(r'(?:src|href)="([^"]+)', text.split("<script>")[0]) == ["#text"], (
        "the page refers to another file"
    )


def test_the_policy_names_the_script_and_style_of_the_page(tiny, tmp_path):
    export_single_file(tiny, tmp_path / "chat.html", "0" * 64)
    for text in ((tmp_path / "chat.html").read_text(encoding="utf-8"), PAGE["index.html"].decode()):
        [directives] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        for tag in ("script", "style"):
            [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}';" in directives
        assert directives.startswith("default-src 'none'")
        assert "unsafe" not in directives and "*" not in directives and "frame-ancestors" not in directives
    assert "connect-src" not in (tmp_path / "chat.html").read_text(encoding="utf-8").partition("<style>")[0]


def test_the_page_is_that_of_the_server_with_another_api():
    names = {
        "index.html",
        "worker.js",
        "offline.js",
        "manifest.webmanifest",
        "favicon.svg",
        "icon-192.png",
        "icon-512.png",
    }
    assert set(PAGE) == names
    mine, theirs = PAGE["index.html"].decode(), page.assemble().html
    for name in page.SCRIPTS:
        text = (page.HERE / f"{name}.js").read_text(encoding="utf-8")
        assert text in theirs and (text in mine) == (name != "api")
    assert script("api.js") in mine


def test_texts_of_a_model_cannot_end_their_element(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_name", lambda _: "</script><script>alert(1)</script>")
    export_single_file(tiny, tmp_path / "chat.html", "0" * 64)
    text = (tmp_path / "chat.html").read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 4  # manifest, shard, worker, page


def test_the_scripts_are_small_and_fit_into_one():
    assert sum(script(name).count("\n") for name in JAVASCRIPT) < 2000
    whole = bundle(WORKER)
    assert not re.search(r"^(import|export)\b", whole, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:const|let|class|function\*?) +(\w+)", whole, re.MULTILINE)
    assert len(names) == len(set(names)), "two modules use one name at their top"
    for name in JAVASCRIPT:
        for imported in re.findall(r'from "\./([\w-]+\.js)"', script(name)):
            assert imported in JAVASCRIPT
    offline = set(re.findall(r'"([\w-]+\.\w+)"', script("offline.js")))
    assert offline == {*PAGE, *SCRIPTS, "model.json"} - {"offline.js"}


def test_impossible_exports_are_refused(tmp_path, monkeypatch):
    cases = {
        ("web", str(golden("tiny-llama.gguf"))): "a page cannot chat with this model: the file has no chat template",
        ("web", str(golden("tiny-gpt-oss.gguf"))): "its answers are in channels",  # says the vocabulary
        ("plan", str(golden("tiny-bert.gguf"))): "this model is an encoder",
        ("plan", "--single-file", str(tiny_path())): "--single-file is for `export web`",
        ("web", "--quant", "Q4_Z", str(tiny_path())): "Q4_Z",
    }
    for arguments, expected in cases.items():
        result = CliRunner().invoke(cli, ["export", *arguments, str(tmp_path / "out")])
        assert result.exit_code != 0
        assert expected in result.output
        assert "Traceback" not in result.output
        assert not (tmp_path / "out").exists()
    monkeypatch.setattr(page_module, "MAX_SINGLE", 1000)
    result = CliRunner().invoke(cli, ["export", "web", "--single-file", str(tiny_path()), str(tmp_path / "out")])
    assert "a single file has 1,000 at most" in result.output
    assert not (tmp_path / "out").exists()


def test_an_export_names_its_devices_before_it_is_written(tiny, tmp_path):
    told = []

    def tell(variants):
        told.append((variants[-1]["features"], [*tmp_path.iterdir()]))

    export_web(tiny, tmp_path, "0" * 64, tell=tell)
    assert [(features, [one for one in files if one.suffix == ".bin"]) for features, files in told] == [([], [])]
    assert [*tmp_path.glob("shard-*.bin")]


def test_a_quantised_export_is_smaller(tmp_path):
    sizes = []
    for arguments in ([], ["--quant", "Q4_0"]):
        out = tmp_path / f"out{len(arguments)}"
        result = CliRunner().invoke(cli, ["export", "web", str(tiny_path()), str(out), *arguments])
        assert result.exit_code == 0, result.output
        assert "runs on: any WebGPU device" in result.output
        sizes.append(sum(one["bytes"] for one in json.loads((out / "model.json").read_text())["shards"]))
    assert sizes[1] < sizes[0]


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_npm_package_has_the_library_and_nothing_else(tmp_path):
    subprocess.run([sys.executable, ROOT / "packaging/npm/collect.py", tmp_path / "npm"], check=True)
    command = ["npm", "pack", "--json", "--dry-run", "--offline", str(tmp_path / "npm")]
    packed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    [package] = json.loads(packed.stdout)
    assert "warn" not in packed.stderr.lower()
    assert package["version"] == rwkv_gpu.__version__
    names = {one["path"] for one in package["files"]}
    assert names == {*SCRIPTS, "example.html", "README.md", "LICENSE", "package.json"}
    assert len((ROOT / "packaging/npm/example.html").read_text().splitlines()) <= 30
