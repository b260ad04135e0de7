"""`rwkv-gpu create` makes a model name from a Modelfile, which all commands know."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.llm.modelfile import parse
from rwkv_gpu.llm.preset import read_preset
from tests.cli.tmux import PYTHON, Terminal
from tests.engine.test_adapters import write
from tests.golden_files import OWN

MODELFILE = """FROM ./model.gguf
PARAMETER temperature 0
PARAMETER num_predict 3
PARAMETER num_thread 2
SYSTEM Be brief.
TEMPLATE \"\"\"{{ .System }}
U: {{ .Prompt }}
A: {{ .Response }}
\"\"\"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copy(OWN / "quiet-rwkv7.gguf", "model.gguf")
    (tmp_path / "Modelfile").write_text(MODELFILE)
    return tmp_path / "cache" / "models"


def run(*arguments, stdin=""):
    return CliRunner().invoke(cli, [*map(str, arguments)], input=stdin)


def test_every_command_accepts_the_name_of_a_preset(cache):
    made = run("create", "sea")
    assert made.exit_code == 0
    assert made.stderr == "rwkv-gpu: num_thread has no effect here\ncreated sea; `rwkv-gpu run sea` chats with it\n"
    assert json.loads(run("list", "--json").stdout)["models"][0]["name"] == "sea"
    path = cache / "sea.preset.json"
    assert read_preset(path).template.count("{%") > 3
    for command in (
        ("chat", "sea", "hello there", "--device", "cpu"),
        ("run", "-m", "sea", "hello there", "--device", "cpu"),
        ("generate", "sea", "--chat", "-p", "hello there", "--device", "cpu"),
    ):
        result = run(*command)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.strip() == run("chat", "sea:latest", "hello there", "--device", "cpu").stdout.strip()
    assert "generated 2" in run("generate", "sea", "-p", "The", "--device", "cpu", "-n", "2", "--stop", "zzz").stderr
    (cache.parent / "in.jsonl").write_text('{"prompt": "The"}\n{"messages": [{"role": "user", "content": "a"}]}\n')
    assert run("batch", "sea", cache.parent / "in.jsonl", "out.jsonl", "--device", "cpu").exit_code == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(line["new_tokens"] <= 3 for line in lines), lines
    for command in (
        ("tokenize", "sea", "hello"),
        ("info", "sea", "--device", "cpu"),
        ("fit", "sea", "--device", "cpu"),
    ):
        assert run(*command).exit_code == 0, command
    assert run("perplexity", "sea", "Modelfile", "--device", "cpu").exit_code == 0
    assert run("rm", "sea").exit_code == 0
    assert not path.exists()
    assert run("info", "sea").exit_code == 2


def test_yes_replaces_an_earlier_preset_but_never_another_model(cache):
    assert run("create", "sea").exit_code == 0
    before = (cache / "sea.preset.json").read_text()
    (cache / "land.gguf").write_bytes(b"")
    (cache.parent.parent / "Modelfile").write_text("FROM sea\nSYSTEM Deep.")
    refused = run("create", "sea")
    assert refused.exit_code == 2 and "-y replaces it" in refused.stderr
    assert (cache / "sea.preset.json").read_text() == before
    assert "there is a model land already" in run("create", "land").stderr
    assert run("create", "sea", "-y").exit_code == 0
    assert read_preset(cache / "sea.preset.json").system == "Deep."


def test_an_adapter_of_a_modelfile_may_have_a_scale(tmp_path, cache):
    shutil.copy(OWN / "tiny-llama.gguf", "llama.gguf")
    write(tmp_path, "llama", "style")
    expected = run("generate", "llama.gguf", "--lora", "style.gguf:0.5", "-p", "The", "-n", 9, "--device", "cpu").stdout
    for spec, same in (("./style.gguf:0.5", True), ("style.gguf", False)):
        Path("Modelfile").write_text(f"FROM ./llama.gguf\nADAPTER {spec}\nPARAMETER mirostat 2\nPARAMETER mirostat 0")
        assert run("create", "sea", "-y").exit_code == 0
        preset = read_preset(cache / "sea.preset.json")
        assert preset.adapters == ((str(tmp_path / "style.gguf"), 0.5 if same else 1.0),)
        answer = run("generate", "sea", "-p", "The", "-n", 9, "--device", "cpu").stdout
        assert (answer == expected) is same
        assert parse(preset.as_modelfile()).adapters == (f"{tmp_path / 'style.gguf'}{':0.5' if same else ''}",)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FROM nowhere", "no model 'nowhere'"),
        ("FROM ./nowhere.gguf", "No such file"),
        ("FROM ./Modelfile", "GGUF"),
        ("FROM ./model.gguf\nADAPTER ./model.gguf", "adapter"),
        ("FROM ./model.gguf\nADAPTER ./model.gguf:warm", "is 'warm'; it must be a number"),
        ("FROM ./model.gguf\nTEMPLATE {{ nonsense . }}", "'nonsense' of a Go template"),
        ("FROM ./model.gguf\nPARAMETER temperature -1", "temperature is -1"),
        ("SYSTEM a", "no FROM"),
    ],
)
def test_a_model_that_cannot_be_created_is_refused_in_one_line_and_nothing_is_written(cache, text, named):
    (cache.parent.parent / "Modelfile").write_text(text)
    refused = run("create", "sea")
    assert refused.exit_code == 2
    assert named in refused.stderr and len(refused.stderr.splitlines()) == 1, refused.stderr
    assert not cache.exists() or not [*cache.rglob("*")]


def test_a_chat_is_given_a_name_and_the_name_is_used_in_it(tmp_path):
    command = f"{PYTHON} -m rwkv_gpu.cli.main chat model.gguf --device cpu --template chatml -n 8"
    chat = Terminal(command, tmp_path, height=40, RWKV_GPU_CACHE=str(tmp_path / "cache"))
    try:
        chat.wait("/help lists")
        chat.type("/set system Be deep.")
        chat.wait("it applies from")
        chat.type("/set parameter num_predict 2")
        chat.wait("max_tokens 2")
        chat.type("/set parameter num_ctx 100")
        chat.wait("start the chat with --context")
        chat.type("/create sea")
        chat.wait("created sea, without the messages")
        chat.type("/create sea")
        chat.wait("there is a preset sea already")
        chat.type("/set parameter num_predict 9")
        chat.wait("max_tokens 9")
        chat.type("/system Another.")
        chat.wait("set; it applies")
        chat.type("/model sea")
        chat.wait("context no limit")
        chat.type("/show")
        chat.wait("preset       sea")
        chat.wait("system       Another.")  # settings of the user stay
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()
    saved = read_preset(tmp_path / "cache" / "models" / "sea.preset.json")
    assert (saved.system, saved.settings) == ("Be deep.", {"max_tokens": 2})
    assert "im_start" in saved.template
