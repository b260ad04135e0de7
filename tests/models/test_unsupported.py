"""An unsupported architecture is refused with its missing features, and with the supported architectures."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import MODELS, load_model
from rwkv_gpu.models.unsupported import MISSING
from tests.gguf.parts import take_apart
from tests.gguf.writer import U32, gguf, text_key, written
from tests.golden_files import OWN


def refused(arch: str, tmp_path) -> str:
    path = written(tmp_path, gguf([text_key("general.architecture", arch)]))
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModel) as caught:
        load_model(file)
    return str(caught.value).removeprefix(f"{path}: ")


# The names of llama.cpp's table (September 2026) that are no models of text, or of which it has the name alone
OTHERS = "clip", "dflash", "eagle3", "gemma4-assistant", "gptj", "pockettts", "qwen3tts", "wavtokenizer-dec"


@pytest.mark.parametrize("arch", OTHERS)
def test_every_other_name_of_llama_cpp_is_refused_with_a_reason(arch, tmp_path):
    message = refused(arch, tmp_path)
    assert "it is not known here" not in message
    assert arch in MISSING or "open the model" in message or "open its language model" in message


def test_no_architecture_is_both_supported_and_missing_something():
    assert not MODELS.keys() & MISSING.keys()


@pytest.mark.parametrize("arch", MISSING)
def test_the_refusal_names_missing_and_supported_features(arch, tmp_path):
    message = refused(arch, tmp_path)
    assert message.startswith(f"architecture '{arch}' is not supported: it needs {MISSING[arch][0]}")
    known = ", ".join(sorted(MODELS))
    assert message.endswith(f"supported are {known}")
    assert message.isprintable() and len(message) < 200 + len(known)


def test_an_unknown_architecture_is_reported_as_unknown(tmp_path):
    assert "'martian' is not supported: it is not known here; supported are" in refused("martian", tmp_path)


def test_rows_that_are_not_multiples_of_four_numbers_run_on_a_gpu(adapter, tmp_path):
    """Most shaders load four numbers at once."""
    whole = take_apart((OWN / "tiny-mamba2.gguf").read_bytes())
    whole.set("mamba2.embedding_length", U32, 50)
    for one in whole.tensors:
        if not one.name.endswith(b"ssm_norm.weight"):
            one.dims = [50 if dim == 96 else dim for dim in one.dims]
    path = written(tmp_path, whole.built())
    with rwkv_gpu.load(path, device="cpu") as llm:
        expected = llm.logits([5, 6, 7])
    with rwkv_gpu.load(path, device=str(adapter.index)) as llm:
        np.testing.assert_allclose(llm.logits([5, 6, 7]), expected, atol=1e-4 * expected.std())
