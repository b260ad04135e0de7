"""The documentation agrees with the source."""

import ast
import re
from pathlib import Path

import pytest

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gpu.shader import every_part
from rwkv_gpu.models.registry import MODELS
from rwkv_gpu.ops.passes import NAMES

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "profiles").glob("*.md")]
PAGES = [*sorted(FOLDERS), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PLACE = r"\(`((?:rwkv_gpu|tests)/[\w/.]+)`\)[^`]*?(?:`[^`\n]*`[^`]*?)*?\n\n"  # a place, and the code block after it
EXAMPLES = re.findall(PLACE + r"((?:        .*\n|\n(?=        ))+)", EXTENDING)


def shown(path: str) -> list[str]:
    return [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("path", "code"), EXAMPLES, ids=[path for path, _ in EXAMPLES])
def test_the_examples_of_extending_are_in_the_source(path, code):
    lines = [line.strip() for line in code.splitlines()]
    source = shown(path)
    assert any(source[at : at + len(lines)] == lines for at in range(len(source)))


def test_every_place_of_the_examples_is_shown():
    assert len(EXAMPLES) == 2 + 3 + 3 + 1 + 1 + 4 + 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+\.(?:py|wgsl|md|sh))`", text):
        found = [ROOT / name, ROOT / "rwkv_gpu" / name, *(ROOT / "rwkv_gpu").rglob(Path(name).name)]
        assert any(path.exists() for path in found), name
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page, as GitHub derives them from headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_heading_that_a_page_links_to_exists(page):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        other = page.parent / target if target else page
        if other.suffix == ".md":
            assert anchor in anchors(other), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_page_holds_the_marks_of_a_merge(page):
    assert not re.search(r"^(<{7} |={7}$|>{7} )", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_tables_of_models_and_formats_are_complete():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == MODELS.keys()
    formats = text.partition("## Formats of weights")[2].partition("\n- ")[0]
    assert sorted(re.findall(r"\b([A-Z]+\d\w*) \([\d.]+\)", formats)) == sorted(fmt.name for fmt in FORMATS.values())


def test_the_table_of_passes_is_complete_and_in_execution_order():
    text = (ROOT / "docs" / "fusion.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_shader_and_part_that_a_page_names_exists(page):
    shaders = ROOT / "rwkv_gpu" / "shaders"
    folders = "|".join(sorted(path.name for path in shaders.iterdir() if path.is_dir() and path.name.isalpha()))
    for name in re.findall(rf"`((?:{folders})/\w[\w/]*)`", page.read_text(encoding="utf-8")):
        assert name in every_part(), name


def lines_of(path: Path, names: str) -> int:
    """Returns the number of lines of the functions, classes and constants that a row of docs/reading.md names."""
    text = path.read_text(encoding="utf-8")
    if names == "all":
        return len(text.splitlines())
    count = 0
    for name in re.findall(r"`([\w.]+)`", names):
        node: ast.AST = ast.parse(text)
        for one in name.split("."):
            [node] = [child for child in ast.iter_child_nodes(node) if one in (_name(child), _target(child))]
        count += node.end_lineno - node.lineno + 1
    return count


def _name(node: ast.AST) -> str | None:
    return getattr(node, "name", None)


def _target(node: ast.AST) -> str | None:
    return getattr(getattr(node, "target", None), "id", None)


def test_the_reading_list_names_existing_code_of_the_stated_length():
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    total = 0
    for title, body in re.findall(r"^## \d\. (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE):
        rows = re.findall(r"^\| `([\w/.]+)` \| ([^|]+) \|", body, re.MULTILINE)
        count = sum(lines_of(ROOT / "rwkv_gpu" / path, names.strip()) for path, names in rows)
        assert abs(count - int(re.search(r"(\d+) lines", title)[1])) <= 40, title
        total += count
    assert 1300 <= total <= 1700
