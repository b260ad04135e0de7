"""Logits after a text with two images equal llama.cpp's."""

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.media import Span, image_ids
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.vision.eyes import eyes_for
from rwkv_gpu.vision.image import prepare
from rwkv_gpu.vision.pixels import picture_of
from rwkv_gpu.vision.senses import Senses
from tests.golden.record_images import MODELS, image, sizes_of
from tests.golden_files import OWN
from tests.vision.test_towers import EACH, ON_GPU, golden

GREEDY = SamplingParams(temperature=0, max_tokens=1, logprobs=20)


def request_of(record, vision):
    """Returns the recorded prompt with the images in it."""
    both = [prepare(vision, picture_of(image(*size))) for size in sizes_of(vision.path.stem)[:2]]
    pictures = iter([unit for one in both for unit in one.units])
    ids, spans = [], []
    tokens = record["tokens"].tolist()
    while len(ids) < len(tokens):
        if tokens[len(ids)] >= 0:
            ids.append(tokens[len(ids)])
        else:
            spans.append(Span(len(ids), next(pictures)))
            ids += image_ids(spans[-1].image)
    assert next(pictures, None) is None
    return Request(ids, GREEDY, images=spans)


def answers(engine, request):
    """Returns the log-probabilities of the most likely next tokens."""
    engine.add(request)
    while engine.busy:
        for update in engine.step():
            assert update.error is None, update.error
            for sampled in update.sampled:
                return dict(sampled.top)
    raise AssertionError("no token")


def wanted(record):
    logits = record["logits"].astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def engine_of(name, device, **options):
    options = {"slots": 2, "context": 1024 if name == "deepseekocr" else 512, "kv": "f32", **options}
    vision, record = golden(name)
    with GGUFFile.open(OWN / f"{MODELS[name][0]}.gguf") as file:
        model = load_model(file)
        runner = HostRunner(file, model, **options) if device is None else GpuRunner(device, file, model, **options)
        eyes = eyes_for(Senses(vision.path, vision), file, model, device)
    return Engine(runner, eyes=eyes), request_of(record, vision), wanted(record)


def apart(found, logits):
    return max(abs(value - logits[token]) for token, value in found.items())


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("chunk", [512, 64])
def test_logits_after_two_images_in_numpy_equal_those_of_llama_cpp(name, chunk):
    engine, request, logits = engine_of(name, None, chunk_size=chunk)
    assert apart(answers(engine, request), logits) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_logits_after_two_images_on_a_gpu_equal_those_of_llama_cpp(name, fast_device):
    chunk = 128 if golden(name)[0].whole else 64  # a step contains all rows that must be read together
    engine, request, logits = engine_of(name, fast_device, chunk_size=chunk)
    assert apart(answers(engine, request), logits) < 3e-2  # the tower keeps keys and values as float16


def test_others_decode_between_the_images_of_a_prompt(monkeypatch):
    engine, request, logits = engine_of("gemma3", None, chunk_size=512)
    encoder, encoded = engine._eyes.encoders[0], []
    encode = encoder._encoded
    monkeypatch.setattr(encoder, "_encoded", lambda image, tile: encoded.append(1) or encode(image, tile))
    talk = engine.add(Request([1, 2, 3], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)))
    engine.step()
    see, steps, found = engine.add(request), [], {}
    while not found:
        before, tokens = len(encoded), 0
        for update in engine.step():
            assert update.error is None, update.error
            tokens += len(update.sampled) if update.id == talk else 0
            found |= dict(update.sampled[0].top) if update.id == see and update.sampled else {}
        steps.append((len(encoded) - before, tokens))
    assert steps[:2] == [(1, 1), (1, 1)] and len(encoded) == 2
    assert apart(found, logits) < 1e-3


def test_an_image_that_cannot_be_encoded_ends_its_request_alone(monkeypatch):
    engine, request, _ = engine_of("gemma3", None, chunk_size=512)
    talk = engine.add(Request([1, 2, 3], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)))
    engine.step()
    monkeypatch.setattr(engine._eyes.encoders[0], "_encoded", lambda *_: 1 // 0)
    see, ends = engine.add(request), {}
    while engine.busy:
        ends |= {update.id: update.finish_reason for update in engine.step() if update.finish_reason}
    assert ends == {talk: "length", see: "error"}
