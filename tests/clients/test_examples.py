"""The examples in docs/examples run as written: other libraries with the server, and the notebook."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.mark.parametrize("package", ["langchain_openai", "llama_index.llms.openai_like", "instructor"])
def test_libraries_work_with_the_server(url, package):
    pytest.importorskip(package, reason="make test-clients installs it")
    names = {"langchain_openai": "with_langchain", "instructor": "with_instructor"}
    code = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import clients; "
    code += f"clients.{names.get(package, 'with_llama_index')}('quiet')"
    run = [sys.executable, "-c", code, url]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split(":", 1)[1].strip()) > 3
    if package == "instructor":
        assert "Sea(blue=" in done.stdout


def test_the_notebook_runs_to_its_end(monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="make test-clients installs it")
    import nbformat

    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        cell.source = cell.source.replace('LLM("builtin")', 'LLM("builtin", device="cpu")')
    nbclient.NotebookClient(notebook, timeout=300).execute()
    outputs = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "Sea(blue=" in outputs


def test_the_notebook_in_the_repository_has_no_outputs():
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") for cell in notebook["cells"])
