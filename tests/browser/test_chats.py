"""Chat features of the page: defaults, presets, imports, titles, drawings, formulas, models and installation."""

import io
import json
import zipfile

import pytest
from playwright.sync_api import expect

from rwkv_gpu.llm.chat import save_chats
from tests.browser.conftest import LAST, answers, ask
from tests.process import until
from tests.server.serving import serving
from tests.server.test_management import NAME, STORED, managed


def test_defaults_apply_to_new_chats_only(page):
    bodies = answers(page, "ok")
    ask(page, "the old one")
    page.click("#settings-button")
    page.fill("dialog textarea >> nth=0", "Be brief.")
    page.fill("input[name=top_k]", "7")
    page.fill("dialog textarea >> nth=1", "{oops")
    page.click("dialog >> text=Use for new chats")
    expect(page.locator("dialog .failed")).to_contain_text("The JSON schema cannot be read")
    page.fill("dialog textarea >> nth=1", "")
    page.click("dialog >> text=Use for new chats")
    expect(page.locator("dialog")).to_contain_text("New chats start with these settings.")
    page.click("dialog >> text=Cancel")
    ask(page, "the old one again")
    page.click("#new")
    ask(page, "a new one")
    page.reload()
    page.click("#new")
    ask(page, "a newer one")
    assert [body.get("top_k") for body in bodies] == [None, None, 7, 7]
    assert [body["messages"][0]["role"] for body in bodies] == ["user", "user", "system", "system"]
    page.evaluate("localStorage.setItem('defaults', '{oops')")
    page.reload()
    expect(page.locator("#status")).to_have_text("Ready.")
    assert page.evaluate("newConversation().settings") == {}
    page.evaluate("""localStorage.setItem('defaults', '{"settings": {"schema": "{oops"}, "system": 5}')""")
    assert page.evaluate("newConversation().system") == ""


def test_presets_are_stored_chosen_and_deleted(page):
    bodies = answers(page, "ok")
    page.click("#settings-button")
    page.fill("dialog textarea >> nth=0", "Talk like a pirate.")
    page.fill("input[name=temperature]", "1.5")
    for name in ("Pirate", "Pirate"):  # the second replaces the first
        page.click("dialog >> text=Save as preset")
        page.fill("dialog >> nth=1 >> input", name)
        page.click("dialog >> nth=1 >> button.primary")
        expect(page.locator("select[name=preset]")).to_have_value("Pirate")
    page.click("dialog >> text=Cancel")
    page.reload()
    page.click("#settings-button")
    assert page.input_value("input[name=temperature]") == ""
    page.select_option("select[name=preset]", "Pirate")
    assert page.input_value("input[name=temperature]") == "1.5"
    page.click("dialog button.primary")
    ask(page, "go")
    assert bodies[0]["temperature"] == 1.5 and bodies[0]["messages"][0]["content"] == "Talk like a pirate."
    page.click("#settings-button")
    expect(page.locator("select[name=preset] option")).to_have_count(2)
    page.select_option("select[name=preset]", "Pirate")
    page.click("dialog >> text=Delete preset")
    expect(page.locator("select[name=preset] option")).to_have_count(1)
    page.click("dialog >> text=Cancel")


def gpt(role, text, parent, kind="text", **more):
    message = role and {
        "author": {"role": role},
        "content": {"content_type": kind, "parts": [text]},
        "create_time": 5.5,
    }
    return {"message": message and {**message, **more}, "parent": parent}


CHATGPT = {
    "title": "Sea", "current_node": "e",
    "mapping": {
        "root": gpt(None, "", None), "s": gpt("system", "", "root"),
        "a": gpt("user", "What is the sea?", "s"), "t": gpt("tool", "search", "a"), "b": gpt("assistant", "Water.", "t"),
        "h": gpt("user", "context", "b", metadata={"is_visually_hidden_from_conversation": True}),
        "c": gpt("user", "Why?", "h"), "d": gpt("assistant", "One answer.", "c"),
        "th": {"message": {"author": {"role": "assistant"}, "content": {"content_type": "thoughts", "thoughts": [{"content": "Hm."}]}}, "parent": "c"},
        "e": gpt("assistant", "Another answer.", "th"),
    },
}  # fmt: skip
for key, node in CHATGPT["mapping"].items():
    node["id"] = key
LLAMA = {
    "conv": {"id": "x", "name": "Sea", "currNode": "c", "lastModified": 1},
    "messages": [
        {"id": "r", "parent": None, "role": "system", "type": "root", "content": "", "timestamp": 1},
        {"id": "s", "parent": "r", "role": "system", "type": "system", "content": "Be brief.", "timestamp": 2},
        {"id": "a", "parent": "s", "role": "user", "content": "What is the sea?", "timestamp": 3, "extra": [{"type": "TEXT", "name": "a.txt", "content": "salt"}]},
        {"id": "c", "parent": "a", "role": "assistant", "content": "Water.", "reasoningContent": "Hm.", "timestamp": 4},
    ],
}  # fmt: skip
WEBUI = {
    "id": "x", "title": "Sea", "pinned": True,
    "chat": {"title": "Sea", "params": {"system": "Be brief."}, "history": {"currentId": "b", "messages": {
        "a": {"id": "a", "parentId": None, "role": "user", "content": "What is the sea?", "timestamp": 7},
        "b": {"id": "b", "parentId": "a", "role": "assistant", "timestamp": 8,
              "content": '<details type="reasoning" done="true" duration="2">\n<summary>Thought</summary>\n> Hm.\n</details>\nWater.'},
    }}},
}  # fmt: skip
READ = """async ([text, name]) => {
    const found = await readImport(new File([text], name));
    return found.map((one) => [one.title, one.system, one.pinned, pathTo(one, one.leaf).map((node) => [node.role, node.content, node.thinking])]);
}"""
ANSWER = ["assistant", "Water.", "Hm."]
QUESTION = ["user", "What is the sea?", ""]


def test_exports_of_other_programs_are_imported(page, tmp_path):
    path = [QUESTION, ["assistant", "Water.", ""], ["user", "Why?", ""], ["assistant", "Another answer.", "Hm."]]
    assert page.evaluate(READ, [json.dumps([CHATGPT]), "conversations.json"]) == [["Sea", "", False, path]]
    versions = "async (text) => { const [one] = imported(JSON.parse(text)); return Object.values(one.nodes).length; }"
    assert page.evaluate(versions, json.dumps([CHATGPT])) == 5
    llama = ["Sea", "Be brief.", False, [QUESTION, ANSWER]]
    lines = [{"harness": "x", "type": "session", **LLAMA["conv"]}]
    lines += [{"type": "message", "message": one} for one in LLAMA["messages"]]
    jsonl = "\n".join(map(json.dumps, lines))
    for text, count in ((json.dumps(LLAMA), 1), (json.dumps([LLAMA]), 1), (f"{jsonl}\n{jsonl}\n", 2)):
        assert page.evaluate(READ, [text, "x"]) == [llama] * count
    webui = ["Sea", "Be brief.", True, [QUESTION, ANSWER]]
    assert page.evaluate(READ, [json.dumps([WEBUI]), "x"]) == [webui]
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        with zipfile.ZipFile(tmp_path / "all.zip", "w", method) as archive:
            archive.writestr("folder/conversations.json", json.dumps([CHATGPT]))
            archive.writestr("one.jsonl", jsonl)
            archive.writestr("picture.png", bytes(1000))
        page.set_input_files("#import-file", tmp_path / "all.zip")
        expect(page.locator("#status")).to_have_text("Imported 2 chats.")
    expect(page.locator("#list .entry")).to_have_count(4)


def test_a_failed_import_is_reported_in_one_sentence_and_stores_nothing(page):
    def zipped(name, data):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, data)
        return file.getvalue()

    circle = {"mapping": {n: {"id": n, "parent": "ba"[n == "b"], "message": None} for n in "ab"}}
    many = {"conv": {}, "messages": [{"id": str(n)} for n in range(10001)]}
    cases = {
        b"{oops": "it is not JSON", b"[]": "it has no chats", b"{}": "no chats of this page, ChatGPT",
        b'{"type": "message"}': "no chats of this page", b'{"type": "session"}\n{oops': "it is not JSON",
        json.dumps([CHATGPT, 5]).encode(): "no chats of this page", json.dumps(circle).encode(): "go in a circle",
        json.dumps(many).encode(): "more than 10,000 messages", json.dumps([{}] * 20001).encode(): "20,000 chats",
        zipped("a.txt", "x"): "this archive has no conversations", zipped("a.jsonl", "{oops"): "it is not JSON",
        zipped("a.jsonl", "x" * 999)[:-30]: "it is a damaged archive", b"PK\x03\x04": "it is a damaged archive",
        zipped("a.jsonl", "x" * (257 << 20)): "its files have more than 256 MiB",
    }  # fmt: skip
    for content, says in cases.items():
        page.set_input_files("#import-file", {"name": "bad", "mimeType": "", "buffer": content})
        expect(page.locator("#notice")).to_contain_text("bad cannot be imported")
        expect(page.locator("#notice")).to_contain_text(says)
        page.click("[aria-label='Close this notice']")
    expect(page.locator("#list .entry")).to_have_count(0)


def test_a_conversation_file_is_imported_with_its_branches_and_its_state(page, server, tmp_path):
    chat = server.llm.chat("Be brief.", temperature=0, max_tokens=6)
    chat.send("What is the sea?")
    chat.send("And a fox?")
    other = chat.fork()
    other.undo()
    other.send("And an owl?")
    save_chats(tmp_path / "talk.rwkvchat", [other, chat], 1)
    page.set_input_files("#import-file", tmp_path / "talk.rwkvchat")
    expect(page.locator("article")).to_have_count(4)
    asked = "pathTo(state.current, state.current.leaf).map(one => one.content)"
    assert page.evaluate(asked) == [one["content"] for one in chat.messages[1:]]
    assert page.evaluate("[Object.keys(state.current.nodes).length, state.current.system]") == [6, "Be brief."]
    assert page.evaluate("[state.current.settings.temperature, state.current.settings.max_tokens]") == [0, 6]
    ask(page, "And the sky?")
    expect(page.locator("#status")).to_contain_text("Answered in")
    stats = page.evaluate("state.current.nodes[state.current.leaf].stats")
    prompt, cached = stats["prompt"], stats["cached"]
    assert cached > 30 and prompt - cached < 20, "the server continues from the state of the file"
    answered = chat.send("And the sky?")
    assert page.locator(LAST).inner_text().count(answered.text.split("\n")[0])
    page.set_input_files("#import-file", {"name": "bad", "mimeType": "", "buffer": b"RWKVGPU3" + bytes(99)})
    expect(page.locator("#notice")).to_contain_text("bad cannot be imported: the file is damaged or cut short")


def titled(page, *titles):
    """Answers requests for titles, which do not stream. Yields their bodies."""
    bodies = []

    def answer(route):
        body = route.request.post_data_json
        if body.get("stream"):
            route.fallback()
            return
        bodies.append(body)
        message = {"role": "assistant", "content": titles[len(bodies) - 1]}
        route.fulfill(json={"choices": [{"message": message}]})

    page.route("**/v1/chat/completions", answer)
    return bodies


def test_a_model_names_a_chat_after_its_first_answer(page):
    answers(page, "It is wide.")
    bodies = titled(page, 'Title: "The wide sea"\nand more', "no " * 60)
    page.evaluate("state.props.model.parameters = 8e9")
    ask(page, "What is the sea?")
    expect(page.locator("#title")).to_have_text("The wide sea")
    roles = [message["role"] for message in bodies[0]["messages"]]
    assert roles == ["user", "assistant", "user"] and bodies[0]["max_tokens"] == 40
    ask(page, "And again?")
    page.click("#new")
    page.evaluate("state.props.model.parameters = 8e9")
    ask(page, "A question")
    until(lambda: len(bodies) == 2)
    page.click("#titles")
    expect(page.locator("#titles")).to_have_text("Titles: question")
    page.click("#new")
    ask(page, "Another question")
    page.click("#titles")
    page.evaluate("state.props.model.parameters = 3e6")  # a model that is too small to write titles
    page.click("#new")
    ask(page, "A last question")
    expect(page.locator("#title")).to_have_text("A last question")
    names = page.locator("#list .entry > button:first-child").all_text_contents()
    assert names == ["A last question", "Another question", "A question", "The wide sea"] and len(bodies) == 2


DRAWING = '<svg viewBox="0 0 9 9" width="90" height="90"><script>parent.hacked=1</script><rect width="9" height="9" style="fill:red" onload="parent.hacked=1"/>{}</svg>'
HOSTILE = (
    '<image href="https://evil.example/x.png"/><foreignObject><img src="x" onerror="parent.hacked=1"/></foreignObject>'
)


def test_an_svg_is_drawn_in_isolation(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    answers(
        page,
        f"A square:\n\n```svg\n{DRAWING.format(HOSTILE)}\n```\n\n```svg\n<svg broken\n```\n\n```python\n<svg>\n```",
    )
    ask(page, "draw")
    image = page.locator(f"{LAST} >> img.drawing")
    expect(image).to_have_count(1)  # a diagram that cannot be drawn stays code
    page.wait_for_function("document.querySelector('img.drawing').naturalWidth === 90")
    colour = page.evaluate("""() => {
        const canvas = document.createElement("canvas").getContext("2d");
        canvas.drawImage(document.querySelector("img.drawing"), 0, 0);
        return true;
    }""")
    assert colour and page.evaluate("window.hacked") is None
    assert not any("evil" in url for url in asked)
    expect(page.locator(f"{LAST} >> .block")).to_have_count(3)


DIAGRAMS = {  # with the number of boxes, of lines between them, and the texts
    "graph TD\n  A[Start] --> B{Is it <b onload='parent.hacked=1'>?}\n  B -->|yes| C((End)); B -- no --> A\n  style A fill:#f00": (
        3, 3, ["yes", "no", "Start", "Is it <b onload='parent.hacked=1'>?", "End"],
    ),
    'flowchart LR\n  a["one (1)"] & b --> c([three<br/>lines]) -.-> d': (4, 3, ["one (1)", "b", "three", "lines", "d"]),
    "graph BT\n  a --> b --> c\n  a ==> c\n  c --> a\n  b --> b": (3, 5, ["a", "b", "c"]),
    "sequenceDiagram\n  participant A as Ann\n  A->>B: Hi\n  loop daily\n    B-->>A: Ho\n  end\n  Note over A,B: end": (
        4, 4, ["Ann", "B", "Hi", "loop daily", "Ho", "end"],
    ),
}  # fmt: skip
STAY_CODE = "classDiagram\n  A <|-- B", "graph TD\n  A[open --> B", "graph TD\n  subgraph x\n  A --> B\n  end", "pie"


@pytest.mark.parametrize("source", DIAGRAMS)
def test_diagrams_of_mermaid_are_drawn_in_isolation(page, source):
    boxes, lines, texts = DIAGRAMS[source]
    answers(page, f"```mermaid\n{source}\n```\n")
    ask(page, "draw")
    expect(page.locator(f"{LAST} >> img.drawing")).to_have_count(1)
    found = page.evaluate("""async () => {
        const image = document.querySelector("img.drawing");
        await image.decode();
        const source = decodeURIComponent(image.src.slice(image.src.indexOf(",") + 1));
        const drawn = new DOMParser().parseFromString(source, "image/svg+xml");
        const count = (selector) => drawn.querySelectorAll(`svg > :is(${selector})`).length;
        return {boxes: count("rect[stroke]:not([stroke=none]), polygon, ellipse"), lines: count("path"),
            texts: [...drawn.querySelectorAll("text")].map((text) => text.textContent).filter((text) => text)};
    }""")
    assert found["boxes"] == boxes and found["lines"] == lines and sorted(found["texts"]) == sorted(texts)
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("source", STAY_CODE)
def test_other_diagrams_stay_code(page, source):
    assert page.evaluate("source => diagram(source)", source) is None


def test_formulas_are_aligned(page):
    answers(page, """\\begin{align}
a + b + c &= 1 & x &= 2 \\\\[4pt]
d &= 3 \\tag{7} \\label{eq} \\\\
\\end{align}

$$f(x) = \\begin{cases} 1 & x > 0 \\\\ 0.001 & \\text{else} \\end{cases} \\quad \\begin{array}{lr} a & b \\\\ aaa & bbb \\end{array}$$""")  # fmt: skip
    ask(page, "align")
    rows = page.evaluate("""() => [...document.querySelectorAll("math mtable")].map((table) => [...table.children].map(
        (row) => [...row.children].map((cell) => { const box = (cell.firstElementChild ?? cell).getBoundingClientRect(), last = (cell.lastElementChild ?? cell).getBoundingClientRect(); return [box.left, last.right]; })))""")
    align, cases, array = rows
    assert [len(row) for row in align] == [4, 2]
    assert align[0][0][1] == pytest.approx(align[1][0][1], abs=1)  # left sides end together
    assert align[0][1][0] == pytest.approx(align[1][1][0], abs=1)  # right sides begin at the same height
    assert align[0][0][0] < align[1][0][0] - 10
    assert cases[0][0][0] == pytest.approx(cases[1][0][0], abs=1)
    assert array[0][0][0] == pytest.approx(array[1][0][0], abs=1)
    assert array[0][1][1] == pytest.approx(array[1][1][1], abs=1)
    text = page.locator(f"{LAST} >> math >> nth=0").text_content()
    assert "(7)" in text and not {"4", "p", "\\"} & set(text)


def test_models_are_managed_with_an_admin_key(make_page, tmp_path):
    with managed(tmp_path) as server:
        page = make_page(f"http://localhost:{server.port}/")
        expect(page.locator("#status")).to_have_text("Ready.")
        page.click("#models")
        row = page.locator("dialog .model >> nth=0")
        expect(row).to_contain_text("given")
        expect(row).to_contain_text("KiB · loaded")
        page.click("[aria-label='Unload given']")
        page.fill("dialog input[type=password]", "wrong")
        page.click("dialog >> text=Use it")
        expect(page.locator("dialog >> nth=1")).to_contain_text("needs an admin key")  # asked again
        page.fill("dialog input[type=password]", "admin")
        page.click("dialog >> text=Use it")
        expect(row).to_contain_text("not loaded")
        page.click("[aria-label='Load given']")
        expect(row).to_contain_text("· loaded")
        page.fill("dialog input[name=pull]", "no such name")
        page.click("dialog >> text=Download")
        expect(page.locator("dialog .failed")).to_contain_text("no such name")
        page.fill("dialog input[name=pull]", NAME)
        page.click("dialog >> text=Download")
        expect(page.locator("dialog .model")).to_have_count(2)
        expect(page.locator("dialog .model >> nth=1")).to_contain_text("not loaded")
        expect(page.locator("dialog .failed")).to_be_hidden()
        page.click("dialog >> text=Close")
        expect(page.locator("#model option")).to_have_count(2)
        page.click("#models")
        page.click(f"[aria-label='Delete {STORED}']")
        page.click("dialog >> nth=1 >> button.primary")
        expect(page.locator("dialog .model")).to_have_count(1)
        page.click("[aria-label='Unload given']")
        page.click("[aria-label='Delete given']")
        page.click("dialog >> nth=1 >> button.primary")
        expect(page.locator("dialog .failed")).to_contain_text("given is not a downloaded model")
        page.click("dialog >> text=Close")


def test_a_download_shows_its_progress_and_is_cancelled(page):
    """Canned server answers show a download that makes no progress."""
    state = {
        "value": "downloading",
        "progress": {"a.gguf": {"done": 3, "total": 12}, "b.gguf": {"done": 1, "total": 4}},
    }
    listing = [
        {"id": "big", "status": state},
        {"id": "slow", "status": {"value": "loading", "progress": {"done": 1, "total": 2}}},
    ]
    page.route("**/models", lambda route: route.fulfill(json={"data": listing}))
    sent = []

    def unload(route):
        sent.append(route.request.post_data_json)
        listing[0] = {"id": "big", "status": {"value": "unloaded", "failed": True}}
        route.fulfill(json={"success": True})

    page.route("**/models/unload", unload)
    page.click("#models")
    bar = page.locator("dialog .model >> nth=0 >> progress")
    expect(bar).to_have_attribute("max", "16")
    expect(bar).to_have_attribute("value", "4")
    expect(page.locator("dialog .model >> nth=1 >> progress")).to_have_attribute("value", "1")
    page.click("[aria-label='Cancel big']")
    expect(page.locator("dialog .model >> nth=0")).to_contain_text("could not be loaded")
    assert sent == [{"model": "big"}]
    page.click("dialog >> text=Close")


def test_the_page_opens_without_its_server_once_it_was_visited(browser):
    """The service worker serves the page of the last visit, and the stored chats are available."""
    with serving() as served:
        url = f"http://localhost:{served.port}/"
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.evaluate("navigator.serviceWorker.ready.then(() => undefined)")
        page.reload()
        expect(page.locator("#status")).to_have_text("Ready.")
        page.evaluate(
            "async () => { const one = newConversation(); addNode(one, null, 'user', 'hello'); one.title = 'kept'; await save(one); }"
        )
        assert page.evaluate(
            "caches.open('rwkv-gpu').then((cache) => cache.keys()).then((all) => all.map((one) => one.url))"
        ) == [url]
    page.reload()
    expect(page.locator("#notice")).to_contain_text("cannot be reached")
    expect(page.locator("#list .entry")).to_contain_text("kept")
    policy = page.evaluate("caches.match(location.href).then((one) => one.headers.get('content-security-policy'))")
    assert "default-src 'none'" in policy
    context.close()
