"""Images over HTTP, in the forms of each API."""

import base64
import io
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the extra `server` is not installed")

import rwkv_gpu
from rwkv_gpu.llm import images
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.service import MEDIA_THREADS
from rwkv_gpu.text.interruption import Interrupted, interruptible
from rwkv_gpu.vision.pixels import picture_of
from tests.golden.record_images import image
from tests.golden_files import OWN
from tests.server.serving import serving
from tests.server.test_conversation_files import TYPE, form
from tests.vision.test_chat import TEMPLATE, png

DATA = base64.b64encode(png(image(40, 24))).decode()
URL = f"data:image/png;base64,{DATA}"
SETTINGS = {"temperature": 0, "max_tokens": 6}


def load(path, *_, context=256, **__):
    """Loads a model with a separate template, because golden files have none."""
    llm = rwkv_gpu.load(path, device="cpu", context=context, sequences=2)
    llm.__dict__["chat_format"] = llm.chat_format_of(TEMPLATE)
    return llm


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    shutil.copy(OWN / "tiny-gemma3.gguf", folder / "model.gguf")
    shutil.copy(OWN / "vision" / "gemma3.gguf", folder / "mmproj-model.gguf")
    with serving(ServedModel("media", str(folder / "model.gguf")), load=load, log_prompts=True) as served:
        yield served


def openai(parts):
    return {"messages": [{"role": "user", "content": parts}], **SETTINGS}


def test_forms_of_all_apis_give_one_answer(server):
    text = {"type": "text", "text": "hello"}
    picture = {"type": "image_url", "image_url": {"url": URL}}
    answer = server.post("/v1/chat/completions", openai([picture, text]))["choices"][0]["message"]["content"]
    assert answer
    broken = URL.replace("data:", "Data:").replace(";base64", ";BASE64") + "\r\n"  # lines as of encodebytes
    wrapped = {"type": "image_url", "image_url": {"url": f"{broken[:70]}\n{broken[70:]}"}}
    again = server.post("/v1/chat/completions", openai([wrapped, text]))
    assert again["choices"][0]["message"]["content"] == answer
    parts = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "hello"}]
    responses = {"input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 6}
    found = server.post("/v1/responses", responses)
    assert found["output"][0]["content"][0]["text"] == answer
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    found = server.post("/v1/messages", openai([block, text]))
    assert found["content"][0]["text"] == answer
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}}
    assert server.post("/v1/messages", openai([block, document]))["content"][0]["text"] == answer
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text, block]}
    session = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": [use]}]
    found = [
        server.post("/v1/messages", {**openai([block]), "messages": [*session, {"role": "user", "content": last}]})
        for last in ([result], [{**result, "content": "hello"}, block])
    ]
    assert found[1]["usage"]["input_tokens"] == 1, "a result's image is the user's, so the prompts are equal"
    ollama = {"messages": [{"role": "user", "content": "hello", "images": [DATA]}], "stream": False}
    found = server.post("/api/chat", {**ollama, "options": {"temperature": 0, "num_predict": 6}})
    assert found["message"]["content"] == answer
    one = {"prompt": "hello", "images": [DATA], "stream": False, "options": {"temperature": 0, "num_predict": 6}}
    assert server.post("/api/generate", one)["response"] == answer
    status, _, reply = server.request("POST", "/api/generate", {**one, "raw": True})
    assert status == 400 and "leave out" in reply["error"]


def test_models_and_props_report_vision(server):
    assert server.get("/props")["modalities"]["vision"] is True
    assert "image" in server.get("/v1/models")["data"][0]["architecture"]["input_modalities"]
    assert "vision" in server.post("/api/show", {"model": "media"})["capabilities"]


def test_allowed_urls_give_the_same_answer_in_all_apis(server, monkeypatch):
    """Only the fetch of bytes is replaced: resolving, connecting and parsing have their own tests."""
    asked = []

    async def image_at(url, *_):
        asked.append(url)
        return png(image(40, 24))

    text, url = {"type": "text", "text": "hello"}, "https://images.example/a.png"
    expected = server.post("/v1/chat/completions", openai([{"type": "image_url", "image_url": {"url": URL}}, text]))
    monkeypatch.setattr(server.service.media_urls, "image", image_at)
    picture = {"type": "image_url", "image_url": {"url": url}}
    found = server.post("/v1/chat/completions", openai([picture, text, picture]))
    assert asked == [url] and found["usage"]["prompt_tokens"] > expected["usage"]["prompt_tokens"]
    found = server.post("/v1/chat/completions", openai([picture, text]))
    assert found["choices"] == expected["choices"]
    answer, count = expected["choices"][0]["message"]["content"], expected["usage"]["prompt_tokens"]
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "hello"}]
    responses = {"input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 6}
    assert server.post("/v1/responses", responses)["output"][0]["content"][0]["text"] == answer
    assert server.post("/v1/responses/input_tokens", responses)["input_tokens"] == count
    block = {"type": "image", "source": {"type": "url", "url": url}}
    assert server.post("/v1/messages", openai([block, text]))["content"][0]["text"] == answer
    counted = {"messages": openai([block, text])["messages"]}
    assert server.post("/v1/messages/count_tokens", counted)["input_tokens"] == count
    counted = {"messages": openai([picture, text])["messages"]}
    assert server.post("/v1/chat/completions/input_tokens", counted)["input_tokens"] == count


def completion(prompt):
    return {"prompt": prompt, "temperature": 0, "n_predict": 6}


def test_an_image_of_a_prompt_equals_that_of_a_message(server):
    """The prompt is the template's text for the messages, which clients of llama-server render themselves."""
    marker = server.get("/props")["media_marker"]
    prompt = {"prompt_string": f"user: {marker}hello\nassistant:", "multimodal_data": [DATA]}
    text = {"type": "text", "text": "hello"}
    message = server.post("/v1/chat/completions", openai([{"type": "image_url", "image_url": {"url": URL}}, text]))
    found = server.post("/completion", completion(prompt))
    assert found["content"] == message["choices"][0]["message"]["content"]
    assert found["tokens_evaluated"] == message["usage"]["prompt_tokens"]
    each = server.post("/completion", completion([prompt, "hello", {"prompt_string": "hello"}]))
    assert [one["content"] for one in each[1:]] == [each[1]["content"]] * 2
    assert each[0]["content"] == found["content"]
    lines = [line for line in server.stream("/completion", {**completion(prompt), "stream": True}) if line]
    assert "".join(line.get("content", "") for line in lines) == found["content"]


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("hello", [DATA]), ("<__media__><__media__>", [DATA]), ("<__media__>", ["aGVsbG8="]),
        ("<__media__>", [7]), ("<__media__>", "a"), ("<__media__>", {}), ("<__media__>" * 300, [DATA] * 300),
        ("<__media__>", ["http://127.0.0.1/a.png"]), ("<__media__>", ["/etc/passwd"]),
    ],
)  # fmt: skip
def test_images_of_a_prompt_must_be_images_and_as_many_as_markers(server, text, images):
    status, _, reply = server.request(
        "POST", "/completion", completion({"prompt_string": text, "multimodal_data": images})
    )
    assert status == 400
    assert "\n" not in reply["error"]["message"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png", "https://example.com/a.png", "HTTP://a@b/", "http://[",
        "file:///etc/passwd", "/etc/passwd", "data:,x",
        "data:image/png;base64,!!!", "data:image/png;base64,aGVsbG8=", "", 3, None,
    ],
)  # fmt: skip
def test_bad_images_are_400s_of_one_line(server, url):
    body = openai([{"type": "image_url", "image_url": {"url": url}}])
    status, _, reply = server.request("POST", "/v1/chat/completions", body)
    assert status == 400
    assert "\n" not in reply["error"]["message"]
    assert "PIL" not in reply["error"]["message"]  # that is for the library


@pytest.mark.parametrize("source", ["/etc/passwd", "../a.png", 7, {"a": 1}])
def test_a_path_in_a_request_is_never_opened(server, source):
    for message in ({"content": [{"type": "image", "image": source}]}, {"content": "a", "images": [source]}):
        body = {"messages": [{"role": "user", **message}], **SETTINGS}
        status, _, reply = server.request("POST", "/v1/chat/completions", body)
        assert status == 400, reply


def test_images_are_encoded_again_for_another_key(server, monkeypatch):
    """Otherwise, the time to the first token would reveal that another client has sent the same image."""
    encoder, sizes = server.engine._media.encoders[0], []
    encode = encoder._encoded
    monkeypatch.setattr(encoder, "_encoded", lambda image, tile: sizes.append(tile.shape) or encode(image, tile))
    data = base64.b64encode(png(image(24, 40))).decode()
    text = {"type": "text", "text": "hello"}
    body = openai([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}, text])
    counts = []
    for salt in ("one", "one", "two"):
        server.post("/v1/chat/completions", {**body, "cache_salt": salt})
        counts.append(len(sizes))
    assert counts[0] == counts[1] and counts[2] == 2 * counts[0]


def test_a_repeated_image_counts_each_time(server, monkeypatch):
    monkeypatch.setattr(images, "MAX_IMAGES", 3)
    picture = {"type": "image_url", "image_url": {"url": URL}}
    server.post("/v1/chat/completions", openai([picture] * 3))
    status, _, reply = server.request("POST", "/v1/chat/completions", openai([picture] * 4))
    assert status == 400 and "more than 3 images" in reply["error"]["message"]


def test_the_pixels_of_all_images_of_a_request_are_bounded(server, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 3 * 40 * 24)
    picture = {"type": "image_url", "image_url": {"url": URL}}
    server.post("/v1/chat/completions", openai([picture] * 3))
    status, _, reply = server.request("POST", "/v1/chat/completions", openai([picture] * 4))
    assert status == 400 and "pixels in all" in reply["error"]["message"]


def test_images_that_exceed_the_context_are_refused_when_the_first_one_too_many_is_read(server, monkeypatch):
    decoded = []
    monkeypatch.setattr(images, "medium_of", lambda *source: decoded.append(1) or picture_of(*source))
    picture = {"type": "image_url", "image_url": {"url": URL}}
    status, _, reply = server.request("POST", "/v1/chat/completions", openai([picture] * 200))
    assert status == 400 and reply["error"]["code"] == "context_length_exceeded"
    assert len(decoded) == 256 // 16 + 1  # tokens of the context and of an image


def test_texts_are_tokenised_while_images_are_decoded(server, monkeypatch):
    """Requests of every API with images wait for one another, and for no request without."""
    decoded, begun = threading.Event(), threading.Semaphore(0)

    def slow(*source):
        begun.release()
        assert decoded.wait(600)
        return picture_of(*source)

    monkeypatch.setattr(images, "medium_of", slow)
    picture = {"type": "image_url", "image_url": {"url": URL}}
    asked = [("/v1/chat/completions", openai([picture]))] * 4
    asked.append(("/api/generate", {"model": "media", "prompt": "hello", "images": [DATA], "stream": False}))
    marker = server.get("/props")["media_marker"]
    asked.append(("/completion", {"prompt": {"prompt_string": marker, "multimodal_data": [DATA]}, "n_predict": 2}))
    with ThreadPoolExecutor(len(asked) + 1) as clients:
        seeing = [clients.submit(server.post, *one) for one in asked]
        try:
            for _ in range(MEDIA_THREADS):
                begun.acquire()
            assert clients.submit(server.post, "/tokenize", {"content": "hello"}).result(300)["tokens"]
            assert not any(one.done() for one in seeing)
        finally:
            decoded.set()
        assert all(one.result() for one in seeing)


def test_images_of_a_request_whose_client_left_are_not_decoded():
    with interruptible(lambda: True), pytest.raises(Interrupted):
        images.RequestImages(object()).add(b"", "the image")


def test_a_saved_slot_keeps_its_images(server, tmp_path):
    marker = server.get("/props")["media_marker"]
    prompt = {"prompt_string": f"user: {marker}hello\nassistant:", "multimodal_data": [DATA]}
    model = server.service.catalogue.models[0].path
    with serving(ServedModel("media", model), load=load, slot_save_path=str(tmp_path)) as saving:
        first = saving.post("/completion", completion(prompt) | {"id_slot": 0, "n_predict": 1})
        saved = saving.post("/slots/0?action=save", {"filename": "a"})
        assert saved["n_saved"] >= 16
    with serving(ServedModel("media", model), load=load, slot_save_path=str(tmp_path)) as fresh:
        restored = fresh.post("/slots/0?action=restore", {"filename": "a"})
        assert restored["n_restored"] == saved["n_saved"]
        longer = {**prompt, "prompt_string": prompt["prompt_string"] + " and"}
        again = fresh.post("/completion", completion(longer) | {"id_slot": 0})
        assert again["timings"]["prompt_n"] < 16 < first["timings"]["prompt_n"]
        assert again["content"] == server.post("/completion", completion(longer))["content"]


def test_conversation_files_of_the_page_have_images(server):
    gif = io.BytesIO()
    Image.fromarray(image(40, 24, 1)).save(gif, "GIF")
    urls = [URL, "data:image/gif;base64," + base64.b64encode(gif.getvalue()).decode()]
    parts = [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": "hello"}]
    question = {"role": "user", "content": parts}
    reply = server.post("/v1/chat/completions", {"messages": [question], **SETTINGS, "cache_salt": "a"})
    messages = [question, {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}]
    body = {"branches": [{"messages": messages}, {"messages": [question]}], "current": 0, "cache_salt": "a"}
    data = server.post("/v1/conversation-files/write", body)
    sent = form(file=data, cache_salt="b")
    status, _, found = server.request("POST", "/v1/conversation-files/read", sent, content_type=TYPE)
    assert status == 200, found
    [read, answer], [again] = (branch["messages"] for branch in found["branches"])
    assert read == again and answer == messages[1]
    first, second, text = read["content"]
    assert (first, text) == (parts[0], parts[2])
    assert second["image_url"]["url"].startswith("data:image/png;base64,")
    assert found["state"] is True
    more = {"role": "user", "content": "and?"}
    later = server.post("/v1/chat/completions", {"messages": [read, answer, more], **SETTINGS, "cache_salt": "b"})
    expected = server.post("/v1/chat/completions", {"messages": [*messages, more], **SETTINGS})
    assert later["choices"] == expected["choices"]
    assert later["usage"]["prompt_tokens_details"]["cached_tokens"] > 16
