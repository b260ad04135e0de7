"""Fixtures for the page in Debian's Chromium, against a real server with the built-in model."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.server.catalogue import ServedModel
from tests.server.serving import Served, serving

LAST = "article.assistant >> nth=-1"
# An answer that does not end within a test.
ENDLESS = '{"type": "array", "items": {"enum": ["fox", "owl"]}, "minItems": 3000}'
PATIENCE = 30_000  # milliseconds, for a slow machine
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with the last test of this folder: Playwright runs once in a process, and other folders start it as well."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--use-fake-device-for-media-stream"]
        )
        yield browser
        browser.close()


def load(path: str, progress: Any) -> rwkv_gpu.LLM:
    return rwkv_gpu.load(path, device="cpu", sequences=4, progress=progress)


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(ServedModel("builtin", str(builtin_model())), load=load) as served:
        yield served


@dataclass
class Controls:
    """All controls that any page has shown so far, and those that a test has used, by name."""

    seen: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


@pytest.fixture(scope="session")
def controls() -> Controls:
    return Controls()


@pytest.fixture
def base_url(server: Served) -> str:
    return f"http://localhost:{server.port}"


@pytest.fixture
def wrong() -> Iterator[list[str]]:
    """Violations of the policy, and errors in the script: they fail the test."""
    wrong: list[str] = []
    yield wrong
    assert not wrong


@pytest.fixture
def context(browser: Browser, base_url: str, controls: Controls, wrong: list[str]) -> Iterator[BrowserContext]:
    """A browser profile."""
    viewport = {"width": 1100, "height": 760}
    # Requests of a service worker would not pass the routes of tests.
    context = browser.new_context(viewport=viewport, base_url=base_url, service_workers="block")
    context.set_default_timeout(PATIENCE)
    context.add_init_script(path=Path(__file__).with_name("controls.js"))
    context.expose_function("reportViolation", lambda text: wrong.append(text))
    yield context
    for page in context.pages:
        seen, used = page.evaluate("[[...controls.seen], [...controls.used]]")
        controls.seen.update(seen)
        controls.used.update(used)
    context.close()


@pytest.fixture
def make_page(context: BrowserContext, wrong: list[str]) -> Callable[..., Page]:
    """Opens pages of one browser profile."""

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

    return make


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
    """Encodes an answer as the server streams it."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    lines = [f"data: {json.dumps(one)}\n\n" for one in (*chunks, last, USAGE)]
    return "".join([*lines, "data: [DONE]\n\n"])


def answers(page: Page, *texts: str, **more: Any) -> list[dict[str, Any]]:
    """Makes the server answer with these texts in turn, and the last one repeatedly. Yields the request bodies."""
    bodies: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        text = texts[min(len(bodies), len(texts)) - 1]
        route.fulfill(status=200, content_type="text/event-stream", body=events(chunk(content=text), **more))

    page.route("**/v1/chat/completions", answer)
    return bodies


def text_of(page: Page) -> str:
    """Returns the text of the last answer."""
    return page.locator(f"{LAST} >> .markdown >> nth=0").text_content() or ""


def ask_without_end(page: Page) -> None:
    """Requests an answer that does not end by itself, and waits until it has begun."""
    page.click("#settings-button")
    page.fill("dialog textarea >> nth=1", ENDLESS)
    page.click("dialog button.primary")
    page.fill("#text", "Tell me about foxes")
    page.keyboard.press("Enter")
    expect(page.locator(f"{LAST} >> .markdown >> nth=0")).to_contain_text(re.compile("fox|owl"))


def ask(page: Page, text: str) -> None:
    """Sends a message and waits for the end of its answer."""
    before = page.locator("article.assistant").count()
    page.fill("#text", text)
    page.keyboard.press("Enter")
    expect(page.locator("article.assistant")).to_have_count(before + 1)
    expect(page.locator("#send")).to_have_text("Send")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the test that checks that all controls were used to the end."""
    items.sort(key=lambda item: item.name == "test_every_control_is_used_by_a_test")
