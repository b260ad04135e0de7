"""The API reference, which `make docs` generates from docstrings, explains every public name."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rwkv_gpu
from rwkv_gpu import stores
from tests.cases import each

ROOT = Path(__file__).resolve().parent.parent
RECORDS = (rwkv_gpu.Completion, rwkv_gpu.Event, rwkv_gpu.Hub, rwkv_gpu.Info, rwkv_gpu.SamplingParams, rwkv_gpu.Stats)
LIBRARY = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


def described(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Returns the public classes and functions of a module, and their public methods and properties."""
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield name, thing
        if inspect.isclass(thing):
            ours = [base for base in thing.__mro__ if base.__module__.startswith("rwkv_gpu")]
            for own, member in inspect.getmembers(thing):
                if not own.startswith("_") and any(own in vars(base) for base in ours) and _has_body(member):
                    yield f"{name}.{own}", member


def _has_body(member: object) -> bool:
    return inspect.isroutine(member) or isinstance(member, property)


@each("module", [rwkv_gpu, stores])
def test_every_public_name_has_a_docstring(module):
    found = dict(described(module))
    assert not [name for name, thing in found.items() if not thing.__doc__]
    assert found.keys() >= ({"LLM.generate", "Chat.send", "load"} if module is rwkv_gpu else {"Store.get"})


def test_the_page_on_the_library_names_public_names_only():
    for name in re.findall(r"\brwkv_gpu\.([A-Za-z]\w*)", LIBRARY):
        assert name in rwkv_gpu.__all__ or name == "stores", name


def test_the_reference_shows_inherited_methods_in_full(tmp_path):
    pdoc = pytest.importorskip("pdoc")
    pdoc.render.configure(template_directory=ROOT / "docs" / "api", search=False)
    pdoc.pdoc("rwkv_gpu", output_directory=tmp_path)
    shown = set(re.findall(r'id="([\w.]+)"', (tmp_path / "rwkv_gpu.html").read_text(encoding="utf-8")))
    assert shown >= dict(described(rwkv_gpu)).keys()
    fields = {f"{one.__name__}.{name}" for one in RECORDS for name in one.__annotations__ if not name.startswith("_")}
    assert len(fields) > 50 and shown >= fields  # the template leaves out fields without a text
    assert "BadInput.args" not in shown
