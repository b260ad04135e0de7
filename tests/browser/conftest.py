"""The page in Debian's Chromium, against a real server with the built-in model; answers are canned where a test needs them."""

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.server.catalogue import ServedModel
from tests.server.serving import Served, serving

PATIENCE = 30_000  # milliseconds, for a slow machine
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def load(path: str, progress: Any) -> rwkv_gpu.LLM:
    return rwkv_gpu.load(path, device="cpu", sequences=4, progress=progress)


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(ServedModel("builtin", str(builtin_model())), load=load) as served:
        yield served


@pytest.fixture
def make_page(browser: Browser, server: Served) -> Iterator[Callable[..., Page]]:
    """Opens pages of one browser profile; a violation of the policy or an error in the script fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 760}, base_url=f"http://localhost:{server.port}")
    context.set_default_timeout(PATIENCE)
    wrong: list[str] = []

    def make(path: str = "/", *, width: int = 1100, before: Callable[[Page], None] | None = None) -> Page:
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 760})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console", lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None
        )
        if before:
            before(page)
        page.goto(path)
        return page

    yield make
    context.close()
    assert not wrong


@pytest.fixture
def page(make_page: Callable[..., Page]) -> Page:
    page = make_page()
    expect(page.locator("#status")).to_have_text("Ready.")
    return page


def chunk(**delta: object) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
    }


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}},
}


def events(*chunks: dict[str, Any], finish: str = "stop") -> str:
    """An answer as the server streams it."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    lines = [f"data: {json.dumps(one)}\n\n" for one in (*chunks, last, USAGE)]
    return "".join([*lines, "data: [DONE]\n\n"])


def answers(page: Page, *texts: str, **more: Any) -> list[dict[str, Any]]:
    """Has the server answer with these texts, in turn and the last for ever; gives the bodies of the requests as they come."""
    bodies: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        text = texts[min(len(bodies), len(texts)) - 1]
        route.fulfill(status=200, content_type="text/event-stream", body=events(chunk(content=text), **more))

    page.route("**/v1/chat/completions", answer)
    return bodies


def ask(page: Page, text: str) -> None:
    """Sends a message and waits for the end of its answer."""
    before = page.locator("article.assistant").count()
    page.fill("#text", text)
    page.keyboard.press("Enter")
    expect(page.locator("article.assistant")).to_have_count(before + 1)
    expect(page.locator("#send")).to_have_text("Send")
