"""Matrix units are used where the user wants them and a trial saw them right, and nowhere else."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.errors import NoMatrixUnits
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.kernels.tuned import Tuned, save
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.ops import matrix_units_trial
from rwkv_gpu.ops import open_device as module
from rwkv_gpu.ops.latent_partition import matrix_decode_partition
from rwkv_gpu.ops.open_device import RIGHT, library_digest, open_device, require_matrix_units, wants_matrix_units
from rwkv_gpu.ops.vocabulary import Cache
from tests.ops.matrix_plans import WITH_MATRIX_UNITS, tuning_with_matrix_units

LATENTS, STATE_SPACE = module.APART
ADAPTER = Adapter(0, "a GPU", "Vulkan", "DiscreteGPU", "1.0")


@pytest.fixture
def opened(monkeypatch):
    """What devices are opened with; each adapter has matrix units."""
    found = []
    monkeypatch.setattr(module, "fragment_of", lambda adapter: 16)
    monkeypatch.setattr(module, "Device", lambda _adapter, **how: found.append(how.get("matrix_units", False)))
    return found


@pytest.fixture
def trial(monkeypatch):
    """The outcome of a trial, and how often there was one."""
    state = SimpleNamespace(code=0, output="", count=0)

    def run(*_args, **_how):
        state.count += 1
        return SimpleNamespace(returncode=state.code, stdout=state.output, stderr="")

    monkeypatch.setattr(module.subprocess, "run", run)
    return state


def keep_tuned(folder, library: str) -> None:
    found = Tuned(ADAPTER.name, ADAPTER.backend, ADAPTER.driver, "", (), tuning_with_matrix_units(), library=library)
    save(found, ADAPTER, folder)


def test_auto_is_off_until_they_were_tuned(opened, trial, tmp_path):
    open_device(ADAPTER, "auto", tmp_path)
    open_device(ADAPTER, "auto", None)
    assert opened == [False, False]
    assert trial.count == 0


@pytest.mark.usefixtures("trial")
def test_auto_is_on_where_they_were_tuned_with_this_library_and_this_driver(opened, tmp_path):
    keep_tuned(tmp_path, library_digest())
    open_device(ADAPTER, "auto", tmp_path)
    open_device(replace(ADAPTER, driver="2.0"), "auto", tmp_path)
    open_device(ADAPTER, "off", tmp_path)
    open_device(ADAPTER, "auto", tmp_path, portable=True)
    keep_tuned(tmp_path, "another")
    open_device(ADAPTER, "auto", tmp_path)
    assert opened == [True, False, False, False, False]


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


@pytest.mark.parametrize(
    ("bits", "wrong"), [(1, {LATENTS}), (2, {STATE_SPACE}), (3, {LATENTS, STATE_SPACE}), (-64, set())]
)
def test_a_driver_that_gets_only_a_kernel_apart_wrong_has_all_else_on_matrix_units(
    opened, trial, tmp_path, monkeypatch, bits, wrong
):
    """Also when the verdict is read again; the wrong one has its plain kernel."""
    monkeypatch.setattr(module, "Device", lambda *_args, **_how: SimpleNamespace(capabilities=WITH_MATRIX_UNITS))
    trial.code, trial.output = module.PARTLY_RIGHT + bits, "attention over latents is off by 40%\n"
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
    assert trial.count == 1 and opened == []


@pytest.mark.usefixtures("opened")
def test_a_trial_that_hangs_is_a_no(monkeypatch, tmp_path):
    def hang(*_args, **how):
        raise module.subprocess.TimeoutExpired("trial", how["timeout"])

    monkeypatch.setattr(module.subprocess, "run", hang)
    with pytest.raises(NoMatrixUnits, match="more than 300 s"):
        require_matrix_units(ADAPTER, tmp_path)


@pytest.mark.usefixtures("opened")
def test_the_verdict_of_another_library_does_not_count(trial, tmp_path, monkeypatch):
    require_matrix_units(ADAPTER, tmp_path)
    [kept] = tmp_path.iterdir()
    assert json.loads(kept.read_text())["verdict"] == RIGHT
    monkeypatch.setattr(module, "library_digest", lambda: "another")
    require_matrix_units(ADAPTER, tmp_path)
    assert trial.count == 2


@pytest.mark.usefixtures("opened")
def test_a_folder_that_cannot_be_written_costs_another_trial(trial, tmp_path):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        require_matrix_units(ADAPTER, tmp_path / "file")
    assert trial.count == 2


def test_a_tuned_file_says_whether_matrix_units_are_wanted(tmp_path):
    assert not wants_matrix_units(ADAPTER, tmp_path)
    keep_tuned(tmp_path, library_digest())
    assert wants_matrix_units(ADAPTER, tmp_path)
    keep_tuned(tmp_path, "other")
    assert not wants_matrix_units(ADAPTER, tmp_path)


def test_the_library_is_not_read_where_nothing_was_tuned(opened, tmp_path, monkeypatch):
    monkeypatch.delattr(module, "library_digest")  # whoever calls it fails
    open_device(ADAPTER, "auto", tmp_path)
    open_device(ADAPTER, "auto")
    assert opened == [False, False]


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
def test_a_trial_notices_what_a_driver_gets_wrong(monkeypatch, capsys, what, spoil):
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
    wrong = module.PARTLY_RIGHT + (1 << TRIED_APART.index(what)) if what in TRIED_APART else 1
    assert matrix_units_trial.main("0") == (wrong if spoil else 0)
    assert capsys.readouterr().out.startswith(what if spoil else "")
