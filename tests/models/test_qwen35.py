"""Qwen3.5 and Qwen3-Next: variants of their files, and properties that the shared records do not cover."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from tests.gguf.writer import BOOL, U32, array_key, number, with_keys, written
from tests.golden_files import OWN

FILE = OWN / "tiny-qwen35.gguf"
RECURRENT = "qwen35.attention.recurrent_layers"


def with_layers(recurrent: list[bool], kind: int = BOOL) -> bytes:
    """Returns the model with a list of its recurrent layers."""
    row = array_key(RECURRENT, kind, [number(kind, one) for one in recurrent])
    return with_keys(FILE.read_bytes(), [row])


def replaced(key: str, value: int) -> bytes:
    """Returns the model with another number for a key."""
    data, name = FILE.read_bytes(), key.encode()
    at = data.index(name) + len(name) + 4
    return data[:at] + value.to_bytes(4, "little") + data[at + 4 :]


@pytest.mark.parametrize("kind", [BOOL, U32])
def test_a_list_of_recurrent_layers_equals_the_interval(tmp_path, kind):
    record = np.load(OWN / "tiny-qwen35.npz")
    ids = record["tokens"].tolist()
    path = written(tmp_path, with_layers([True, True, True, False], kind))
    with rwkv_gpu.load(path, device="cpu", kv="f32", context=64) as llm:
        assert np.sqrt(np.mean((llm.logits(ids) - record["exact_logits"]) ** 2)) < 2e-5


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (with_layers([True, True, False]), RECURRENT),
        (with_layers([True, True, True, True]), "attn_qkv"),  # a layer with attention does not have it
        (replaced("qwen35.ssm.inner_size", 64), "inner_size"),
        (replaced("qwen35.ssm.group_count", 4), "attn_qkv|group_count"),
    ],
    ids=["too short", "another layer", "inner size", "key heads"],
)
def test_a_file_that_contradicts_itself_is_refused_by_name(tmp_path, data, says):
    with GGUFFile.open(written(tmp_path, data)) as file, pytest.raises(BadFile, match=says):
        load_model(file)


def test_heads_that_no_kernel_supports_are_refused(tmp_path):
    with (
        GGUFFile.open(written(tmp_path, replaced("qwen35.ssm.state_size", 20))) as file,
        pytest.raises(UnsupportedModel, match="heads of size 20 are not supported; known: multiples of 16"),
    ):
        load_model(file)
