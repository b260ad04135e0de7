"""Matrix units are used only if the user enables them and a trial succeeded."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.errors import NoMatrixUnits
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.gpu.virtual import VirtualDevice
from rwkv_gpu.kernels.tuned import Tuned, save
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.ops import driver_verdict, matrix_units_trial
from rwkv_gpu.ops import open_device as module
from rwkv_gpu.ops.driver_verdict import RIGHT, Verdict, announce, keep_verdict, library_digest
from rwkv_gpu.ops.latent_partition import matrix_decode_partition
from rwkv_gpu.ops.open_device import SWITCH, open_device, require_matrix_units, state_of_matrix_units
from rwkv_gpu.ops.vocabulary import Cache
from tests.ops.matrix_plans import WITH_MATRIX_UNITS, tuning_with_matrix_units

LATENTS, STATE_SPACE = driver_verdict.APART
ADAPTER = Adapter(0, "a GPU", "Vulkan", "DiscreteGPU", "1.0")


@pytest.fixture
def opened(monkeypatch):
    """Records the options with which devices are opened. Each adapter has matrix units."""
    found = []

    class Opened(VirtualDevice):
        def __init__(self, _adapter, **how):
            found.append(how.get("matrix_units", False))
            super().__init__(WITH_MATRIX_UNITS if found[-1] else replace(WITH_MATRIX_UNITS, fragment=0))

        def without_matrix_units(self):
            return replace(self.capabilities, fragment=0)

    monkeypatch.setattr(module, "fragment_of", lambda adapter: 16)
    monkeypatch.setattr(module, "Device", Opened)
    return found


@pytest.fixture
def trial(monkeypatch):
    """Sets the outcome of a trial, and counts the trials."""
    state = SimpleNamespace(code=0, output="", count=0)

    def run(*_args, **_how):
        state.count += 1
        return SimpleNamespace(returncode=state.code, stdout=state.output, stderr="")

    monkeypatch.setattr(driver_verdict.subprocess, "run", run)
    return state


@pytest.fixture
def background(monkeypatch):
    """Records the processes started for trials. Each runs until its `code` is set."""
    started = []

    class Process:
        def __init__(self, command, **_how):
            self.command, self.code = command, None
            started.append(self)

        def poll(self):
            return self.code

    monkeypatch.setattr(driver_verdict.subprocess, "Popen", Process)
    return started


def keep_tuned(folder, library: str) -> None:
    found = Tuned(ADAPTER.name, ADAPTER.backend, ADAPTER.driver, "", (), tuning_with_matrix_units(), library=library)
    save(found, ADAPTER, folder)


def test_auto_tries_a_gpu_at_its_first_use_and_then_uses_it(opened, trial, tmp_path):
    assert "not tested" in state_of_matrix_units(ADAPTER, tmp_path)
    for _ in range(2):
        open_device(ADAPTER, "auto", tmp_path)
    assert opened == [True, True]
    assert trial.count == 1
    assert state_of_matrix_units(ADAPTER, tmp_path) == "in use"


def test_auto_leaves_out_software_devices_portable_mode_and_disabled_features(opened, trial, tmp_path):
    software = replace(ADAPTER, kind="CPU")
    open_device(software, "auto", tmp_path)
    open_device(ADAPTER, "auto", tmp_path, portable=True)
    open_device(ADAPTER, "off", tmp_path)
    (tmp_path / SWITCH).touch()
    open_device(ADAPTER, "auto", tmp_path)
    assert opened == [False] * 4
    assert trial.count == 0
    assert SWITCH in state_of_matrix_units(ADAPTER, tmp_path)
    assert "software" in state_of_matrix_units(software, None)


@pytest.mark.usefixtures("trial")
@pytest.mark.parametrize(("library", "used"), [("", False), ("this", True), ("another", True)])
def test_auto_follows_a_tuning_and_tries_again_with_another_library(opened, tmp_path, monkeypatch, library, used):
    monkeypatch.setattr(driver_verdict, "library_digest", lambda: "this")
    monkeypatch.setattr(module, "library_digest", lambda: "this")
    keep_tuned(tmp_path, library)
    open_device(ADAPTER, "auto", tmp_path)
    assert opened == [used]
    assert ("faster" in state_of_matrix_units(ADAPTER, tmp_path)) == (not used)


def test_the_first_use_starts_at_once_and_enables_them_when_the_trial_has_ended(opened, trial, background, tmp_path):
    device = open_device(ADAPTER, "auto", tmp_path, at_once=True)
    device.apply_trial_result()
    assert opened == [True] and device.capabilities.fragment == 0 and trial.count == 0
    [process] = background
    keep_verdict(ADAPTER, tmp_path, Verdict(RIGHT, (LATENTS,)))
    process.code = 0
    device.apply_trial_result()
    assert device.capabilities.fragment == 16 and device.pending is None
    assert not device.capabilities.latents_on_matrix_units
    later = open_device(ADAPTER, "auto", tmp_path, at_once=True)
    assert later.capabilities == device.capabilities and later.pending is None and len(background) == 1


def test_the_first_use_continues_without_them_where_the_trial_fails(opened, background, tmp_path):
    device = open_device(ADAPTER, "auto", tmp_path, at_once=True)
    before = device.capabilities
    keep_verdict(ADAPTER, tmp_path, Verdict("the driver crashed (signal 11)"))
    background[0].code = 1
    device.apply_trial_result()
    assert device.capabilities is before and device.pending is None
    assert open_device(ADAPTER, "auto", tmp_path, at_once=True).capabilities.fragment == 0
    assert opened == [True, False]
    assert "signal 11" in state_of_matrix_units(ADAPTER, tmp_path)


@pytest.mark.usefixtures("opened")
def test_two_processes_at_once_share_a_trial(background, tmp_path):
    devices = [open_device(ADAPTER, "auto", tmp_path, at_once=True) for _ in range(2)]
    assert len(background) == 1
    keep_verdict(ADAPTER, tmp_path, Verdict(RIGHT))
    background[0].code = 0
    for device in devices:
        device.apply_trial_result()
        assert device.capabilities.fragment == 16


def test_the_process_of_a_trial_saves_the_verdict(monkeypatch, trial, tmp_path):
    monkeypatch.setattr(driver_verdict, "list_adapters", lambda: [ADAPTER])
    trial.code, trial.output = 1, "a product of Q4_K is off by 40%\n"
    driver_verdict.main("0", str(tmp_path))
    assert driver_verdict.kept_verdict(ADAPTER, tmp_path) == Verdict("a product of Q4_K is off by 40%")
    assert [one.suffix for one in tmp_path.iterdir()] == [".json"]


def test_the_use_of_matrix_units_is_announced_once(tmp_path):
    assert not announce(ADAPTER, tmp_path)
    keep_verdict(ADAPTER, tmp_path, Verdict("wrong"))
    assert not announce(ADAPTER, tmp_path)
    keep_verdict(ADAPTER, tmp_path, Verdict(RIGHT, (LATENTS,)))
    assert [announce(ADAPTER, tmp_path) for _ in range(2)] == [True, False]
    assert driver_verdict.kept_verdict(ADAPTER, tmp_path).apart == (LATENTS,)


def test_a_driver_is_tried_once(opened, trial, tmp_path):
    for _ in range(3):
        open_device(ADAPTER, "on", tmp_path)
    assert opened == [True, True, True]
    assert trial.count == 1


@pytest.mark.parametrize(
    ("code", "output", "why"),
    [(1, "a product of Q4_K is off by 40%\n", "a product of Q4_K is off by 40%"), (-11, "", r"crashed \(signal 11\)")],
)
def test_a_driver_that_is_wrong_or_crashes_is_not_used_again(opened, trial, tmp_path, code, output, why):
    trial.code, trial.output = code, output
    keep_tuned(tmp_path, library_digest())
    for _ in range(2):
        with pytest.raises(NoMatrixUnits, match=why):
            open_device(ADAPTER, "on", tmp_path)
    with pytest.warns(UserWarning, match=why):
        open_device(ADAPTER, "auto", tmp_path)  # goes on without them
    assert opened == [False]
    assert trial.count == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("bits", "wrong"), [(1, {LATENTS}), (2, {STATE_SPACE}), (3, {LATENTS, STATE_SPACE}), (-64, set())]
)
def test_a_driver_that_fails_one_separate_kernel_uses_matrix_units_for_the_others(opened, trial, tmp_path, bits, wrong):
    """This holds also when the verdict is read again. The wrong kernel is replaced by its plain one."""
    trial.code, trial.output = driver_verdict.PARTLY_RIGHT + bits, "attention over latents is off by 40%\n"
    for _ in range(2):
        can = open_device(ADAPTER, "on", tmp_path).capabilities
        assert (
            matrix_decode_partition(20, Cache("kv", 1, 576, 512), 1, 512, tuning_with_matrix_units(), can) is None
        ) == (LATENTS in wrong)
        with open_synthetic("mamba2-2.7b") as file:
            step = record_step(file, can, tuning_with_matrix_units(), Step(512, prefill=True))
        kernels = {row.kernel.partition(".")[0] for row in step.dispatches}
        assert ("ssm/ssd_matrix" in kernels) == (STATE_SPACE not in wrong)
        assert "linear/gemm_matrix" in kernels
    assert trial.count == 1 and opened == [True, True]


@pytest.mark.usefixtures("opened")
def test_a_trial_that_hangs_counts_as_failed(monkeypatch, tmp_path):
    def hang(*_args, **how):
        raise driver_verdict.subprocess.TimeoutExpired("trial", how["timeout"])

    monkeypatch.setattr(driver_verdict.subprocess, "run", hang)
    with pytest.raises(NoMatrixUnits, match="more than 300 s"):
        require_matrix_units(ADAPTER, tmp_path)


@pytest.mark.usefixtures("opened")
def test_the_verdict_of_another_library_does_not_count(trial, tmp_path, monkeypatch):
    require_matrix_units(ADAPTER, tmp_path)
    [kept] = tmp_path.iterdir()
    assert json.loads(kept.read_text())["text"] == RIGHT
    monkeypatch.setattr(driver_verdict, "library_digest", lambda: "another")
    require_matrix_units(ADAPTER, tmp_path)
    assert trial.count == 2


@pytest.mark.usefixtures("opened")
def test_a_folder_that_cannot_be_written_costs_another_trial(trial, tmp_path):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        require_matrix_units(ADAPTER, tmp_path / "file")
    assert trial.count == 2


def lost(y):
    y[-1, -1] = 0  # an element of the last fragment


def rounded_too_far(y):
    y += 0.01 * np.abs(y).max()


def not_a_number(y):
    y[0, 0] = np.nan


TRIED = ["_products", "_batches", "_experts", "_heads", "_attention"]
TRIED_APART = ["_latents", "_state_space"]


@pytest.mark.parametrize("spoil", [lost, rounded_too_far, not_a_number, None])
@pytest.mark.parametrize("what", TRIED + TRIED_APART)
def test_a_trial_notices_wrong_results_of_a_driver(monkeypatch, capsys, what, spoil):
    expected = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    computed = expected * np.float32(1 + 1e-4)
    if spoil:
        spoil(computed)
    for name in TRIED + TRIED_APART:
        answers = [(name, computed, expected)] if name == what else []
        monkeypatch.setattr(matrix_units_trial, name, lambda _device, answers=answers: iter(answers))
    monkeypatch.setattr(matrix_units_trial, "_answers", iter)
    monkeypatch.setattr(matrix_units_trial, "Device", lambda *_args, **_how: nullcontext())
    monkeypatch.setattr(matrix_units_trial, "list_adapters", lambda: [None])
    wrong = driver_verdict.PARTLY_RIGHT + (1 << TRIED_APART.index(what)) if what in TRIED_APART else 1
    assert matrix_units_trial.main("0") == (wrong if spoil else 0)
    assert capsys.readouterr().out.startswith(what if spoil else "")
