"""Documents in a conversation: PDF files, passages that match a question, and citations."""

import re

from playwright.sync_api import expect

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.server.catalogue import ServedModel
from tests.browser.conftest import LAST, answers, ask, load
from tests.golden_files import golden
from tests.pdf_files import pdf
from tests.server.serving import serving

FILLER = "Nothing of interest is written in this paragraph, and nothing follows from it. " * 12


def attach(page, *files):
    given = [{"name": name, "mimeType": "application/octet-stream", "buffer": content} for name, content in files]
    page.set_input_files("#files", given)
    expect(page.locator(".chip")).to_have_count(len(files))
    expect(page.locator("#attached")).not_to_contain_text("reading")


def long_text(*facts):
    return "\n\n".join(f"{fact} {FILLER}" for fact in facts).encode()


def test_the_server_reads_a_pdf_and_a_short_one_is_sent_whole(page):
    bodies = answers(page, "ok")
    attach(page, ("sea.pdf", pdf("The sea is wide.", "Foxes bark.")))
    expect(page.locator(".chip")).to_contain_text(re.compile("sea.pdf · [0-9]+ characters"))
    ask(page, "What is it?")
    [message] = bodies[0]["messages"]
    assert message["content"] == "sea.pdf:\n```\nThe sea is wide.\n\nFoxes bark.\n\n\n```\n\nWhat is it?"
    expect(page.locator(".sources")).to_have_count(0)


def test_a_pdf_that_cannot_be_read_is_refused_in_one_sentence(page):
    cases = [
        (b"%PDF-1.7\n1 0 obj <</Type /Catalog>>", "paper.pdf: cannot be read as PDF"),
        (b"\n%PDF-1.4\nplain to its end", "cannot be read as PDF"),
        (pdf(""), "has no text; are its pages scanned?"),
        (b"%PDF-" + bytes(11 << 20), "at most 10.0 MiB can be attached"),
    ]
    for content, says in cases:
        page.set_input_files("#files", {"name": "paper.pdf", "mimeType": "text/plain", "buffer": content})
        expect(page.locator("#notice")).to_contain_text(says)
        expect(page.locator(".chip")).to_have_count(0)


def test_a_message_waits_until_its_document_is_read(page):
    answers(page, "ok")
    held = []
    page.route("**/v1/documents/text", lambda route: held.append(route))
    page.set_input_files("#files", {"name": "a.pdf", "mimeType": "", "buffer": pdf("The sea is wide.")})
    expect(page.locator(".chip")).to_contain_text("reading …")
    page.fill("#text", "What is it?")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("A document is still being read.")
    held.pop().continue_()
    expect(page.locator(".chip")).to_contain_text("characters")
    ask(page, "What is it?")
    page.set_input_files("#files", {"name": "b.pdf", "mimeType": "", "buffer": pdf("Foxes bark.")})
    page.click("[aria-label='Remove b.pdf']")
    held.pop().continue_()
    page.evaluate("new Promise((resolve) => setTimeout(resolve))")
    expect(page.locator(".chip")).to_have_count(0)


def test_long_documents_are_sent_as_passages_that_are_cited_and_can_be_opened(page):
    """Two files are searched by words, because no encoder is loaded. Passages that were sent are not sent again."""
    bodies = answers(page, "Badgers eat worms [1], and `a[1]` stays [9].", "Owls hunt at night [12].")
    facts = [f"Fact {n} says something about number {n}." for n in range(40)]
    attach(
        page,
        ("forest.txt", long_text(*facts, "Badgers eat worms and beetles.")),
        ("birds.pdf", pdf("Gulls fly. " + FILLER, "Owls hunt at night. " + FILLER, "Ducks swim. " + FILLER)),
    )
    ask(page, "What do badgers eat?")
    content = bodies[0]["messages"][0]["content"]
    assert "Badgers eat worms and beetles." in content and content.endswith("What do badgers eat?")
    assert len(content) < 12000 and content.count("```") == 16
    assert re.findall(r"^\[(\d+)\]", content, re.MULTILINE) == [str(n) for n in range(1, 9)]
    place = re.search(r"^\[(\d+)\] forest.txt:\n```\nBadgers eat", content, re.MULTILINE)[1]
    page.click(f"{LAST} >> .sources >> [aria-label='Passage {place}: forest.txt']")
    expect(page.locator("dialog .passage")).to_contain_text("Badgers eat worms and beetles.")
    page.click("dialog >> text=Close")
    expect(page.locator(f"{LAST} >> p button.cite")).to_have_count(1)  # neither code nor a number without passage
    ask(page, "When do owls hunt?")
    content = bodies[1]["messages"][2]["content"]
    assert "[9] forest.txt" in content or "[9] birds.pdf" in content
    assert "Badgers eat" not in content and bodies[1]["messages"][0] == bodies[0]["messages"][0]
    [number] = re.findall(r"^\[(\d+)\] birds.pdf, page 2:\n```\nOwls hunt", content, re.MULTILINE)
    source = f"{LAST} >> .sources >> text=[{number}] birds.pdf, page 2"
    page.click(source)
    expect(page.locator("dialog")).to_have_attribute("aria-label", "birds.pdf, page 2")
    page.click("dialog >> text=Close")
    page.reload()
    expect(page.locator(source)).to_be_visible()
    page.click("[aria-label='Menu of What do badgers eat?']")
    page.click("dialog >> text=Cancel")


def test_a_chat_can_be_set_to_send_long_documents_whole(page):
    bodies = answers(page, "ok")
    page.click("#settings-button")
    page.select_option("select[name=documents]", "whole")
    page.click("dialog button.primary")
    text = long_text(*[f"Fact {n}." for n in range(40)])
    attach(page, ("facts.txt", text))
    ask(page, "What is it?")
    assert text.decode() in bodies[0]["messages"][0]["content"]
    page.click("#settings-button")
    assert page.input_value("select[name=documents]") == "whole"
    page.click("dialog >> text=Cancel")


def test_a_loaded_encoder_chooses_the_passages(page):
    """Search uses vectors rather than words. Passages are embedded once; without vectors, words are used."""
    bodies = answers(page, "ok")
    inputs = []

    def embed(route):
        inputs.append(route.request.post_data_json)
        if len(inputs) > 2:
            route.fulfill(status=400, json={"error": "unloaded"})
            return
        near = [1 if "feline" in text or "cat" in text else -1 for text in inputs[-1]["input"]]
        route.fulfill(json={"embeddings": [[one, 0.5] for one in near]})

    encoder = {"id": "minilm", "architecture": {"output_modalities": ["embeddings"]}}
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [encoder]}))
    page.route("**/api/embed", embed)
    facts = [f"Number {n} is about cars." for n in range(40)]
    facts[30] = "The feline sleeps."
    attach(page, ("facts.txt", long_text(*facts)))
    ask(page, "Where is my cat?")
    assert "The feline sleeps." in bodies[0]["messages"][0]["content"]
    assert {one["model"] for one in inputs} == {"minilm"} and max(len(one["input"]) for one in inputs) == 32
    assert sum(len(one["input"]) for one in inputs) == 41 and len(inputs) == 2
    ask(page, "Which number is 7?")
    assert [one["input"] for one in inputs[2:]] == [["Which number is 7?"]]
    assert "Number 7 is about cars." in bodies[1]["messages"][2]["content"]


def test_passages_are_chosen_by_an_encoder_of_the_same_server(make_page):
    models = ServedModel("builtin", str(builtin_model())), ServedModel("bert", str(golden("tiny-bert.gguf")))
    with serving(*models, load=load) as served:
        served.post("/v1/embeddings", {"model": "bert", "input": "loads it"})
        page = make_page(f"http://localhost:{served.port}/")
        expect(page.locator("#status")).to_have_text("Ready.")
        answers(page, "ok")
        found = []
        page.on("response", lambda one: found.append(one.status) if one.url.endswith("/api/embed") else None)
        attach(page, ("facts.txt", long_text(*[f"Fact {n}." for n in range(40)])))
        ask(page, "Which?")
        expect(page.locator(".sources button")).to_have_count(8)
        assert found == [200, 200]


def test_passages_of_any_language_are_found_by_their_words(page):
    found = page.evaluate("""() => {
        const texts = ["海は広い。", "狐は夜に鳴く。", "Der Fuchs bellt.", "x"];
        return ["夜の狐", "FUCHS", "sea"].map((question) => bm25(question, texts).map((score) => score > 0));
    }""")
    assert found == [[False, True, False, False], [False, False, True, False], [False] * 4]
    lengths = page.evaluate(
        """split({ name: "a", text: "x".repeat(2500) + " end", starts: [0, 2400] }).map((one) => [one.page, one.text.length])"""
    )
    assert lengths == [[1, 1000], [1, 1000], [1, 400], [2, 104]]


def test_the_search_in_documents_stops_with_the_answer(page):
    answers(page, "ok")
    encoder = {"id": "minilm", "architecture": {"output_modalities": ["embeddings"]}}
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [encoder]}))
    page.route("**/api/embed", lambda route: None)
    attach(page, ("facts.txt", long_text(*[f"Fact {n}." for n in range(40)])))
    page.fill("#text", "Which?")
    page.keyboard.press("Enter")
    expect(page.locator(f"{LAST} >> .hint")).to_contain_text("Searching the documents: 0 of")
    page.click("#send")
    expect(page.locator(f"{LAST} >> .hint")).to_have_text("Stopped.")
