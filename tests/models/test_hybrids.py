"""Models with recurrent layers: results do not depend on how tokens are fed, or on other sequences."""

from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.errors import UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.kernels.defaults import default_tuning, gpu_tuning
from rwkv_gpu.measure.quants import QUANTS
from rwkv_gpu.measure.shapes import SHAPES, hybrid, mamba, sizes
from rwkv_gpu.measure.synthetic import noise
from rwkv_gpu.measure.synthetic import opened as opened_noise
from rwkv_gpu.models.registry import Model, load_model
from rwkv_gpu.ops.batch import Batch
from tests.gguf.writer import F32, array_key, number, with_keys, written
from tests.golden_files import OWN
from tests.models.session import OnCpu, feed, float_weights

HYBRIDS = (
    "bailingmoe3", "falcon-h1", "glm5next", "granitehybrid", "jamba", "kimi-k3", "lfm2", "lfm2moe", "mamba", "mamba2",
    "minimax-01", "nemotron_h", "nemotron_h_moe", "plamo2",
)  # fmt: skip
RMS = 3e-5  # sums in another order, over logits of deviation 2.5
INTEGERS = 5e-4  # error of rows as 16-bit integers, relative to the deviation of logits
LONG = 4096
# The effect of 4,096 tokens in float32 rounded in another order, relative to the largest number of a state.
STATES = 2e-3


def opened(arch: str) -> tuple[Model, dict[str, np.ndarray]]:
    with GGUFFile.open(OWN / f"tiny-{arch}.gguf") as file:
        model = load_model(file)
        return model, float_weights(file, model)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def ids_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 260, count).tolist()


@pytest.mark.parametrize("arch", HYBRIDS)
def test_prompts_of_all_sizes_give_the_same_logits_as_token_by_token(arch):
    model, weights = opened(arch)
    for count in (1, 7, 64):
        ids = ids_of(count, count)
        whole = feed(OnCpu(model, weights), ids, [count])
        steps = feed(OnCpu(model, weights), ids, [1] * count)
        assert rms(whole - steps) < RMS


@pytest.mark.parametrize("arch", HYBRIDS)
def test_a_batch_of_different_lengths_gives_the_same_logits_as_alone(arch):
    """One of the sequences contains NaN, which must not affect the others."""
    model, weights = opened(arch)
    texts = [ids_of(count, count) for count in (1, 7, 30)]
    alone = [feed(OnCpu(model, weights), text, [len(text)]) for text in texts]
    batched = OnCpu(model, weights)
    logits = batched.step(Batch.of([(slot, 0, text) for slot, text in enumerate(texts)], every=True))
    ends = np.cumsum([len(text) for text in texts])
    for one, there in zip(alone, np.split(logits, ends[:-1]), strict=True):
        assert rms(one - there) < RMS
    for array in batched.states.values():
        array[1] = np.nan
    more = [text[:3] if len(text) > 3 else ids_of(3) for text in texts]
    together = batched.step(Batch.of([(slot, len(t), m) for slot, (t, m) in enumerate(zip(texts, more, strict=True))]))
    assert np.isnan(together[1]).all()
    for slot in (0, 2):
        text = [*texts[slot], *more[slot]]
        assert rms(feed(OnCpu(model, weights), text, [len(text)])[-1] - together[slot]) < RMS


def test_falcon_mamba_norms_dt_b_and_c(adapter, tmp_path):
    """These norms have no weights, so changing the architecture key of a Mamba file is enough."""
    plain = (OWN / "tiny-mamba.gguf").read_bytes()
    key = b"mamba.ssm.dt_b_c_rms"
    at = plain.index(key) + len(key) + 4  # after the type
    path = tmp_path / "falcon-mamba.gguf"
    path.write_bytes(plain[:at] + b"\x01" + plain[at + 1 :])
    ids, logits = ids_of(20), []
    for file_path, gpu in ((OWN / "tiny-mamba.gguf", False), (path, False), (path, True)):
        with GGUFFile.open(file_path) as file, Device(adapter) as device:
            model = load_model(file)
            runner = GpuRunner(device, file, model) if gpu else HostRunner(file, model)
            logits.append(prefill(runner, ids, every=True))
    assert rms(logits[0] - logits[1]) > 0.01
    assert rms(logits[1] - logits[2]) < 20 * RMS


@pytest.mark.parametrize("name", ["swiglu_clamp_exp", "swiglu_clamp_shexp"])
def test_ling_3_runs_without_a_limit_of_its_experts_and_is_refused_with_one(name, tmp_path):
    for limit in (0.0, 7.0):
        limits = array_key(f"bailingmoe3.{name}", F32, [number(F32, limit)] * 2)
        path = written(tmp_path, with_keys((OWN / "tiny-bailingmoe3.gguf").read_bytes(), [limits]))
        with GGUFFile.open(path) as file:
            if not limit:
                load_model(file)
                continue
            with pytest.raises(UnsupportedModel, match=f"{name}: a clamped SwiGLU is not supported"):
                load_model(file)


@pytest.mark.parametrize("arch", ["mamba", "mamba2", "lfm2"])
def test_states_after_4096_random_tokens_are_finite_and_those_of_numpy(adapter, arch):
    ids = ids_of(LONG)
    with GGUFFile.open(OWN / f"tiny-{arch}.gguf") as file, Device(adapter) as device:
        model = load_model(file)
        options = {"slots": 1, "context": LONG + 64, "kv": "f32", "cache_bytes": 0}
        runners = HostRunner(file, model, **options), GpuRunner(device, file, model, **options)
        logits = [prefill(runner, ids) for runner in runners]
        wanted, found = (runner.read_state(0) for runner in runners)
    assert np.isfinite(logits).all()
    for state in model.states:
        assert np.isfinite(found[state.name]).all()
        scale = np.abs(wanted[state.name]).max()
        assert np.abs(found[state.name] - wanted[state.name]).max() < STATES * scale, state.name
    assert rms(logits[0] - logits[1]) < 20 * RMS


@pytest.mark.parametrize("arch", ["lfm2", "lfm2moe"])
def test_a_convolution_in_a_product_continues_from_steps_of_several_rows_and_from_forks(fast_device, arch, rounding):
    """Prompts and batches convolve in a separate dispatch; a step of one row convolves in the product that reads it."""
    with GGUFFile.open(OWN / f"tiny-{arch}.gguf") as file:
        model = load_model(file)
        tuning = default_tuning(fast_device.capabilities).changed(fuses_token_shift=True)
        options = {"slots": 4, "context": 64, "kv": "f32"}
        runners = GpuRunner(fast_device, file, model, tuning=tuning, **options), HostRunner(file, model, **options)
    ids, lengths, convolves = ids_of(40), dict.fromkeys(range(4), 0), set()
    steps = [{2: 1}, {2: 1}, {2: 1}, {0: 5, 2: 1}, {0: 1}, "fork", {1: 1}, {2: 1}, "back", {2: 1}, {0: 1, 1: 1}, {1: 1}]
    for step in steps:
        if step == "fork":
            for runner in runners:
                handle = runner.store.keep(2, lengths[2])
                runner.store.adopt(1, handle, lengths[2])
                runner.store.release(handle)
            lengths[1] = lengths[2]
        elif step == "back":
            [lengths[2]] = {runner.store.truncate(2, lengths[2] - 1) for runner in runners}
        else:
            rows = {slot: ids[lengths[slot] + slot :][:count] for slot, count in step.items()}
            batch = Batch.of([(slot, lengths[slot], row) for slot, row in rows.items()])
            gpu, cpu = (runner.step(batch) for runner in runners)
            assert rms(gpu - cpu) < RMS + rounding, step
            names = [dispatch.name for dispatch in runners[0].plan_for(batch).dispatches]
            convolves.add((batch.rows > 1, any("conv1d" in name for name in names)))
            lengths |= {slot: lengths[slot] + len(row) for slot, row in rows.items()}
    assert convolves == {(False, False), (True, True)}


@pytest.mark.parametrize(
    ("name", "layers", "fused"),
    [
        ("falcon-h1-3.1b", "p", "attn_output+ssm_out gemv_single_pass"),
        ("lfm2-1.2b", "ca", "shortconv.out_proj gemv_single_pass"),
    ],
)
def test_a_hybrid_decodes_by_the_products_of_a_large_gpu_as_in_numpy(fast_device, name, layers, fused):
    """The step has a merged product and one with a convolution, among the usual kernels for rows of 1,024 numbers."""
    own_memory = fast_device.capabilities.max_workgroup_memory
    can = replace(fast_device.capabilities, software=False, max_workgroup_memory=48 << 10)
    if not can.integer_dot or can.max_invocations < 1024 or own_memory < 32 << 10:
        pytest.skip("this device multiplies one row otherwise")
    mixers = mamba(8, 64, 128) if "p" in layers else {}
    own, numbers = SHAPES[name], sizes(len(layers), 1024, 1536, 16, 4, 64)
    shape = hybrid(own.arch, 1024, layers, numbers | mixers, own.optional)
    with opened_noise(noise(name, shape, QUANTS["q4_k_m"])) as file:
        model, options = load_model(file), {"slots": 2, "context": 64, "kv": "f32"}
        runner = GpuRunner(fast_device, file, model, tuning=gpu_tuning(can), **options)
        numpy_runner = HostRunner(file, model, **options)
        ids, done = ids_of(20), 0
        for count in (7, 1, 1, 3, 1):
            batch = Batch.of([(0, done, ids[done : done + count])])
            wanted = numpy_runner.step(batch)
            assert rms(runner.step(batch) - wanted) < INTEGERS * np.std(wanted)
            done += count
        assert any(dispatch.name.endswith(f"{fused}.q4_k") for dispatch in runner.plan_for(batch).dispatches)
