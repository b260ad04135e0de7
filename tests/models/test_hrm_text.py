"""HRM-Text: files whose counts of layers and runs contradict each other are refused."""

import pytest

from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from tests.gguf.parts import take_apart
from tests.gguf.writer import U32, written
from tests.golden_files import OWN


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("block_count", 11, "found 11, expected 12"),
        ("hrm.layers_per_stack", 3, "expected 18"),
        ("hrm.layers_per_stack", 0, "layers_per_stack"),
        ("hrm.h_cycles", 512, "too many"),
        ("hrm.l_cycles", 0xFFFFFFFF, "l_cycles"),
    ],
)
def test_contradictory_counts_are_refused(key, value, why, tmp_path):
    whole = take_apart((OWN / "tiny-hrm_text.gguf").read_bytes())
    whole.set(f"hrm_text.{key}", U32, value)
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises((BadFile, UnsupportedModel), match=why):
        load_model(file)


@pytest.mark.parametrize("name", ["hrm.z_l_init", "blk.3.attn_gate.weight"])
def test_a_file_without_a_tensor_is_refused(name, tmp_path):
    whole = take_apart((OWN / "tiny-hrm_text.gguf").read_bytes())
    whole.tensors = [one for one in whole.tensors if one.name != name.encode()]
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(BadFile, match="no such tensor"):
        load_model(file)
