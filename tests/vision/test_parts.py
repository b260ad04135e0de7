"""Other requests continue while a tower encodes images: between its parts, tiles and images."""

import numpy as np
import pytest

from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.vision.encoder import Encoder
from rwkv_gpu.vision.image import prepare
from rwkv_gpu.vision.pixels import picture_of
from tests.golden.record_images import image
from tests.vision.test_logits import apart, engine_of, with_images
from tests.vision.test_towers import golden

TALK = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def test_others_decode_between_the_images_of_a_prompt(monkeypatch):
    engine, request, logits = engine_of("gemma3", None, chunk_size=512)
    encoder, encoded = engine._media.encoders[0], []
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


def tokens_between_parts(engine, *requests):
    """Runs these requests next to one that decodes. Returns what happened, in order: `part`, `rows` or `token`."""
    events, encoder = [], engine._media.encoders[0]
    advance = encoder.advance

    def seen(image, salt):
        kept = (image.identity, salt) in encoder._kept
        ready = advance(image, salt)
        events.extend([] if kept else ["rows" if ready else "part"])
        return ready

    encoder.advance = seen
    talk = engine.add(Request([1, 2, 3], TALK))
    engine.step()
    seeing, found = {engine.add(request) for request in requests}, {}
    while len(found) < len(seeing):
        for update in engine.step():
            assert update.error is None, update.error
            events += ["token"] * len(update.sampled) * (update.id == talk)
            if update.id in seeing and update.sampled:
                found[update.id] = dict(update.sampled[0].top)
    return events, [found[id] for id in sorted(found)]


def most_at_once(events):
    """Returns the largest number of parts without a token of the other request between them."""
    return max(map(len, "".join({"part": "x", "rows": "x", "token": " "}[one] for one in events).split()))


@pytest.mark.gpu
def test_others_decode_between_the_parts_of_a_tower_on_a_gpu(fast_device):
    engine, request, logits = engine_of("qwen3vl", fast_device, chunk_size=64)
    events, [found] = tokens_between_parts(engine, request)
    assert events.count("rows") == 2 and events.count("part") == 2 * 3  # both images have as many parts as layers
    assert most_at_once(events) <= 1 + engine._look_ahead  # steps in flight have no tokens yet
    assert apart(found, logits) < 3e-2


def test_others_decode_between_the_images_of_all_other_prompts():
    engine = engine_of("gemma3", None, chunk_size=512, slots=4)[0]
    alone = [tokens_between_parts(engine, with_images(engine, 3, last))[1][0] for last in ((5, 6), (7,))]
    engine = engine_of("gemma3", None, chunk_size=512, slots=4)[0]
    events, found = tokens_between_parts(engine, *(with_images(engine, 3, last) for last in ((5, 6), (7,))))
    assert events.count("rows") >= 3 and most_at_once(events) == 1
    for one, other in zip(found, alone, strict=True):
        assert max(abs(one[token] - other[token]) for token in one) < 1e-4


def test_others_decode_between_the_tiles_of_an_image():
    engine, request, logits = engine_of("internvl", None, chunk_size=512)
    tiles = sum(len(span.image.tiles) for span in request.images)
    events, [found] = tokens_between_parts(engine, request)
    assert tiles > 2 and events.count("part") == tiles - len(request.images) and most_at_once(events) == 1
    assert apart(found, logits) < 1e-3


@pytest.mark.gpu
def test_an_image_that_was_left_half_encoded_is_encoded_again(fast_device):
    vision, _ = golden("qwen3vl")
    encoder, (one, other) = (
        Encoder(vision, fast_device),
        [prepare(vision, picture_of(image(40, 24, seed))) for seed in (0, 1)],
    )
    expected = [Encoder(vision, fast_device).rows(each) for each in (one, other)]
    assert not encoder.advance(one)
    assert not encoder.advance(other)
    found = [encoder.rows(each) for each in (one, other)]
    for ours, wanted in zip(found, expected, strict=True):
        assert all(np.array_equal(ours[name], wanted[name]) for name in wanted)
