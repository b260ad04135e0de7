"""Tests of `models`, and of short names in every command. A local server replaces the hub, with a catalogue."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli import folders, models, printing
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.serve import by_path, served
from rwkv_gpu.llm.catalogue import packaged
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from tests.llm.hub_server import serving
from tests.llm.test_catalogue import ONE

GIB = 1 << 30


@pytest.fixture(scope="module")
def hub():
    with serving({"tiny-Q4_K_M.gguf": rwkv_gpu.builtin_model().read_bytes()}) as server:
        yield server


@pytest.fixture
def run(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    own = tmp_path / "own.toml"
    own.write_text(ONE.format(bytes=rwkv_gpu.builtin_model().stat().st_size))
    monkeypatch.setenv("RWKV_GPU_CATALOGUE", str(own))
    return lambda *arguments, **more: CliRunner().invoke(cli, arguments, **more)


@pytest.fixture
def card(monkeypatch):
    """Returns a GPU with 8 GiB that reads 200 GB/s."""
    place = models.Place("Test GPU (Vulkan, DiscreteGPU)", 8 * GIB, 200e9, numpy=False)
    monkeypatch.setattr(models, "place_of", lambda _: place)
    return place


def listed(entries, place, width, monkeypatch, capsys) -> list[str]:
    """The lines that `models` prints in a terminal of this width; None is a pipe."""
    for module in (models, printing):
        monkeypatch.setattr(module, "terminal_width", lambda **_: width)
    models.print_listing(entries, place)
    return capsys.readouterr().out.splitlines()


def test_the_list_fits_the_terminal_and_shows_models_that_fit_the_device_first(card, monkeypatch, capsys):
    for width in (120, 80, 60, 40):
        lines = listed(packaged().entries, card, width, monkeypatch, capsys)
        assert max(map(len, lines)) <= width
        order = ["fits:", "  qwen3.5:9b", "does not fit:", "  gpt-oss:20b", "for this device: rwkv-gpu run qwen3.5:9b"]
        text = "  ".join([*lines, ""]).replace("name: ", "")
        assert sorted(order, key=text.index) == order, width


def test_a_wide_list_has_all_columns_and_a_narrow_one_becomes_lines(card, monkeypatch, capsys):
    entries = [packaged().entry("qwen3.5:4b"), packaged().entry("gpt-oss:20b")]
    for width, row in ((160, 5), (None, 4)):
        lines = listed(entries, card, width, monkeypatch, capsys)
        assert lines[3].replace("│", " ").split() == [
            "name", "download", "tok/s", "context", "abilities", "good", "at", "licence",
        ]  # fmt: skip
        assert lines[row].replace("│", " ").split()[:5] == ["qwen3.5:4b", "2.55", "GiB", "73", "256K"]
        assert lines[row].endswith("Apache-2.0")
    lines = listed(entries, card, 24, monkeypatch, capsys)
    at = lines.index("name: qwen3.5:4b")
    assert lines[at + 1 : at + 5] == ["download: 2.55 GiB", "tok/s: 73", "abilities: thinking", "  tools vision"]


def test_speed_counts_the_bytes_that_a_token_reads(card):
    dense, sparse = packaged().entry("qwen3:32b"), packaged().entry("qwen3:30b-a3b")
    assert card.tokens_per_second(dense) == 200e9 / dense.nbytes
    assert card.tokens_per_second(sparse) == pytest.approx(200e9 / sparse.nbytes * 30.5 / 3.3)
    assert card.tokens_per_second(packaged().entry("bge-m3")) is None


@pytest.mark.usefixtures("card")
def test_words_filter_the_list_and_a_name_shows_everything_about_its_model(run):
    assert "qwen3-coder:30b-a3b" in run("models", "code", "agents").stdout
    assert "llama3.2" not in run("models", "code").stdout
    whole = run("models", "qwen3.5:4b").stdout
    assert "hf.co/unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-Q4_K_M.gguf" in whole
    assert "fits        yes" in whole
    assert "rwkv-gpu run qwen3.5:4b" in whole
    assert run("models", "sorcery").exit_code == 2
    data = json.loads(run("models", "--json").stdout)
    assert data["models"][0]["name"] == "tiny:1m"
    assert {"fits", "needed", "tokens_per_second", "licence", "context"} <= data["models"][0].keys()


@pytest.mark.parametrize("command", ["fit", "info"])
def test_without_the_hub_fit_points_to_the_estimate(run, monkeypatch, command):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused = run(command, "tiny:1m")
    assert refused.exit_code == 2
    assert "check the network connection; `rwkv-gpu models tiny:1m` has an estimate" in refused.stderr


def test_a_recommended_model_is_about_as_fast_as_one_reads_or_the_fastest(card, monkeypatch, capsys):
    for rate, end in (
        (200e9, "for this device: rwkv-gpu run qwen3.5:9b"),
        (12e9, "for this device: rwkv-gpu run qwen3.5:4b"),
        (1e8, "for this device, the fastest: rwkv-gpu run gemma3:270m"),
    ):
        assert listed(packaged().entries, replace(card, rate=rate), None, monkeypatch, capsys)[-1] == end


def test_the_cpu_is_measured_without_a_gpu(run, monkeypatch):
    monkeypatch.setattr(models, "Device", None)
    data = json.loads(run("models", "tiny:1m", "--device", "cpu", "--json").stdout)
    assert data["bytes_per_second"] > 0
    assert data["models"][0]["fits"]


def test_a_short_name_is_offered_and_pulled_and_then_used_by_every_command(run, tmp_path):
    file = tmp_path / "models" / "owner" / "name" / "tiny-Q4_K_M.gguf"
    for command in (["run", "tiny:1m", "hi"], ["tokenize", "tiny", "a"], ["generate", "-p", "x", "--draft", "tiny:1m"]):
        refused = run(*command)
        assert refused.exit_code == 2
        assert f"`rwkv-gpu pull {command[-1] if '--draft' in command else command[1]}` downloads it" in refused.stderr
        assert "7.6 MiB" in refused.stderr
    assert not file.exists()
    answered = run("run", "tiny:1m", "hi", "-y", "-n", "4", "--device", "cpu")
    assert answered.exit_code == 0, answered.stderr
    assert "downloading hf.co/owner/name:tiny-Q4_K_M.gguf, 7.6 MiB" in answered.stderr
    assert file.exists()
    for name in ("tiny:1m", "tiny", "Tiny-1M"):
        assert json.loads(run("info", name, "--json", "--device", "cpu").stdout)["file"] == str(file)
    assert run("tokenize", "tiny", "the sea", "--ids").exit_code == 0
    assert run("embed", "tiny:1m", "the sea", "--device", "cpu").exit_code == 0
    assert run("generate", "-p", "x", "-n", "2", "--draft", "tiny:1m", "--device", "cpu").exit_code == 0
    assert "free" in run("rm", "tiny:1m").stderr
    assert run("pull", "tiny:1m").stdout == f"{file}\n"


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("\n", 0), ("n\n", 1)])
def test_on_a_terminal_the_user_is_asked(run, monkeypatch, typed, code):
    class Terminal:
        """A substitute for `sys` in a program on a terminal."""

        class stdin:
            isatty = staticmethod(lambda: True)

        stderr = stdin
        platform = sys.platform

    monkeypatch.setattr(folders, "sys", Terminal)
    result = run("tokenize", "tiny:1m", "the sea", input=typed)
    assert "Download 7.6 MiB from hf.co/owner/name? [Y/n]" in result.stderr
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "lama3.2"], "no model 'lama3.2'; did you mean llama3.2"),
        (["run", "codellama"], "no model 'codellama'; `rwkv-gpu models` lists names"),
        (["chat", "codellama"], "no model 'codellama'; `rwkv-gpu models` lists names"),
        (["chat", "codeqwen", "hi"], "no model 'codeqwen'"),
        (["run", "my", "models/b.gguf"], "no model 'my'"),
        (["info", "llama9:3b"], "`rwkv-gpu models` lists names"),
        (["run", "Qwen3 0.6B", "hi"], "`rwkv-gpu pull 'Qwen3 0.6B'` downloads it"),
        (["chat", "owner/name", "hi"], "`rwkv-gpu pull owner/name` downloads it"),
        (["generate", "-p", "x", "--lora", "x.gguf"], "x.gguf: cannot be opened"),
        (["generate", "-p", "x", "--lora", "x"], "no LoRA adapter 'x'"),
        (["generate", "-p", "x", "--draft", "x"], "no model 'x'"),
        (["serve", "lama3.2"], "no model 'lama3.2'"),
        (["plan", "lama3.2", "--limits", "h200"], "no model 'lama3.2'"),
        (["quantize", "lama3.2", "x.gguf", "Q8_0"], "no model 'lama3.2'"),
        (["models", "--catalogue", "none.toml"], "the catalogue none.toml cannot be read"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line_with_a_remedy(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_server_finds_a_file_by_its_short_name():
    served = ServedModel("Qwen3-4B-Q4_K_M", "/models/Qwen3-4B-Q4_K_M.gguf")
    catalogue = Catalogue([ServedModel("other", "/models/other.gguf"), served], load=lambda *_: None)
    for name in ("qwen3:4b", "qwen3", "qwen3:latest", "Qwen3-4B-Q4_K_M"):
        assert catalogue.find(name) is served
    with pytest.raises(Exception, match="llama3.2"):
        catalogue.find("llama3.2")


def test_a_model_is_served_under_its_short_name_too(run, tmp_path, monkeypatch):
    path = Path(run("pull", "tiny:1m").stdout.strip())
    with click.Context(cli) as context:
        context.meta["rwkv_gpu.catalogue"] = str(tmp_path / "own.toml")
        paths, aliases = by_path(("tiny:1m", "builtin", str(path)), ("other=tiny-Q4_K_M",))
    assert paths == (str(path), "builtin", str(path))
    monkeypatch.delenv("RWKV_GPU_CATALOGUE")  # like the process of a replica, which has paths only
    [tiny, builtin] = served(paths[:2], None, aliases)
    assert (tiny.name, tiny.aliases, builtin.name) == ("tiny-Q4_K_M", ("other", "tiny:1m"), "builtin")
