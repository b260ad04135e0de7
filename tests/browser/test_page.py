"""Tests of the page in typical use."""

import json
import re
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.conftest import LAST, answers, ask, ask_without_end, chunk, events, text_of


def test_a_question_is_answered_by_the_model_and_the_answer_has_its_figures(page):
    ask(page, "How do I resume a chat?")
    assert "--session" in text_of(page)
    expect(page.locator(LAST)).to_contain_text("tokens/s")
    expect(page.locator("#context")).to_contain_text("tokens of context")
    ask(page, "thank you")
    expect(page.locator(LAST)).to_contain_text(re.compile(r"[1-9]\d* of \d+ prompt tokens reused"))


def test_streamed_text_stays_in_place_while_more_arrives(page):
    """Only the last block of a streamed answer is drawn again, so nothing flickers."""
    page.evaluate("""async () => {
        const conversation = newConversation();
        const parent = addNode(conversation, null, "user", "go");
        const node = addNode(conversation, parent.id, "assistant", "", { thinking: "" });
        state.current = conversation;
        drawConversation();
        const view = views.get(node.id);
        const more = async (text) => {
            node.content += text;
            view.stream(node);
            await new Promise((resolve) => setTimeout(resolve, 100));
        };
        await more("# Title\\n\\nfirst *block*\\n\\n|a|b|\\n|-|-|\\n|1|2|\\n\\nlast");
        window.removed = [];
        new MutationObserver((changes) => changes.forEach((change) => change.removedNodes.forEach((one) => removed.push(one.textContent))))
            .observe(document.querySelector("article.assistant .markdown"), { childList: true });
        for (const text of [" words", " of", " it\\n\\n", "another"]) await more(text);
    }""")
    expect(page.locator(LAST)).to_contain_text("another")
    removed = page.evaluate("removed")
    assert removed and all(text.startswith("last") for text in removed)


def test_a_system_message_and_settings_belong_to_one_conversation(page):
    bodies = answers(page, "ok")
    page.click("#settings-button")
    page.fill("dialog textarea >> nth=0", "Be brief.")
    page.fill("input[name=temperature]", "0.5")
    page.click("dialog button.primary")
    ask(page, "the first")
    page.click("#new")
    ask(page, "the second")
    page.click("#list .entry >> text=the first")
    expect(page.locator("article.user")).to_contain_text("the first")  # it is read from the browser's database
    ask(page, "the first again")
    assert [body["messages"][0]["role"] for body in bodies] == ["system", "user", "system"]
    assert [body.get("temperature") for body in bodies] == [0.5, None, 0.5]


def test_a_reload_keeps_the_conversation_and_its_address(page):
    answers(page, "First *answer*")
    ask(page, "Hello there")
    page.reload()
    expect(page.locator("article")).to_have_count(2)
    expect(page.locator("article em")).to_have_text("answer")
    expect(page.locator("#list .entry.current")).to_contain_text("Hello there")


def test_markdown_becomes_elements(page):
    answers(page, """# Title

A **bold** and *slanted* ~~gone~~ `code` [link](https://example.org/a_(b)) with $x^2$ and \\(\\frac{a}{b}\\), 5$ and 6$.

- one
  1. inner
  2. second
- [x] done

> quoted

| a | b |
|---|--:|
| 1 | `x|y` |

```python
def f(x):  # comment
    return "text"
```

$$\\sum_{i=1}^n \\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}$$
""")  # fmt: skip
    ask(page, "markdown")
    body = page.locator(LAST)
    for selector, count in {
        "h1": 1, "strong": 1, "em": 1, "del": 1, "p code": 1, "ul > li > ol > li": 2, "li.task input[checked]": 1,
        "blockquote": 1, "td": 2, "pre .k": 2, "pre .c": 1, "pre .s": 1, "p math": 2, "div.math munderover": 1, "mtr": 2,
    }.items():  # fmt: skip
        assert body.locator(selector).count() == count, selector
    assert body.locator("a").get_attribute("href") == "https://example.org/a_(b)"
    assert body.locator("a").get_attribute("rel").startswith("noopener")
    assert body.locator("td >> nth=1").get_attribute("align") == "right"
    families = body.locator("math >> nth=0").evaluate("node => getComputedStyle(node).fontFamily")
    assert "Math" in families  # otherwise a sum is as small as a letter, and its limits touch it


XSS = [
    "<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>", "<svg onload=window.hacked=1>",
    "<iframe src='javascript:parent.hacked=1'></iframe>", "[a](javascript:window.hacked=1)", "[a](JaVaScRiPt:hacked=1)",
    "[a](  javascript:hacked=1)", "[a](java\tscript:hacked=1)", "[a](data:text/html,<script>hacked=1</script>)",
    "[a](vbscript:x)", "![x](javascript:hacked=1)", "![x](https://evil.example/x.png)", "<https://a.example/\"onclick=hacked=1>",
    "<javascript:hacked=1>", "[a](https://x.example/\"onmouseover=\"hacked=1)", "`<script>hacked=1</script>`",
    "```html\n<script>hacked=1</script>\n```", "```\"onload=hacked=1\nx\n```", "```<img src=x onerror=hacked=1>\nx\n```",
    "| <img src=x onerror=hacked=1> |\n|---|\n| <script>hacked=1</script> |", "# <img src=x onerror=hacked=1>",
    "> <img src=x onerror=hacked=1>", "- <img src=x onerror=hacked=1>", "**<img src=x onerror=hacked=1>**",
    "$<img src=x onerror=hacked=1>$", "$$\\text{<img src=x onerror=hacked=1>}$$", "$\\href{javascript:hacked=1}{x}$",
    "\\(<script>hacked=1</script>\\)", "<style>body{display:none}</style>", "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>", "<form action=//evil.example><button>go</button></form>",
    "<a href=javascript:hacked=1>x</a>", "<object data=javascript:hacked=1>", "<embed src=javascript:hacked=1>",
    "<link rel=stylesheet href=//evil.example/x.css>", "<video><source onerror=hacked=1></video>", "<math><mtext><script>hacked=1</script>",
    "</article></main><script>hacked=1</script>", "&lt;script&gt;hacked=1&lt;/script&gt;", "&#60;img src=x onerror=hacked=1&#62;",
    "[![a](javascript:hacked=1)](javascript:hacked=1)", "http://a.example/<script>hacked=1</script>", "\u0000<script>hacked=1</script>",
]  # fmt: skip


def test_an_answer_with_html_stays_text(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    answers(page, *XSS)
    for number in range(len(XSS)):
        ask(page, f"number {number}")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    body = page.locator("#messages")
    assert body.locator("script, img, iframe, object, embed, style, base, meta, form, link, video, svg").count() == 0
    links = body.locator("a").evaluate_all("links => links.map(a => [a.href, a.rel])")
    assert all(re.match("https?://", href) and "noopener" in rel for href, rel in links)
    assert all(url.startswith((page.evaluate("location.origin"), "blob:")) for url in asked)


def test_thoughts_are_folded_and_timed_and_tools_are_shown(page):
    call = {"index": 0, "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    body = events(chunk(reasoning_content="Let me *think*."), chunk(content="Done."), chunk(tool_calls=[call]))
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body)
    )
    ask(page, "think")
    thought = page.locator("details.thought")
    expect(thought.locator("summary")).to_have_text(re.compile(r"Thought for \d+ s"))
    assert thought.get_attribute("open") is None
    thought.locator("summary").click()
    expect(thought.locator("em")).to_be_visible()
    expect(page.locator("details.tool")).to_contain_text("weather")
    expect(page.locator("details.tool pre")).to_have_text('{"city": "Rome"}')
    page.click("details.tool summary")
    expect(page.locator("details.tool pre")).to_be_hidden()


def becomes_idle(server):
    """True if the server becomes idle within a few seconds. An unread stream would run far longer."""
    end = time.monotonic() + 20
    while server.engine.busy and time.monotonic() < end:
        time.sleep(0.05)
    return not server.engine.busy


def test_an_answer_can_be_stopped_and_the_request_ends_on_the_server(page, server):
    ask_without_end(page)
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator(LAST)).to_contain_text("Stopped.")
    assert becomes_idle(server)


def test_a_reload_in_the_middle_of_an_answer_continues_where_it_was(page, server):
    ask_without_end(page)
    before = text_of(page)
    page.reload()
    expect(page.locator("#send")).to_have_text("Stop")
    expect(page.locator(f"{LAST} >> .markdown >> nth=0")).to_contain_text(before)
    page.wait_for_function(
        "length => document.querySelector('article.assistant .markdown').textContent.length > length",
        arg=len(before) + 20,
    )
    page.keyboard.press("Escape")
    expect(page.locator("#send")).to_have_text("Send")
    assert re.fullmatch(r'\["(fox|owl)"(,\s*"(fox|owl)")*[^\]]*', text_of(page)), "no token is lost or comes twice"
    assert becomes_idle(server)


def test_a_reload_right_after_the_end_of_an_answer_finds_it(page):
    answers(page, "the whole answer")
    page.fill("#text", "Hello there")
    # The page is left as soon as the answer counts as ended, before anything else can run.
    page.evaluate("""() => new MutationObserver(() => {
        if (document.getElementById("send").textContent === "Send") location.reload();
    }).observe(document.getElementById("send"), { childList: true })""")
    with page.expect_navigation(wait_until="load"):
        page.keyboard.press("Enter")
    expect(page.locator(LAST)).to_contain_text("the whole answer")
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator(LAST)).to_contain_text("tokens")


def test_a_second_tab_takes_over_an_answer_when_the_first_is_closed(make_page):
    first = make_page()
    expect(first.locator("#status")).to_have_text("Ready.")
    ask_without_end(first)
    second = make_page(f"/{first.evaluate('location.hash')}")
    expect(second.locator("article")).to_have_count(2)
    expect(second.locator("#send")).to_have_text("Send")  # it only shows the answer
    first.close()
    expect(second.locator("#send")).to_have_text("Stop")
    expect(second.locator(f"{LAST} >> .markdown >> nth=0")).to_contain_text(re.compile("fox|owl"))
    second.click("#send")
    expect(second.locator("#send")).to_have_text("Send")
    assert re.fullmatch(r'\["(fox|owl)("(,\s*"(fox|owl)")*[^\]]*)?', text_of(second))


def test_regenerate_and_edit_keep_the_versions_of_answers_and_questions(page):
    bodies = answers(page, "one", "two", "three")
    ask(page, "first question")
    page.click(f"{LAST} >> text=Regenerate")
    expect(page.locator(LAST)).to_contain_text("two")
    expect(page.locator(LAST)).to_contain_text("2/2")
    page.click(f"{LAST} >> [aria-label='Previous version']")
    expect(page.locator(LAST)).to_contain_text("one")
    page.click("article.user >> text=Edit")
    page.fill("article textarea", "another question")
    page.click("text=Send again")
    expect(page.locator(LAST)).to_contain_text("three")
    expect(page.locator("article.user")).to_contain_text("2/2")
    assert [body["messages"][-1]["content"] for body in bodies] == ["first question"] * 2 + ["another question"]
    page.click("article.user >> [aria-label='Previous version']")
    expect(page.locator(LAST)).to_contain_text("two")  # the newest answer to that question


def test_an_answer_can_be_edited_and_continued(page):
    bodies = answers(page, "It is", " blue.")
    ask(page, "What colour is the sky?")
    page.click(f"{LAST} >> text=Edit")
    page.fill("article textarea", "The sky was")
    page.click("article >> text=Cancel")
    expect(page.locator(LAST)).to_contain_text("It is")
    page.click(f"{LAST} >> text=Edit")
    page.fill("article textarea", "The sky is")
    page.click("article >> text=Save")
    page.click(f"{LAST} >> text=Continue")
    expect(page.locator(LAST)).to_contain_text("The sky is blue.")
    assert bodies[1]["messages"][-1] == {"role": "assistant", "content": "The sky is"}
    assert bodies[1]["continue_final_message"] is True


def test_a_message_is_deleted_with_the_messages_after_it(page):
    answers(page, "one", "two")
    ask(page, "first")
    ask(page, "second")
    page.click("article.user >> nth=0 >> text=Delete")
    page.click("dialog >> text=Delete >> nth=-1")
    expect(page.locator("article")).to_have_count(0)


def test_settings_reach_the_request_and_a_schema_is_checked(page):
    bodies = answers(page, "{}")
    page.click("#settings-button")
    page.fill("dialog textarea >> nth=0", "Be brief.")
    page.fill("input[name=temperature]", "0.5")
    page.fill("dialog textarea >> nth=1", "{oops")
    page.click("dialog button.primary")
    expect(page.locator("dialog .failed")).to_contain_text("cannot be read")
    page.fill("dialog textarea >> nth=1", '{"type": "object"}')
    page.click("dialog button.primary")
    ask(page, "go")
    [body] = bodies
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["temperature"] == 0.5
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_documents_without_text_are_refused_by_name(page):
    documents = [
        ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "an old office document"),
        ("letter.docx", b"PK\x03\x04 and so on", "an archive or an office document"),
        ("note.rtf", rb"{\rtf1\ansi plain}", "an RTF document"),
    ]
    for name, content, kind in documents:
        page.set_input_files("#files", {"name": name, "mimeType": "text/plain", "buffer": content})
        expect(page.locator("#notice")).to_contain_text(f"{name} is {kind}")
    expect(page.locator(".chip")).to_have_count(0)
    page.set_input_files(
        "#files", {"name": "about.txt", "mimeType": "text/plain", "buffer": b"A file of %PDF- begins so."}
    )
    expect(page.locator(".chip")).to_contain_text("about.txt")


def test_files_and_long_pastes_are_attached(page):
    bodies = answers(page, "ok")
    page.set_input_files("#files", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"line ``` with ticks"})
    expect(page.locator(".chip")).to_contain_text("a.txt")
    page.set_input_files("#files", {"name": "b.bin", "mimeType": "application/octet-stream", "buffer": b"\0\1"})
    expect(page.locator("#notice")).to_contain_text("not a text file")
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.setData("text/plain", "word ".repeat(1000));
        document.getElementById("text").dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
    }""")
    expect(page.locator(".chip")).to_have_count(2)
    ask(page, "read this")
    content = bodies[0]["messages"][0]["content"]
    assert content.startswith("a.txt:\n````\nline ``` with ticks\n````\n") and content.endswith("read this")
    assert "word word" in content


def test_conversations_are_listed_searched_renamed_pinned_exported_and_deleted(page, tmp_path):
    answers(page, "the answer")
    ask(page, "about apples")
    page.click("#new")
    ask(page, "about pears")
    expect(page.locator("#list .entry")).to_have_count(2)
    page.keyboard.press("Control+k")
    page.keyboard.type("apples")
    expect(page.locator("#list .entry")).to_have_count(1)
    page.fill("#search", "")
    page.click("[aria-label='Menu of about apples']")
    page.click("text=Rename")
    page.fill("dialog input", "Fruit")
    page.keyboard.press("Enter")
    page.click("[aria-label='Menu of Fruit']")
    page.click("text=Pin")
    expect(page.locator("#list .entry >> nth=0")).to_contain_text("Fruit")
    with page.expect_download() as download:
        page.click("#export-all")
    data = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert {one["title"] for one in data["conversations"]} == {"Fruit", "about pears"}
    page.click("[aria-label='Menu of Fruit']")
    page.click("dialog >> text=Delete")
    page.click("dialog >> text=Delete >> nth=-1")
    expect(page.locator("#list .entry")).to_have_count(1)
    (tmp_path / "all.json").write_text(json.dumps(data))
    page.set_input_files("#import-file", str(tmp_path / "all.json"))
    expect(page.locator("#list .entry")).to_have_count(3)
    (tmp_path / "bad.json").write_text('{"nodes": 5}')
    page.set_input_files("#import-file", str(tmp_path / "bad.json"))
    expect(page.locator("#notice")).to_contain_text("cannot be imported")


def test_two_tabs_see_the_same_conversations(make_page):
    first = make_page()
    expect(first.locator("#status")).to_have_text("Ready.")
    answers(first, "said in the first tab")
    ask(first, "hello")
    second = make_page(f"/{first.evaluate('location.hash')}")
    expect(second.locator("article")).to_have_count(2)
    ask(first, "more")
    expect(second.locator("article")).to_have_count(4)


def test_the_page_waits_for_a_busy_server_and_shows_a_refusal(page):
    busy = {"status": 429, "headers": {"Retry-After": "1"}, "json": {"error": {"message": "the queue is full"}}}
    refused = {"status": 400, "json": {"error": {"message": "temperature is 9; it must be at most 5"}}}
    given = [
        busy,
        {"status": 200, "content_type": "text/event-stream", "body": events(chunk(content="at last"))},
        refused,
    ]
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**given.pop(0)))
    ask(page, "first")
    expect(page.locator(LAST)).to_contain_text("at last")
    ask(page, "second")
    expect(page.locator(f"{LAST} >> .failed")).to_have_text("temperature is 9; it must be at most 5")


def test_a_lost_server_is_reported(page):
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "hello")
    expect(page.locator(f"{LAST} >> .failed")).to_contain_text("cannot be reached")
    page.unroute("**/v1/chat/completions")
    answers(page, "back")
    page.click(f"{LAST} >> text=Regenerate")
    expect(page.locator(LAST)).to_contain_text("back")


def test_the_keyboard_alone_is_enough(page):
    answers(page, "one", "two")
    page.keyboard.type("by keys")
    page.keyboard.press("Enter")
    expect(page.locator(LAST)).to_contain_text("one")
    page.focus("#text")
    page.keyboard.press("ArrowUp")
    expect(page.locator("article textarea")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("changed")
    page.keyboard.press("Control+Enter")
    expect(page.locator(LAST)).to_contain_text("two")
    page.keyboard.press("Control+k")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "by keys"


@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_fits_a_phone_screen_and_the_list_opens(make_page, width):
    page = make_page(width=width)
    expect(page.locator("#status")).to_have_text("Ready.")
    answers(
        page,
        "| "
        + " | ".join("wide cell" for _ in range(12))
        + " |\n"
        + "|---" * 12
        + "|\n\n```\n"
        + "x" * 300
        + "\n```\n\n"
        + "y" * 400,
    )
    ask(page, "wide")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width == 360:
        page.click("#open-sidebar")
        expect(page.locator("#new")).to_be_visible()
        page.click("#close-sidebar")
        expect(page.locator("#new")).not_to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, theme):
    page.emulate_media(color_scheme=theme)
    answers(page, "# Title\n\ntext with `code`\n\n```python\nx = 1  # one\n```\n\n- [ ] to do\n\n|a|b|\n|-|-|\n|1|2|")
    ask(page, "hello")
    page.click("#panel-button")
    for opened in (None, "#settings-button"):
        if opened:
            page.click(opened)
        found = Axe().run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
