"""The exported chat page in Chromium: a small model answers, with only a server of static files."""

import functools
import http.server
import json
import re
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from rwkv_gpu.export.page import export_single_file, export_web
from rwkv_gpu.gguf.file import GGUFFile
from tests.export.browser import FLAGS, PATIENCE, PROGRAM, decode_only, needs_chromium
from tests.golden_files import golden
from tests.process import until

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.long, needs_chromium]
MODEL = "quiet-rwkv7.gguf"
WAIT = PATIENCE * 1000  # milliseconds
SOME = re.compile(".{4}", re.DOTALL)
EXAMPLE = Path(__file__).resolve().parents[2] / "packaging" / "npm" / "example.html"


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Writes no log."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Exports a model whose prompts take steps of one token, because the other plans take most of the compile time."""
    folder = tmp_path_factory.mktemp("site")
    with GGUFFile.open(golden(MODEL)) as file:
        manifest = export_web(file, folder, "0" * 64)
    (folder / "model.json").write_text(json.dumps(decode_only(manifest)))
    shutil.copy(EXAMPLE, folder)
    return folder


@pytest.fixture(scope="module")
def site(folder):
    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """Opens a browser with persistent storage."""
    with playwright.sync_playwright() as started:
        flags = [flag for flag in FLAGS if not flag.startswith("--headless")]
        context = started.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=PROGRAM, args=flags, ignore_default_args=False
        )
        context.set_default_timeout(WAIT)
        yield context
        context.close()


@pytest.fixture
def page(context):
    """Opens a page. Errors and policy violations on it fail the test."""
    wrong: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Security Policy" in message.text else None)
    yield page
    page.close()
    assert not wrong


def expect(place):
    return playwright.expect(place)


def ready(page) -> None:
    expect(page.locator("#status")).to_have_text("Ready.", timeout=WAIT)


def ask(page, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def use(page) -> None:
    """Sends messages, regenerates, edits, goes back, stops, saves, and starts again."""
    page.click("#settings-button")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "6")
    ask(page, "<b>Hi</b>")
    ready(page)
    answer = page.locator("article.assistant pre").last.text_content()
    assert answer
    assert page.locator("article.user pre").first.text_content() == "<b>Hi</b>"
    page.get_by_role("button", name="Regenerate").click()
    ready(page)
    assert page.locator("article.assistant pre").last.text_content() == answer
    expect(page.locator("nav")).to_contain_text("2 of 2")
    page.get_by_role("button", name="Edit").click()
    page.fill("article textarea", "Another")
    page.get_by_role("button", name="Ask").click()
    ready(page)
    expect(page.locator("nav")).to_contain_text("3 of 3")
    page.get_by_role("button", name="Next branch").click()
    ready(page)
    expect(page.locator("article.user pre")).to_have_text("<b>Hi</b>")
    page.fill("[name=max_tokens]", "5000")
    ask(page, "A long one")
    expect(page.locator("article.assistant")).to_have_count(2, timeout=WAIT)
    expect(page.locator("article.assistant pre").last).to_have_text(SOME, timeout=WAIT)
    page.click("#send")
    ready(page)
    assert page.locator("article").count() == 4


def test_a_page_from_a_server_is_used_and_opens_again_without_it(site, page, context, tmp_path):
    page.goto(site)
    ready(page)
    use(page)
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "talk.rwkvchat")
    page.click("#link")
    expect(page.locator("#status")).to_contain_text("address of this page", timeout=WAIT)
    link = page.url
    page.click("#new")
    ready(page)
    assert page.locator("article").count() == 0
    page.set_input_files("#file", tmp_path / "talk.rwkvchat")
    expect(page.locator("article")).to_have_count(4, timeout=WAIT)
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    context.set_offline(True)
    page.goto(link)
    page.reload()
    ready(page)
    assert page.locator("article").count() == 4
    ask(page, "More")
    ready(page)
    page.goto(site + "#chat=AAAA")
    page.reload()
    expect(page.locator("#status")).to_have_text("The link holds no conversation of rwkv-gpu.", timeout=WAIT)
    context.set_offline(False)


class StallingHandler(Handler):
    """Serves one shard only after `go`, and counts requests."""

    requests: Counter[str]
    stalled: str
    go: threading.Event

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.requests[name] += 1
        if name == self.stalled:
            assert self.go.wait(PATIENCE)
        super().do_GET()


def test_a_reload_and_a_second_tab_download_no_shard_again(page, context, tmp_path, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.export.files.SHARD", 30_000)
    with GGUFFile.open(golden(MODEL)) as file:
        names = [one["file"] for one in export_web(file, tmp_path, "0" * 64)["shards"]]
    assert len(names) > 3
    state = {"requests": Counter(), "stalled": names[2], "go": threading.Event()}
    handler = functools.partial(type("Stalling", (StallingHandler,), state), directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        page.goto(url)
        until(lambda: state["requests"][names[2]] == 1)
        page.reload()
        until(lambda: state["requests"][names[2]] == 2)
        tab = context.new_page()
        tab.goto(url)
        expect(tab.locator("#status")).to_contain_text("Loading: ", timeout=WAIT)
        state["go"].set()
        until(lambda: state["requests"][names[-1]] == 1)
        expect(tab.locator("#status")).to_contain_text("Loading: 100 %", timeout=WAIT)
        tab.close()
        server.shutdown()
    assert [state["requests"][name] for name in names] == [1, 1, 2, *[1] * (len(names) - 3)]


def test_a_page_of_one_file_opens_from_the_disk(page, tmp_path, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.export.plans.PREFILL", ())
    with GGUFFile.open(golden(MODEL)) as file:
        export_single_file(file, tmp_path / "chat.html", "0" * 64)
    page.goto((tmp_path / "chat.html").as_uri())
    ready(page)
    use(page)


def test_the_example_of_the_library_answers(site, page):
    page.goto(f"{site}example.html")
    expect(page.locator("#status")).to_have_text("Ready", timeout=WAIT)
    page.fill("#question", "Hi")
    page.click("text=Ask")
    expect(page.locator("#answer")).to_have_text(SOME, timeout=WAIT)
    page.click("#stop")
