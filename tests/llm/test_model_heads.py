"""Draft heads in the library and the command line: used by default, named, counted, saved, and refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from tests.gguf.parts import take_apart
from tests.golden.heads import write_headed


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_headed(tmp_path_factory.mktemp("headed") / "model.gguf", "qwen35")


def run(*words: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_model_with_a_head_uses_it_by_default(file):
    how = {"device": "cpu", "context": 256}
    with rwkv_gpu.load(file, no_draft=True, **how) as llm:
        plain = llm.generate([5, 6, 7], max_tokens=150, seed=1)
        assert (llm.info.heads, llm.info.drafts) == (1, False)
    with rwkv_gpu.load(file, **how) as llm:
        found = llm.generate([5, 6, 7], max_tokens=150, seed=1)
        assert llm.info.drafts
        assert llm._driver._engine._speculation is not None
    assert found.tokens == plain.tokens
    assert not plain.stats.drafted_tokens
    with pytest.raises(BadInput, match="no_draft is 1"):
        rwkv_gpu.load(file, no_draft=1)


def test_a_head_is_named_and_counted(file):
    data = json.loads(run("info", file, "--device", "cpu", "--json"))
    assert data["draft_heads"] == 1
    sizes = [json.loads(run("fit", file, "--device", "cpu", "--json", *more)) for more in ((), ("--no-draft",))]
    head = sizes[0]["weights"] - sizes[1]["weights"]
    with GGUFFile.open(file) as opened:
        own = sum(4 * len(opened.values(t).reshape(-1)) for name, t in opened.tensors.items() if ".4." in name)
    assert head == own, "in numpy, as float32"
    assert sizes[0]["state"] > sizes[1]["state"], "keys, values and rows"


def test_quantize_keeps_a_head(file, tmp_path):
    target = tmp_path / "small.gguf"
    run("quantize", file, target, "q8_0")
    with GGUFFile.open(file) as before, GGUFFile.open(target) as after:
        assert before.tensors.keys() == after.tensors.keys()
    with rwkv_gpu.load(target, device="cpu", context=64) as llm:
        assert llm.info.drafts


@pytest.mark.parametrize("fault", ["missing", "size"])
def test_a_head_that_does_not_fit_is_reported_in_one_line_and_the_model_answers(file, tmp_path, fault):
    parts = take_apart(file.read_bytes())
    [tensor] = [one for one in parts.tensors if one.name == b"blk.4.nextn.eh_proj.weight"]
    if fault == "missing":
        tensor.name = b"blk.4.nextn.other.weight"
    else:
        tensor.dims = tensor.dims[::-1]
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(parts.built())
    with rwkv_gpu.load(damaged, device="cpu", context=64) as llm:
        assert "blk.4.nextn.eh_proj.weight" in llm.info.head_fault
        assert not llm.info.drafts
    done = CliRunner().invoke(cli, ["generate", str(damaged), "--device", "cpu", "-p", "a", "-n", "3"])
    assert done.exit_code == 0
    notes = [line for line in done.stderr.splitlines() if "draft head is not used" in line]
    assert len(notes) == 1
    assert "nextn.eh_proj" in notes[0]


def test_a_file_of_heads_alone_is_refused_as_a_model(file, tmp_path):
    parts = take_apart(file.read_bytes())
    for tensor in parts.tensors:
        if tensor.name.startswith(b"blk.0."):
            tensor.name = tensor.name.replace(b"blk.0.", b"blk.9.")
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(parts.built())
    done = CliRunner().invoke(cli, ["generate", str(alone), "-p", "a", "--device", "cpu"])
    assert done.exit_code == 2
    assert "predict further tokens (MTP)" in done.output and "--draft" in done.output
    assert len(done.output.splitlines()) == 1
