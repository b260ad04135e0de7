"""Pages, help texts and messages use the field's terms, not private words, which readers would have to learn first."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import each

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
CODE = sorted([*(ROOT / "cli").rglob("*.py"), *(ROOT / "rwkv_gpu").rglob("*.py")])
PRIVATE = re.compile(
    r"(?i)\b(likeliest|by itself|what it is told before all|how freely|(is|was|are) said|to say at most|crew|seats?"
    r"|settle[sd]?|dialects?|utters?|utterances?|wishes|(be|is|are|was) told|untold|noted|hears?"
    r"|held to|holds? (an|the|whole) answers?)\b"
)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the texts in a module that can be shown: string constants of several words, except docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in docs
        ):
            yield node.lineno, node.value


@each("page", PAGES)
def test_pages_have_no_private_words(page):
    text = re.sub(r"<!--.*?-->|```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not [line for line in text.splitlines() if PRIVATE.search(line)]


@pytest.mark.long
@each("path", CODE)
def test_messages_have_no_private_words(path):
    assert not [(line, text) for line, text in messages(path) if PRIVATE.search(text)]


def test_a_private_word_in_a_message_is_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('"""It is told."""\nraise ValueError(f"{1} is told to the crew")\n')
    assert [text for _, text in messages(path) if PRIVATE.search(text)] == [" is told to the crew"]
