"""Spectrograms and rows of towers for sounds equal those of llama.cpp's libmtmd for the same sounds."""

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.media import Span, image_ids
from rwkv_gpu.engine.request import Request
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.vision.audio import SoundEncoder, audio_of, prepare_audio
from rwkv_gpu.vision.media_encoders import media_encoders_for
from rwkv_gpu.vision.media_projector import MediaProjector, read_projector
from rwkv_gpu.vision.samples import recording_of
from tests.golden.record_images import kept, qwen2vl, write
from tests.golden.record_sounds import (
    FRAMES,
    LENGTHS,
    MODELS,
    ROWS_ONLY,
    gemma4a,
    lengths,
    lfm2a,
    qwen2a,
    qwen3a,
    sound,
    voxtral,
)
from tests.golden_files import OWN
from tests.vision.test_logits import GREEDY, answers, apart, wanted


def golden(name):
    with GGUFFile.open(OWN / "sound" / f"{name}.gguf") as file:
        return audio_of(file), np.load(OWN / "sound" / f"{name}.npz")


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ROWS_ONLY])
def test_spectrograms_equal_those_of_llama_cpp(name):
    audio, record = golden(name)
    for number, length in enumerate(LENGTHS):
        found = np.stack(prepare_audio(audio, recording_of(sound(length))).tiles)
        assert np.abs(found[:, :, FRAMES] - record[f"mel{number}"]).max() < 2e-5  # llama.cpp's transform is float32


def rms_apart(audio, record, encoder, numbers=(0, 1, 2)):
    """Returns the largest deviation of the rows of a sound, relative to their RMS."""
    worst = 0.0
    for number in numbers:
        prepared = prepare_audio(audio, recording_of(sound(lengths(audio.type)[number])))
        rows, wanted = encoder.rows(prepared)["media"], record[f"rows{number}"]
        assert len(rows) == record[f"count{number}"] == prepared.tokens
        found = rows[kept(len(rows))[::2]]
        worst = max(worst, float(np.sqrt(((found - wanted) ** 2).mean()) / wanted.std()))
    return worst


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_sounds_in_numpy_equal_those_of_llama_cpp(name):
    audio, record = golden(name)
    assert rms_apart(audio, record, SoundEncoder(audio, None)) < 1e-4  # the spectrograms differ by rounding


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ultravox", "voxtral", "qwen3a", "gemma4a", "lfm2a", "parakeet"])
def test_rows_of_sounds_on_a_gpu_equal_those_of_llama_cpp(name, fast_device):
    audio, record = golden(name)
    assert rms_apart(audio, record, SoundEncoder(audio, fast_device), [0]) < 1e-3  # keys and values are float16


def request_of(record, audio):
    """Returns the recorded prompt with the sounds in it."""
    ids, spans, tokens = [], [], record["tokens"].tolist()
    sounds = iter([prepare_audio(audio, recording_of(sound(length))) for length in lengths(audio.type)[:2]])
    while len(ids) < len(tokens):
        if tokens[len(ids)] >= 0:
            ids.append(tokens[len(ids)])
        else:
            spans.append(Span(len(ids), next(sounds)))
            ids += image_ids(spans[-1].image)
    return Request(ids, GREEDY, images=spans)


@pytest.mark.parametrize("name", MODELS)
def test_logits_after_sounds_in_numpy_equal_those_of_llama_cpp(name):
    audio, record = golden(name)
    with GGUFFile.open(OWN / f"{MODELS[name][0]}.gguf") as file:
        model = load_model(file)
        runner = HostRunner(file, model, slots=1, context=1024, kv="f32", chunk_size=512)
        media = media_encoders_for(MediaProjector(audio.path, audio=audio), file, model, None)
    found = answers(Engine(runner, media=media), request_of(record, audio))
    assert apart(found, wanted(record)) < 1e-3


def test_both_parts_of_a_projector_are_read_and_an_unsupported_one_is_left_out(tmp_path):
    of_images, of_sounds = qwen2vl(256, windows=True), qwen2a(256)
    tensors, both = of_images[0] | of_sounds[0], of_images[1] | of_sounds[1]
    path = tmp_path / "a.gguf"
    write(path, "clip", both | {"clip.projector_type": "qwen2.5o"}, tensors)
    assert read_projector(path).kinds == ("image", "audio")
    types = {"clip.vision.projector_type": "qwen2.5vl_merger", "clip.audio.projector_type": "other"}
    del both["clip.projector_type"]
    write(path, "clip", both | types, tensors)
    assert read_projector(path).kinds == ("image",)
    write(path, "clip", both | types | {"clip.vision.projector_type": "other"}, tensors)
    with pytest.raises(UnsupportedModel, match="projectors of type 'other'"):
        read_projector(path)


def test_wrong_files_are_refused_in_one_line(tmp_path):
    tensors, keys = voxtral(64)
    others, chunked = qwen3a(64)
    wrong = [
        (keys | {"clip.audio.num_mel_bins": 80}, {}, "a.conv1d.1.weight"),
        (keys | {"clip.audio.projector.stack_factor": 3}, {}, "mm.a.mlp.1.weight"),
        (keys | {"clip.audio.attention.head_count": 3}, {}, "head_count"),
        ({key: value for key, value in keys.items() if "stack" not in key}, {}, "stack_factor"),
        (keys, {"a.position_embd.weight": tensors["a.position_embd.weight"][:1499]}, "a.position_embd.weight"),
        (keys, {"a.conv1d.2.weight": tensors["a.conv1d.2.weight"][:, :, :2]}, "a.conv1d.2.weight"),
        (keys, {"a.blk.0.other.weight": np.ones(20, np.float32)}, "a.blk.0.other.weight"),
    ]
    wrong += [
        (chunked, others | {"a.conv2d.2.weight": others["a.conv2d.2.weight"][:, :5]}, "a.conv2d.2.weight"),
        (chunked | {"clip.audio.num_mel_bins": 48}, others, "a.conv_out.weight"),
        (chunked, others | {"a.position_embd.weight": np.ones((12, 20), np.float32)}, "a.position_embd.weight"),
    ]
    others, conformer = gemma4a(64)
    names = {
        "a.conv1d.1.weight": np.ones((5, 4, 3, 3)),
        "a.conv1d.0.norm.weight": np.ones(7),
        "a.input_projection.weight": np.ones((20, 24)),
        "a.blk.0.attn_k_rel.weight": np.ones((16, 20)),
        "a.blk.1.per_dim_scale.weight": np.ones(5),
        "a.blk.0.conv_dw.weight": np.ones((19, 5)),
        "a.blk.1.conv_dw.weight": np.ones((20, 1)),
        "a.blk.1.conv_pw1.weight": np.ones((20, 20)),
        "a.blk.0.other.weight": np.ones(20),
    }
    wrong += [(conformer, others | {name: array.astype(np.float32)}, name) for name, array in names.items()]
    others, both_sides = lfm2a(64)
    names = {
        "a.conv1d.2.weight": np.ones((4, 2, 3, 3)),
        "a.blk.0.pos_bias_v": np.ones(20),
        "a.blk.1.conv_dw.weight": np.ones((20, 8)),
        "a.blk.1.conv_norm.bias": np.ones(19),
    }
    wrong += [(both_sides, others | {name: array.astype(np.float32)}, name) for name, array in names.items()]
    write(tmp_path / "a.gguf", "clip", both_sides, others)  # with a table for the model's own speech
    assert read_projector(tmp_path / "a.gguf").kinds == ("audio",)
    for values, changed, named in wrong:
        every = changed if len(changed) > 1 else tensors | changed
        write(tmp_path / "a.gguf", "clip", values, every)
        with pytest.raises((BadFile, UnsupportedModel), match=named) as caught:
            read_projector(tmp_path / "a.gguf")
        assert "\n" not in str(caught.value)
