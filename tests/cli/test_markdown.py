"""Streamed Markdown looks the same for any chunks, breaks between words, and does not change code."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from rwkv_gpu import Event
from rwkv_gpu.cli import highlight
from rwkv_gpu.cli.markdown import Markdown
from rwkv_gpu.cli.screen import STYLES, Fancy

SAMPLE = """\
# A heading with `code`

Some **bold words** and *italic* and ***both***, a line that must be broken between its words, since it is long.
A [link](https://a.b/c_(d) "title"), ![image](x.png), <https://e.f>, ~~gone **and** bold~~, [no link] (x), a < b, wow!
2 * 3 * 4 = 24, 2**3 is 8, snake_case and __init__ stay, `a * b * c` too. An \\*escaped\\* star.

- first item with **bold** and a text that is long enough to be wrapped onto a second line
  - nested
10) ten

> a quote which goes on and on until it has to be wrapped onto another line, yes

```python
def f(x):
    return x ** 2  # a line of code that is longer than the terminal is wide stays as it is
```
| name | 数 |
|------|:--:|
| `a`  | **one** |
| b | 漢字 |

---
漢字を含む文章は単語の間に空白がないので、どこで改行してもかまいません。これは長い文です。
👩‍👩‍👧‍👦 👍🏽 é
**never closed
plain *
"""


def shown(text: str, cuts=(), width: int = 60) -> list[tuple[str, str]]:
    """Returns every written character with its style."""
    said: list[tuple[str, str]] = []
    markdown = Markdown(lambda text, style: said.extend((char, style) for char in text), lambda: width)
    edges = [0, *sorted(cuts), len(text)]
    for first, last in zip(edges[:-1], edges[1:], strict=True):
        markdown.feed(text[first:last])
    markdown.flush()
    return said


def plain(text: str, width: int = 60) -> str:
    return "".join(char for char, _ in shown(text, width=width))


def styled(text: str, style: str) -> str:
    """Returns the words that are written in a style."""
    return " ".join("".join(char if name == style else " " for char, name in shown(text)).split())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(SAMPLE)), max_size=300), st.sampled_from([7, 20, 60, 200]))
def test_the_output_does_not_depend_on_how_a_stream_is_cut(cuts, width):
    assert shown(SAMPLE, cuts, width) == shown(SAMPLE, width=width)


@settings(max_examples=150, deadline=None)
@given(st.text('ab*_`#|->~\\ \n1.漢👍[]()!<:/h"', max_size=60), st.lists(st.integers(0, 60), max_size=60))
def test_any_text_at_all_can_be_cut_anywhere(text, cuts):
    cuts = [min(cut, len(text)) for cut in cuts]
    assert shown(text, cuts, 10) == shown(text, width=10)


def test_no_line_except_code_is_wider_than_the_terminal():
    code = SAMPLE[SAMPLE.index("def f(x)") : SAMPLE.index("```\n|")]
    text = plain(SAMPLE)
    assert code in text
    assert all(cell_len(line) <= 60 for line in text.replace(code, "").splitlines())


def test_no_word_is_lost_or_broken():
    words = ["a", "line", "that", "must", "be", "broken", "between", "its", "words", "since", "it", "is", "long"]
    for width in (9, 15, 60):
        assert plain(" ".join(words), width).split() == words
    assert plain("x" * 50, 20) == "x" * 50


def test_marks_become_styles():
    assert styled(SAMPLE, "heading") == "A heading with"
    assert styled(SAMPLE, "bold italic") == "both"
    assert styled(SAMPLE, "italic") == "italic"
    assert styled(SAMPLE, "bold") == "bold words bold name 数 one never closed"
    assert "a * b * c" not in styled(SAMPLE, "")


def test_text_that_only_resembles_markup_stays():
    for text in ("2 * 3 * 4", "2**3", "snake_case_name", "__init__", "a * b", "5 < 6 > 4", "-1", "#tag", "1.5", "*"):
        assert plain(text) == text
        assert {style for _, style in shown(text)} <= {""}
    assert plain("\\*kept\\*") == "*kept*"
    assert plain("\\(x\\)") == "\\(x\\)"


def test_items_and_quotes_have_hanging_indents():
    lines = plain(SAMPLE).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("• first"))
    assert lines[at + 1].startswith("  ")
    at = next(i for i, line in enumerate(lines) if line.startswith("│ a quote"))
    assert lines[at + 1].startswith("│ ")


def test_the_columns_of_a_table_are_in_line():
    rows = [line for line in plain(SAMPLE).splitlines() if "│" in line and not line.startswith("│")]
    assert rows == ["name │  数 ", "a    │ one ", "b    │ 漢字"]


def test_a_model_cannot_control_the_terminal():
    out = io.StringIO()
    view = Fancy(Console(file=out, force_terminal=True, color_system=None, width=40))
    view.feed(Event("a\x1b[2Jb\x1b]0;title\x07c\rd\x9bx\te\n", None, 0.0))
    view.feed(Event("\x1b[31mthought", None, 0.0, thinking=True))
    view.end()
    assert not set(out.getvalue()) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}


def test_every_style_that_is_written_is_known():
    assert {name for _, style in shown(SAMPLE) for name in style.split()} <= STYLES.keys()
    assert set(highlight.STYLES.values()) <= STYLES.keys()


def test_a_link_shows_its_text_and_where_it_leads():
    assert plain("[here](https://a.b/c_(d)) and <https://e.f>!") == "here (https://a.b/c_(d)) and https://e.f!"
    assert styled("a [b c](x.md) **[d](y)**", "link") == "b c"
    assert styled("a [b c](x.md) **[d](y)**", "bold link") == "d"
    assert plain("[https://a.b](https://a.b)") == "https://a.b"
    assert plain("see [below](#there)") == "see below"
    for text in (
        "[1] and [2]",
        "a[i](not a link",
        "x < y > z",
        "array[0](",
        "[a](b c)",
        "what! [",
        "<http",
        "\\[a](b)",
    ):
        assert plain(text).replace("\\", "") == text.replace("\\", "")


def test_struck_out_text_is_shown_as_such():
    assert styled("~~one two~~ three", "strike") == "one two"
    assert styled("**a ~~b~~ c**", "bold strike") == "b"
    for text in ("a ~ b", "~/folder", "~~~ x", "5~~6"):
        assert plain(text) == text


CODE = '''```python
@cached
def f(x):  # why
    """Two lines."""
    return len("a") + 1
```
'''


def test_code_has_the_colours_of_its_language_and_stays_as_it_is():
    assert plain(CODE) == CODE
    assert styled(CODE, "keyword") == "def return"
    assert styled(CODE, "string") == '"""Two lines.""" "a"'
    assert styled(CODE, "comment") == "# why"
    assert styled(CODE, "number") == "1"
    assert styled(CODE, "builtin") == "len"
    assert "keyword" not in {style for _, style in shown(CODE.replace("python", "nonesuch"))}
    assert {style for _, style in shown("```\nreturn 1\n```\n")} == {"mark", "code"}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["python", "c", "html", "diff", "bash", "nope"]), st.text("a{}\"'#/*<>-+= \n1", max_size=80))
def test_no_language_loses_or_adds_a_character(language, code):
    text = f"```{language}\n{code}\n```\n"
    assert plain(text) == text
