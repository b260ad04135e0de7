"""Notes of commands about a loaded model: tensors in main memory, and caches in another format than requested."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.cli import load_model
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.fit import main_memory_lines
from rwkv_gpu.cli.load_model import matrix_unit_notes
from rwkv_gpu.engine.fit import Fit
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.ops.driver_verdict import RIGHT, Verdict, keep_verdict
from tests.golden_files import OWN


def noted(model: str, kv: str) -> list[str]:
    arguments = ["generate", str(OWN / f"{model}.gguf"), "-p", "hi", "-n", "1", "--device", "cpu", "--kv", kv]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.stderr
    return [line for line in result.stderr.splitlines() if "--kv" in line]


@pytest.mark.parametrize("kv", ["q8", "q4"])
def test_a_note_appears_if_keys_and_values_are_not_stored_as_requested(kv):
    assert noted("tiny-llama", "f16") == noted("tiny-deepseek2", "f32") == []
    [latents] = noted("tiny-deepseek2", kv)
    assert f"--kv {kv}: all layers stay f16 (latents" in latents
    [recurrent] = noted("tiny-rwkv7", kv)
    assert recurrent == f"rwkv-gpu: --kv {kv} has no effect: the model has no KV cache"


def test_a_note_gives_the_weights_in_main_memory_and_the_bytes_that_a_token_reads():
    assert main_memory_lines(Fit(None, 5, 5, 5, None)) == []
    fit = Fit(
        None, 5, 5, 5, None, host=3 << 30, host_available=32 << 30, host_layers=4, expert_layers=48, cache=1 << 30,
        cached_experts=40, experts=128, step_bytes=500_000_000, main_memory_rate=25e9,
    )  # fmt: skip
    assert main_memory_lines(fit) == [
        "4 layers and the experts of 48 layers, 3.00 GiB of 32.00 GiB free",
        "40 of 128 experts of each have a copy on the GPU, 1.00 GiB",
        "a token reads 476.8 MiB there, 20 ms at most at the 25.0 GB/s measured",
    ]


@pytest.mark.parametrize(
    "command", [["chat", "hello"], ["run", "hello there"], ["generate", "-p", "hi", "--json"]], ids=" ".join
)
def test_the_built_in_model_introduces_itself_in_one_line_and_says_how_to_get_a_real_one(command):
    result = CliRunner().invoke(cli, [*command, "--max-tokens", "60", "--device", "cpu"])
    assert result.exit_code == 0, result.stderr
    [note] = [line for line in result.stderr.splitlines() if "built-in demo" in line]
    assert "11 M parameters, small talk only" in note
    assert "for a real model: rwkv-gpu models (" in note
    assert "demo" not in result.stdout


@pytest.mark.parametrize("found", [None, "/usr/bin/rwkv-gpu"])
def test_the_demo_names_a_model_that_suits_a_gpu_and_the_program_as_a_shell_finds_it(monkeypatch, found):
    monkeypatch.setattr(load_model.sys, "argv", [".venv/bin/rwkv-gpu", "chat"])
    monkeypatch.setattr(load_model.shutil, "which", lambda _: found)
    with rwkv_gpu.load(device="cpu") as llm:
        [note] = load_model.notes(str(builtin_model()), replace(llm.info, device="a GPU"), "f16")
    assert f"for a real model: {'rwkv-gpu' if found else '.venv/bin/rwkv-gpu'} run qwen3.5:4b" in note


def test_a_model_of_the_user_is_not_called_a_demo():
    result = CliRunner().invoke(
        cli, ["generate", str(OWN / "tiny-rwkv7.gguf"), "-p", "hi", "-n", "1", "--device", "cpu"]
    )
    assert result.exit_code == 0
    assert "demo" not in result.stderr


def test_matrix_units_under_test_are_reported_and_those_in_use_once(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    adapter = Adapter(0, "a GPU", "Vulkan", "DiscreteGPU", "1.0")
    device = VirtualDevice(replace(LIMITS["h200"], fragment=0))
    device.adapter = adapter
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        info = replace(llm.info, gpus=(device,))
    assert list(matrix_unit_notes(info)) == []
    device.pending = lambda: None
    [note] = matrix_unit_notes(info)
    assert "in the background" in note and "--matrix-units off" in note
    device.pending, device.capabilities = None, replace(device.capabilities, fragment=16)
    keep_verdict(adapter, tuned_folder(), Verdict(RIGHT))
    assert info.matrix_units
    [note] = matrix_unit_notes(info)
    assert "are on" in note and "--matrix-units off" in note
    assert list(matrix_unit_notes(info)) == []
