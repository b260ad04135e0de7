"""Rows of a table are read from the file when a step needs them, with the same numbers as whole tensors."""

import os
import shutil

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.fit import host_weights_bytes
from rwkv_gpu.errors import BadFile, RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.row_table import RowTable
from rwkv_gpu.models.registry import load_model
from tests.golden_files import OWN

NAME = "per_layer_token_embd.weight"


@pytest.fixture
def path(tmp_path):
    return shutil.copy(OWN / "tiny-qwen4exp.gguf", tmp_path / "model.gguf")


@pytest.mark.parametrize("name", ["qwen4exp", "gemma3n"])
def test_rows_equal_those_of_the_whole_tensor_after_the_file_is_closed(name):
    with GGUFFile.open(OWN / f"tiny-{name}.gguf") as file:
        tensor = file.tensors[NAME]
        whole, table = file.values(tensor), RowTable(file, tensor)
    last = len(whole) - 1
    for numbers in (np.array([3, last, 3]), np.array([[0, last], [7, 1]]), np.array([last], np.uint32)):
        assert np.array_equal(table[numbers], whole[numbers])
    with pytest.raises(IndexError, match=f"row {last + 1} of {last + 1}"):
        table[np.array([0, last + 1])]
    table.close()


def test_fit_does_not_count_the_table_on_the_cpu():
    with GGUFFile.open(OWN / "tiny-qwen4exp.gguf") as file:
        model = load_model(file)
        weights = {one.name: one for one in model.weights}
        whole = sum(4 * int(np.prod(one.shape)) for one in weights.values())
        assert host_weights_bytes(model) == whole - 4 * int(np.prod(weights[NAME].shape))


def test_a_file_that_another_replaces_while_it_loads_is_refused(path):
    with GGUFFile.open(path) as file:
        os.truncate(path, file.nbytes - 1)
        with pytest.raises(BadFile, match="do not replace it while it loads"):
            RowTable(file, file.tensors[NAME])


def test_a_table_that_is_cut_short_later_fails_the_request_in_one_line(path):
    with rwkv_gpu.load(path, device="cpu") as llm:
        assert llm.generate("hello", max_tokens=1).text is not None
        with GGUFFile.open(path) as file:
            end = file.tensors[NAME].offset
        os.truncate(path, end)
        with pytest.raises(RwkvGpuError) as caught:
            llm.generate("hello the world", max_tokens=1)
        assert str(caught.value).isprintable() and "truncated while open" in str(caught.value)
