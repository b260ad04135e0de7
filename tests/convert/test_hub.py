"""Folders of the Hugging Face hub become the files that llama.cpp's converter writes."""

import json

import pytest

import rwkv_gpu
from rwkv_gpu.convert.convert import convert
from tests.convert.hub_folders import write_folder
from tests.convert.hub_kinds import KINDS
from tests.convert.record import RECORD, described

RECORDED = json.loads(RECORD.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_the_keys_and_tensors_of_llama_cpp(tmp_path, kind):
    convert(write_folder(tmp_path, KINDS[kind]), tmp_path / "out.gguf")
    found, expected = described(tmp_path / "out.gguf"), RECORDED[kind]
    assert found["keys"] == expected["keys"]
    assert found["tensors"] == expected["tensors"]
