"""In every architecture, a tensor that the model does not use is refused by name."""

import pytest

from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile, TensorInfo
from rwkv_gpu.models import encoders
from rwkv_gpu.models.registry import MODELS, load_model
from tests.cases import each
from tests.gguf.parts import take_apart
from tests.gguf.writer import U32, written
from tests.golden_files import golden

UNKNOWN = ("blk.0.time_mix_deep_embed.weight", "blk.1.ffn_extra.weight", "cls.weight", "blk.0")


@each("arch", MODELS)
def test_a_tensor_that_the_model_does_not_know_is_refused_by_name(arch):
    with GGUFFile.open(golden(f"tiny-{arch}.gguf")) as file:
        load_model(file)
        tensors = file.tensors
        for name in UNKNOWN:
            file.tensors = {**tensors, name: TensorInfo(name, 0, (32,), 0, 0, 128)}
            if arch in encoders.FORMS and name == "cls.weight":  # the head of a masked language model
                load_model(file)
                continue
            with pytest.raises(UnsupportedModel, match=f"tensor '{name}': unknown in architecture '{arch}'"):
                load_model(file)


@each("arch", MODELS)
def test_more_layers_than_the_file_declares_are_refused(arch, tmp_path):
    parts = take_apart(golden(f"tiny-{arch}.gguf").read_bytes())
    parts.set(f"{arch}.block_count", U32, 1)
    more = r"tensor '(?:enc\.)?blk\.1\..*' and \d+ more: unknown"
    wider = r"tensor 'per_layer_token_embd.weight': found the shape"  # Gemma 4 has columns for each layer
    counted = r"metadata key 'hrm_text.block_count': found 1"  # other keys imply the number, too
    grams = "n-grams in layers"  # the table of Qwen3.8-Flash-Next belongs to a layer
    refused = pytest.raises((UnsupportedModel, BadFile), match=f"{more}|{wider}|{counted}|{grams}")
    with GGUFFile.open(written(tmp_path, parts.built())) as file, refused:
        load_model(file)


@pytest.mark.long
@each("arch", MODELS)
def test_a_misspelt_tensor_is_reported_missing_under_its_right_name(arch):
    with GGUFFile.open(golden(f"tiny-{arch}.gguf")) as file:
        tensors = file.tensors
        for name, tensor in tensors.items():
            wrong = name[:-2] + name[:-3:-1]  # the last two letters in the wrong order
            file.tensors = {**{one: info for one, info in tensors.items() if one != name}, wrong: tensor}
            with pytest.raises((BadFile, UnsupportedModel), match="tensor '"):
                load_model(file)
