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
from rwkv_gpu.vision.image import prepare
from rwkv_gpu.vision.media_encoders import media_encoders_for
from rwkv_gpu.vision.media_projector import MediaProjector
from rwkv_gpu.vision.pixels import picture_of
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
    options = {"slots": 2, "context": 1024 if name in ("deepseekocr", "gemma4v") else 512, "kv": "f32", **options}
    vision, record = golden(name)
    with GGUFFile.open(OWN / f"{MODELS[name][0]}.gguf") as file:
        model = load_model(file)
        runner = HostRunner(file, model, **options) if device is None else GpuRunner(device, file, model, **options)
        media = media_encoders_for(MediaProjector(vision.path, vision), file, model, device)
    return Engine(runner, media=media), request_of(record, vision), wanted(record)


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


WHOLE = "gemma3", "gemma4v"  # rows of an image see all of it, in all layers or in those with windows


def with_images(engine, count, last=(5, 6, 7)):
    """Returns a request with images, and texts of 0 to 3 tokens between them."""
    vision, ids, spans = engine._media.encoders[0].vision, [1, 2], []
    for number in range(count):
        one = prepare(vision, picture_of(image(40 + 8 * number, 24, seed=number % 5)))
        spans.append(Span(len(ids), one))
        ids += [*image_ids(one), *range(3, 3 + number % 4)]
    return Request([*ids, *last], GREEDY, images=spans)


def steps_and_answers(engine, *requests):
    """Returns the number of steps until all of these requests have a token, and the log-probabilities of each."""
    before, ids, found = engine.activity.steps, [engine.add(request) for request in requests], {}
    while engine.busy:
        for update in engine.step():
            assert update.error is None, update.error
            if update.sampled:
                found[update.id] = dict(update.sampled[0].top)
    return engine.activity.steps - before, [found[id] for id in ids]


def same(ones, others):
    for one, other in zip(ones, others, strict=True):
        assert one.keys() == other.keys()
        assert max(abs(one[token] - other[token]) for token in one) < 1e-4


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("count", [2, 8])
def test_images_in_one_step_give_the_answer_of_one_image_in_each_step(name, count):
    engine = engine_of(name, None, chunk_size=1024)[0]
    request = with_images(engine, count)
    rows = max(span.image.tokens for span in request.images) + 6
    alone, wanted = steps_and_answers(engine_of(name, None, chunk_size=rows)[0], request)
    steps, found = steps_and_answers(engine, request)
    assert steps == 1 and alone >= count
    same(found, wanted)
    for chunk in (rows + 5, 2 * rows + 1):  # steps end at other places in texts and between images
        fewer, found = steps_and_answers(engine_of(name, None, chunk_size=chunk)[0], request)
        assert fewer <= alone
        same(found, wanted)


@pytest.mark.parametrize("name", WHOLE)
def test_sequences_with_images_share_steps_and_prefixes(name):
    engine = engine_of(name, None, chunk_size=400, slots=5)[0]
    texts = [(5, 6, 7), (8,), (5, 6, 9, 9)]
    requests = [with_images(engine, count, text) for count, text in zip((2, 5, 3), texts, strict=True)]
    engine.add(Request([1, 2, 3], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)))
    _, together = steps_and_answers(engine, *requests, Request([4, 4], GREEDY))
    same(together[:3], [steps_and_answers(engine_of(name, None, chunk_size=400)[0], one)[1][0] for one in requests])
    again = with_images(engine, 5, (8, 4))
    sequence = engine.accept(again)
    found = steps_and_answers(engine, sequence)[1]
    assert sequence.reused >= 64
    same(found, steps_and_answers(engine_of(name, None, chunk_size=400)[0], again)[1])


@pytest.mark.parametrize("rows", [1, 7, 20])
def test_a_prompt_continues_within_an_image_whose_first_rows_are_stored(monkeypatch, rows):
    """Rows of a stored prefix have seen all of the image, and the others see them and one another."""
    engine = engine_of("gemma3", None, chunk_size=400)[0]
    request = with_images(engine, 6)
    wanted = steps_and_answers(engine, request)[1]
    find, length = engine.prefixes.find, request.images[2].start + rows
    monkeypatch.setattr(engine.prefixes, "find", lambda key: (find(key)[0], length))
    sequence = engine.accept(request)
    assert sequence.images.divides(length)
    steps, found = steps_and_answers(engine, sequence)
    assert steps == 1 and sequence.reused == length
    same(found, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WHOLE)
def test_images_in_one_step_on_a_gpu_give_the_answer_of_numpy(name, fast_device):
    engine = engine_of(name, fast_device, chunk_size=256)[0]
    request = with_images(engine, 4)
    steps, [found] = steps_and_answers(engine, request)
    [wanted] = steps_and_answers(engine_of(name, None, chunk_size=256)[0], request)[1]
    assert steps < 4
    assert max(abs(found[token] - wanted[token]) for token in found.keys() & wanted.keys()) < 3e-2


def test_an_image_that_cannot_be_encoded_ends_its_request_alone(monkeypatch):
    engine, request, _ = engine_of("gemma3", None, chunk_size=512)
    talk = engine.add(Request([1, 2, 3], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)))
    engine.step()
    monkeypatch.setattr(engine._media.encoders[0], "_encoded", lambda *_: 1 // 0)
    see, ends = engine.add(request), {}
    while engine.busy:
        ends |= {update.id: update.finish_reason for update in engine.step() if update.finish_reason}
    assert ends == {talk: "length", see: "error"}
