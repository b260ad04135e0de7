"""Tests of `pull`, `list` and `rm`, and of model names in every command. A local server replaces the hub."""

import json

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.llm import repository
from tests.engine.test_adapters import write
from tests.golden_files import golden
from tests.llm.hub_server import serving

NAME = "hf.co/owner/name:Q4_K_M"


@pytest.fixture(scope="module")
def hub():
    with serving({"model-Q4_K_M.gguf": rwkv_gpu.builtin_model().read_bytes()}) as server:
        yield server


@pytest.fixture
def run(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    return lambda *arguments: CliRunner().invoke(cli, arguments)


def test_a_model_is_pulled_used_by_its_name_listed_and_removed(run, tmp_path):
    path = tmp_path / "models" / "owner" / "name" / "model-Q4_K_M.gguf"
    assert run("list").stderr.startswith("no models; `rwkv-gpu pull")
    assert run("pull", "owner/name:Q4_K_M").stdout == f"{path}\n"
    for name in (NAME, "owner/name:Q4_K_M", "name:Q4_K_M", "model-Q4_K_M"):
        assert json.loads(run("info", name, "--json", "--device", "cpu").stdout)["file"] == str(path)
    assert run("tokenize", "name:Q4_K_M", "the sea", "--ids").exit_code == 0
    assert run("tokenize", "-m", "name:Q4_K_M", "the sea", "--ids").stdout.strip()
    assert run("fit", "owner/name", "--device", "cpu").exit_code == 0
    assert run("chat", "name:Q4_K_M", "hello", "--device", "cpu", "-n", "4").stdout.strip()
    assert str(path) in run("list").stdout
    [model] = json.loads(run("list", "--json").stdout)["models"]
    assert (model["name"], model["files"], model["complete"]) == ("owner/name/model-Q4_K_M", [str(path)], True)
    assert "7.6 MiB are free" in run("rm", "name:Q4_K_M").stderr
    assert not path.exists()


def test_a_missing_model_of_the_hub_is_pulled_by_every_command(run):
    assert run("tokenize", NAME, "the sea", "--ids").exit_code == 0
    assert "model-Q4_K_M" in run("list").stdout


def test_the_library_reads_the_same_hub_and_folder_from_the_environment(run, hub, tmp_path):
    path = tmp_path / "models" / "owner" / "name" / "model-Q4_K_M.gguf"
    for _ in range(2):  # the second one is found in the folder
        with rwkv_gpu.load("owner/name", device="cpu") as llm:
            assert llm.tokenize("the sea")
        asked, hub.asked[:] = [*hub.asked], []
    assert asked == []
    assert f"{path}" in run("list").stdout


@pytest.mark.long
def test_drafts_and_adapters_are_found_by_their_names(run, tmp_path):
    asked = ("generate", "-p", "the sea", "-n", "24", "--device", "cpu", "--json")
    for name in ("builtin", NAME, "name:Q4_K_M"):
        # Steps without drafts are measured first, which takes some 50 tokens.
        assert json.loads(run(*asked, "-n", "96", "--draft", name).stdout)["accepted_tokens"]
    write(tmp_path / "models" / "owner" / "adapter", "rwkv7", "one-F32")
    plain, *adapted = (
        json.loads(run(*asked, "-m", str(golden("tiny-rwkv7.gguf")), "--lora", name).stdout)["tokens"]
        for name in ("one-F32:0", "one-F32", "adapter", "owner/adapter:F32")
    )
    assert adapted[0] == adapted[1] == adapted[2] != plain


@pytest.mark.parametrize("name", [NAME, "owner/name"])
@pytest.mark.parametrize("command", ["fit", "info"])
def test_what_a_model_is_and_needs_is_known_without_its_weights(run, hub, tmp_path, monkeypatch, command, name):
    monkeypatch.setattr(repository, "MIN_HEADER", 4096)  # too few bytes for the header
    hub.asked.clear()
    known = {"file", "available"}
    result = run(command, name, "--json", "--device", "cpu")
    whole = json.loads(run(command, "builtin", "--json", "--device", "cpu").stdout)
    assert "only its header is read" in result.stderr
    facts = json.loads(result.stdout)
    assert facts.get("file", NAME).startswith("hf.co/owner/name")
    assert {key: facts[key] for key in facts.keys() - known} == {key: whole[key] for key in whole.keys() - known}
    sizes = [int(wanted.partition("-")[2]) + 1 for _, wanted in hub.asked]
    assert sizes[:2] == [4096, 16384] and sizes[-1] < rwkv_gpu.builtin_model().stat().st_size
    assert not [*tmp_path.rglob("*.gguf")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "hf.co/owner/none:Q4_K_M"], "cannot download owner/none: not found (404)"),
        (["pull", "hf.co/owner/name:Q8_0"], "owner/name has no file of Q8_0"),
        (["pull", "nonsense"], "no model 'nonsense'; `rwkv-gpu models` lists names"),
        (["rm", "nothing"], "nothing is not a model of `rwkv-gpu list`"),
        (["info", "nothing:Q4_K_M", "--device", "cpu"], "no model 'nothing:Q4_K_M'"),
    ],
)
def test_a_missing_file_is_reported_in_one_line_with_exit_code_2(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
