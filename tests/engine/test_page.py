"""The page on sampling: its examples run, and its table has every setting, its default and where it is applied."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu.engine.device_sampling import samples_on_device
from rwkv_gpu.engine.sampling_params import SamplingParams
from tests.golden_files import OWN

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`[^|]+) \| ([^|]*) \|.*\|\s?([^|]*?)\s?\|$", PAGE, re.MULTILINE)
ENDS = {"max_tokens", "min_tokens", "ignore_eos", "stop", "stop_ids"}  # the sentence below the table has these
ACTIVE = {
    "logit_bias": {1: 1.0},
    "dry_multiplier": 1.0,
    "typical_p": 0.5,
    "xtc_probability": 0.5,
    "mirostat_tau": 3.0,
    "logprobs": 3,
    "repetition_penalty": 1.5,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0.5,
    "temperature": 0.5,
    "seed": 5,
}


def test_the_examples_run_in_order(monkeypatch, capsys):
    load = rwkv_gpu.load
    model = OWN / "tiny-rwkv7.gguf"
    monkeypatch.setattr(rwkv_gpu, "load", lambda path, **given: load(model, **{**given, "device": "cpu"}))
    scope: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == PAGE.count("```") // 2
    for example in examples:
        exec(example, scope)
    assert capsys.readouterr().out.count("\n") == 24  # a line for each token
    scope["llm"].close()


def test_the_table_has_every_setting_and_its_default():
    told = {}
    for names, defaults, _ in ROWS:
        names = re.findall(r"`(\w+)`", names)
        told |= dict(zip(names, defaults.split(", "), strict=True))
    for field in fields(SamplingParams):
        if field.name in ENDS:
            continue
        default = field.default_factory() if field.default is MISSING else field.default
        shown = "none" if default is None or default in (frozenset(), ()) else f"{default:g}" if default != {} else "{}"
        assert told.pop(field.name) == shown, field.name
    assert not told
    assert all(f"`{name}`" in PAGE for name in ENDS)


@pytest.mark.parametrize(("names", "where"), [(names, where) for names, _, where in ROWS])
def test_the_table_names_the_code_that_applies_each_setting(names, where):
    for name in re.findall(r"`(\w+)`", names):
        if name in ACTIVE:
            assert samples_on_device(SamplingParams(**{name: ACTIVE[name]})) == (where == "device"), name


def test_a_device_limits_the_number_of_biases_and_the_penalty_window():
    assert samples_on_device(SamplingParams(logit_bias=dict.fromkeys(range(4096), 1.0)))
    assert not samples_on_device(SamplingParams(logit_bias=dict.fromkeys(range(4097), 1.0)))
    far = {"repetition_penalty": 1.1, "penalty_last_n": 1024}
    assert samples_on_device(SamplingParams(**far))
    assert not samples_on_device(SamplingParams(**{**far, "penalty_last_n": 1025}))
    assert samples_on_device(SamplingParams(**{**far, "penalty_last_n": -1}))
