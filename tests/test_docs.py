"""What the docs show is what the source says."""

import re
from pathlib import Path

import pytest

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gpu.shader import every_part
from rwkv_gpu.models.registry import MODELS
from rwkv_gpu.ops.passes import NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\(`((?:rwkv_gpu|tests)/[\w/.]+)`\)[^`]*?(?:`[^`\n]*`[^`]*?)*?\n\n((?:    .*\n)+)", EXTENDING)


def shown(path: str) -> list[str]:
    return [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("path", "code"), EXAMPLES, ids=[path for path, _ in EXAMPLES])
def test_the_examples_of_extending_are_in_the_source(path, code):
    lines = [line.strip() for line in code.splitlines()]
    source = shown(path)
    assert any(source[at : at + len(lines)] == lines for at in range(len(source)))


def test_every_place_of_the_examples_is_shown():
    assert len(EXAMPLES) == 2 + 3 + 3 + 1 + 5 + 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+\.(?:py|wgsl|md|sh))`", text):
        found = [ROOT / name, ROOT / "rwkv_gpu" / name, *(ROOT / "rwkv_gpu").rglob(Path(name).name)]
        assert any(path.exists() for path in found), name
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_page_holds_the_marks_of_a_merge(page):
    assert not re.search(r"^(<{7} |={7}$|>{7} )", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_tables_of_models_and_formats_are_whole():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == MODELS.keys()
    assert set(re.findall(r"^\| ([A-Z]+\d\w*|F\d+) \|", text, re.MULTILINE)) == {fmt.name for fmt in FORMATS.values()}


def test_the_table_of_passes_is_whole_and_in_their_order():
    text = (ROOT / "docs" / "fusion.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_shader_and_part_that_a_page_names_exists(page):
    shaders = ROOT / "rwkv_gpu" / "shaders"
    folders = "|".join(sorted(path.name for path in shaders.iterdir() if path.is_dir() and path.name.isalpha()))
    for name in re.findall(rf"`((?:{folders})/\w[\w/]*)`", page.read_text(encoding="utf-8")):
        assert name in every_part(), name
