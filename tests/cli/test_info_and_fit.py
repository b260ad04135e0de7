"""Tests of the output of `rwkv-gpu info` and `fit`."""

import json

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import SIZES
from tests.cases import each
from tests.engine.test_adapters import write
from tests.gguf.corpus import BAD
from tests.gguf.parts import take_apart
from tests.gguf.writer import ARRAY, F64, I32, STRING
from tests.golden_files import NAMES, OWN, golden


def run(*arguments: object):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.long
@each("name", NAMES)
def test_info_shows_the_facts_of_a_model(name):
    path = golden(name)
    result = run("info", path, "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert "architecture" in result.stdout
    assert "needs" in result.stdout
    data = json.loads(run("info", path, "--device", "cpu", "--json", "--tensors").stdout)
    assert data["bytes"] == path.stat().st_size
    assert sum(tensor["bytes"] for tensor in data["tensors"]) == sum(data["formats"].values())
    assert {tensor["type"] for tensor in data["tensors"]} == data["formats"].keys() <= {f.name for f in SIZES.values()}
    assert data["vocabulary"] == len(set(range(data["vocabulary"])))


def test_info_says_what_a_model_needs_once():
    [line] = [one for one in run("info", "builtin", "--device", "cpu").stdout.splitlines() if one.startswith("needs")]
    assert "free (cpu, numpy)" in line
    assert line.count("need") == 1


def test_info_lists_every_tensor():
    path = golden("rwkv7-mini-Q8_0.gguf")
    lines = run("info", path, "--tensors", "--device", "cpu").stdout.splitlines()
    assert any("blk.1.channel_mix_key.weight" in line and "Q8_0" in line for line in lines)


@each("bad", BAD)
def test_a_bad_file_is_refused_in_one_line_with_exit_code_2(bad, tmp_path):
    result = run("info", bad.put(tmp_path), "--device", "cpu")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("rwkv-gpu: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_fit_answers_yes_with_the_numbers(adapter, device):
    path = golden("rwkv7-bf16-Q4_K_M.gguf")
    name = "cpu" if device == "cpu" else adapter.index
    result = run("fit", path, "--device", name)
    assert result.exit_code == 0
    assert result.stdout.startswith("yes: ")
    data = json.loads(run("fit", path, "--device", name, "--json").stdout)
    assert data["fits"] is True
    assert data["needed"] > 3_500_000


def test_fit_counts_whole_texts_in_a_step_of_an_encoder(adapter):
    path = OWN / "tiny-bert.gguf"
    data = json.loads(run("fit", path, "--device", adapter.index, "--chunk-size", 8, "--json").stdout)
    with rwkv_gpu.load(path, device=adapter.index, chunk_size=8) as llm:
        assert (data["context"], data["state"]) == (llm.context, llm.info.memory.state)
        assert llm.info.chunk_size == llm.context


def test_fit_answers_no_with_the_numbers(monkeypatch):
    path = golden("rwkv7-bf16-Q4_K_M.gguf")
    monkeypatch.setattr("rwkv_gpu.engine.fit.host_available", lambda: 1_000_000)
    result = run("fit", path, "--device", "cpu")
    assert result.exit_code == 1
    assert result.stdout.startswith("no: ")
    assert "976.6 KiB free" in result.stdout


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_fit_counts_adapters_and_a_draft_model(adapter, device, tmp_path, monkeypatch):
    path, name = golden("tiny-llama.gguf"), "cpu" if device == "cpu" else adapter.index
    lora = write(tmp_path, "llama", "more", rank=32, parts=["attn_q", "ffn_gate", "ffn_up"])
    with GGUFFile.open(lora) as file:  # float16 factors, which stay float16 on a GPU
        factors = sum(tensor.nbytes for tensor in file.tensors.values()) * (2 if device == "cpu" else 1)
    arguments = "fit", path, "--device", name, "--context", 64
    plain = json.loads(run(*arguments, "--json").stdout)
    arguments += "--lora", lora, "--draft", path, "--draft-tokens", 3
    found = json.loads(run(*arguments, "--json").stdout)
    assert plain["adapters"] == plain["draft"] == 0
    assert factors <= found["adapters"] < 1.1 * factors  # places are aligned
    assert found["draft"] >= plain["weights"]
    parts = "weights", "adapters", "cache", "state", "scratch", "draft"
    assert found["needed"] == sum(found[part] for part in parts) > plain["needed"] + plain["weights"]
    lines = run(*arguments).stdout
    assert "  adapters " in lines
    assert "  draft    " in lines
    for module in ("host_available", "device_available"):
        monkeypatch.setattr(f"rwkv_gpu.engine.fit.{module}", lambda *_: found["needed"] - 1)
    assert run(*arguments).exit_code == 1
    assert run(*arguments[:6]).exit_code == 0


def test_fit_counts_adapters_and_a_draft_model_on_the_device_that_holds_them(tmp_path):
    path = golden("tiny-llama.gguf")
    lora = write(tmp_path, "llama", "more", parts=["attn_q"])
    split = "fit", path, "--device", "cpu,cpu", "--split", "1,1", "--lora", lora, "--draft", path
    data = json.loads(run(*split, "--json").stdout)
    first, second = data["parts"]
    assert first["adapters"] == second["adapters"] > 0
    assert (first["draft"], second["draft"]) == (
        0,
        json.loads(run(*split[:3], "cpu", *split[6:], "--json").stdout)["draft"],
    )
    assert data["needed"] > second["draft"] + first["weights"] + second["weights"]


@pytest.mark.parametrize("value", [[], [4], [4, 2, 4], [0, 0], "text", ["a", "b"], 1.5])
def test_numbers_by_layer_of_any_kind_are_shown_or_refused(tmp_path, value):
    """In a file of an unsupported family, any key may have another meaning."""
    parts = take_apart(golden("tiny-llama.gguf").read_bytes())
    kinds = {list: ARRAY, str: STRING, float: F64}
    given = value.encode() if isinstance(value, str) else value
    if isinstance(value, list) and value and isinstance(value[0], str):
        given = [one.encode() for one in value]
    for name in ("attention.head_count", "feed_forward_length", "block_count"):
        parts.set(f"llama.{name}", kinds[type(value)], given)
        parts.rows[-1].element = STRING if given and isinstance(given, list) and isinstance(given[0], bytes) else I32
    path = tmp_path / "odd.gguf"
    path.write_bytes(parts.built())
    done = CliRunner().invoke(cli, ["info", str(path), "--device", "cpu"])
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert "llama" in done.stdout
