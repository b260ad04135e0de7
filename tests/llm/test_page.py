"""The page on the library: its examples run in order, and its table names every exception."""

import re
from pathlib import Path

import rwkv_gpu
from tests.golden_files import OWN

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text(encoding="utf-8")


def test_the_examples_run_in_order(monkeypatch, tmp_path, capsys):
    load = rwkv_gpu.load
    model = OWN / "tiny-rwkv7.gguf"
    monkeypatch.setattr(rwkv_gpu, "load", lambda path, **given: load(model, **{**given, "device": "cpu"}))
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == PAGE.count("```") // 2
    scope: dict[str, object] = {}
    for example in examples:
        exec(example, scope)
    assert "temperature is -1" in capsys.readouterr().out


def test_the_table_names_every_exception_that_a_user_can_handle():
    told = set(re.findall(r"`([A-Z]\w+)`", PAGE[PAGE.index("| exception |") :]))
    errors = {name for name, value in vars(rwkv_gpu.errors).items() if isinstance(value, type)}
    assert told == errors - {"RwkvGpuError"}
    assert errors <= {*rwkv_gpu.__all__}
