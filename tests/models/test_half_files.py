"""A companion file of a model is recognised, with advice on its use. A whole model is never taken for one."""

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from cli.commands import cli
from rwkv_gpu.errors import UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.half_files import DRAFT_HEADS, half_of
from tests.gguf.writer import BOOL, STRING, array_key, gguf, number_key, string, tensor, text_key, written
from tests.golden_files import OWN


def typed(kind: str, arch: str = "llama", *rows: bytes, names: tuple[str, ...] = ()) -> bytes:
    """Returns a file of this `general.type`, with tensors of eight numbers under these names."""
    table = [tensor(name, (8,), 32 * at) for at, name in enumerate(names)]
    keys = [text_key("general.architecture", arch), *([text_key("general.type", kind)] if kind else []), *rows]
    return gguf(keys, table, np.zeros(8 * len(names), np.float32).tobytes())


PROJECTOR = "v.blk.0.attn_q.weight", "mm.0.weight"
HALVES = {
    "lora": (typed("adapter", "llama", text_key("adapter.type", "lora")), "give this file with --lora"),
    "lora without a type": (typed("", names=("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b")), "--lora"),
    "state": (typed("adapter", "rwkv7", text_key("adapter.type", "state"), names=("blk.0.wkv",)), "--initial-state"),
    "adapter": (typed("adapter", "llama", text_key("adapter.type", "other")), "open its model without it"),
    "imatrix": (typed("imatrix", "llama"), "--imatrix"),
    "control vector": (typed("", "controlvector", names=("direction.1",)), "a control vector"),
    "projector": (typed("mmproj", "clip", names=PROJECTOR), "a projector of images (mmproj); open its language model"),
    "old projector": (typed("", "clip", names=PROJECTOR), "a projector of images"),
    "projector of sounds": (
        typed("mmproj", "clip", number_key("clip.has_audio_encoder", BOOL, 1)), "a projector of sounds"
    ),
    "projector with the name of its model": (typed("", "qwen3vl", names=PROJECTOR), "a projector of images or sounds"),
    "mtp": (typed("model", "qwen35", names=("token_embd.weight", "blk.24.nextn.eh_proj.weight")), "(MTP)"),
    "vocabulary": (typed("", "llama", array_key("tokenizer.ggml.tokens", STRING, [string("a")])), "only a vocabulary"),
    **{arch: (typed("model", arch, names=("fc.weight",)), "open the model that it drafts for") for arch in DRAFT_HEADS},
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_a_half_file_is_named_with_how_to_use_it(name, tmp_path):
    data, hint = HALVES[name]
    path = written(tmp_path, data)
    with pytest.raises(UnsupportedModel) as caught:
        rwkv_gpu.load(path, device="cpu")
    message = str(caught.value)
    assert message.startswith(f"{path}: is not a complete model: it is ") and hint in message
    assert message.isprintable() and len(message.removeprefix(str(path))) < 160


def test_info_describes_a_file_with_half_of_the_layers(tmp_path):
    path = written(tmp_path, HALVES["projector"][0])
    shown = CliRunner().invoke(cli, ["info", str(path), "--tensors"])
    assert shown.exit_code == 0 and "a projector of images" in shown.output and "v.blk.0.attn_q" in shown.output


def test_no_complete_model_is_reported_as_a_half():
    for path in sorted(OWN.glob("*.gguf")):
        with GGUFFile.open(path) as file:
            assert half_of(file) is None, path.name


def test_a_model_with_mtp_blocks_of_its_own_is_whole(tmp_path):
    names = "blk.0.attn_q.weight", "blk.1.nextn.eh_proj.weight"
    with GGUFFile.open(written(tmp_path, typed("model", "qwen35", names=names))) as file:
        assert half_of(file) is None
