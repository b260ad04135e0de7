"""Tests of the page when the server restarts, loads a model, or requires a key; and of its content policy."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.server.catalogue import ServedModel
from tests.browser.conftest import LAST, answers, ask, ask_without_end, chunk, events, load, text_of
from tests.server.serving import MODEL, serving

PIECES = r'\["(fox|owl)"(,\s*"(fox|owl)")*[^\]]*'  # a part of the endless answer: nothing is lost or repeated


class Process:
    """A server in a separate process, which can be killed and restarted on its port."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port: int = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", "--device", "cpu", "--drain", "0.5"]
        with self.path.open("w") as log:
            self.process = subprocess.Popen([*command, "--port", str(self.port)], stderr=log)
        end = time.monotonic() + 60
        while "serving on" not in (text := self.path.read_text()):
            assert time.monotonic() < end and self.process.poll() is None, text
            time.sleep(0.05)

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "log")
    yield process
    process.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_answer_continues_after_the_server_was_started_again(own_server, make_page, number):
    page = make_page(f"http://localhost:{own_server.port}/")
    expect(page.locator("#status")).to_have_text("Ready.")
    ask_without_end(page)
    own_server.end(number)
    expect(page.locator(f"{LAST} >> .hint")).to_have_text(re.compile("connection was lost|was interrupted"))
    before = text_of(page)
    own_server.start()
    page.wait_for_function(
        "length => document.querySelector('article.assistant .markdown').textContent.length > length",
        arg=len(before) + 5,
    )
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Send")
    assert text_of(page).startswith(before)
    assert page.locator("article.assistant").count() == 1
    assert re.fullmatch(PIECES, text_of(page))


def test_thoughts_that_a_restart_interrupts_stay_as_a_version_and_a_new_answer_begins(page):
    lost = "".join(events(chunk(reasoning_content="Let me think")).split("\n\n")[0]) + "\n\n"
    given: list[dict[str, object]] = [
        {"status": 200, "content_type": "text/event-stream", "body": lost, "headers": {"x-stream-id": "strm_gone"}},
        {"status": 200, "content_type": "text/event-stream", "body": events(chunk(content="the new answer"))},
    ]
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**given.pop(0)))
    ask(page, "think hard")
    expect(page.locator(LAST)).to_contain_text("the new answer")
    expect(page.locator(LAST)).to_contain_text("2/2")
    page.click(f"{LAST} >> [aria-label='Previous version']")
    expect(page.locator(f"{LAST} >> details.thought")).to_contain_text("Let me think")
    expect(page.locator(f"{LAST} >> .failed")).to_contain_text("interrupted")


def test_the_page_waits_for_a_server_that_shuts_down(page):
    given = [
        {"status": 503, "headers": {"Retry-After": "1"}, "json": {"error": {"message": "the server is shutting down"}}},
        {"status": 200, "content_type": "text/event-stream", "body": events(chunk(content="after all"))},
    ]
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**given.pop(0)))
    ask(page, "hello")
    expect(page.locator(LAST)).to_contain_text("after all")


def test_an_answer_that_is_stopped_before_it_has_a_name_is_stopped_when_it_gets_one(page):
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    ended: list[str] = []
    page.on("request", lambda request: ended.append(request.url) if request.method == "DELETE" else None)
    page.fill("#text", "hello")
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Stop")
    page.click("#send")
    expect(page.locator(LAST)).to_contain_text("Stopped.")
    with page.expect_request("**/v1/streams/strm_late"):
        held[0].fulfill(
            status=200, content_type="text/event-stream", headers={"x-stream-id": "strm_late"}, body=events()
        )
    assert [url.rpartition("/")[2] for url in ended] == ["strm_late"]


def test_deleting_a_conversation_while_it_is_answered_deletes_it(page):
    ask_without_end(page)
    page.click("[aria-label='Menu of Tell me about foxes']")
    page.click("dialog >> text=Delete")
    page.click("dialog >> text=Delete >> nth=-1")
    expect(page.locator("#list .entry")).to_have_count(0)
    page.wait_for_timeout(1500)  # an answer is stored each second
    page.reload()
    expect(page.locator("#status")).to_have_text("Ready.")
    expect(page.locator("#list .entry")).to_have_count(0)


@pytest.fixture
def slow_load() -> Iterator[tuple[Callable[..., object], threading.Event]]:
    """Delays the load of the second model until the test continues."""
    half = threading.Event()

    def loading(path: str, progress: Callable[[int, int], None]) -> object:
        if path == str(MODEL):
            progress(43, 100)
            half.wait(60)
        return load(path, lambda *_: None)

    yield loading, half
    half.set()


def test_a_model_is_picked_and_the_page_shows_how_far_it_is_loaded(slow_load, make_page):
    loading, half = slow_load
    models = ServedModel("builtin", str(builtin_model())), ServedModel("quiet", str(MODEL))
    with serving(*models, load=loading) as server:
        page = make_page(f"http://localhost:{server.port}/")
        expect(page.locator("#status")).to_have_text("Ready.")
        page.select_option("#model", "quiet")
        page.fill("#text", "hello")
        page.keyboard.press("Enter")
        expect(page.locator(f"{LAST} >> .hint")).to_have_text("Loading quiet: 43%")
        half.set()
        expect(page.locator("#send")).to_have_text("Send")
        page.close()


def test_the_page_requests_a_key_once_and_keeps_it_in_the_tab(make_page):
    with serving(ServedModel("builtin", str(builtin_model())), load=load, api_keys=("secret-key",)) as server:
        page = make_page(f"http://localhost:{server.port}/")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.fill("dialog input[type=password]", "wrong-key")
        page.click("dialog button.primary")
        page.fill("dialog input[type=password]", "secret-key")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text("Ready.")
        page.click("#panel-button")
        expect(page.locator("#panel")).to_contain_text("cpu")
        page.reload()
        expect(page.locator("#status")).to_have_text("Ready.")
        answers(page, "let in")
        ask(page, "hello")
        assert page.evaluate("sessionStorage.getItem('key')") == "secret-key"
        assert page.evaluate("JSON.stringify(localStorage) + document.cookie").find("secret-key") < 0
        assert not [url for url in asked if "secret-key" in url]
        other = make_page(f"http://localhost:{server.port}/")
        expect(other.locator("dialog input[type=password]")).to_be_visible()
        page.close()
        other.close()


@pytest.mark.parametrize(
    "breach",
    [
        "document.body.setAttribute('style', 'color: red')",
        "document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'}))",
        "fetch('https://example.org/').catch(() => {})",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))",
    ],
)
def test_a_violation_of_the_policy_is_noticed(page, wrong, breach):
    page.evaluate(f"() => {{ {breach}; }}")
    page.wait_for_timeout(200)
    assert wrong
    wrong.clear()
