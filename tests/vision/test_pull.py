"""Projectors of repositories: downloaded, found and deleted with their model. A local server replaces the hub."""

import json

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.vision.projector_names import projector_in
from tests.golden_files import OWN
from tests.llm.hub_server import serving

MODEL, PROJECTOR = (OWN / name for name in ("tiny-gemma3.gguf", "vision/gemma3.gguf"))
FILES = {
    "model-Q4_K_M.gguf": MODEL, "model-Q8_0.gguf": MODEL, "deep/model-Q6_K.gguf": MODEL,
    "mmproj-model-F32.gguf": PROJECTOR, "mmproj-model-F16.gguf": PROJECTOR, "mmproj-other-F16.gguf": PROJECTOR,
}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with serving({name: path.read_bytes() for name, path in FILES.items()}) as found:
        yield found


@pytest.fixture
def run(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    server.asked.clear()
    return lambda *arguments: CliRunner().invoke(cli, arguments)


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))


def test_the_projector_with_the_nearest_folder_and_name_is_chosen():
    files = ["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "a/mmproj-a.gguf", "b/c/x.gguf", "imatrix.gguf"]
    assert projector_in(files, "m-Q4_K_M.gguf") == projector_in(files, "b/c/m.gguf") == "mmproj-F16.gguf"
    assert projector_in(files, "m-BF16.gguf") == "mmproj-BF16.gguf"
    assert projector_in(files, "a/m.gguf") == "a/mmproj-a.gguf"
    assert projector_in(["a/mmproj-a.gguf", "m.gguf"], "m.gguf") is None


def test_a_model_comes_with_its_projector_which_goes_with_the_last_one_of_its_folder(run, server, tmp_path):
    assert run("pull", "owner/name:Q4_K_M").exit_code == 0
    folder = tmp_path / "models" / "owner" / "name"
    assert names(folder) == ["mmproj-model-F16.gguf", "model-Q4_K_M.gguf"]
    assert run("pull", "owner/name:Q8_0").exit_code == 0
    assert [name for name, _ in server.asked].count("mmproj-model-F16.gguf") == 1
    listed = json.loads(run("list", "--json").stdout)["models"]
    assert [one["name"] for one in listed] == ["owner/name/model-Q4_K_M", "owner/name/model-Q8_0"]
    assert all(one["projectors"] == [str(folder / "mmproj-model-F16.gguf")] for one in listed)
    with rwkv_gpu.load(folder / "model-Q4_K_M.gguf", device="cpu", context=128) as llm:
        assert llm.media_input is not None
    assert run("rm", "name:Q4_K_M").exit_code == 0
    assert names(folder) == ["mmproj-model-F16.gguf", "model-Q8_0.gguf"]
    assert run("rm", "name").exit_code == 0
    assert not any((tmp_path / "models").iterdir())


def test_a_projector_of_the_parent_folder_is_stored_next_to_the_model(run, tmp_path):
    assert run("pull", "owner/name:Q6_K").exit_code == 0
    assert names(tmp_path / "models") == ["owner/name/deep/mmproj-model-F16.gguf", "owner/name/deep/model-Q6_K.gguf"]


def test_no_projector_is_fetched_where_none_is_wanted(run, server, tmp_path):
    assert run("pull", "owner/name:Q4_K_M", "--no-mmproj").exit_code == 0
    name = "hf.co/owner/name:Q8_0"
    asked = ("generate", "-p", "the sea", "-n", "2", "--device", "cpu", "-c", "128", "-m", name)
    assert run(*asked, "--no-mmproj").exit_code == 0
    rwkv_gpu.load("hf.co/owner/name:Q6_K", device="cpu", mmproj=False, hub=Hub(tmp_path / "b", server.url)).close()
    assert [name for name, _ in server.asked] == ["model-Q4_K_M.gguf", "model-Q8_0.gguf", "model-Q6_K.gguf"]
    assert run("rm", name).exit_code == 0
    assert run(*asked).exit_code == 0
    assert "mmproj-model-F16.gguf" in names(tmp_path / "models" / "owner" / "name")


def test_info_shows_the_projector_of_a_model_and_describes_a_projector(run, tmp_path):
    assert run("pull", "owner/name:Q4_K_M").exit_code == 0
    path = tmp_path / "models" / "owner" / "name" / "mmproj-model-F16.gguf"
    data = json.loads(run("info", "name:Q4_K_M", "--json").stdout)
    assert (data["projector"], data["projector_type"]) == (str(path), "gemma3")
    data = json.loads(run("info", str(path), "--json").stdout)
    assert (data["layers"], data["images"], data["row_width"]) == (2, "48 x 48 pixels", 72)
    assert "--mmproj" in data["error"]


def test_fit_counts_the_projector_of_a_model(run):
    assert run("pull", "owner/name:Q4_K_M").exit_code == 0
    asked = ("fit", "name:Q4_K_M", "--device", "cpu", "--json")
    with_one, without = (json.loads(run(*asked, *more).stdout) for more in ((), ("--no-mmproj",)))
    assert without["projector"] == 0
    assert with_one["projector"] > PROJECTOR.stat().st_size  # float32 in numpy, and keys and values
    assert with_one["needed"] == without["needed"] + with_one["projector"]
    named = json.loads(run(*asked, "--mmproj", str(PROJECTOR)).stdout)
    assert named["projector"] == with_one["projector"]
    other = run(*asked, "--mmproj", str(OWN / "vision" / "qwen3vl.gguf"))
    assert other.exit_code == 2
    assert "projector of another model" in other.stderr
