"""The exported chat page in Chromium: a small model answers, with only a server of static files."""

import functools
import http.server
import json
import os
import re
import shutil
import signal
import threading
from collections import Counter
from contextlib import suppress
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
def profile(tmp_path_factory):
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def context(profile):
    """Opens a browser with persistent storage."""
    with playwright.sync_playwright() as started:
        flags = [flag for flag in FLAGS if not flag.startswith("--headless")]
        context = started.chromium.launch_persistent_context(
            profile, executable_path=PROGRAM, args=flags, ignore_default_args=False
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
    """Sends a message, and waits until it is answered."""
    page.fill("#text", text)
    page.press("#text", "Enter")
    done(page)


def done(page) -> None:
    """Waits until the answer ends that the last click or key has requested."""
    expect(page.locator("#send")).to_have_text("Send", timeout=WAIT)


def texts(page, role: str) -> list[str]:
    return page.locator(f"article.{role} .body").all_text_contents()


def set_up(page, **settings: str) -> None:
    page.click("#settings-button")
    for name, value in settings.items():
        page.fill(f"dialog [name={name}]", value)
    page.click("dialog button.primary")


def menu(page, entry: str) -> None:
    page.locator("#list .entry.current button.quiet").click()
    page.get_by_role("button", name=entry).click()


def use(page) -> None:
    """Sends messages, regenerates, edits, continues, goes back to another version, and stops."""
    set_up(page, temperature="0", max_tokens="6")
    ask(page, "<b>Hi</b>")
    [answer] = texts(page, "assistant")
    assert answer
    assert texts(page, "user") == ["<b>Hi</b>"]
    expect(page.locator("article.assistant .hint")).to_have_text("The answer was cut off at its limit of tokens.")
    page.get_by_role("button", name="Regenerate").click()
    done(page)
    assert texts(page, "assistant") == [answer]
    expect(page.locator("article.assistant .bar")).to_contain_text("2/2")
    expect(page.locator("article.assistant .bar")).to_contain_text("prompt tokens reused")
    page.get_by_role("button", name="Continue").click()
    done(page)
    assert len(texts(page, "assistant")[0]) > len(answer)
    page.locator("article.user").get_by_role("button", name="Edit").click()
    page.fill("article textarea", "**Another**")
    page.get_by_role("button", name="Send again").click()
    done(page)
    expect(page.locator("article.user .bar")).to_contain_text("2/2")
    page.locator("article.user").get_by_role("button", name="Previous version").click()
    expect(page.locator("article.user .body")).to_have_text("<b>Hi</b>")
    set_up(page, max_tokens="5000")
    page.fill("#text", "A long one")
    page.press("#text", "Enter")
    expect(page.locator("article.assistant .markdown").last).to_have_text(SOME, timeout=WAIT)
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Send", timeout=WAIT)
    expect(page.locator("article.assistant .hint").last).to_have_text("Stopped.")
    assert page.locator("article").count() == 4


def test_a_page_from_a_server_is_used_and_opens_again_without_it(site, page, context, tmp_path):
    page.goto(site)
    ready(page)
    use(page)
    with page.expect_download() as download:
        menu(page, "Export as conversation file")
    download.value.save_as(tmp_path / "talk.rwkvchat")
    menu(page, "Show as a link")
    link = page.input_value("dialog input")
    page.get_by_role("button", name="Close", exact=True).click()
    shown = texts(page, "user"), texts(page, "assistant")
    page.set_input_files("#import-file", tmp_path / "talk.rwkvchat")
    expect(page.locator("#list .entry")).to_have_count(2, timeout=WAIT)
    expect(page.locator("article")).to_have_count(4)
    assert texts(page, "user") == shown[0]
    expect(page.locator("article.user .bar").first).to_contain_text("/2")  # both branches
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    context.set_offline(True)
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#list .entry")).to_have_count(3, timeout=WAIT)
    assert texts(page, "user") == shown[0]
    set_up(page, max_tokens="6")
    ask(page, "More")
    assert len(texts(page, "assistant")) == 3
    page.goto("about:blank")
    page.goto(site + "#chat=AAAA")
    expect(page.locator("#notice")).to_contain_text("The link contains no conversation of rwkv-gpu.", timeout=WAIT)
    context.set_offline(False)


def test_the_page_has_no_controls_that_need_a_server(site, page):
    page.goto(site)
    ready(page)
    for name in ("Models", "Server", "Titles: model", "Take a picture"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.click("#settings-button")
    names = [one.get_attribute("name") for one in page.locator("dialog [name]").all()]
    assert [one for one in names if one != "preset"] == [
        "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "documents",
    ]  # fmt: skip
    page.keyboard.press("Escape")
    files = [
        ("a.pdf", "application/pdf", b"%PDF-1.7"),
        ("a.png", "image/png", b"\x89PNG"),
        ("a.txt", "text/plain", b"A"),
    ]
    for name, kind, data in files:
        page.set_input_files("#files", {"name": name, "mimeType": kind, "buffer": data})
        if name != "a.txt":
            expect(page.locator("#notice")).to_contain_text("needs a server" if name == "a.pdf" else "reads text only")
    expect(page.locator(".chip")).to_have_text(re.compile("a.txt"))


def test_an_answer_whose_page_is_loaded_again_is_continued(site, page):
    page.goto(site)
    ready(page)
    set_up(page, temperature="0", max_tokens="400")
    page.fill("#text", "Hello")
    page.press("#text", "Enter")
    expect(page.locator("article.assistant .markdown")).to_have_text(SOME, timeout=WAIT)
    stored = "Object.values(one.nodes).some((node) => node.content.length > 4 && node.stream)"
    until(lambda: page.evaluate(f"store.all().then(([one]) => {stored})"))
    page.reload()
    before = page.locator("article.assistant .markdown").text_content()
    assert before
    expect(page.locator("#send")).to_have_text("Stop", timeout=WAIT)
    expect(page.locator("article.assistant .markdown")).not_to_have_text(before, timeout=WAIT)
    assert page.locator("article.assistant .markdown").text_content().startswith(before[:4])
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Send", timeout=WAIT)


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
        expect(tab.locator("#status")).to_contain_text("Loading the model: ", timeout=WAIT)
        state["go"].set()
        until(lambda: state["requests"][names[-1]] == 1)
        expect(tab.locator("#status")).to_have_text("Compiling the model", timeout=WAIT)
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


def kill_gpu_process(profile: Path) -> None:
    """Kills the process of the browser with this profile that runs WebGPU."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            command = path.read_bytes()
            if b"--type=gpu-process" in command and bytes(profile) in command:
                os.kill(int(path.parent.name), signal.SIGKILL)


def test_after_a_crash_of_the_gpu_process_the_next_answer_loads_the_model_again(site, page, profile):
    page.goto(site)
    ready(page)
    set_up(page, temperature="0", max_tokens="60")
    page.fill("#text", "Hello")
    page.press("#text", "Enter")
    expect(page.locator("article.assistant .markdown")).to_have_text(SOME, timeout=WAIT)
    kill_gpu_process(profile)
    expect(page.locator("article.assistant .failed")).to_contain_text("The browser lost the GPU", timeout=WAIT)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("article.assistant .markdown")).to_have_text(SOME, timeout=WAIT)
    done(page)
    expect(page.locator("article.assistant .failed")).to_be_hidden()
