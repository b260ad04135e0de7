"""Profiles of a step, as a table and a timeline."""

import json

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.measure.profiling import Profiled, profile, trace
from rwkv_gpu.measure.roofline import Roofline
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.models.registry import load_model
from tests.golden.heads import write_headed
from tests.golden_files import OWN
from tests.measure.test_synthetic import TINY_MIXTURE
from tests.measure.tiny import opened_tiny


@pytest.fixture(scope="module")
def profiles(fast_device) -> list[Profiled]:
    if not fast_device.capabilities.timestamps:
        pytest.skip("the device has no timestamps")
    file = opened_tiny(TINY_MIXTURE)
    runner = GpuRunner(fast_device, file, load_model(file), slots=2, chunk_size=8, context=128)
    works = [Workload("pp", 8, 0, 1, 8), Workload("tg", 1, 64, 2, 2)]
    return list(profile(runner, works, 2, Roofline(1e9, 1e10, None)))


def test_attention_experts_and_the_writing_of_keys_have_figures(profiles):
    prompt = {step.name: step for step in profiles[0].profile.steps}
    for word in ("/kv attention", "exps expert_", " gem"):
        steps = [step for name, step in prompt.items() if word in name and not name.endswith(("_write", "_gather"))]
        assert steps, word
        assert all(step.nbytes and step.flops for step in steps), word
    assert prompt["blk.*/kv kv_write"].nbytes
    assert profiles[0].share(profiles[0].whole) > 0


def test_a_timeline_has_every_dispatch_inside_of_its_layer(profiles):
    events = json.loads(trace(profiles))["traceEvents"]
    for number, one in enumerate(profiles, 1):
        mine = [event for event in events if event["pid"] == number and event["ph"] == "X"]
        dispatches = [event for event in mine if event["tid"] == 2]
        assert [event["name"] for event in dispatches] == [timed.name for timed in one.profile.timeline]
        layers = {event["name"]: event for event in mine if event["tid"] == 1}
        assert layers.keys() == {"blk.0", "blk.1"}
        for event in dispatches:
            layer = layers.get(event["name"].split("/")[0])
            if layer:
                assert layer["ts"] <= event["ts"]
                assert event["ts"] + event["dur"] <= layer["ts"] + layer["dur"] + 1e-6


def test_the_saved_report_equals_the_printed_one(adapter, tmp_path):
    given = ["profile", str(OWN / "tiny-rwkv7.gguf"), "-p", "4", "-r", "1", "--device", str(adapter.index)]
    result = CliRunner().invoke(cli, [*given, "--save", str(tmp_path), "--trace", str(tmp_path / "trace.json")])
    assert result.exit_code == 0, result.output
    [saved] = tmp_path.glob("*/tiny-rwkv7.md")
    assert saved.read_text() == result.stdout.removesuffix("\n")
    data = json.loads(saved.with_suffix(".json").read_text())
    assert [one["test"] for one in data["profiles"]] == ["pp4", "tg b1"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_the_head_of_a_model_is_profiled_and_its_drafts_are_counted(adapter, tmp_path):
    given = ["profile", str(write_headed(tmp_path / "model.gguf", "qwen35")), "-p", "0", "-r", "1"]
    for more, steps in (["--json"], ["tg b1", "draft b1"]), (["--json", "--no-draft"], ["tg b1"]):
        result = CliRunner().invoke(cli, [*given, *more, "--device", str(adapter.index)])
        assert result.exit_code == 0, result.output
        data = json.loads(result.stdout)
        assert [one["test"] for one in data["profiles"]] == steps
        assert ("drafts" in data) == (len(steps) > 1)
        assert "drafts" not in data or data["drafts"]["drafted"] >= data["drafts"]["accepted"] >= 0


def test_of_an_encoder_the_step_of_a_text_is_profiled(adapter):
    model = str(OWN / "tiny-nomic-bert.gguf")
    given = ["profile", model, "-p", "24", "-r", "1", "--device", str(adapter.index), "--json"]
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == 0, result.output
    [one] = json.loads(result.stdout)["profiles"]
    assert (one["test"], one["tokens"], one["batch"]) == ("pp24", 24, 1)
    calls = {step["name"]: step["calls"] for step in one["steps"]}
    assert calls["blk.*/kv attention"] == 2  # in each layer, and no logits at the end
    assert not any("output.weight" in name or "token_embd ge" in name for name in calls)


@pytest.mark.parametrize(("option", "told"), [("-b", "leave out -b"), ("-d", "leave out --depth")])
def test_an_encoder_has_no_decode_to_profile(option, told):
    result = CliRunner().invoke(cli, ["profile", str(OWN / "tiny-bert.gguf"), "-p", "8", option, "2"])
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_numpy_cannot_be_profiled():
    result = CliRunner().invoke(cli, ["profile", str(OWN / "tiny-rwkv7.gguf"), "--device", "cpu"])
    assert result.exit_code == 2
    assert "name one GPU" in result.stderr


def test_a_tower_is_profiled_with_its_model(adapter):
    given = ["profile", str(OWN / "tiny-gemma3.gguf"), "-p", "4", "-b", "0", "-r", "1", "--device", str(adapter.index)]
    result = CliRunner().invoke(cli, [*given, "--mmproj", str(OWN / "vision" / "gemma3.gguf"), "--json"])
    assert result.exit_code == 0, result.output
    prompt, tower = json.loads(result.stdout)["profiles"]
    assert (prompt["test"], tower["test"], tower["tokens"]) == ("pp4", "tower, 144 patches", 144)
    assert any("v.blk" in step["name"] or "attention" in step["name"] for step in tower["steps"])
