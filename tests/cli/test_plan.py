"""Tests of `rwkv-gpu plan`, which needs no GPU for named limits."""

import json

from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.ops.passes import NAMES
from tests.golden_files import OWN

MODEL = str(OWN / "tiny-rwkv7.gguf")


def plan(*arguments: str):
    return CliRunner().invoke(cli, ["plan", MODEL, *arguments])


def test_each_dispatch_is_shown_with_its_op_and_each_pass_with_its_savings():
    shown = plan("--limits", "h200").output
    assert "time_mix_output gemv" in shown
    assert "gemm +gemv +save_state: " in shown
    total, table = shown.split("\n\n")
    assert total.splitlines()[-1].split()[1] == "dispatches,"
    assert [line.split()[0] for line in table.splitlines()[1:]] == list(NAMES)
    fired = next(line.split() for line in table.splitlines() if line.startswith("token_shift_into_products"))
    assert fired[1:3] == ["4", "4"]  # two a layer


def test_the_shader_of_a_dispatch_is_printed_by_its_number():
    number, kernel = next(
        line.split()[:2] for line in plan("--limits", "h200").output.splitlines() if "time_mix_output" in line
    )
    shown = plan("--limits", "h200", "--shader", number).output
    assert kernel and "\n// ---- linear/gemv.wgsl:1\n" in shown
    assert "\n// ---- linear/epilogue.wgsl:" in shown and "\n//# rows" in shown
    [told] = plan("--limits", "h200", "--shader", "999").output.splitlines()
    assert "there is no dispatch 999: the step has numbers 0 to " in told


def test_a_pass_is_left_out_by_its_name():
    name = "token_shift_into_products"
    whole, less = (json.loads(plan("--limits", "h200", "--json", *more).output) for more in ((), ("--without", name)))
    saved = whole["passes"][NAMES.index(name)]["dispatches"]
    assert len(less["dispatches"]) - len(whole["dispatches"]) == saved == 4
    assert "left out" in plan("--limits", "h200", "--without", name).output
    assert "token_shift" in plan("--limits", "h200", "--graph", "--without", name).output


def test_a_model_that_cannot_be_planned_is_an_error_in_one_line():
    for arguments, said in (
        (("--limits", "h200", "--without", "lora"), "there is no pass 'lora'; known: norm_into_embedding"),
        (("--limits", "h200", "--without", "choose_kernels"), "cannot be left out"),
        (("--device", "cpu"), f"numpy has no dispatches; choose a GPU with --device, or --limits {'|'.join(LIMITS)}"),
        (("--limits", "default", "--rows", "257"), "for more rows of one prompt, use --prefill"),
    ):
        result = plan(*arguments)
        assert result.exit_code == 2
        assert said in result.output
        assert len(result.output.splitlines()) == 1
