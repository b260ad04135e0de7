"""Markdown of any model output is shown in linear time, the same streamed as at once, with known elements only."""

import pytest
from playwright.sync_api import CDPSession, Page

from tests.browser.test_speed import busy_seconds

# Keys that every object of JavaScript inherits.
INHERITED = "constructor", "__proto__", "toString", "valueOf", "hasOwnProperty"


@pytest.mark.parametrize("name", INHERITED)
def test_names_of_object_properties_are_not_taken_for_languages_commands_or_environments(page, name):
    for text in (f"```{name}\nx\n```", f"$\\{name}{{a}}$", f"$$\\begin{{{name}}}a\\end{{{name}}}$$"):
        shown = page.evaluate("text => { const box = el('div', {}, markdown(text)); return box.textContent; }", text)
        assert "x" in shown or "a" in shown
    if name.isalpha():  # as commands of TeX are
        assert page.evaluate("name => markdown(`$\\\\${name}$`)[0].textContent", name) == "\\" + name


# Text that is repeated until it is long, with the text before and after it.
REPEATED = {
    "spaces": ("a", " ", "b"), "blank lines": ("", "\n", ""), "a heading of spaces": ("# ", " ", "a\u2028"),
    "a heading of signs": ("# ", "#", " x"), "tildes": ("", "~", "`"), "fence of spaces": ("```", " ", "`"),
    "fence of letters": ("```", "a", "`"), "an item of spaces": ("- ", " ", "a\u2028"), "rule": ("", "- ", "x"),
    "delimiters": ("a|b\n|-", " ", "x"), "colons": ("a|b\n", " :-: |", "x"), "table": ("|a|b|\n|-|-|\n", "|c|d|\n", ""),
    "brackets": ("", "[", ""), "links": ("", "[a](", ""), "titles": ("", '[a](b "', ""), "stars": ("", "*a ", ""),
    "strong": ("", "**a *b ", ""), "underscores": ("", "_a ", ""), "struck": ("", "~~a ", ""), "ticks": ("", "`a``", ""),
    "dollars": ("", "$$a ", ""), "TeX": ("", "\\( a ", ""), "TeX blocks": ("", "a \\[", ""), "braces": ("$$", "{", "$$"),
    "closing braces": ("$$", "}", "$$"), "roots": ("$$", "\\sqrt[", "$$"), "environments": ("$$", "\\begin{a}", "$$"),
    "addresses": ("", "http://a.b/) ", ""), "angles": ("", "<a:", ""), "quotations": ("", "> a\n", ""), "items": ("", "- a\n\n  b\n", ""),
    "letters in code": ("```js\n", "a", "\n```"), "quotes in code": ("```py\n", '"\\', "\n```"), "comments": ("```c\n", "/*", "\n```"),
    "edges": ("```mermaid\ngraph TD\n", "A-->B\n", "\n```"), "ends": ("```mermaid\ngraph TD\n", "A & ", "\n```"),
}  # fmt: skip
SHORT = 4_000  # characters
TIMES = 8


def seconds(session: CDPSession, page: Page, text: str) -> float:
    """Returns the CPU seconds for a text."""
    before = busy_seconds(session)
    page.evaluate("text => { for (const piece of pieces(text)) markdown(piece); }", text)
    return busy_seconds(session) - before


@pytest.mark.parametrize("name", REPEATED)
def test_markdown_takes_time_linear_in_its_length(context, page, name):
    before, part, after = REPEATED[name]
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    short, long = (
        seconds(session, page, before + part * (size // len(part)) + after) for size in (SHORT, TIMES * SHORT)
    )
    assert long < 3 * TIMES * short + 0.1  # quadratic time would be TIMES squared


def test_more_nodes_than_a_call_can_have_arguments_are_shown(page):
    assert page.evaluate("markdown('`a` '.repeat(150000))[0].querySelectorAll('code').length") == 150_000
    file = {"content": "", "attachments": [{"name": "a", "text": "`a" * 300_000}]}
    assert page.evaluate("file => fullText(file)", file).startswith("a:\n```\n")


# Streams random text made of these in pieces, and compares it with the same text at once. Returns the differences.
FUZZ = """([seed, count]) => {
    let state = seed;
    const random = (below) => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0, Math.floor(state / 4294967296 * below));
    const parts = ["a", "b ", " ", "\\n", "\\n\\n", "*", "**", "_", "~~", "`", "```", "~~~", "```js\\n", "# ", "- ", "1. ", "> ", "|", "|-|-|\\n", "|a|b|\\n", "[", "](", ")", "![",
        "http://a.b/", "javascript:x", "<http://c.d>", "$", "$$", "\\\\(", "\\\\)", "\\\\[", "\\\\]", "\\\\frac", "{", "}", "^", "_", "\\\\begin{cases}", "\\\\end{cases}", "&", "\\\\\\\\", "\\\\left(", "\\\\right)",
        "\\\\sqrt[", "]", "<script>", "\\t", "    ", "[ ] ", "é", "\\u0000", "\\u2028", "ש", "\\u202e", "=", "+", "0", "\\\\text{", "\\\\hat"];
    const known = new Set("div p h1 h2 h3 h4 h5 h6 hr blockquote ul ol li input table thead tbody tr th td pre code span button a em strong del br math mrow mi mn mo mtext mfrac msup msub msubsup munder mover munderover msqrt mroot mtable mtr mtd mspace".split(" "));
    const wrong = [];
    for (let n = 0; n < count && wrong.length < 5; n++) {
        let text = "";
        const streamed = new MarkdownView();
        try {
            for (let k = 1 + random(40); k > 0; k--) {
                text += parts[random(parts.length)];
                if (random(3) === 0) streamed.show(text);
            }
            streamed.show(text);
            const whole = new MarkdownView();
            whole.show(text);
            if (!streamed.node.isEqualNode(whole.node)) wrong.push(["streamed otherwise", text]);
            for (const node of whole.node.querySelectorAll("*")) {
                if (!known.has(node.localName)) wrong.push([node.localName, text]);
                for (const { name } of node.attributes) if (name.startsWith("on") || name === "style" || name === "src") wrong.push([name, text]);
            }
            for (const link of whole.node.querySelectorAll("a")) if (!/^(https?|mailto):/.test(link.getAttribute("href")) || !link.rel.includes("noopener")) wrong.push(["link", text]);
        } catch (error) {
            wrong.push([String(error), text]);
        }
    }
    return wrong;
}"""


@pytest.mark.parametrize("seed", range(4))
def test_any_streamed_text_looks_like_the_same_text_shown_at_once(page, seed):
    assert page.evaluate(FUZZ, [seed, 1500]) == []
