"""In every architecture, a tensor that the model does not use is refused by name."""

import pytest

from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models import encoders
from rwkv_gpu.models.registry import MODELS, load_model
from tests.cases import each
from tests.gguf.parts import Parts, Stored, take_apart
from tests.gguf.writer import U32, written
from tests.golden_files import golden

VECTOR = b"\0" * 128


def parts_of(arch: str) -> Parts:
    return take_apart(golden(f"tiny-{arch}.gguf").read_bytes())


def load(parts: Parts, tmp_path) -> None:
    with GGUFFile.open(written(tmp_path, parts.built())) as file:
        load_model(file)


@pytest.mark.parametrize("arch", MODELS)
@each("name", ["blk.0.time_mix_deep_embed.weight", "blk.1.ffn_extra.weight", "cls.weight", "blk.0"])
def test_a_tensor_that_the_model_does_not_know_is_refused_by_name(arch, name, tmp_path):
    parts = parts_of(arch)
    load(parts, tmp_path)
    parts.tensors.append(Stored(name.encode(), [32], 0, VECTOR))
    if arch in encoders.FORMS and name == "cls.weight":  # the head of a masked language model
        load(parts, tmp_path)
        return
    with pytest.raises(UnsupportedModel, match=f"tensor '{name}': unknown in architecture '{arch}'"):
        load(parts, tmp_path)


@each("arch", MODELS)
def test_more_layers_than_the_file_declares_are_refused(arch, tmp_path):
    parts = parts_of(arch)
    parts.set(f"{arch}.block_count", U32, 1)
    more = r"tensor '(?:enc\.)?blk\.1\..*' and \d+ more: unknown"
    wider = r"tensor 'per_layer_token_embd.weight': found the shape"  # Gemma 4 has columns for each layer
    counted = r"metadata key 'hrm_text.block_count': found 1"  # other keys imply the number, too
    grams = "n-grams in layers"  # the table of Qwen3.8-Flash-Next belongs to a layer
    with pytest.raises((UnsupportedModel, BadFile), match=f"{more}|{wider}|{counted}|{grams}"):
        load(parts, tmp_path)


@pytest.mark.long
@each("arch", MODELS)
def test_a_misspelt_tensor_is_reported_missing_under_its_right_name(arch, tmp_path):
    for i, one in enumerate(parts_of(arch).tensors):
        parts = parts_of(arch)
        parts.tensors[i].name = one.name[:-2] + one.name[:-3:-1]  # the last two letters in the wrong order
        with pytest.raises((BadFile, UnsupportedModel), match="tensor '"):
            load(parts, tmp_path)
