"""Images and sounds in the page: attached from files, by drop, paste and camera, made small, shown, stored and sent."""

import base64
import json
import struct
import zlib

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import answers, ask
from tests.golden.record_sounds import sound, wav


def png(width: int, height: int, color: tuple[int, int, int, int] = (200, 30, 30, 255)) -> bytes:
    """A PNG file of one colour."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + bytes(color) * width) * height, 1)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", rows) + part(b"IEND", b"")


def png_file(name: str, data: bytes) -> dict[str, object]:
    return {"name": name, "mimeType": "image/png", "buffer": data}


def size_of(page, url):
    """The size of an image in a data URL, and its first pixel."""
    return page.evaluate(
        """async (url) => {
          const image = new Image();
          image.src = url;
          await image.decode();
          const canvas = document.createElement("canvas");
          canvas.getContext("2d").drawImage(image, 0, 0);
          return [image.width, image.height, ...canvas.getContext("2d").getImageData(0, 0, 1, 1).data];
        }""",
        url,
    )


def data_url(kind, data):
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def parts(body):
    return body["messages"][-1]["content"]


@pytest.fixture
def seeing(page):
    """A page of a model that sees images."""
    page.evaluate("state.props.modalities = { vision: true, audio: false }, byId('camera').hidden = false")
    return page


def test_a_large_image_is_made_small_shown_and_sent_with_its_message(seeing):
    page, bodies = seeing, answers(seeing, "a picture")
    page.set_input_files("#files", [png_file("big.png", png(3000, 1000)), png_file("small.png", png(40, 30))])
    expect(page.locator(".chip.image img")).to_have_count(2)
    ask(page, "What is this?")
    *images, text = parts(bodies[0])
    assert text == {"type": "text", "text": "What is this?"}
    sizes = [size_of(page, one["image_url"]["url"]) for one in images]
    assert [size[:2] for size in sizes] == [[1280, 427], [40, 30]]
    assert all(abs(a - b) < 6 for size in sizes for a, b in zip(size[2:], (200, 30, 30, 255), strict=True))
    page.click("[aria-label='Show big.png']")
    expect(page.locator("dialog img.whole")).to_be_visible()
    page.click("dialog >> text=Close")
    ask(page, "And now?")
    assert len(bodies[1]["messages"][0]["content"]) == 3, "later questions have it, too"
    page.reload()
    expect(page.locator("article.user .thumb img")).to_have_count(2)


def test_transparency_becomes_white_and_an_edited_question_keeps_its_images(seeing):
    page, bodies = seeing, answers(seeing, "white")
    page.set_input_files("#files", [png_file("clear.png", png(8, 8, (0, 0, 0, 0)))])
    page.wait_for_selector(".chip.image img")
    ask(page, "Colour?")
    assert size_of(page, parts(bodies[0])[0]["image_url"]["url"])[2:] == [255, 255, 255, 255]
    page.click("article.user >> text=Edit")
    page.fill("article.user textarea", "Which colour?")
    page.click("text=Send again")
    expect(page.locator("#send")).to_have_text("Send")
    assert [part["type"] for part in parts(bodies[1])] == ["image_url", "text"]


def test_images_are_dropped_and_pasted(seeing):
    page, bodies = seeing, answers(seeing, "two")
    data = base64.b64encode(png(5, 5)).decode()
    page.evaluate(
        """(data) => {
          const file = (name) => new File([Uint8Array.from(atob(data), (one) => one.charCodeAt())], name, { type: "image/png" });
          const transfer = new DataTransfer();
          transfer.items.add(file("dropped.png"));
          dispatchEvent(new DragEvent("drop", { dataTransfer: transfer }));
          const pasted = new DataTransfer();
          pasted.items.add(file("pasted.png"));
          byId("text").dispatchEvent(new ClipboardEvent("paste", { clipboardData: pasted, bubbles: true, cancelable: true }));
        }""",
        data,
    )
    expect(page.locator(".chip.image img")).to_have_count(2)
    page.click("[aria-label='Remove dropped.png']")
    expect(page.locator(".chip.image img")).to_have_count(1)
    ask(page, "one")
    assert len(parts(bodies[0])) == 2


def test_a_picture_from_the_camera_can_be_taken_or_cancelled(seeing):
    page, bodies = seeing, answers(seeing, "you")
    page.context.grant_permissions(["camera"])
    page.click("#camera")
    page.click("dialog >> text=Cancel")
    expect(page.locator(".chip")).to_have_count(0)
    page.click("#camera")
    page.click("text=Take picture")
    expect(page.locator(".chip.image img")).to_have_count(1)
    ask(page, "Who?")
    width, height, *_ = size_of(page, parts(bodies[0])[0]["image_url"]["url"])
    assert max(width, height) <= 1280 and min(width, height) > 9


def refuse_camera(page, name):
    """Makes the browser refuse the camera with the error of this name."""
    page.evaluate(
        "(name) => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', name)); }", name
    )


def test_a_missing_camera_or_permission_is_reported_on_the_page(seeing):
    page = seeing
    refuse_camera(page, "NotAllowedError")
    page.click("#camera")
    expect(page.locator("#notice")).to_contain_text("allows this page no camera")
    refuse_camera(page, "NotFoundError")
    page.click("#camera")
    expect(page.locator("#notice")).to_contain_text("no camera that can be used")


def test_damaged_images_and_images_for_a_text_model_are_refused_by_name(page):
    page.set_input_files("#files", [png_file("cat.png", png(5, 5))])
    expect(page.locator("#notice")).to_contain_text("cat.png is an image, and this model reads text only")
    expect(page.locator("#camera")).to_be_hidden()
    page.evaluate("state.props.modalities = { vision: true }")
    page.set_input_files("#files", [png_file("bad.png", png(5, 5)[:60])])
    expect(page.locator("#notice")).to_contain_text("bad.png is damaged")
    expect(page.locator(".chip")).to_have_count(0)


def test_images_of_exports_are_restored_and_other_urls_are_not(seeing):
    page, bodies = seeing, answers(seeing, "fine")
    good = "data:image/png;base64," + base64.b64encode(png(4, 4)).decode()
    images = [{"name": "a", "image": url} for url in (good, "https://example.org/a.png", "javascript:1", 5)]
    node = {"id": "1", "parent": None, "role": "user", "content": "look", "images": images}
    chat = {"nodes": {"1": node}, "leaf": "1", "title": "seen"}
    file = {"name": "chat.json", "mimeType": "application/json", "buffer": json.dumps(chat).encode()}
    page.set_input_files("#import-file", [file])
    expect(page.locator("article.user .thumb img")).to_have_count(1)
    ask(page, "and?")
    assert bodies[0]["messages"][0]["content"][0]["image_url"]["url"] == good


def test_images_of_a_conversation_file_belong_to_its_messages(seeing):
    page, bodies = seeing, answers(seeing, "a picture")
    url = "data:image/png;base64," + base64.b64encode(png(2, 2)).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "Red."}]
    found = {"current": 0, "state": False, "branches": [{"messages": messages, "settings": {}}]}
    page.route("**/v1/conversation-files/read", lambda route: route.fulfill(json=found))
    page.set_input_files("#import-file", {"name": "a.rwkvchat", "mimeType": "", "buffer": b"RWKVGPU3"})
    expect(page.locator("article.user .thumb img")).to_have_count(1)
    expect(page.locator("#title")).to_have_text("What is this?")
    ask(page, "And now?")
    assert bodies[0]["messages"][:2] == messages


def test_a_sound_is_attached_shown_stored_and_sent_if_the_model_takes_it(page):
    file = {"name": "speech.wav", "mimeType": "audio/wav", "buffer": wav(sound(1600))}
    page.set_input_files("#files", [file])
    expect(page.locator("#notice")).to_contain_text("speech.wav is audio, and this model reads text only")
    page.evaluate("state.props.modalities = { vision: true, audio: false }")
    page.set_input_files("#files", [file])
    expect(page.locator("#notice")).to_contain_text("speech.wav is audio, and this model takes no audio")
    page.evaluate("state.props.modalities = { vision: false, audio: true }")
    bodies = answers(page, "hello")
    page.set_input_files("#files", [file])
    expect(page.locator(".chip")).to_contain_text("speech.wav · audio")
    ask(page, "What is said?")
    [heard, text] = parts(bodies[0])
    assert heard == {"type": "audio_url", "audio_url": {"url": data_url("audio/wav", file["buffer"])}}
    assert text == {"type": "text", "text": "What is said?"}
    exported = {
        "nodes": page.evaluate("state.current.nodes"),
        "leaf": page.evaluate("state.current.leaf"),
        "title": "a",
    }
    page.reload()
    expect(page.locator("article.user audio")).to_have_attribute("title", "speech.wav")
    assert page.evaluate("document.querySelector('article.user audio').error") is None, "the policy allows it"
    chat = {"name": "chat.json", "mimeType": "application/json", "buffer": json.dumps(exported).encode()}
    page.set_input_files("#import-file", [chat])
    expect(page.locator("#title")).to_have_text("a")
    ask(page, "And now?")
    assert parts({"messages": bodies[-1]["messages"][:1]})[0] == heard
