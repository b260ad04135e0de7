"""Headers of published files: the loader accepts them at their true sizes, and small models with their keys."""

import warnings

import pytest

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.differences import AnswersDiffer
from rwkv_gpu.models.registry import MODELS, load_model
from tests.gguf.parts import take_apart
from tests.gguf.writer import written
from tests.golden_files import OWN
from tests.models.headers import Header, headers, with_keys, write_true_size

HEADERS = headers()
WHOLE = [name for name, header in HEADERS.items() if header.layers]


def golden_of(header: Header) -> str:
    """Returns the golden model of the family, with experts if the published model has them."""
    experts = {"llama": "tiny-llama-experts", "granite_swa": "experts-granite_swa"}
    names = {"olmo2": "tiny-olmo3"} | (experts if f"{header.arch}.expert_count" in header.keys else {})
    return names.get(header.arch, f"tiny-{header.arch}") + ".gguf"


@pytest.fixture(autouse=True)
def differences_are_no_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnswersDiffer)
        yield


@pytest.mark.parametrize("name", WHOLE)
def test_the_loader_accepts_a_published_header_at_its_true_size(name, tmp_path):
    header: Header = HEADERS[name]
    with GGUFFile.open(write_true_size(header, tmp_path / "model.gguf")) as file:
        assert len(load_model(file).weights) > 0


@pytest.mark.parametrize("name", HEADERS)
def test_a_small_model_with_the_keys_of_a_published_file_loads(name, tmp_path):
    header = HEADERS[name]
    whole = take_apart((OWN / golden_of(header)).read_bytes())
    with_keys(whole, header)
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        assert all(key in file.metadata for key in header.keys if key.startswith(header.arch))
        load_model(file)


def test_recorded_headers_are_of_supported_architectures():
    assert {header.arch for header in HEADERS.values()} <= set(MODELS)
