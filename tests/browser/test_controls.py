"""Tests of every control of the page, of the keyboard alone, and of printing."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import LAST, answers, ask, ask_without_end

FIELDS = (
    "System message", "Temperature", "Top-p", "Top-k", "Min-p", "Repetition penalty", "Presence penalty",
    "Frequency penalty", "Maximum tokens", "Seed", "JSON schema", "Long documents",
)  # fmt: skip


def test_each_setting_is_explained_reset_and_sent(page):
    bodies = answers(page, "ok")
    page.click("#settings-button")
    values = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "max_tokens": 77, "seed": 5,
    }  # fmt: skip
    for name, value in values.items():
        page.fill(f"input[name={name}]", str(value))
        assert len(page.locator(f"label:has(input[name={name}]) small").inner_text()) > 20
    page.click("dialog button.primary")
    ask(page, "first")
    assert {name: bodies[0][name] for name in values} == values
    page.click("#settings-button")
    for name in FIELDS:
        page.click(f"[aria-label='Reset {name}']")
    page.click("dialog button.primary")
    ask(page, "second")
    assert not values.keys() & bodies[1].keys()
    page.click("#settings-button")
    page.fill("input[name=top_k]", "3")
    page.click("dialog >> text=Reset all")
    assert page.input_value("input[name=top_k]") == ""
    page.fill("input[name=top_k]", "3")
    page.click("dialog >> text=Cancel")
    ask(page, "third")
    assert "top_k" not in bodies[2]


def test_thinking_can_be_switched_if_the_model_supports_it(page):
    bodies = answers(page, "ok")
    page.evaluate("state.props.model.can_think = true")
    page.click("#settings-button")
    page.select_option("select[name=thinking]", "off")
    page.click("dialog button.primary")
    ask(page, "go")
    assert bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_code_and_messages_are_copied_and_code_wraps(context, page):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    answers(page, "Look:\n\n```python\nprint(1)\n```\n\nat [this](https://example.org/)")
    ask(page, "show code")
    clipboard = "navigator.clipboard.readText()"
    page.click(".block >> text=Copy")
    expect(page.locator(".block")).to_contain_text("Copied")
    assert page.evaluate(clipboard) == "print(1)"
    page.click(".block >> text=Wrap")
    expect(page.locator(".block pre")).to_have_css("white-space", "pre-wrap")
    page.click(f"{LAST} >> .bar >> text=Copy")
    expect(page.locator(f"{LAST} >> .bar")).to_contain_text("Copied")
    assert page.evaluate(clipboard).startswith("Look:")
    context.route("https://example.org/", lambda route: route.fulfill(body="a page"))
    with page.expect_popup() as popup:
        page.click(f"{LAST} >> text=this")
    assert popup.value.evaluate("window.opener") is None
    popup.value.close()


def test_files_are_dropped_and_removed(page):
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(["dropped text"], "dropped.txt", { type: "text/plain" }));
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }""")
    expect(page.locator(".chip")).to_contain_text("dropped.txt")
    page.click("[aria-label='Remove dropped.txt']")
    expect(page.locator(".chip")).to_have_count(0)
    with page.expect_file_chooser() as chooser:
        page.click("#attach")
    chooser.value.set_files({"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * (3 << 20)})
    expect(page.locator("#notice")).to_contain_text("at most")
    page.click("[aria-label='Close this notice']")
    expect(page.locator("#notice")).to_be_hidden()


def test_an_attachment_opens_in_the_chat(page):
    answers(page, "read")
    page.set_input_files("#files", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"the notes"})
    expect(page.locator(".chip")).to_contain_text("notes.txt")
    ask(page, "read it")
    page.click("details.file summary")
    expect(page.locator("details.file pre")).to_have_text("the notes")


def test_one_conversation_is_exported_and_imported(page, tmp_path):
    answers(page, "blue")
    ask(page, "the sky")
    texts = {}
    for kind in ("JSON", "Markdown", "conversation file"):
        page.click("[aria-label='Menu of the sky']")
        with page.expect_download() as download:
            page.click(f"text=Export as {kind}")
        texts[kind] = Path(download.value.path()).read_bytes()
    (tmp_path / "talk.rwkvchat").write_bytes(texts["conversation file"])
    texts = {kind: texts[kind].decode() for kind in ("JSON", "Markdown")}
    assert texts["Markdown"] == "# the sky\n\n**You**\n\nthe sky\n\n**Model**\n\nblue\n"
    (tmp_path / "one.json").write_text(texts["JSON"])
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files(tmp_path / "one.json")
    expect(page.locator("#list .entry")).to_have_count(2)
    expect(page.locator("article")).to_have_count(2)
    page.set_input_files("#import-file", tmp_path / "talk.rwkvchat")
    expect(page.locator("#list .entry")).to_have_count(3)
    assert page.evaluate("pathTo(state.current, state.current.leaf).map(one => one.content)") == ["the sky", "blue"]
    page.click("[aria-label='Menu of the sky'] >> nth=0")
    page.click("dialog >> text=Delete")
    page.click("dialog button.primary")
    expect(page.locator("#list .entry")).to_have_count(2)
    page.click("[aria-label='Menu of the sky'] >> nth=0")
    page.click("dialog >> text=Cancel")
    page.click("[aria-label='Menu of the sky'] >> nth=0")
    page.click("dialog >> text=Pin")
    page.click("#list .entry >> nth=0 >> [aria-label='Menu of the sky']")
    page.click("dialog >> text=Unpin")
    page.click("#list .entry >> nth=1 >> button >> nth=0")
    page.click("#list .entry >> nth=1 >> [aria-label='Menu of the sky']")
    page.click("dialog >> text=Rename")
    page.fill("dialog input", "the sea")
    page.click("dialog button.primary")
    expect(page.locator("#title")).to_have_text("the sea")
    page.click("[aria-label='Menu of the sea']")
    page.click("dialog >> text=Delete")
    page.click("dialog >> text=Cancel")
    expect(page.locator("#list .entry")).to_have_count(2)


def test_an_import_restores_settings_and_calls_and_refuses_a_damaged_file(page):
    fine = {
        "title": "brought", "system": "Be brief.",
        "settings": {"temperature": 0.5, "top_k": "7", "seed": 1, "schema": '{"type": "object"}', "thinking": "x", "unheard": 1},
        "nodes": {
            "constructor": {"id": "constructor", "parent": None, "role": "user", "content": "hi"},
            "b": {"id": "b", "parent": "constructor", "role": "assistant", "content": 5, "tools": [{"name": "f", "arguments": "{}"}, 5]},
            "c": {"id": "c", "parent": "toString", "role": "robot"},
        },
    }  # fmt: skip
    circle = {"nodes": {n: {"id": n, "parent": "ba"[n == "b"], "role": "user"} for n in "ab"}}
    for damaged in (circle, {"nodes": []} | {"nodes": None}, {**fine, "settings": {"schema": "{oops"}}, 5, [None]):
        text = page.evaluate(
            "one => { try { imported(one); return 'taken'; } catch (error) { return error.message; } }", damaged
        )
        assert text and text != "taken", damaged
    [brought] = page.evaluate("one => imported(one)", fine)
    assert brought["settings"] == {"temperature": 0.5, "seed": 1, "schema": '{"type": "object"}'}
    path = page.evaluate("one => pathTo(one, one.leaf).map(node => [node.role, node.content, node.tools])", brought)
    assert path == [
        ["user", "hi", None],
        ["assistant", "", [{"name": "f", "arguments": "{}"}, {"name": "", "arguments": ""}]],
    ]


def test_themes_the_list_and_the_end_of_a_chat_are_one_click_away(make_page):
    page = make_page(width=360)
    expect(page.locator("#status")).to_have_text("Ready.")
    answers(page, "line\n\n" * 100)
    ask(page, "a long one")
    page.locator("#scroll").evaluate("box => (box.scrollTop = 0)")
    page.click("#to-end")
    expect(page.locator("#to-end")).to_be_hidden()
    page.click("#open-sidebar")
    for name, theme in (("light", "light"), ("dark", "dark"), ("system", "light")):
        page.click("#theme")
        expect(page.locator("#theme")).to_have_text(f"Theme: {name}")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
    page.mouse.click(350, 400)  # beside the list
    expect(page.locator("#new")).to_be_hidden()


def test_the_panel_shows_running_requests_and_their_speed(page):
    ask_without_end(page)
    page.click("#panel-button")
    panel = page.locator("#panel")
    expect(panel).to_contain_text("Q5_K, 7.6 MiB")
    expect(panel).to_contain_text("not in use")  # matrix units
    expect(panel).to_contain_text(
        re.compile(r"generates · builtin · prompt of \d+ tokens · \d+ tokens generated · \d+ s")
    )
    expect(panel).to_contain_text(re.compile(r"Speed\s*[1-9][\d.]* tokens/s|Speed\s*0\.[1-9] tokens/s"))
    expect(panel.locator("polyline")).to_have_attribute("points", re.compile(r"\S \S"))  # a line, not a point
    assert page.evaluate("nearEnd()"), "the end stays in view where the panel takes room"
    page.click("#send")
    expect(panel.locator("li")).to_have_count(0)
    page.click("#panel-button")
    expect(panel).to_be_hidden()


def test_progress_of_a_prompt_shows_tokens_read_speed_and_remaining_time(page):
    page.evaluate("""() => {
        const conversation = newConversation();
        const parent = addNode(conversation, null, "user", "go");
        const node = addNode(conversation, parent.id, "assistant", "", { thinking: "" });
        state.current = conversation;
        drawConversation();
        const timing = { began: performance.now(), first: null, thinking: null, tokens: 0 };
        taken(node, { prompt_progress: { total: 9000, cache: 1000, processed: 5000, time_ms: 2000 } }, timing);
        views.get(node.id).stream(node);
    }""")
    expect(page.locator(f"{LAST} >> .hint")).to_have_text(re.compile("5,000 of 9,000 tokens, 2,000 tokens/s, 2 s left"))
    assert page.locator("progress").get_attribute("max") == "9000"


def focused(page: Page) -> str:
    return str(
        page.evaluate("(one => one.id || (one.getAttribute('aria-label') ?? one.textContent))(document.activeElement)")
    )


def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    """Presses Tab until a control has the focus."""
    for _ in range(60):
        if focused(page) == name:
            return
        page.keyboard.press(key)
    raise AssertionError(f"no way to {name} by {key}")


def test_the_whole_page_works_with_the_keyboard(page):
    bodies = answers(page, "one", "two", "three")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("by keys")
    page.keyboard.press("Enter")
    expect(page.locator(LAST)).to_contain_text("one")
    expect(page.locator("#send")).to_have_text("Send")
    tab_to(page, "Regenerate", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator(LAST)).to_contain_text("two")
    expect(page.locator("#send")).to_have_text("Send")
    tab_to(page, "Previous version", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator(LAST)).to_contain_text("one")
    assert focused(page) == "Next version"  # the first version has none before it
    page.keyboard.press("Enter")
    expect(page.locator(LAST)).to_contain_text("two")
    tab_to(page, "Edit")
    page.keyboard.press("Enter")
    expect(page.locator("article textarea")).to_be_focused()
    page.keyboard.press("Escape")
    assert focused(page) == "Edit"
    tab_to(page, "settings-button", "Shift+Tab")
    page.keyboard.press("Enter")
    tab_to(page, "Reset Temperature")
    page.keyboard.press("Tab")
    page.keyboard.type("0.5")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    assert focused(page) == "settings-button"
    page.keyboard.press("Control+k")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    assert focused(page) == "Menu of by keys"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # Rename is the first
    page.keyboard.type("renamed")
    page.keyboard.press("Enter")
    expect(page.locator("#list .entry")).to_contain_text("renamed")
    tab_to(page, "new", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("article")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("article")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("again")
    page.keyboard.press("Enter")
    expect(page.locator(LAST)).to_contain_text("three")
    assert bodies[2]["temperature"] == 0.5


def test_the_focus_stays_in_the_list_while_an_answer_is_stored(page):
    ask_without_end(page)
    page.focus("#list .entry button")
    page.evaluate("refreshList()")
    page.wait_for_timeout(1500)
    assert focused(page) == "Tell me about foxes"
    page.keyboard.press("Escape")
    expect(page.locator("#send")).to_have_text("Send")


def test_unchanged_messages_keep_their_elements_when_the_page_is_redrawn(page):
    answers(page, "one", "two")
    ask(page, "first")
    page.evaluate("""() => {
        window.moved = 0;
        new MutationObserver((changes) => changes.forEach((change) => (window.moved += change.removedNodes.length)))
            .observe(document.getElementById("messages"), { childList: true });
    }""")
    ask(page, "second")
    expect(page.locator("article")).to_have_count(4)
    assert page.evaluate("window.moved") == 0


def test_an_edit_survives_a_redraw_of_the_chat(page):
    answers(page, "one")
    ask(page, "question")
    page.click("article.user >> text=Edit")
    page.fill("article textarea", "half a thou")
    page.evaluate("drawMessages()")
    assert page.input_value("article textarea") == "half a thou"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_printed_page_shows_only_the_chat_dark_on_white(page, theme):
    page.emulate_media(color_scheme=theme)
    answers(page, "```text\n" + "word " * 100 + "\n```\n\n" + "line\n\n" * 200)
    ask(page, "print this")
    page.click("#panel-button")
    page.emulate_media(media="print", color_scheme=theme)
    for name in ("#sidebar", "#composer", "#panel", "#settings-button", ".bar", ".block button"):
        expect(page.locator(name).first).to_be_hidden()
    expect(page.locator("#title")).to_be_visible()
    expect(page.locator("body")).to_have_css("color", "rgb(27, 31, 29)")
    assert page.evaluate("document.documentElement.scrollHeight") > 3000  # nothing is cut off at the screen's height
    assert page.locator(".block pre").evaluate("pre => pre.scrollWidth <= pre.clientWidth")
    pdf = page.pdf()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 2


def test_text_from_right_to_left_is_set_from_the_right(page):
    answers(page, "مرحبا بالعالم\n\n- בדיקה\n\n  שורה\n- two")
    ask(page, "שלום")
    for name in (f"{LAST} >> p >> nth=0", "article.user .plain", f"{LAST} >> li >> nth=0"):
        assert page.locator(name).evaluate("node => getComputedStyle(node).direction") == "rtl"
    assert page.locator(f"{LAST} >> ul").evaluate("node => getComputedStyle(node).paddingRight") == "26px"


def test_every_control_is_used_by_a_test(request, controls):
    config = request.config
    if config.option.keyword or any("::" in name or name.endswith(".py") for name in config.args):
        pytest.skip("only a part of the tests has run")
    assert len(controls.seen) > 50
    assert sorted(controls.seen - controls.used) == []
