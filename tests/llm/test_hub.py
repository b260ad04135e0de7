"""Models by their hub names: the right file is found, and every error is one line. A local server is the hub."""

import hashlib

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.hub import Hub
from tests.golden_files import OWN
from tests.llm.hub_server import serving

ONE = (OWN / "tiny-rwkv7.gguf").read_bytes()
PARTS = ["large-Q6_K-00001-of-00002.gguf", "large-Q6_K-00002-of-00002.gguf"]
SINGLE = ["README.md", "sub/model-Q8_0.gguf", "model-Q4_K_M.gguf", "model-Q4_K_S.gguf", "mtp-model-Q4_K_M.gguf"]
FILES = dict.fromkeys([*SINGLE, *PARTS], ONE)


@pytest.fixture
def server():
    with serving(dict(FILES)) as found:
        yield found


@pytest.fixture
def hub(server, tmp_path):
    return Hub(tmp_path, server.url)


def asked(server):
    return [name for name, _ in server.asked]


@pytest.mark.parametrize(
    ("name", "file", "files"),
    [
        ("hf.co/owner/name:Q4_K_M", None, ["model-Q4_K_M.gguf"]),
        ("https://huggingface.co/owner/name:q8_0", None, ["model-Q8_0.gguf"]),
        ("hf.co/owner/name", None, ["model-Q4_K_M.gguf"]),
        ("hf.co/owner/name:Q6_K", None, PARTS),
        ("owner/name", "model-Q4_K_S.gguf", ["model-Q4_K_S.gguf"]),
        ("hf.co/owner/name", "sub/model-Q8_0.gguf", ["model-Q8_0.gguf"]),
        ("hf.co/owner/name:latest", None, ["model-Q4_K_M.gguf"]),
        ("hf.co/owner/name:model-q4_k_s.gguf", None, ["model-Q4_K_S.gguf"]),
        ("hf.co/owner/name:sub/model-Q8_0.gguf", None, ["model-Q8_0.gguf"]),
        (f"hf.co/owner/name:{PARTS[1]}", None, PARTS),
        ("https://huggingface.co/owner/name/blob/main/sub/model-Q8_0.gguf", None, ["model-Q8_0.gguf"]),
        ("https://huggingface.co/owner/name/resolve/main/model-Q4_K_S.gguf?download=true", None, ["model-Q4_K_S.gguf"]),
        ("https://huggingface.co/owner/name/tree/main", None, ["model-Q4_K_M.gguf"]),
        ("hf://owner/name:Q8_0", None, ["model-Q8_0.gguf"]),
        ("owner/name", PARTS[0], PARTS),
    ],
)
def test_a_name_finds_its_file_and_downloads_it_once(server, hub, tmp_path, name, file, files):
    path = hub.find(name, file)
    sub = ("sub",) if "Q8_0" in files[0] else ()
    assert path == tmp_path.joinpath("owner", "name", *sub, files[0])
    assert sorted(one.name for one in path.parent.iterdir()) == asked(server) == files
    server.status = 500  # the hub is not called from now on
    assert hub.find(name, file) == path


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("hf.co/owner/name:Q2_K", None, "has no file of Q2_K; it has large-Q6_K-00001-of-00002.gguf, model"),
        ("hf.co/owner/name:Q4_K", None, "no file of Q4_K;"),
        ("hf.co/owner/name:Q4_K_M", "x.gguf", "give one of them"),
        ("owner/name", "x.gguf", "has no file x.gguf; it has"),
        ("owner/name", "../model-Q4_K_M.gguf", "has no file"),
        ("hf.co/owner/none", None, "cannot download owner/none: not found .404.: check the name"),
        ("no repository", "x.gguf", "names no model of the hub"),
    ],
)
def test_a_name_without_a_file_is_refused_with_the_files_there_are(server, hub, name, file, message):
    with pytest.raises(BadInput, match=message) as caught:
        hub.find(name, file)
    assert "\n" not in str(caught.value) and server.asked == []


def test_files_of_one_name_in_several_folders_are_several_models(server, hub):
    server.files = {"Q4_K_M/model.gguf": ONE, "Q8_0/model.gguf": ONE + b"more", "model-imatrix.gguf": ONE}
    server.sums = {name: hashlib.sha256(data).hexdigest() for name, data in server.files.items()}
    four, eight = (hub.find(f"hf.co/owner/name:{tag}") for tag in ("Q4_K_M", "Q8_0"))
    assert (four.read_bytes(), eight.read_bytes()) == (ONE, ONE + b"more")
    assert [model.name for model in hub.store.models()] == ["owner/name/Q4_K_M/model", "owner/name/Q8_0/model"]
    assert hub.store.find("name:q8_0") == hub.store.find("owner/name/Q8_0/model") == eight
    assert hub.store.find("model") == four
    hub.store.remove("name:Q8_0")
    hub.store.remove("model")
    assert not any(hub.store.folder.iterdir())


def test_of_several_models_of_a_repository_a_name_alone_means_the_one_that_the_hub_would_give(hub):
    four, _ = (hub.find(f"hf.co/owner/name:{tag}") for tag in ("Q4_K_M", "Q8_0"))
    assert hub.find("hf.co/owner/name") == hub.store.find("name") == four


def test_a_file_in_the_folder_of_models_is_found_by_its_name(hub, tmp_path):
    (tmp_path / "own.gguf").write_bytes(ONE)
    assert hub.store.find("own") == hub.store.find("own.gguf") == tmp_path / "own.gguf"
    assert hub.store.find("other") is None


def test_several_files_of_a_kind_are_named(server, hub):
    server.files = {"a-Q8_0.gguf": ONE, "b-Q8_0.gguf": ONE, "c-IQ4_NL.gguf": ONE}
    server.sums = dict.fromkeys(server.files, server.sums["README.md"])
    with pytest.raises(
        BadInput, match=r"several files of Q8_0: a-Q8_0.gguf, b-Q8_0.gguf; name one, such as hf.co/owner/name:a-"
    ):
        hub.find("hf.co/owner/name")
    del server.files["a-Q8_0.gguf"], server.files["b-Q8_0.gguf"]
    assert hub.find("hf.co/owner/name").name == "c-IQ4_NL.gguf"
    server.files = {}
    with pytest.raises(BadInput, match="has no GGUF files"):
        hub.find("hf.co/owner/name:Q8_0")


def test_the_callers_token_is_used_and_progress_is_reported(server, tmp_path):
    server.token, seen = "secret", []
    with pytest.raises(BadInput, match=r"access is denied .401.*hub=Hub.token="):
        Hub(tmp_path, server.url).find("hf.co/owner/name")
    Hub(tmp_path, server.url, "secret", progress=lambda *told: seen.append(told)).find("hf.co/owner/name")
    assert seen[-1] == ("model-Q4_K_M.gguf", len(ONE), len(ONE))


def test_load_takes_hub_names_and_option_names_of_other_libraries(hub):
    with rwkv_gpu.load("hf.co/owner/name:Q4_K_M", device="cpu", hub=hub) as llm:
        assert llm.info.name == "model-Q4_K_M"
    with rwkv_gpu.load(repo_id="owner/name", filename="model-Q4_K_S.gguf", device="cpu", hub=hub) as llm:
        assert llm.info.name == "model-Q4_K_S"
    llama = OWN / "tiny-llama.gguf"
    with rwkv_gpu.load(model=llama, device="cpu", n_ctx=64, n_batch=8, max_num_seqs=3) as llm:
        assert (llm.context, llm.info.chunk_size, llm.info.sequences) == (64, 8, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nothing": 1}, "nothing is not an option of load; help.rwkv_gpu.load. lists the names"),
        ({"context": 5, "n_ctx": 6}, "context is given twice, also as n_ctx"),
        ({"n_ctx": -1}, "context is -1"),
        ({"path": "owner/name", "file": 3}, "file is 3"),
        ({"file": "x.gguf"}, "file is 'x.gguf'"),
    ],
)
def test_options_of_load_that_are_wrong_are_named(options, message):
    with pytest.raises(BadInput, match=message):
        rwkv_gpu.load(**options)
