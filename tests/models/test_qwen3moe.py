"""Qwen3-MoE equals llama.cpp's record, however its tokens are fed and its experts are stored."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.expert_config import EXPERT_TILE, expert_gemv
from rwkv_gpu.kernels.tuning import ExpertLimits
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.reference import Reference
from tests.golden_files import golden

OWN = "tiny-qwen3moe.gguf"
GOLDEN = (OWN, "qwen3moe-small-Q4_K_M.gguf", "qwen3moe-small-Q5_K_M.gguf")

# Logits of a standard deviation near 2.5; float32 sums in another order differ by 2e-6 in a layer or two.
RMS = 3e-5
# The same on a GPU, whose exp and inverseSqrt are accurate to some units in the last place.
RMS_GPU = 3e-4
# If logits of the router are very close, they may change places, so that another expert is chosen. A row in which
# the last chosen and the first unchosen expert are closer than this proves nothing, nor do the rows after it.
TIE = 1e-4


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def recorded(path: Path, kind: str = "") -> dict[str, np.ndarray]:
    with np.load(path.with_suffix(f"{kind}.npz")) as file:
        return dict(file)


def splits(count: int) -> dict[str, list[int]]:
    """Returns ways to split a sequence into steps."""
    return {"at once": [count], "in chunks": [5, 1, 17, count - 23], "token by token": [1] * count}


def feed(runner: Runner, ids: Sequence[int], chunks: Sequence[int]) -> np.ndarray:
    """Returns the logits of every token of a new sequence."""
    logits, at = [], 0
    for count in chunks:
        logits.append(runner.step(Batch.of([(0, at, ids[at : at + count])], every=True)))
        at += count
    return np.concatenate(logits)


def on_cpu(path: Path, chunk: int = 48) -> HostRunner:
    with GGUFFile.open(path) as file:
        return HostRunner(file, load_model(file), chunk_size=chunk, context=1024, kv="f32")


def on_gpu(path: Path, device, chunk: int = 48, context: int = 1024, **options) -> GpuRunner:
    with GGUFFile.open(path) as file:
        return GpuRunner(device, file, load_model(file), chunk_size=chunk, context=context, kv="f32", **options)


def certain(path: Path, ids: Sequence[int], monkeypatch, rounding: float = 0.0) -> int:
    """Returns the number of rows before the first near tie of a router."""
    nearest = np.full(len(ids), np.inf)
    route = Reference.route

    def watched(self, x, router, how, **given):
        logits = np.sort(self.linear(x, router, norm=given["norm"]), axis=1)[:, ::-1]
        np.minimum(nearest, logits[:, how.used - 1] - logits[:, how.used], out=nearest)
        return route(self, x, router, how, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Reference, "route", watched)
        feed(on_cpu(path, len(ids)), ids, [len(ids)])
    near = np.flatnonzero(nearest < TIE + rounding)
    return int(near[0]) if len(near) else len(ids)


@pytest.mark.parametrize("name", GOLDEN)
def test_near_ties_of_the_router_leave_enough_rows_to_compare(name, monkeypatch):
    path = golden(name)
    assert certain(path, recorded(path)["tokens"], monkeypatch) >= 40


def test_no_near_tie_is_in_the_long_record(monkeypatch):
    path = golden(GOLDEN[1])
    assert certain(path, recorded(path, ".long")["tokens"], monkeypatch) == 1000


@pytest.mark.parametrize("name", GOLDEN)
def test_the_reference_equals_llama_cpp_however_it_is_fed(name, monkeypatch):
    path = golden(name)
    answers = recorded(path)
    rows = certain(path, answers["tokens"], monkeypatch)
    for how, chunks in splits(len(answers["tokens"])).items():
        logits = feed(on_cpu(path), answers["tokens"], chunks)
        assert rms(logits[:rows] - answers["exact_logits"][:rows]) < RMS, how


@pytest.mark.parametrize("name", GOLDEN)
def test_the_gpu_equals_llama_cpp_however_it_is_fed(fast_device, name, monkeypatch, rounding):
    """test_own_golden runs the first of these cases in every mode."""
    path = golden(name)
    answers = recorded(path)
    rows = certain(path, answers["tokens"], monkeypatch, rounding)
    for how, chunks in splits(len(answers["tokens"])).items():
        logits = feed(on_gpu(path, fast_device), answers["tokens"], chunks)
        assert rms(logits[:rows] - answers["exact_logits"][:rows]) < RMS_GPU + rounding, how


def test_batched_with_others_equals_alone(device):
    """One sequence is prefilled while another decodes, on the GPU. Each runs alone in numpy."""
    path = golden(OWN)
    first, second = recorded(path)["tokens"][:24], recorded(path)["tokens"][24:40]
    gpu = on_gpu(path, device, context=64, slots=2)
    steps = [
        gpu.step(Batch.of([(0, 0, first[:20]), (1, 0, second[:1])], every=True)),
        gpu.step(Batch.of([(1, 1, second[1:]), (0, 20, first[20:21])], every=True)),
        gpu.step(Batch.of([(0, 21, first[21:])], every=True)),
    ]
    got = np.concatenate([steps[0][:20], steps[1][15:], steps[2], steps[0][20:], steps[1][:15]])
    want = np.concatenate([feed(on_cpu(path), ids, [len(ids)]) for ids in (first, second)])
    assert rms(got - want) < RMS_GPU


@pytest.mark.parametrize("where", ["numpy", "gpu"])
def test_gpu_and_reference_equal_llama_cpp_over_1000_tokens(fast_device, where):
    path = golden(GOLDEN[1])
    answers = recorded(path, ".long")
    runner = on_cpu(path, 256) if where == "numpy" else on_gpu(path, fast_device, 256)
    logits = feed(runner, answers["tokens"], [256] * 3 + [232])
    assert rms(logits[answers["rows"]] - answers["exact_logits"]) < (RMS if where == "numpy" else RMS_GPU)


def test_experts_in_several_shards_give_the_same_logits(fast_device, monkeypatch):
    """A binding holds only 5 of the 8 experts, so gate and up are separate, too."""
    path = golden(OWN)
    answers = recorded(path)
    small = replace(fast_device.capabilities, max_binding=200_000)
    monkeypatch.setattr(fast_device, "capabilities", small)
    tuning = default_tuning(small).only_experts(EXPERT_TILE)
    runner = on_gpu(path, fast_device, context=64, tuning=tuning)
    assert len(runner.weights["blk.0.ffn_gate_exps.weight"].shards) == 2
    logits = feed(runner, answers["tokens"], [47])
    assert rms(logits - answers["exact_logits"][:47]) < RMS_GPU


@pytest.mark.parametrize(
    ("rows", "kernels"),
    [
        (1, ["gemm", "route", "expert_gemv", "expert_sum_gemv"]),
        (
            48,
            [
                "rms_norm",
                "gemm",
                "route",
                "expert_sort",
                "expert_gemm_tile",
                "expert_gemm_tile",
                "expert_gather",
            ],
        ),
    ],
)
def test_a_mixture_takes_the_stated_number_of_dispatches(fast_device, rows, kernels):
    each = expert_gemv(64, 64, 4, 1)
    tuning = default_tuning(fast_device.capabilities)
    tuning = tuning.changed(expert_table=((ExpertLimits(1), each), (ExpertLimits(), EXPERT_TILE)))
    runner = on_gpu(golden(GOLDEN[1]), fast_device, tuning=tuning)
    batch = runner.prepare(Batch.of([(0, 0, [1] * rows)]))
    names = [d.name for d in runner.plan_for(batch).dispatches if d.name.startswith("blk.0/")]
    found = [name.split()[-1].split("/")[-1].split(".")[0] for name in names[-len(kernels) :]]
    # If the router's product also norms its input, the tiles' input is normed after it.
    assert sorted(re.sub("^route_.*", "route", re.sub("^ge.*", "gemm", kernel)) for kernel in found) == sorted(kernels)
