"""The doctor finds driver errors, reports what is slow, and finds nothing on a correct device."""

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu.cli.doctor as doctor_command
import rwkv_gpu.gpu.shader as shaders
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import DeviceError
from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure import doctor
from rwkv_gpu.measure.cases import CHOSEN, cases, dense, quick
from rwkv_gpu.measure.device_report import DeviceReport
from rwkv_gpu.measure.doctor import Report, examine
from rwkv_gpu.measure.trials import LARGEST, LEAST, Outcome, Stored, difference
from rwkv_gpu.ops.vocabulary import Ops
from tests.process import PATIENCE, posix


def all_cases(device):
    return list(cases(device.capabilities, default_tuning(device.capabilities)))


def test_one_trial_of_each_op_is_right_on_a_sound_device(fast_device):
    each = {trial.op: trial for trial in all_cases(fast_device) if trial.op != "speed"}
    report = examine(fast_device, list(each.values()))
    assert report.wrong == []
    assert {outcome.op for outcome in report.outcomes} >= each.keys()
    assert all(outcome.seconds > 0 for outcome in report.outcomes if outcome.op != "lanes")


@pytest.mark.slow
def test_every_trial_is_right_on_a_sound_device(fast_device):
    assert examine(fast_device, all_cases(fast_device)).wrong == []


def test_every_op_and_every_format_is_tried(fast_device):
    every = all_cases(fast_device)
    said = {name for name in vars(Ops) if not name.startswith("_")}
    said -= {"layer", "linears", "step_input", "add_step_input"}
    said.remove("write_latents")  # the trial of latent attention covers it
    assert said - {"expert_glu", "expert_linear", "expert_sum"} <= {trial.op for trial in every}
    assert "experts" in {trial.op for trial in every}
    for op in ("embed", "linear", "experts"):
        whats = " ".join(trial.what for trial in every if trial.op == op)
        assert all(fmt.name in whats for fmt in FORMATS.values())
    assert len({(trial.op, trial.what, trial.variant) for trial in every}) == len(every)


def test_the_quick_trials_are_of_each_case_and_of_each_variant(fast_device):
    every = [trial for trial in all_cases(fast_device) if trial.op != "speed"]
    few = list(quick(every))
    assert len(few) < len(every) / 2
    assert {(trial.op, trial.what) for trial in few} == {(trial.op, trial.what) for trial in every}
    assert {(trial.op, trial.variant) for trial in few} == {(trial.op, trial.variant) for trial in every}


def spoil(monkeypatch, old, new, part=""):
    """Replaces a text in every shader part, or in one."""
    read = shaders.read

    def spoilt(name):
        found = read(name)
        return replace(found, text=found.text.replace(old, new)) if part in ("", name) else found

    monkeypatch.setattr(shaders, "read", spoilt)


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("dense/binary/add", "x + z", "x - z"),
        ("dense/binary/add", "x + z", "x + z * (1.0 + 1e-3)"),
        ("dense/binary/add", "return x + z", "return bitcast<f32>(0x7fc00000u)"),
        ("dense/binary/add", "return", "retrun"),
    ],
)
def test_a_kernel_with_wrong_results_is_found(fast_device, monkeypatch, part, old, new):
    assert old in shaders.read(part).text
    spoil(monkeypatch, old, new, part)
    both = [trial for trial in all_cases(fast_device) if trial.op in ("add", "mul")]
    fast_device.pipelines.clear()
    try:
        report = examine(fast_device, both)
    finally:
        fast_device.pipelines.clear()
    assert [outcome.op for outcome in report.wrong] == ["add"]
    assert "\n" not in str(report.wrong[0])


def test_random_weights_equal_those_of_a_model():
    for fmt in FORMATS.values():
        values = Stored.random(fmt, 4, 512).values
        assert np.isfinite(values).all()
        assert LEAST < np.abs(values).max() < LARGEST


def test_errors_are_relative_to_the_largest_number():
    assert difference(np.array([1.0, 100.5]), np.array([1.0, 100.0])) == pytest.approx(5e-3)
    assert difference(np.array([np.nan, 1.0]), np.array([0.0, 1.0])) == math.inf
    assert difference(np.array([1, 2]), np.array([1, 3])) == math.inf
    assert difference(np.array([1, 2]), np.array([1, 2])) == 0


def test_a_chosen_variant_counts_as_slow_if_another_is_much_faster():
    def outcome(variant, seconds, error=0.0, what="Q4_K"):
        return Outcome("speed", what, variant, error, 1e-3, seconds)

    slow = Report((outcome(CHOSEN, 2.0), outcome("vec", 1.0), outcome("tile", 0.1, error=1.0)))
    assert slow.slow == ["Q4_K: vec takes 50% of the time"]
    assert [o.variant for o in slow.wrong] == ["tile"]
    assert Report((outcome(CHOSEN, 1.2), outcome("vec", 1.0), outcome("vec", 0.1, what="Q6_K"))).slow == []


def test_the_exit_code_of_the_command_shows_whether_results_are_correct(fast_device, monkeypatch, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(cli, ["doctor", "--device", str(fast_device.adapter.index), *arguments])

    fine = run("--op", "add", "--op", "mul")
    assert fine.exit_code == 0
    assert "All results are correct" in fine.output
    spoil(monkeypatch, "x * z", "x / z")
    broken = run("--op", "mul")
    assert broken.exit_code == 3
    assert "WRONG mul" in broken.output
    data = json.loads(run("--op", "mul", "--json", "--report", str(tmp_path / "report")).stdout)
    assert data["wrong"] == 1
    verdict = lines_of((tmp_path / "report").read_text(encoding="utf-8"))[-1]
    assert (verdict["kind"], verdict["wrong"]) == ("verdict", 1)
    assert run("--op", "nonsense").exit_code == 2
    assert CliRunner().invoke(cli, ["doctor", "--device", "cpu"]).exit_code == 2


def test_without_a_gpu_the_doctor_says_why(monkeypatch):
    monkeypatch.setattr(doctor_command, "list_adapters", list)
    refused = CliRunner().invoke(cli, ["doctor"])
    assert refused.exit_code == 2
    assert "but the device is cpu: no GPU found; to use one, install a Vulkan driver" in refused.stderr


def reported(device, file):
    """Returns the report of one trial."""
    [trial] = [trial for trial in dense.cases(device.capabilities) if trial.op == "mul"]
    report = DeviceReport(file)
    report.opening(device.adapter)
    report.opened(device, default_tuning(device.capabilities), 1, {"quick": True})
    report.verdict(doctor.examine(device, [trial], [report]))


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_report_holds_the_device_and_every_verdict(fast_device, monkeypatch):
    fine, refused = StringIO(), StringIO()
    reported(fast_device, fine)
    lines = lines_of(fine.getvalue())
    kinds = ["system", "adapter", "device", "matrix_units", "plan", "lanes", "trial", "verdict"]
    assert [line["kind"] for line in lines] == kinds
    system, adapter, device, units, plan, lanes, trial, verdict = lines
    assert system["packages"].keys() == {"rwkv-gpu", "wgpu", "numpy"}
    assert system["version"]
    assert units["offered"].startswith(("no matrix units on", "8x8", "16x16"))
    assert adapter["info"]["device"] == fast_device.adapter.name
    assert adapter["limits"].keys() >= {"max-buffer-size", "max-compute-workgroup-storage-size"}
    assert device["capabilities"]["max_invocations"] == fast_device.capabilities.max_invocations
    assert (plan["trials"], plan["quick"]) == (1, True)
    assert all(found["right"] for found in lanes["found"])
    assert trial["right"]
    assert 0 < trial["milliseconds"] < trial["total_milliseconds"]
    assert verdict["wrong"] == 0
    spoil(monkeypatch, "x * z", "x *! z")
    reported(fast_device, refused)
    *_, trial, verdict = lines_of(refused.getvalue())
    assert not trial["right"]
    assert "does not compile" in trial["refusal"]
    assert verdict["wrong"] == 1


def test_the_report_of_a_driver_that_crashes_ends_with_the_name_of_the_kernel(fast_device, monkeypatch):
    def crash(*_):
        raise SystemExit(139)

    def ended_early():
        file = StringIO()
        with pytest.raises(SystemExit):
            reported(fast_device, file)
        *whole, cut = file.getvalue().splitlines()
        return [json.loads(line)["kind"] for line in whole], json.loads(cut + "}")

    opened = ["system", "adapter", "device", "matrix_units", "plan"]
    monkeypatch.setattr(doctor, "run", crash)
    assert ended_early() == ([*opened, "lanes"], {"kind": "trial", "op": "mul", "what": "", "variant": "map"})
    monkeypatch.setattr(doctor, "_lanes", crash)
    assert ended_early() == (opened, {"kind": "lanes"})


@posix
def test_the_report_of_an_interrupted_doctor_is_marked_as_such(adapter, tmp_path):
    """Otherwise, the last line of the report looks like a crash of the driver."""
    path = tmp_path / "report"
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "doctor", "--device", str(adapter.index), "--report", path]
    process = subprocess.Popen([*command, "--op", "linear"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not (path.exists() and '"trial"' in path.read_text(encoding="utf-8")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
    *_, last = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(last) == {"kind": "stopped", "signal": "SIGINT"}


def run_with_report(path, device, *arguments):
    """Runs the command. Returns the result and the lines of its report."""
    done = CliRunner().invoke(cli, ["doctor", "--device", device, "--report", str(path), *arguments])
    return done, path.read_text(encoding="utf-8").splitlines()


def test_the_report_has_the_error_that_ended_the_doctor_after_its_trial(fast_device, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError(f"surprise in {Path.home() / 'models'}")

    monkeypatch.setattr(doctor, "run", broken)
    done, lines = run_with_report(tmp_path / "report", str(fast_device.adapter.index), "--op", "mul")
    assert isinstance(done.exception, RuntimeError)
    *_, cut, error = lines
    assert json.loads(cut + "}")["op"] == "mul"
    surprise = f"surprise in {Path('~') / 'models'}"  # the report does not contain the user's name
    assert json.loads(error) == {"kind": "error", "type": "RuntimeError", "message": surprise}


def test_the_report_of_an_unlisted_device_names_the_listed_ones(fast_device, tmp_path):
    done, lines = run_with_report(tmp_path / "report", "radiant 9000")
    assert done.exit_code != 0
    system, adapters, error = map(json.loads, lines)
    assert system["kind"] == "system"
    assert any(fast_device.adapter.name in found for found in adapters["found"])
    assert (error["type"], "radiant 9000" in error["message"]) == ("NoAdapter", True)


def test_the_report_of_a_device_that_does_not_open_holds_the_error(fast_device, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise DeviceError("Parent device is lost;\ntry another")

    monkeypatch.setattr(doctor_command, "open_device", refused)
    done, lines = run_with_report(tmp_path / "report", str(fast_device.adapter.index))
    assert isinstance(done.exception, DeviceError | SystemExit)
    *opening, error = map(json.loads, lines)
    assert [line["kind"] for line in opening] == ["system", "adapters", "adapter"]
    assert error == {"kind": "error", "type": "DeviceError", "message": r"Parent device is lost;\ntry another"}
