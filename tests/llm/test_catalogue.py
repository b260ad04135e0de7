"""The catalogue of short names: its contents, the accepted spellings, and names in `load`."""

import re
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.catalogue import catalogue_of, packaged, parsed
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.models.registry import MODELS
from tests.llm.check_catalogue import differences
from tests.llm.hub_server import serving

ONE = """
[[model]]
name = "tiny:1m"
repository = "owner/name"
file = "tiny-Q4_K_M.gguf"
bytes = {bytes}
parameters = 0.001
licence = "MIT"
context = 512
strengths = "tests"
"""


@pytest.fixture(scope="module")
def hub():
    with serving({"tiny-Q4_K_M.gguf": rwkv_gpu.builtin_model().read_bytes(), "tiny-Q8_0.gguf": b"x"}) as server:
        yield server


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(ONE.format(bytes=rwkv_gpu.builtin_model().stat().st_size))
    return path


def test_every_model_of_the_catalogue_has_a_supported_architecture_and_one_spelling():
    entries = packaged().entries
    assert len(entries) >= 60
    for entry in entries:
        assert entry.architecture in MODELS, entry.name
        for spelling in (entry.name, entry.name.upper(), entry.name.replace(":", "-"), f"{entry.name}-instruct"):
            assert packaged().entry(spelling) is entry, spelling
        assert 0.2e9 < entry.nbytes / entry.parameters < 2.2e9, f"{entry.name}: bits per weight"
        assert entry.active is None or entry.active < entry.parameters
    assert len({entry.recommended for entry in entries} - {None}) >= 5


@pytest.mark.parametrize(
    ("name", "hub_name"),
    [
        ("qwen3", "hf.co/Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf"),
        ("qwen3:latest", "hf.co/Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf"),
        ("qwen3:4b-q8_0", "hf.co/Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("qwen3:4b-q4_K_M", "hf.co/Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf"),
        ("llama3.2:3b-instruct-fp16", "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:F16"),
        ("Llama-3.2-3B-Instruct", "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Llama-3.2-3B-Instruct-Q4_K_M.gguf"),
        ("ollama.com/library/qwen3:4b-q8_0", "hf.co/Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("https://ollama.com/library/qwen3", "hf.co/Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf"),
        ("the sea", None),
        ("llama9:3b", None),
        ("", None),
        (":", None),
    ],
)
def test_names_have_the_spellings_of_ollama(name, hub_name):
    assert packaged().hub_name(name) == hub_name


def test_similar_names_are_suggested():
    assert packaged().near("lama3.2")[0] == "llama3.2"
    assert "qwen3:32b" in packaged().near("qwen3:3b")
    assert packaged().near("xyzzy") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[model]", "not a catalogue in TOML"),
        ("", "must consist of"),
        ("model = 3", "must consist of"),
        ("other = 3\n" + ONE.format(bytes=1), "must consist of"),
        ("[[model]]\nname = 'a'", "model 1 lacks repository"),
        (ONE.format(bytes="'many'"), "bytes is 'many', which is not a positive whole number"),
        (ONE.format(bytes=-1), "bytes is -1"),
        (ONE.format(bytes=1) + "colour = 'red'", "unknown key 'colour'"),
        (ONE.format(bytes=1) + "tools = 1", "tools is 1, which is not true or false"),
        (ONE.format(bytes=1) + "kind = 'sorcery'", "not one of chat, embedding, reranker"),
        (ONE.format(bytes=1).replace("tiny-Q4", "../../tiny-Q4"), "must name a GGUF file"),
        (ONE.format(bytes=1).replace("owner/name", "owner"), "repository OWNER/NAME"),
        (ONE.format(bytes=1) * 2, "the name tiny:1m twice"),
    ],
)
def test_a_wrong_catalogue_is_refused_with_the_place(text, message):
    with pytest.raises(BadInput, match="own.toml") as error:
        parsed(text, "own.toml")
    assert message in str(error.value)


def test_a_users_catalogue_overrides_that_of_the_package(own, hub, tmp_path):
    both = catalogue_of(own)
    assert both.entries[0].name == "tiny:1m"
    assert both.entry("qwen3") is packaged().entry("qwen3")
    hub.files["own.toml"] = own.read_bytes()
    hub.sums["own.toml"] = ""
    assert catalogue_of(f"{hub.url}/owner/name/resolve/main/own.toml").entry("tiny") == both.entry("tiny")
    for wrong in (tmp_path / "none.toml", f"{hub.url}/none", "http://[", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            catalogue_of(wrong)


def test_load_takes_short_names_and_repositories_and_the_built_in_model(own, hub, tmp_path):
    place = Hub(tmp_path / "models", hub.url, catalogue=own)
    del hub.asked[:]
    for name in ("tiny:1m", "tiny", "owner/name:Q4_K_M", "tiny-Q4_K_M", "name:Q4_K_M"):
        with rwkv_gpu.load(name, hub=place, device="cpu") as llm:
            assert llm.info.architecture == "rwkv7"
    assert len(hub.asked) == 1  # downloaded once
    with rwkv_gpu.load("builtin", draft="tiny:1m", hub=place, device="cpu") as llm:
        assert llm.generate("The sea", max_tokens=2).text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lama3.2", "no model 'lama3.2'; did you mean llama3.2 or"),
        ("no-such-model", "no model 'no-such-model'; `rwkv-gpu models` lists names"),
        ("./models/none", "cannot be opened"),
        ("none.gguf", "cannot be opened"),
        ("a/b/c", "cannot be opened"),
        ("registry.ollama.ai/library/lama3.2", "no model 'registry.ollama.ai/library/lama3.2'"),
        ("file:///tmp/none.gguf", "'file:///tmp/none.gguf' is not a URL of a model on the hub"),
        ("", "is a directory"),
        ("owner/none", "cannot download owner/none: not found"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line_with_similar_names(name, message, hub, tmp_path):
    with pytest.raises(rwkv_gpu.RwkvGpuError) as error:
        rwkv_gpu.load(name, hub=Hub(tmp_path, hub.url), device="cpu")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_in_an_existing_folder_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(rwkv_gpu.RwkvGpuError, match="cannot be opened"):
        rwkv_gpu.load("models/none", device="cpu")


def test_the_check_finds_missing_repositories_and_files_and_wrong_sizes(hub, own):
    place = Hub(endpoint=hub.url)
    right = catalogue_of(own).entries[0]
    assert [*differences(right, place)] == []
    wrong = parsed(ONE.format(bytes=10**9), "x").entries[0]
    assert "and not 1,000,000,000" in next(differences(wrong, place))
    for old, new, message in [('name"\nfile', 'none"\nfile', "not found"), ("tiny-Q4", "small-Q4", "no file of")]:
        other = parsed(ONE.format(bytes=1).replace(old, new), "x").entries[0]
        assert message in next(differences(other, place))


def test_the_page_on_choosing_names_models_of_the_catalogue_with_their_sizes():
    page = (Path(__file__).resolve().parents[2] / "docs" / "which-model.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) GB \| `([^`]+)` \| ([\d.]+) GiB", page, re.MULTILINE)
    chosen = {entry.recommended: entry for entry in packaged().entries if entry.recommended}
    assert [int(memory) for memory, _, _ in rows] == sorted(chosen)
    for memory, name, size in rows:
        assert chosen[int(memory)].name == name
        assert f"{chosen[int(memory)].nbytes / 2**30:.1f}" == size
        assert chosen[int(memory)].nbytes * 1.1 + 0.4 * 2**30 < int(memory) * 1e9
    for name in re.findall(r"`([a-z][\w.-]*:[\w.-]+)`", page):
        assert packaged().hub_name(name), name
