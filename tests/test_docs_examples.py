"""The worked examples of developer pages: each command or Python block prints what the block below it shows."""

import contextlib
import io
import re
import shlex

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from tests.test_docs_commands import ROOT

PAGES = ("attention", "engine", "export", "fusion")
EXAMPLE = re.compile(r"(?:((?:    rwkv-gpu .*\n)+)|```python\n((?:(?!```).*\n)+)```\n)\n```text\n((?:(?!```).*\n)+)```")


def printed(commands: str, code: str, scope: dict[str, object]) -> list[str]:
    """Returns the lines that commands or code print, without alignment."""
    out = io.StringIO()
    for command in commands.splitlines():
        result = CliRunner().invoke(cli, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, result.output
        out.write(result.output)
    with contextlib.redirect_stdout(out):
        exec(code, scope)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def pattern(line: str) -> str:
    """Returns a pattern for a shown line, in which `...` stands for any text."""
    return ".*".join(re.escape(part) for part in " ".join(line.split()).split("..."))


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_a_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```text") > 0
    scope: dict[str, object] = {}
    for commands, code, shown in examples:
        lines = iter(printed(commands, code, scope))
        for line in shown.splitlines():
            wanted = pattern(line)
            assert any(re.fullmatch(wanted, one) for one in lines), line  # in the order of the page
