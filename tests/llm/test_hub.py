"""Models by their hub names: the right file is found, and what is wrong is said in one line. No test asks the hub."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput, MissingExtra
from rwkv_gpu.llm import hub
from tests.golden_files import OWN

FILES = [
    "README.md",
    "sub/model-Q8_0.gguf",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "mmproj-model-Q4_K_M.gguf",
    "large-Q6_K-00001-of-00002.gguf",
    "large-Q6_K-00002-of-00002.gguf",
]
ONE = OWN / "tiny-rwkv7.gguf"


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A hub with one repository; `asked` is what was downloaded, `online` whether it answers."""
    module = ModuleType("huggingface_hub")
    module.asked, module.online, module.files = [], True, FILES

    class HfApi:
        def model_info(self, repository, timeout):
            assert timeout == hub.PATIENCE
            if not module.online:
                raise ConnectionError("no\nnetwork")
            if repository != "owner/name":
                raise ValueError("404: no such repository")
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in module.files])

    def snapshot_download(repository, local_files_only):
        assert local_files_only
        if not (tmp_path / repository).exists():
            raise FileNotFoundError("nothing here")
        return str(tmp_path / repository)

    def hf_hub_download(repository, name, etag_timeout):
        assert repository == "owner/name" and etag_timeout == hub.PATIENCE
        module.asked.append(name)
        return str(ONE)

    module.HfApi, module.snapshot_download, module.hf_hub_download = HfApi, snapshot_download, hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


@pytest.mark.parametrize(
    ("name", "file", "asked"),
    [
        ("hf.co/owner/name:Q4_K_M", None, ["model-Q4_K_M.gguf"]),
        ("https://huggingface.co/owner/name:q8_0", None, ["sub/model-Q8_0.gguf"]),
        ("hf.co/owner/name", None, ["model-Q4_K_M.gguf"]),
        ("hf.co/owner/name:Q6_K", None, FILES[-2:]),
        ("owner/name", "model-Q4_K_S.gguf", ["model-Q4_K_S.gguf"]),
    ],
)
def test_a_name_finds_its_file(fake, name, file, asked):
    assert hub.find(name, file) == ONE
    assert fake.asked == asked


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("hf.co/owner/name:Q2_K", None, "has no file of Q2_K; it has large-Q6_K-00001-of-00002.gguf, model"),
        ("hf.co/owner/name:Q4_K", None, "no file of Q4_K;"),
        ("hf.co/owner/name:Q4_K_M", "x.gguf", "give one of them"),
        ("owner/name", "x.gguf", "has no file x.gguf; it has"),
        ("hf.co/owner/none", None, "cannot get owner/none .*404.*give the path"),
        ("no repository", "x.gguf", "names no repository"),
    ],
)
def test_a_name_that_finds_nothing_is_refused_with_what_there_is(fake, name, file, message):
    with pytest.raises(BadInput, match=message) as caught:
        hub.find(name, file)
    assert "\n" not in str(caught.value) and fake.asked == []


def test_several_files_of_a_kind_are_named(fake):
    fake.files = ["a-Q8_0.gguf", "b-Q8_0.gguf"]
    with pytest.raises(BadInput, match=r"several files of Q8_0: a-Q8_0.gguf, b-Q8_0.gguf; name one by file="):
        hub.find("hf.co/owner/name")
    fake.files = ["a-IQ4_NL.gguf"]
    hub.find("hf.co/owner/name")
    assert fake.asked == ["a-IQ4_NL.gguf"]
    fake.files = []
    with pytest.raises(BadInput, match="has no GGUF files"):
        hub.find("hf.co/owner/name")


def test_without_a_network_what_was_downloaded_before_is_found(fake, tmp_path):
    fake.online = False
    with pytest.raises(BadInput, match="no network; check its name and the network"):
        hub.find("hf.co/owner/name:Q4_K_M")
    (tmp_path / "owner/name").mkdir(parents=True)
    (tmp_path / "owner/name/model-Q4_K_M.gguf").touch()
    hub.find("hf.co/owner/name:Q4_K_M")
    assert fake.asked == ["model-Q4_K_M.gguf"]


def test_without_the_package_the_error_has_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install 'rwkv-gpu\[hub\]'"):
        rwkv_gpu.load("hf.co/owner/name:Q4_K_M", device="cpu")


@pytest.mark.usefixtures("fake")
def test_load_takes_hub_names_and_the_names_of_others():
    with rwkv_gpu.load("hf.co/owner/name:Q4_K_M", device="cpu") as llm:
        assert llm.info.name == "tiny-rwkv7"
    with rwkv_gpu.load(repo_id="owner/name", filename="model-Q4_K_S.gguf", device="cpu") as llm:
        assert llm.info.name == "tiny-rwkv7"
    with rwkv_gpu.load(model=OWN / "tiny-llama.gguf", device="cpu", n_ctx=64, n_batch=8, max_num_seqs=3) as llm:
        assert (llm.context, llm.info.chunk_size, llm.info.sequences) == (64, 8, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nothing": 1}, "nothing is no option of load; known: path, device"),
        ({"context": 5, "n_ctx": 6}, "context is given twice, also as n_ctx"),
        ({"n_ctx": -1}, "context is -1"),
        ({"path": "owner/name", "file": 3}, "file is 3"),
        ({"file": "x.gguf"}, "file is 'x.gguf'"),
    ],
)
def test_options_of_load_that_are_wrong_are_named(options, message):
    with pytest.raises(BadInput, match=message):
        rwkv_gpu.load(**options)
