"""RWKV-7 equals llama.cpp's record, however its tokens are fed, and an inconsistent file is refused."""

from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.parameters import parameters_of
from rwkv_gpu.errors import BadFile, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.loader import load_weights
from rwkv_gpu.kernels.defaults import default_tuning, gpu_tuning
from rwkv_gpu.kernels.gemm_config import gemv, skinny_gemm
from rwkv_gpu.kernels.tuning import GemmLimits
from rwkv_gpu.models.registry import Model, load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.reference import Reference
from tests.cases import slow_unless
from tests.golden import record
from tests.golden_files import NAMES, golden
from tests.models.session import OnCpu, OnGpu, feed, float_weights
from tests.models.tiny_rwkv7 import LAYERS, VOCABULARY, WIDTH, Tensors, tiny_tensors, write

GOLDEN = tuple(name for name in NAMES if name.startswith(("rwkv7", "tiny-rwkv7")))
LONG = tuple(name for name in GOLDEN if golden(name).with_suffix(".long.npz").is_file())
TRAINED = "rwkv7-trained-0.8M-F32.gguf"

# Logits of a standard deviation near 2.5; float32 sums in another order differ by 2e-6 in a layer or two.
RMS = 3e-5
# The same on a GPU, whose exp, tanh and inverseSqrt are accurate to some units in the last place.
RMS_GPU = 3e-4


def opened(path: Path) -> tuple[Model, dict[str, np.ndarray]]:
    with GGUFFile.open(path) as file:
        model = load_model(file)
        return model, float_weights(file, model)


def recorded(path: Path, kind: str = "") -> dict[str, np.ndarray]:
    with np.load(path.with_suffix(f"{kind}.npz")) as file:
        return dict(file)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def splits(count: int) -> dict[str, list[int]]:
    """Returns ways to split a sequence into steps."""
    return {"at once": [count], "in chunks": [5, 1, 17, count - 23], "token by token": [1] * count}


# test_own_golden tests the kernels of portable plans.
modes = pytest.mark.parametrize(
    "device", slow_unless(("fast", "checked"), ("fast", "checked", "portable")), indirect=True, scope="module"
)


# ---------------------------------------------------------------- golden


@pytest.mark.parametrize("name", GOLDEN)
def test_the_reference_equals_llama_cpp_however_it_is_fed(name):
    path = golden(name)
    model, weights = opened(path)
    answers = recorded(path)
    for how, chunks in splits(len(answers["tokens"])).items():
        logits = feed(OnCpu(model, weights), answers["tokens"], chunks)
        assert rms(logits - answers["exact_logits"]) < RMS, how


@pytest.mark.parametrize("name", LONG)
def test_the_reference_equals_llama_cpp_over_1000_tokens(name):
    path = golden(name)
    answers = recorded(path, ".long")
    model, weights = opened(path)
    logits = feed(OnCpu(model, weights), answers["tokens"], [256] * 3 + [232])
    assert rms(logits[answers["rows"]] - answers["exact_logits"]) < RMS


def test_the_trained_model_gives_the_published_answer():
    path = golden(TRAINED)
    model, weights = opened(path)
    answers = recorded(path)
    prompt = answers["published_prompt"]
    logits = feed(OnCpu(model, weights), prompt, [len(prompt)])
    assert np.abs(logits[-1] - answers["published_logits"]).max() < 1e-4
    logits = feed(OnCpu(model, weights), answers["tokens"], [len(answers["tokens"])])
    assert np.abs(logits - answers["exact_logits"]).max() < 1e-5


@pytest.mark.parametrize(
    "name",
    slow_unless(
        ("tiny-rwkv7.gguf", "rwkv7-mini-Q4_K_M.gguf"),
        ["tiny-rwkv7.gguf", "rwkv7-mini-Q4_K_M.gguf", "rwkv7-bf16-Q6_K.gguf", TRAINED],
    ),
)
def test_the_gpu_equals_llama_cpp_however_it_is_fed(fast_device, name):
    """test_own_golden runs the first of these cases in every mode."""
    path = golden(name)
    model, weights = opened(path)
    answers = recorded(path)
    for how, chunks in splits(len(answers["tokens"])).items():
        logits = feed(OnGpu(model, weights, fast_device, max(chunks)), answers["tokens"], chunks)
        assert rms(logits - answers["exact_logits"]) < RMS_GPU, how


@modes
def test_the_gpu_equals_llama_cpp_with_float16_stored_as_float16(device):
    path = golden("rwkv7-mini-F16.gguf")
    model, weights = opened(path)
    with GGUFFile.open(path) as file:
        halves = {name for name, tensor in file.tensors.items() if tensor.format.name == "F16"}
    mixed = {name: array.astype(np.float16) if name in halves else array for name, array in weights.items()}
    answers = recorded(path)
    logits = feed(OnGpu(model, mixed, device, 48), answers["tokens"], [48])
    assert rms(logits - answers["exact_logits"]) < RMS_GPU


def test_the_gpu_equals_llama_cpp_over_1000_tokens(fast_device):
    path = golden("tiny-rwkv7.gguf")
    model, weights = opened(path)
    answers = recorded(path, ".long")
    logits = feed(OnGpu(model, weights, fast_device, 256), answers["tokens"], [256] * 3 + [232])
    assert rms(logits[answers["rows"]] - answers["exact_logits"]) < RMS_GPU


@pytest.mark.parametrize(
    "name",
    slow_unless(
        ("tiny-rwkv7.gguf", "rwkv7-bf16-Q6_K.gguf"),
        ["tiny-rwkv7.gguf", "rwkv7-mini-Q4_K_M.gguf", "rwkv7-bf16-Q6_K.gguf"],
    ),
)
def test_decode_equals_llama_cpp_where_a_time_mix_computes_second_halves_of_loras(fast_device, name):
    path = golden(name)
    answers = recorded(path)
    with GGUFFile.open(path) as file:
        model = load_model(file)
        weights = load_weights(fast_device, file, parameters_of(file, model))
    tuning = default_tuning(fast_device.capabilities).changed(state_lanes_per_row=8, lora_rows=2)
    for rows in (1, 2):
        on_gpu = OnGpu(model, weights, fast_device, rows, tuning=tuning, single=True)
        assert sum("lora_gates" in one.pipeline.name for one in on_gpu.plan.dispatches) == model.hyper.layers
        logits = feed(on_gpu, answers["tokens"], [1] * len(answers["tokens"]))
        assert rms(logits - answers["exact_logits"]) < RMS_GPU


@pytest.mark.parametrize("name", GOLDEN)
def test_the_gpu_equals_llama_cpp_from_the_file_as_it_is_stored(fast_device, name):
    path = golden(name)
    answers = recorded(path)
    with GGUFFile.open(path) as file:
        model = load_model(file)
        weights = load_weights(fast_device, file, parameters_of(file, model))
    logits = feed(OnGpu(model, weights, fast_device, 64), answers["tokens"], [len(answers["tokens"])])
    assert rms(logits - answers["exact_logits"]) < RMS_GPU


@pytest.mark.parametrize("name", ["tiny-rwkv7.gguf", pytest.param("rwkv7-bf16-Q4_K_M.gguf", marks=pytest.mark.slow)])
def test_a_state_does_not_drift_over_4096_tokens_of_random_text(fast_device, name, rounding):
    with GGUFFile.open(golden(name)) as file:
        model = load_model(file)
        runners = GpuRunner(fast_device, file, model, slots=1), HostRunner(file, model, slots=1)
    ids = np.random.default_rng(0).integers(0, model.vocabulary, 4096)
    drift = []
    for at in range(0, 4096, 512):
        logits = [runner.step(Batch.of([(0, at, ids[at : at + 512])])) for runner in runners]
        assert rms(logits[0] - logits[1]) < RMS + rounding
        got, want = (runner.read_state(0) for runner in runners)
        drift.append(max(rms(got[state] - want[state]) / rms(want[state]) for state in want))
    assert max(drift) < 1e-5 + rounding  # the error is 2e-6 after 512 tokens as after 4,096
    assert drift[-1] < 2 * drift[0]


@pytest.mark.parametrize("device", ["fast", "portable"], indirect=True, scope="module")  # many buffers, and few
def test_a_state_continues_between_steps_with_fused_and_with_separate_token_shifts(device):
    """The state is also restored in another slot."""
    with GGUFFile.open(golden("tiny-rwkv7.gguf")) as file:
        model = load_model(file)
        can = device.capabilities
        plain = default_tuning(can) if can.subgroup else default_tuning(can).only(gemv(32, 8, 2, 2))
        tuning = plain.changed(fuses_token_shift=True, token_shift_rows=2, state_lanes_per_row=8)
        if can.subgroup:  # two rows as integers; other options in their default order
            both = skinny_gemm(
                2 * can.subgroup_width,
                can.subgroup_width,
                2,
                2,
                staged=8 * can.subgroup_width,
                subgroup_width=can.subgroup_width,
            )
            one = tuning.gemm_config(1, packed=True)
            tuning = tuning.preferring((GemmLimits(1, packed=True), one), (GemmLimits(2, packed=True), both))
        gpu, cpu = GpuRunner(device, file, model, slots=4, tuning=tuning), HostRunner(file, model, slots=4)
    ids = tokens(40)
    lengths = dict.fromkeys(range(4), 0)
    norms = set()
    for slots in ([2], [2], [0, 2, 3], [2], [3], "save", [1], [1, 2], [0, 1, 2, 3], [0], [1]):
        if slots == "save":
            gpu.write_state(1, lengths[2], gpu.read_state(2))
            cpu.write_state(1, lengths[2], cpu.read_state(2))
            lengths[1] = lengths[2]
            continue
        batch = Batch.of([(slot, lengths[slot], ids[lengths[slot] + slot :][:1]) for slot in slots])
        assert rms(gpu.step(batch) - cpu.step(batch)) < RMS_GPU, slots
        names = [dispatch.name for dispatch in gpu.plan_for(batch).dispatches]
        norms.add((batch.rows, any("norm_shift_mix" in name for name in names)))
        lengths |= {slot: lengths[slot] + 1 for slot in slots}
    roomy = can.max_storage_buffers >= 10  # one of the bindings gives the rows' segments
    assert norms == {(1, False), (2, not roomy), (3, True), (4, True)}


@pytest.mark.parametrize(("name", "count"), [("tiny-rwkv7.gguf", 9), ("rwkv7-mini-Q4_K_M.gguf", 8)])
def test_producers_write_quantised_rows_and_a_layer_takes_8_dispatches(fast_device, name, count):
    """In decode with several sequences, r, k and v are quantised, and the first halves of LoRAs are not.

    A layer takes one more dispatch if v has another format than r and k.
    """
    can = fast_device.capabilities
    if not can.subgroup or can.max_storage_buffers < 9:
        pytest.skip("this device has no subgroups, or binds too little")
    shape = skinny_gemm(
        8 * can.subgroup_width,
        can.subgroup_width,
        4,
        4,
        staged=2 * can.subgroup_width,
        subgroup_width=can.subgroup_width,
        copies=True,
    )
    tuning = gpu_tuning(can).preferring((GemmLimits(8, packed=True), shape))
    with GGUFFile.open(golden(name)) as file:
        model = load_model(file)
        gpu = GpuRunner(fast_device, file, model, slots=6, tuning=tuning.changed(token_shift_rows=1))
        cpu = HostRunner(file, model, slots=6)
    ids = tokens(12)
    for at in range(2):
        batch = Batch.of([(slot, at, ids[2 * slot + at :][:1]) for slot in (3, 0, 5, 1, 2)])
        assert rms(gpu.step(batch) - cpu.step(batch)) < 2e-4
    names = [one.name for one in gpu.plan_for(batch).dispatches if one.name.startswith("blk.1/")]
    assert len(names) == count and not any("quantise_rows" in name for name in names)


# ---------------------------------------------------------------- a tiny random model


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Model, dict[str, np.ndarray]]:
    return opened(write(tmp_path, tiny_tensors()))


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).astype(np.uint32)


@modes
def test_batched_on_the_gpu_equals_alone_on_the_cpu(device, tiny):
    model, weights = tiny
    prompts = {2: tokens(9), 0: tokens(3, seed=1), 3: tokens(23, seed=2)}
    gpu = OnGpu(model, weights, device, 40)
    cuts = {2: 4, 0: 1, 3: 22}
    first = gpu.step(Batch.of([(slot, 0, ids[: cuts[slot]]) for slot, ids in prompts.items()]))
    rest = gpu.step(Batch.of([(slot, cuts[slot], ids[cuts[slot] :]) for slot, ids in prompts.items()]))
    for n, (slot, ids) in enumerate(prompts.items()):
        alone = feed(OnCpu(model, weights), ids, [len(ids)])
        np.testing.assert_allclose(first[n], alone[cuts[slot] - 1], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(rest[n], alone[-1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ranks", [(5, 7, 9, 3), (1, 33, 2, 65)], ids=str)
def test_loras_may_be_of_any_rank(fast_device, tmp_path, ranks):
    model, weights = opened(write(tmp_path, tiny_tensors(ranks=ranks)))
    expected = feed(OnCpu(model, weights), tokens(6), [6])
    for chunks in ([6], [5, 1]):
        got = feed(OnGpu(model, weights, fast_device, max(chunks)), tokens(6), chunks)
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("formats", ["Q8_0 Q8_0 Q8_0 Q8_0", "F32 Q8_0 F16 BF16", "Q8_0 F16 Q4_0 Q5_1"])
def test_loras_may_be_of_any_format(fast_device, tmp_path, formats, rounding):
    values, keys = record.MODELS["rwkv7"]()
    for name, (array, _) in values.items():
        for letter, fmt in zip("wagv", formats.split(), strict=True):
            if name.split(".")[-2] in (f"time_mix_{letter}1", f"time_mix_{letter}2"):
                values[name] = array, fmt
    stored = {
        name: (array if fmt == "F32" else record.blocks(array, fmt, 0).reshape(*array.shape[:-1], -1), fmt)
        for name, (array, fmt) in values.items()
    }
    record.write(tmp_path / "model.gguf", "rwkv7", keys, stored)
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        model = load_model(file)
        runners = GpuRunner(fast_device, file, model, slots=1), HostRunner(file, model, slots=1)
    for start, count in ((0, 16), (16, 1)):
        batch = Batch.of([(0, start, np.arange(start, start + count))], every=True)
        got, want = (runner.step(batch) for runner in runners)
        assert rms(got - want) < RMS + rounding


def decode_layer(path: Path, device: Device) -> list[str]:
    """Returns the dispatches of one layer in decode, with the parameters arranged as on a device."""
    with GGUFFile.open(path) as file:
        model = load_model(file)
        plan = OnGpu(model, load_weights(device, file, parameters_of(file, model)), device, 1).plan
    names = [dispatch.name for dispatch in plan.dispatches if dispatch.name.startswith("blk.1/")]
    print(*names, sep="\n")
    return names


def test_a_layer_of_one_format_takes_8_dispatches_in_decode(fast_device, tmp_path):
    assert len(decode_layer(write(tmp_path, tiny_tensors()), fast_device)) <= 8


def test_a_quantised_layer_takes_9_dispatches_in_decode(fast_device):
    # One more: r, k, v are quantised, and the first halves of the LoRAs are not.
    assert len(decode_layer(golden("rwkv7-bf16-Q4_K_M.gguf"), fast_device)) <= 9


def test_the_model_names_its_states_and_parameters(tiny):
    model, weights = tiny
    assert {state.name: state.shape for state in model.states} == {
        f"blk.{i}.{name}": shape
        for i in range(LAYERS)
        for name, shape in {"wkv": (1, 64, 64), "shift_time": (WIDTH,), "shift_channel": (WIDTH,)}.items()
    }
    assert len({weight.name for weight in model.weights}) == len(model.weights)
    assert {weight.name: weight.shape for weight in model.weights} == {name: a.shape for name, a in weights.items()}


# ---------------------------------------------------------------- files that differ


def logits_of(path: Path) -> np.ndarray:
    model, weights = opened(path)
    return feed(OnCpu(model, weights), tokens(6), [6])


def test_lerps_may_be_six_tensors(tmp_path):
    tensors = tiny_tensors()
    expected = logits_of(write(tmp_path, tensors))
    for i in range(LAYERS):
        fused = tensors.pop(f"blk.{i}.time_mix_lerp_fused.weight")
        tensors |= {f"blk.{i}.time_mix_lerp_{x}.weight": fused[n] for n, x in enumerate("rwkvag")}
    assert np.array_equal(logits_of(write(tmp_path, tensors)), expected)


def test_weights_for_v_in_the_first_layer_are_ignored(tmp_path):
    tensors = tiny_tensors()
    expected = logits_of(write(tmp_path, tensors))
    tensors |= {f"blk.0.time_mix_v{n}.weight": tensors[f"blk.0.time_mix_a{n}.weight"] for n in range(3)}
    assert np.array_equal(logits_of(write(tmp_path, tensors)), expected)


def test_every_later_layer_mixes_in_the_values_of_the_first(tmp_path, monkeypatch):
    """In models of two layers, an error in the choice of the layer would not be visible."""
    values, firsts, inner = [], [], Reference.time_mix

    def time_mix(self, x, *more):
        values.append(x.v)
        firsts.append(x.v_first)
        return inner(self, x, *more)

    monkeypatch.setattr(Reference, "time_mix", time_mix)
    logits_of(write(tmp_path, tiny_tensors(layers=4), block_count=4))
    assert firsts[0] is None
    assert len(firsts) % 4 == 0
    assert all(first is values[0] for first in firsts[1:4])


def without_gate() -> Tensors:
    tensors = tiny_tensors()
    for i in range(LAYERS):
        at = f"blk.{i}.time_mix"
        del tensors[f"{at}_g1.weight"], tensors[f"{at}_g2.weight"]
        tensors[f"{at}_lerp_fused.weight"] = tensors[f"{at}_lerp_fused.weight"][:5]
    return tensors


def test_a_model_without_gates_runs(fast_device, tmp_path):
    model, weights = opened(write(tmp_path, without_gate()))
    expected = feed(OnCpu(model, weights), tokens(6), [6])
    got = feed(OnGpu(model, weights, fast_device, 6), tokens(6), [6])
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", sorted(tiny_tensors()))
def test_a_missing_or_misshapen_tensor_is_named(tmp_path, name):
    tensors = tiny_tensors()
    shape = tensors[name].shape
    tensors[name] = np.zeros((*shape[:-1], 32 + shape[-1]), np.float32)
    with pytest.raises(BadFile, match=rf"tensor '{name}': found the shape .*, expected \[.*\]"):
        opened(write(tmp_path, tensors))
    del tensors[name]
    missed = name.replace("lerp_fused", "lerp_r")  # an older file would have six
    with pytest.raises(BadFile, match=rf"tensor '{missed}': found no such tensor, expected one"):
        opened(write(tmp_path, tensors))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"wkv__head_size": 128}, "embedding_length.*found 64, expected a multiple of the head size 128"),
        ({"block_count": 0}, "block_count"),
        ({"block_count": 2**32 - 1}, "block_count.*found 4294967295, expected an integer from 1 to"),
        ({"block_count": 3}, "blk.2"),
        ({"embedding_length": 128}, "token_embd.weight.*found the shape"),
        ({"feed_forward_length": 97}, "channel_mix_key"),
        ({"token_shift_count": 1}, "token_shift_count"),
    ],
)
def test_sizes_that_disagree_are_named(tmp_path, keys, says):
    with pytest.raises(BadFile, match=says):
        opened(write(tmp_path, tiny_tensors(), **keys))


def test_a_head_size_without_a_kernel_is_unsupported(tmp_path):
    with pytest.raises(UnsupportedModel, match="heads of size 8 are not supported; known: multiples of 16 up to 256"):
        opened(write(tmp_path, tiny_tensors(), wkv__head_size=8))


@pytest.mark.parametrize("size", [16, 32])
def test_heads_of_other_sizes_equal_the_reference(adapter, tmp_path, size):
    path, ids = write(tmp_path, tiny_tensors(), wkv__head_size=size), list(range(1, 25))
    with GGUFFile.open(path) as file:
        model = load_model(file)
        weights = float_weights(file, model)
    assert next(iter(model.states)).shape == (WIDTH // size, size, size)
    wanted = feed(OnCpu(model, weights), ids, [24])
    with Device(adapter) as device:
        can = device.capabilities
        decode = gpu_tuning(can).only(default_tuning(can).gemm_config(1)).changed(fuses_token_shift=False)
        for rows, tuning in ((24, None), (1, None), (1, decode)):
            on_gpu = OnGpu(model, weights, device, rows, tuning=tuning)
            np.testing.assert_allclose(feed(on_gpu, ids, [rows] * (24 // rows)), wanted, 1e-3, 1e-3)
