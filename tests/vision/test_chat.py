"""Images in chats: through the template to the answer, with a tiny model and its projector."""

import base64
import io
import shutil

import numpy as np
import pytest
from PIL import Image

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from rwkv_gpu.vision.encoder import Encoder
from tests.golden.record_images import MODELS, image
from tests.golden_files import OWN

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def png(picture):
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module", params=["gemma3", "qwen3vl", "qwen35", "internvl", "idefics3"])
def llm(request, tmp_path_factory):
    """Loads a model whose projector is in the same folder."""
    folder = tmp_path_factory.mktemp("vision")
    shutil.copy(OWN / f"{MODELS[request.param][0]}.gguf", folder / "model.gguf")
    shutil.copy(OWN / "vision" / f"{request.param}.gguf", folder / "mmproj-model.gguf")
    with rwkv_gpu.load(folder / "model.gguf", device="cpu", context=512) as llm:
        yield llm


def chat_of(llm):
    return llm.chat(template=TEMPLATE, temperature=0, max_tokens=6)


def test_forms_of_one_image_give_one_answer(llm, tmp_path):
    picture = image(40, 24)
    path = tmp_path / "a.png"
    path.write_bytes(png(picture))
    url = "data:image/png;base64," + base64.b64encode(png(picture)).decode()
    answers = {
        chat_of(llm).send("hello", images=[source]).tokens
        for source in (picture, path, str(path), png(picture), Image.fromarray(picture))
    }
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hello"}]
    begun = llm.chat(template=TEMPLATE, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=6)
    answers.add(begun.regenerate().wait().tokens)
    assert len(answers) == 1


def test_images_precede_the_text_in_their_order_and_each_as_often_as_it_is_given(llm):
    def parts(*images):
        each = [{"type": "image", "image": one} for one in images]
        return [{"role": "user", "content": [*each, {"type": "text", "text": "hello"}]}]

    one, other = image(40, 24), image(23, 64, 1)
    for images in ((one, other), (other, one), (one, one)):
        chat = chat_of(llm)
        tokens = chat.send("hello", images=images).tokens
        begun = llm.chat(template=TEMPLATE, messages=parts(*images), temperature=0, max_tokens=6)
        assert begun.regenerate().wait().tokens == tokens
        assert begun._messages[0].content == chat._messages[0].content
        assert chat.images == 2 and chat.edit("hello").wait().tokens == tokens


def test_another_image_gives_other_probabilities(llm):
    def scores(seed):
        events = chat_of(llm).stream("hello", images=[image(40, 24, seed)], logprobs=1)
        return [event.logprob for event in events]

    assert scores(0) == pytest.approx(scores(0), abs=1e-4)
    assert scores(0) != pytest.approx(scores(1), abs=1e-4)


def test_a_later_turn_reads_no_image_again(llm):
    chat = chat_of(llm)
    first = chat.send("hello", images=[image(23, 64)])
    second = chat.send("again")
    assert second.stats.reused_tokens >= first.stats.prompt_tokens - 1
    fresh = llm.chat(template=TEMPLATE, messages=[], temperature=0, max_tokens=6)
    again = fresh.send("hello", images=[image(23, 64)])
    assert again.tokens == first.tokens
    assert again.stats.reused_tokens > 0


def model_in(folder):
    """Copies a model and its projector; returns the path of the model."""
    shutil.copy(OWN / "tiny-gemma3.gguf", folder / "model.gguf")
    shutil.copy(OWN / "vision" / "gemma3.gguf", folder / "mmproj-model.gguf")
    return folder / "model.gguf"


def test_another_process_with_the_same_store_encodes_no_image_again(tmp_path, monkeypatch):
    question = "a long question with many words and more of them " * 4
    url = "data:image/png;base64," + base64.b64encode(png(image(23, 64))).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    messages = [{"role": "user", "content": parts}]
    settings = {"max_tokens": 6, "temperature": 0}

    def answer(messages):
        with rwkv_gpu.load(model_in(tmp_path), device="cpu", context=512, store=tmp_path / "store") as llm:
            llm.__dict__["chat_format"] = llm.chat_format_of(TEMPLATE)
            llm.states.rule.least = 30.0  # waits for a fetch: this model computes as fast as it fetches
            return llm.create_chat_completion(messages, **settings)

    first = answer(messages)
    monkeypatch.setattr(Encoder, "_encoded", lambda *_: 1 / 0)
    said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    second = answer([*messages, said, {"role": "user", "content": "again"}])
    reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= first["usage"]["prompt_tokens"] - 1


def test_a_context_shift_removes_whole_images_and_the_answer_goes_on(tmp_path):
    with rwkv_gpu.load(model_in(tmp_path), device="cpu", context=128, context_shift=4) as llm:
        chat = llm.chat(template=TEMPLATE, temperature=0, max_tokens=150, ignore_eos=True)
        first = chat.send("hello", images=[image(23, 64), image(40, 24)])
        assert first.stats.prompt_tokens > 32 and len(first.tokens) == 150


@pytest.mark.parametrize("others", [0, 1])
def test_an_image_that_fails_ends_its_request_and_no_prefix_is_lost(llm, monkeypatch, others):
    chat = chat_of(llm)
    first = chat.send("hello", images=[image(23, 64)])
    running = llm.stream("the wind", max_tokens=100, ignore_eos=True, temperature=0) if others else iter(())
    next(running, None)
    monkeypatch.setattr(Encoder, "_encoded", lambda self, picture, tile: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        chat_of(llm).send("hello", images=[image(40, 24, 7)])
    assert chat.send("again").stats.reused_tokens >= first.stats.prompt_tokens - 1
    assert len(list(running)) >= 99 * others


def test_undo_regenerate_and_edit_keep_images(llm):
    chat = chat_of(llm)
    first = chat.send("hello", images=[image(23, 64)])
    assert chat.regenerate().wait().tokens == first.tokens
    assert chat.edit("hello").wait().tokens == first.tokens
    fork = chat.fork()
    assert fork.regenerate().wait().tokens == first.tokens
    chat.undo()
    assert chat.send("hello", images=[image(23, 64)]).tokens == first.tokens
    assert "<|image" not in chat.messages[0]["content"]


def test_an_image_marker_in_a_users_message_is_plain_text(llm):
    answer = chat_of(llm).send(f"<|image:{'0' * 64}|>")
    assert answer.stats.prompt_tokens > 20


def test_many_conversations_with_images_at_once_equal_each_alone(llm):
    def begun(n):
        return chat_of(llm).stream("hello", images=[image(20 + 9 * n, 30)] if n % 2 else [])

    together = [one.wait().tokens for one in [begun(n) for n in range(5)]]
    assert together == [begun(n).wait().tokens for n in range(5)]


BAD = {
    "too many pixels": lambda: Image.new("1", (20_000, 20_000)),
    "no image": lambda: b"hello",
    "truncated": lambda: png(image(64, 64))[:200],
    "empty": lambda: b"",
    "floats": lambda: np.zeros((4, 4, 3), np.float32),
    "no file": lambda: "/nowhere/a.png",
    "a number": lambda: 3,
}


@pytest.mark.parametrize("what", BAD)
def test_bad_images_are_refused_in_one_line(llm, what):
    with pytest.raises(BadInput) as refused:
        chat_of(llm).send("hello", images=[BAD[what]()])
    assert "\n" not in str(refused.value)


def test_a_url_is_not_fetched(llm):
    parts = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]
    with pytest.raises(BadInput, match="not fetched"):
        llm.chat(template=TEMPLATE, messages=[{"role": "user", "content": parts}])


@pytest.mark.parametrize("images", ["a.png", b"PNG", Image.new("RGB", (4, 4)), 3])
def test_one_image_that_is_not_in_a_list_is_refused(llm, images):
    with pytest.raises(BadInput, match="images is .*; it must be a list of paths, bytes, arrays or PIL images"):
        chat_of(llm).send("hello", images=images)


def test_a_model_without_projector_refuses_images():
    with (
        rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", context=128) as blind,
        pytest.raises(BadInput, match="without a projector"),
    ):
        blind.chat(template=TEMPLATE).send("hello", images=[image(8, 8)])


def test_the_projector_of_another_model_is_refused():
    with pytest.raises(BadInput, match="projector of another model"):
        rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", mmproj=OWN / "vision" / "gemma3.gguf")


def test_a_projector_is_found_next_to_its_model_unless_none_is_wanted(tmp_path):
    shutil.copy(OWN / "tiny-gemma3.gguf", tmp_path / "model.gguf")
    for name in ("qwen3vl", "gemma3"):  # the first fits another model
        shutil.copy(OWN / "vision" / f"{name}.gguf", tmp_path / f"mmproj-{name}.gguf")
    for mmproj, sees in ((None, True), (False, False), (tmp_path / "mmproj-gemma3.gguf", True)):
        with rwkv_gpu.load(tmp_path / "model.gguf", device="cpu", context=128, mmproj=mmproj) as llm:
            assert (llm.media_input is not None) == sees


def test_a_chat_with_images_continues_with_models_that_see_and_with_one_that_does_not(llm, tmp_path):
    other = "qwen3vl" if llm.info.architecture == "gemma3" else "gemma3"
    shutil.copy(OWN / f"{MODELS[other][0]}.gguf", tmp_path / "model.gguf")
    shutil.copy(OWN / "vision" / f"{other}.gguf", tmp_path / "mmproj-model.gguf")
    chat = chat_of(llm)
    chat.send("hello", images=[image(40, 24)])
    with (
        rwkv_gpu.load(tmp_path / "model.gguf", device="cpu", context=512) as sees,
        rwkv_gpu.load(tmp_path / "model.gguf", device="cpu", context=512, mmproj=False) as blind,
    ):
        texts = [{"role": one["role"], "content": one["content"]} for one in chat.messages]
        seen = [{**texts[0], "images": [png(image(40, 24))]}, texts[1]]
        fresh = sees.chat(template=TEMPLATE, messages=seen, temperature=0, max_tokens=6)
        expected = fresh.send("and?").tokens
        assert chat.with_model(sees).send("and?").tokens == expected
        unseeing = chat.with_model(blind)
        assert unseeing.images == 1 and unseeing.media(0) == ["image"] and unseeing.media(1) == []
        assert unseeing.with_model(sees).send("and?").tokens == expected  # it was not lost meanwhile
        alone = blind.chat(template=TEMPLATE, messages=texts, temperature=0, max_tokens=6)
        assert unseeing.send("and?").tokens == alone.send("and?").tokens
