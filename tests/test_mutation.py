"""Mutation testing: each change yields a different program, and all changes listed as without effect exist."""

import ast
from pathlib import Path

from tests.mutation import changes as module
from tests.mutation.changes import EQUIVALENT, changes

SAMPLE = '''
LIMIT = max(1, 2)

class Row:
    """A row."""

    def bad(self, rows, limit=min(3, 4)):
        assert rows < 3
        def inner(x):
            return not x
        self.close(rows)
        return len(rows) - 1 >= limit and inner(rows)
'''


def test_each_change_is_another_program_in_the_function_that_it_names(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "sample.py").write_text(SAMPLE)
    found = {(change.before, change.after): change for change in changes(Path("sample.py"))}
    bad = ("Row", "bad")
    assert {pair: change.scope for pair, change in found.items()} == {
        ("max(1, 2)", "min(1, 2)"): (),
        ("min(3, 4)", "max(3, 4)"): (),
        ("not x", "(x)"): bad,
        ("self.close(rows)", "pass"): bad,
        ("len(rows) - 1", "(len(rows))"): bad,
        ("len(rows) - 1 >= limit", "(len(rows) - 1 > limit)"): bad,
        ("len(rows) - 1 >= limit and inner(rows)", "(len(rows) - 1 >= limit or inner(rows))"): bad,
    }
    programs = {ast.dump(ast.parse(change.applied(SAMPLE.encode()))) for change in found.values()}
    assert len(programs) == len(found) and ast.dump(ast.parse(SAMPLE)) not in programs


def test_changes_without_effect_have_their_reasons_and_are_still_possible():
    listed = [line.partition("  # ") for line in EQUIVALENT.read_text().splitlines()]
    assert len({name for name, _, _ in listed}) == len(listed) and all(reason for _, _, reason in listed)
    files = {name.partition(": ")[0] for name, _, _ in listed}
    possible = {f"{path}: {change.name}" for path in files for change in changes(Path(path))}
    assert {name for name, _, _ in listed} - possible == set()
