"""What the docs show is what the source says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\(`(rwkv_gpu/[\w/.]+)`\):\n\n((?:    .*\n)+)", ARCHITECTURE)


@pytest.mark.parametrize(("path", "code"), EXAMPLES, ids=[path for path, _ in EXAMPLES])
def test_the_example_of_adding_an_op_is_in_the_source(path, code):
    shown = [line.strip() for line in code.splitlines()]
    source = [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]
    assert any(source[at : at + len(shown)] == shown for at in range(len(source)))


def test_the_example_has_its_four_places():
    assert len(EXAMPLES) == 4


def test_every_file_that_the_docs_name_exists():
    for name in re.findall(r"`([\w/]+\.(?:py|wgsl|md))`", ARCHITECTURE):
        found = [ROOT / name, ROOT / "rwkv_gpu" / name, *(ROOT / "rwkv_gpu").rglob(Path(name).name)]
        assert any(path.exists() for path in found), name
