"""Tuning: a faster setting wins in spite of noise, and a wrong one never does."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import PRECISIONS, UNLIMITED, gemv
from rwkv_gpu.kernels.registry import expert_candidates, gemm_candidates
from rwkv_gpu.kernels.tuned import runs
from rwkv_gpu.kernels.tuning import GemmLimits
from rwkv_gpu.measure import search, tune
from rwkv_gpu.measure.check import expert_samples, experts_are_right, linear_is_right, matrix_samples
from rwkv_gpu.measure.compare import Verdict, compare
from rwkv_gpu.measure.tune import Limits
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.golden_files import OWN
from tests.measure.test_synthetic import TINY, TINY_MIXTURE
from tests.measure.tiny import opened_tiny

# Sums over 64 lanes as if they were one subgroup, which is wrong for subgroups of 8 or 32.
WRONG = gemv(64, 64, 2, 1, subgroup_width=64)


def laps(seconds: float, noise: float, seed: int):
    """A clock that drifts while it is read."""
    rng, drift = np.random.default_rng(seed), itertools.count()
    return lambda: seconds * (1 + 0.02 * next(drift)) * float(np.exp(noise * rng.standard_normal()))


def test_a_comparison_detects_a_tenth_despite_noise_and_drift():
    found = [compare(laps(1.0, 0.03, seed), laps(0.9, 0.03, 99 + seed)) for seed in range(40)]
    assert sum(verdict.better for verdict in found) >= 38
    assert all(abs(verdict.gain - 0.1) < 0.07 for verdict in found)


def test_equal_candidates_seldom_win_and_much_slower_ones_are_dropped_at_once():
    found = [compare(laps(1.0, 0.03, seed), laps(1.0, 0.03, 99 + seed)) for seed in range(40)]
    assert sum(verdict.better for verdict in found) <= 6
    assert compare(laps(1.0, 0.0, 0), laps(2.0, 0.0, 0)).rounds == 1


@pytest.mark.parametrize("size", [0, 8, 16, 32, 64])
@pytest.mark.parametrize("more", [False, True])
def test_every_candidate_is_one_that_the_device_can_run(fast_device, size, more):
    can = replace(
        fast_device.capabilities,
        subgroup=size > 0,
        subgroup_size=size,
        subgroup_width=max(1, size),
        f16=more,
        fragment=16 if more and size in (32, 64) else 0,
        software=False,
    )
    plain = default_tuning(can)
    for rows, precision in itertools.product((1, 2, 7, 32, 512), PRECISIONS):
        shapes = list(gemm_candidates(can, rows, precision, packed=True))
        assert len(shapes) == len(set(shapes)) > 0
        assert all(runs(plain.only(shape), can) for shape in shapes)
    assert all(runs(plain.only_experts(shape), can) for shape in expert_candidates(can))
    assert all(runs(plain.changed(map_lanes=count), can) for count in search.lane_counts(can, 64))


def test_shapes_are_checked_as_in_numpy(fast_device):
    tuning = default_tuning(fast_device.capabilities)
    samples = matrix_samples(opened_tiny(TINY))
    assert {sample.format.name for sample in samples} == {"Q4_K", "Q6_K", "F16", "F32"}
    assert linear_is_right(fast_device, tuning.gemm_table[0][1], samples[:1])
    assert experts_are_right(fast_device, tuning.expert_table[0][1], expert_samples(opened_tiny(TINY_MIXTURE)))


def test_samples_are_taken_of_experts_without_a_gate_and_with_both_matrices_in_one(fast_device):
    config = default_tuning(fast_device.capabilities).expert_table[0][1]
    for name in ("tiny-gemma4-experts", "tiny-nemotron_h_moe"):
        with GGUFFile.open(OWN / f"{name}.gguf") as file:
            samples = list(expert_samples(file))
        assert samples
        assert experts_are_right(fast_device, config, samples)


@pytest.fixture
def quick(monkeypatch):
    """Limits tuning to two steps of rows, few candidates and one other value per number. Challengers always win."""
    number = search.Tuner.number

    def one_other(tuner, name, what, counts, work):
        others = [count for count in counts if count != tuner.tuning.value(name)]
        number(tuner, name, what, others[-1:], work)

    monkeypatch.setattr(search, "ROWS", (1,))
    monkeypatch.setattr(search.Tuner, "number", one_other)
    monkeypatch.setattr(search, "compare", lambda *_: Verdict(0.5, 0.0, 9))
    monkeypatch.setattr(search, "lane_counts", lambda *_: [32])
    return monkeypatch


@pytest.fixture
def only_products(quick):
    """The fixture `quick` without trials of numbers."""
    quick.setattr(search.Tuner, "number", lambda *_: None)
    return quick


def test_a_wrong_result_is_reported_and_never_chosen(fast_device, only_products):
    if fast_device.capabilities.subgroup_size == 16:
        pytest.skip("16 lanes are a subgroup here")
    only_products.setattr(search, "gemm_candidates", lambda *_, **__: [WRONG])
    found = run_tuner(fast_device, TINY)
    shapes = {shape for _, shape in found.tuning.gemm_table}
    assert WRONG not in shapes
    matrices = [choice for choice in found.choices if choice.what.startswith("matrices")]
    assert matrices and all(choice.wrong and choice.tried == 0 for choice in matrices)


def test_the_winner_is_saved_and_the_answer_stays(fast_device, quick):
    """The model is a mixture of experts with attention, so that every setting is tuned."""
    last = default_tuning(fast_device.capabilities).expert_table[-1][1]
    other = gemv(32, 8, 2, 1)
    quick.setattr(search, "gemm_candidates", lambda *_, **__: [other])
    quick.setattr(search, "expert_candidates", lambda *_: [last])
    found = run_tuner(fast_device, TINY_MIXTURE)
    assert {shape for _, shape in found.tuning.gemm_table} == {other}
    assert {shape for limits, shape in found.tuning.expert_table if limits.max_run == UNLIMITED} == {last}
    assert (found.tuning.lanes.map_lanes, found.tuning.attention.workgroup_lanes) == (32, 32)
    assert {choice.gain for choice in found.choices} == {0.5}
    file = opened_tiny(TINY_MIXTURE)
    answers = [
        GpuRunner(fast_device, file, load_model(file), context=64, tuning=tuning).step(Batch.of([(0, 0, [5, 6, 7])]))
        for tuning in (default_tuning(fast_device.capabilities), found.tuning)
    ]
    np.testing.assert_allclose(*answers, rtol=0, atol=1e-3 * np.abs(answers[0]).max())


def test_values_that_the_model_never_uses_are_not_tried(fast_device, quick):
    quick.setattr(search, "gemm_candidates", lambda *_, **__: [gemv(32, 8, 2, 1)])
    everywhere, nowhere = GemmLimits(max_width=UNLIMITED - 1), GemmLimits(1, max_out=1)
    rows = tuple((limits, gemv(32, 16, 2, 1)) for limits in (everywhere, nowhere))
    found = run_tuner(fast_device, TINY, rows)
    tried = [choice.what for choice in found.choices if choice.what.startswith("matrices")]
    assert len(tried) == 1 and tried[0].endswith(", 8 rows")
    assert found.tuning.gemm_table[:2] == ((everywhere, gemv(32, 8, 2, 1)), rows[1])


def test_a_winner_by_chance_is_rejected(fast_device, only_products):
    """Each challenger beats the one before it, but the last one does not beat the first."""
    verdicts = itertools.cycle([Verdict(0.5, 0.0, 9), Verdict(0.0, 0.0, 9)])
    only_products.setattr(search, "compare", lambda *_: next(verdicts))
    only_products.setattr(search, "gemm_candidates", lambda *_, **__: [gemv(32, 8, 2, 1)])
    begun = default_tuning(fast_device.capabilities)
    found = run_tuner(fast_device, TINY)
    assert {shape for _, shape in found.tuning.gemm_table} <= {shape for _, shape in begun.gemm_table}
    tried = [choice for choice in found.choices if choice.what.startswith("matrices")]
    assert tried and all(choice.chosen == choice.default and choice.gain == 0 for choice in tried)


def run_tuner(device, shape, rows=()):
    file = opened_tiny(shape)
    tuning = default_tuning(device.capabilities).preferring(*rows)
    runner = GpuRunner(device, file, load_model(file), slots=2, chunk_size=16, context=64, tuning=tuning)
    unhurried = Limits(math.inf, "float16", 8, (8, 16), 2, 2, 60)  # even a busy machine tries all candidates
    return tune.tune(runner, file, unhurried, lambda line: None)


def test_a_device_is_tuned_shown_and_used_by_the_command_line(adapter, tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    model, where = str(OWN / "tiny-rwkv7.gguf"), ["--device", str(adapter.index)]

    def run(*arguments: str):
        result = CliRunner().invoke(cli, [*arguments, *where])
        assert result.exit_code == 0, result.output
        return result.stdout

    run("tune", model, "--minutes", "0.05", "--save", str(tmp_path / "copy.json"))
    [kept] = (tmp_path / "tuned").iterdir()
    assert (tmp_path / "copy.json").read_text() == kept.read_text()
    assert "| what | chosen | instead of | less time |" in run("tune", "--show")
    data = json.loads(kept.read_text())
    kept.write_text(json.dumps(data | {"chunk_size": 4}))
    said = json.loads(run("generate", model, "-p", "abcdef", "-n", "2", "--json", "--chunk-size", "auto"))
    assert said == json.loads(run("generate", model, "-p", "abcdef", "-n", "2", "--json")) | {
        name: value for name, value in said.items() if name.endswith("per_second")
    }
    assert '"fits": true' in run("fit", model, "--chunk-size", "auto", "--json")
